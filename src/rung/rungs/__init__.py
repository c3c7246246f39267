"""The ladder: each rung says when it applies, what it should give, what it changes in the plan, and how that shows."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from rung.errors import UsageError
from rung.plan import Plan
from rung.renamed import REMOVED, current_name
from rung.rungs.aiter import AITER_GEMM
from rung.rungs.attention import CUDNN_ATTENTION, SHORT_ATTENTION, TF32_ATTENTION
from rung.rungs.compiling import CAPTURE, COMPILE, DYNAMIC, FOREACH_WEIGHT_CASTS, REGIONS
from rung.rungs.convolutions import CONVOLUTIONS
from rung.rungs.eight_bits import EIGHT_BITS
from rung.rungs.environment import ENVIRONMENT
from rung.rungs.epilogues import EPILOGUES
from rung.rungs.graph_rewrites import GRAPH_REWRITES
from rung.rungs.inductor import INDUCTOR
from rung.rungs.kernels import KERNELS
from rung.rungs.own_switches import OWN_SWITCHES
from rung.rungs.precision import BF16, TF32
from rung.rungs.ranks import ASYNC_TENSOR_PARALLEL, CORES, EXCHANGE
from rung.rungs.rung import (
    MIDDLE,
    Context,
    Counters,
    Evidence,
    Inapplicable,
    Prediction,
    Proof,
    Requirement,
    Rung,
    TimeFactors,
    speedup_at,
)
from rung.rungs.training import (
    DEPTHWISE_DGRAD,
    FLOAT32_GRADIENTS,
    FUSED_DGRAD,
    FUSED_OPTIMIZER,
    K_MAJOR_WGRAD,
    RECOMPUTE,
)

__all__ = [
    "BY_NAME",
    "LADDER",
    "MIDDLE",
    "Context",
    "Counters",
    "Evidence",
    "Inapplicable",
    "Prediction",
    "Proof",
    "Requirement",
    "Rung",
    "TimeFactors",
    "plan_of",
    "rungs_named",
    "speedup_at",
    "with_rung",
]

# Where predictions are equal, in this order: what frees the step from its launches comes before what makes kernels
# faster, because nothing else can be seen before; the precision before rewrites, because it changes which rewrites pay.
LADDER: tuple[Rung, ...] = (
    TF32,
    COMPILE,
    FUSED_OPTIMIZER,
    CAPTURE,
    BF16,
    *EXCHANGE,
    ASYNC_TENSOR_PARALLEL,
    CORES,
    *OWN_SWITCHES,
    *GRAPH_REWRITES,
    *CONVOLUTIONS,
    *EPILOGUES,
    CUDNN_ATTENTION,
    SHORT_ATTENTION,
    TF32_ATTENTION,
    *KERNELS,
    FLOAT32_GRADIENTS,
    FOREACH_WEIGHT_CASTS,
    FUSED_DGRAD,
    DEPTHWISE_DGRAD,
    K_MAJOR_WGRAD,
    *INDUCTOR,
    REGIONS,
    DYNAMIC,
    RECOMPUTE,
    *EIGHT_BITS,
    AITER_GEMM,
    *ENVIRONMENT,
)

BY_NAME = {rung.name: rung for rung in LADDER}


def with_rung(names: Sequence[str], rung: Rung) -> list[str]:
    """These rungs with one more, without those that it takes the place of."""
    return [*(n for n in names if n not in rung.replaces and rung.name not in BY_NAME[n].replaces), rung.name]


def plan_of(names: Sequence[str]) -> Plan:
    """The plan that these rungs add up to, in this order."""
    plan = Plan()
    for name in names:
        plan = rungs_named([name])[0].change(plan)
    return plan


def rungs_named(names: Sequence[str]) -> list[Rung]:
    """The rungs of these names, or of those that they had in an earlier version; an unknown name is refused with those that are like
    it, and one that comes twice, whose change would be made twice."""
    names = [current_name(name) for name in names]
    for name in names:
        if name in REMOVED:
            raise UsageError(f"the rung {name} was removed, since {REMOVED[name]}: leave it out.")
        if name not in BY_NAME:
            near = difflib.get_close_matches(name, BY_NAME, n=3)
            known = f"did you mean {' or '.join(near)}?" if near else "`rung rungs` lists those that there are."
            raise UsageError(f"there is no rung {name!r}; {known}")
        if names.count(name) > 1:
            raise UsageError(f"{name} is named {names.count(name)} times; once is enough.")
    return [BY_NAME[name] for name in names]
