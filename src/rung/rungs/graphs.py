"""Level 2: launches without the host, by CUDA and HIP graphs."""

from __future__ import annotations

from dataclasses import replace

from rung.rungs.proofs import both, counted, occurs
from rung.rungs.requirements import GPU
from rung.rungs.rung import Context, Inapplicable, Requirement, Rung

GRAPH_LAUNCH = r"^(cuda|hip)GraphLaunch"


def _replayable(c: Context) -> Inapplicable | None:
    if c.training and (why := c.facts.optimizer_not_captured):
        return Inapplicable(f"{why}.")
    if hooked := c.facts.hooked:
        return Inapplicable(f"{hooked} has a hook, whose Python no replay would run.")
    return None


CAPTURE = Rung(
    name="capture",
    level=2,
    title="whole step as one graph",
    contract="exact",
    changes="forward, backward and optimizer replayed as one CUDA or HIP graph per input shape",
    requires=(GPU, Requirement("no hooks, and an optimizer that can be captured", _replayable)),
    shrinks=lambda c: {"launch_gap": (0.0, 0.25), "idle": (0.2, 1.0)},
    change=lambda p: replace(p, capture=True),
    effect="the step is a graph's replay",
    proof=both(counted("captured", "shapes captured"), occurs(GRAPH_LAUNCH, "graph launches")),
    replaces=("reduce-overhead",),
    core=True,
)
