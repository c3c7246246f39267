"""Level 5: linear layers by the kernels that aiter's tables name for their shapes (AMD gfx942 and gfx950)."""

from __future__ import annotations

from typing import Any

from rung.rungs.proofs import rewritten
from rung.rungs.rung import FOR_GPUS, NOT_FOUND, OTHER_MODE, Context, Inapplicable, Rung, already
from rung.rungs.surgery import with_pass

JOINS = ("fused-qkv", "fused-gate-up")
BEST, WORST = 0.85, 1.03  # of the time of the products that are tuned, as a first guess


def _applies(c: Context) -> Inapplicable | None:
    if c.training:
        return Inapplicable("it is for inference.", group=OTHER_MODE)
    if not c.gpu:
        return Inapplicable("it is for GPUs.", group=FOR_GPUS)
    facts = c.facts.get("aiter")
    if facts is None:
        return Inapplicable("the graph could not be captured, so its products are not known.")
    if facts["missing"]:
        return Inapplicable(f"{facts['missing']}.")
    if c.facts.get("dtype") != "torch.bfloat16" and not c.plan.bf16:
        return Inapplicable("its tables are for products in bfloat16; nothing runs in bfloat16 so far.")
    if not facts["tuned"] and not facts["left"]:
        return Inapplicable("no linear layer found in the captured graph.", group=NOT_FOUND)
    if not facts["tuned"]:
        return already(_nothing_tuned(facts))
    return None


def _nothing_tuned(facts: dict[str, Any]) -> str:
    """Why aiter would change nothing: reasons that differ are told with how many products each concerns."""
    reasons = [str(why) for _, why, *_ in facts["left"]]
    counts = ", ".join(f"{reasons.count(why)}: {why}" for why in dict.fromkeys(reasons))
    return (
        f"aiter would not compute any of the {len(reasons)} shapes of linear layers with a tuned kernel on "
        f"{facts['chip']} ({counts}){tuning_hint(facts)}."
    )


def tuning_hint(facts: dict[str, Any]) -> str:
    return f"; to tune those without a row: {facts['command']}" if facts.get("command") else ""


def _shrinks(c: Context) -> dict[str, tuple[float, float]]:
    facts = c.facts["aiter"]
    joined = any(name in c.plan.passes for name in JOINS)
    flop = {key: sum(_flop(*entry, joined=joined) for entry in facts[key]) for key in ("tuned", "left")}
    share = flop["tuned"] / (sum(flop.values()) or 1)
    return {"gemm": (1 - share * (1 - BEST), 1 + share * (WORST - 1))}


def _flop(shape: tuple[int, int, int, bool], said: str, layers: tuple[int, int] = (1, 1), *, joined: bool) -> int:
    """Of all layers of a shape; a layer that is joined counts as what it was or as what it became, and not as both."""
    m, n, k, _ = shape
    return m * n * k * layers[joined]


AITER_GEMM = Rung(
    "aiter-gemm", 5, "tuned matrix products of aiter", "reassociated",
    "linear layers whose shape is in aiter's tables are computed by the kernel that was the fastest when it was tuned",
    _applies, _shrinks, with_pass("aiter-gemm"),
    "products by the kernels that aiter's tables name", rewritten("aiter-gemm"), prepares=30.0,
)  # fmt: skip
