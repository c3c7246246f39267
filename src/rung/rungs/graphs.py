"""Level 2: launches without the host, by CUDA and HIP graphs."""

from __future__ import annotations

from dataclasses import replace

from rung.rungs.proofs import both, counted, occurs
from rung.rungs.rung import FOR_GPUS, Context, Inapplicable, Rung

GRAPH_LAUNCH = r"^(cuda|hip)GraphLaunch"


def _capture_applies(c: Context) -> Inapplicable | None:
    if not c.gpu:
        return Inapplicable("a CPU has no graphs to launch.", group=FOR_GPUS)
    if c.training and (why := c.facts.get("optimizer_not_captured")):
        return Inapplicable(f"{why}.")
    if hooked := c.facts.get("hooked"):
        return Inapplicable(f"{hooked} has a hook, whose Python no replay would run.")
    return None


CAPTURE = Rung(
    "capture", 2, "whole step as one graph", "exact",
    "forward, backward and optimizer replayed as one CUDA or HIP graph per input shape",
    _capture_applies,
    lambda c: {"launch_gap": (0.0, 0.25), "idle": (0.2, 1.0)},
    lambda p: replace(p, capture=True),
    "the step is a graph's replay", both(counted("captured", "shapes captured"), occurs(GRAPH_LAUNCH, "graph launches")),
    replaces=("reduce-overhead",), core=True,
)  # fmt: skip
