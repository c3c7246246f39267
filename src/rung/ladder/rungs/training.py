"""Level 2: what training alone has: the optimizer."""

from __future__ import annotations

from dataclasses import replace

from rung.ladder.rungs.proofs import both, named, told
from rung.ladder.rungs.rung import Context, Inapplicable, Rung, already


def _fused_applies(c: Context) -> Inapplicable | None:
    if not c.training:
        return Inapplicable("inference has no optimizer.")
    if c.facts["optimizer_is_fused"]:
        return already("the optimizer is already fused.")
    if not c.facts["optimizer_can_fuse"]:
        return Inapplicable(f"{c.facts['optimizer']} has no fused form in this torch.")
    return None


FUSED_OPTIMIZER = Rung(
    "fused-optimizer", 2, "fused optimizer", "reassociated", "the same optimizer with fused=True",
    _fused_applies,
    lambda c: {"optimizer": (0.25, 0.8), "launch_gap": (0.7, 1.0)},
    lambda p: replace(p, fused_optimizer=True),
    "the optimizer steps in fused kernels",
    both(told("optimizer_fused", True, "fused"), named(r"(?i)_fused_(adam|sgd|adagrad)|Fused(Adam|SGD)", "fused steps")),
    core=True,
)  # fmt: skip
