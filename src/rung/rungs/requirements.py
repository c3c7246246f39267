"""Preconditions that several rungs share, and the sentence that says which of them does not hold."""

from __future__ import annotations

import re
from collections.abc import Callable

from rung.plan import CONTRACTS
from rung.rungs.rung import (
    FOR_GPUS,
    NOT_ALLOWED,
    NOT_FOUND,
    ONE_PROCESS,
    OTHER_CHIP,
    OTHER_MODE,
    SEVERAL_RANKS,
    Context,
    Inapplicable,
    Requirement,
    already,
)

LEAST_SHARE = 0.02  # of the step


def unless(needs: str, holds: Callable[[Context], object], why: str, group: str = "") -> Requirement:
    """Refuses with one sentence unless `holds` of the context is true."""
    return Requirement(needs, lambda c: None if holds(c) else Inapplicable(why, group=group))


GPU = unless("a GPU", lambda c: c.gpu, "it is for GPUs.", FOR_GPUS)
TRAINING = unless("training", lambda c: c.training, "it is for training.", OTHER_MODE)
INFERENCE = unless("inference", lambda c: not c.training, "it is for inference.", OTHER_MODE)
COMPILED = unless("torch.compile", lambda c: c.plan.compiles, "it needs torch.compile, which is not in effect so far.")
AUTOCAST = unless("autocast", lambda c: c.autocast, "it needs autocast to 16 bits, which is not in effect so far.")
RANKS = unless(
    "several ranks (--nproc-per-node)",
    lambda c: c.distributed,
    "it is for several ranks: climb with --nproc-per-node.",
    SEVERAL_RANKS,
)
DDP = unless(
    "data-parallel ranks (ddp)",
    lambda c: c.facts.parallel == "ddp",
    "it is for DistributedDataParallel, and the ranks share the weights out.",
)
FSDP2 = unless(
    "ranks with sharded weights (fsdp2)",
    lambda c: c.facts.parallel == "fsdp2",
    "it is for fully_shard (parallel='fsdp2'), and the ranks train otherwise.",
)
TENSOR_PARALLEL = unless(
    "ranks of one tensor-parallel model",
    lambda c: c.facts.parallel == "tensor",
    "it is for a model that all ranks compute together (tensor parallelism), and each computes the whole.",
)
WHOLE_WEIGHTS = unless(
    "",
    lambda c: not (c.distributed and c.facts.parallel in ("fsdp2", "tensor")),
    "each rank holds a part of the weights, and it works on whole ones.",
    ONE_PROCESS,
)
BFLOAT16 = unless(
    "products in bfloat16",
    lambda c: c.facts.dtype == "torch.bfloat16" or c.plan.bf16,
    "it is for products in bfloat16, and nothing runs in bfloat16 so far.",
)
HALF = unless(
    "products in 16 bits",
    lambda c: c.half_precision,
    "it is for products in 16 bits, and nothing runs in 16 bits so far.",
)
REFUSED = unless(
    "compiled code that verification refused",
    lambda c: c.rounding_refused,
    "it makes nothing faster: a climb adds it to a plain mode that verification refused in 16 bits.",
)
KNOWN_SIZES = unless(
    "",
    lambda c: not c.plan.dynamic,
    "it needs to know the sizes in the graph, and dynamic-shapes leaves them open.",
)
CAST_WEIGHTS = Requirement(
    "weights that autocast casts in every step",
    lambda c: (
        already(f"the weights are {c.facts.dtype}: they are not cast.")
        if c.facts.dtype != "torch.float32"
        else already("the weights of linear layers are kept in 8 bits: they are not cast.")
        if c.plan.linears
        else None
    ),
)


def one_process(why: str) -> Requirement:
    """Refuses several ranks. why: as a clause behind "it is for one process"."""
    return unless("one process", lambda c: not c.distributed, f"it is for one process: {why}.", ONE_PROCESS)


def unless_backward_is_compiled(why: str) -> Requirement:
    """Refuses beside the rung ddp-compiled-backward."""
    return unless("", lambda c: not c.plan.exchange.compiled_backward, why)


def allowed(contract: str) -> Requirement:
    """The climb's numeric contract covers this one."""

    def refuses(c: Context) -> Inapplicable | None:
        if CONTRACTS.index(c.numerics) >= CONTRACTS.index(contract):
            return None
        return Inapplicable(
            f"the numeric contract is {c.numerics}; allow it with --numerics {contract}.", group=NOT_ALLOWED
        )

    return Requirement(f"--numerics {contract}", refuses)


def chip(pattern: str, names: str, why: str) -> Requirement:
    """pattern: an expression for the whole name of the architecture; why: what others lack."""
    return Requirement(
        names,
        lambda c: (
            None
            if re.fullmatch(pattern, str(c.facts.arch))
            else Inapplicable(f"it is for {names}: {why} (this is {c.facts.arch}).", group=OTHER_CHIP)
        ),
    )


def share_of(part: str) -> Requirement:
    """A part of the profile takes enough of the step for something to be gained; where there is no profile, it may."""

    def refuses(c: Context) -> Inapplicable | None:
        if not c.parts or c.share(part) >= LEAST_SHARE:
            return None
        return Inapplicable(f"less than {LEAST_SHARE:.0%} of the step is {part.replace('_', ' ')}.")

    return Requirement(f"{LEAST_SHARE:.0%} of the step in {part.replace('_', ' ')}", refuses)


def finds_match(rewrite: str, what: str) -> tuple[Requirement, Requirement]:
    """The survey's capture found something for this rewrite; else it says what it saw."""

    def refuses(c: Context) -> Inapplicable | None:
        if c.facts.matches.get(rewrite):
            return None
        failed = next((s for s in c.facts.skipped if s.startswith("capture failed: ")), None)
        if failed:  # nothing was looked at, so nothing can be said about what is there
            return Inapplicable(
                f"the graph could not be captured, so no {what} could be looked for: {failed}", group=NOT_FOUND
            )
        near = [s.removeprefix(f"{rewrite}: ") for s in c.facts.skipped if s.startswith(f"{rewrite}: ")]
        if near:
            others = f" (and {len(near) - 1} more)" if len(near) > 1 else ""
            return Inapplicable(f"{what} found, but none that can be rewritten: {near[0]}{others}", group=NOT_FOUND)
        return Inapplicable(f"no {what} found in the captured graph.", group=NOT_FOUND)

    return KNOWN_SIZES, Requirement(what, refuses)


def captured(operator: str, what: str) -> Requirement:
    """The captured graph has such an operator."""
    return unless(
        what.partition(",")[0],
        lambda c: (c.facts.captured or {}).get(operator),
        f"no {what} found in the captured graph.",
        NOT_FOUND,
    )


def _no_tf32_products(c: Context) -> Inapplicable | None:
    if c.autocast or c.facts.dtype != "torch.float32":
        return Inapplicable("products are not computed in float32: in 16 bits the chip takes factors in both orders.")
    return None if c.tf32 else Inapplicable("float32 products do not use TF32 so far.")


# Such a chip takes the factors of TF32 products in one order only (PTX, wgmma).
TF32_ON_HOPPER = (
    chip("sm90", "sm90", "its TF32 products take factors in one order only"),
    Requirement("products in TF32", _no_tf32_products),
)
