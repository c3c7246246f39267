"""Level 5: linear layers in 8 bits, in inference. What a chip has units for is in formats.toml."""

from __future__ import annotations

import re
from dataclasses import replace

from rung.plan import Plan
from rung.rungs.proofs import all_of, counted, reported
from rung.rungs.requirements import BFLOAT16, COMPILED, GPU, INFERENCE, allowed, unless
from rung.rungs.rung import OTHER_CHIP, Context, Inapplicable, Requirement, Rung
from rung.toml import Row, shipped_rows

TUNED = "coordinate_descent_tuning"


class Format(Row, kw_only=True, frozen=True):
    """A row of formats.toml, whose comment says what its fields are."""

    arch: str
    dtype: str
    most: float
    source: str


def fp8_format(arch: str) -> Format | None:
    """The format of an architecture; None where it has no such units."""
    return next(
        (row for row in shipped_rows("rungs/formats.toml", "fp8", Format) if re.fullmatch(row.arch, arch)), None
    )


def _has_units(c: Context) -> Inapplicable | None:
    arch = str(c.facts.arch)
    return None if fp8_format(arch) else Inapplicable(f"{arch} has no units for products in FP8.", group=OTHER_CHIP)


def _int8(plan: Plan) -> Plan:
    """One row times a matrix is a sum like any other, into which widening is fused, where Inductor tunes its launches:
    torch/_inductor/decomposition.py, `mm`."""
    return replace(plan, linears="int8", inductor=tuple({**dict(plan.inductor), TUNED: True}.items()))


EITHER = (
    allowed("fp8"),
    INFERENCE,
    GPU,
    BFLOAT16,
    unless(
        "suitable linear layers",
        lambda c: c.facts.linears,
        "no linear layer can be taken: plain ones, without hooks, whose sizes are multiples of 16.",
    ),
)

FP8 = Rung(
    name="fp8-linears",
    level=5,
    title="linear layers in FP8",
    contract="fp8",
    changes="weights in FP8 with one scale per row, inputs quantized on the fly, products by torch._scaled_mm",
    requires=(*EITHER, Requirement("units for FP8", _has_units)),
    remaining=lambda c: {"gemm": (0.55, 1.0)},
    change=lambda p: replace(p, linears="fp8"),
    effect="products of 8-bit floats",
    proof=counted("eight_bits", "linear layers in FP8"),
    replaces=("int8-weights",),
    prepare_seconds=30.0,
)

INT8 = Rung(
    name="int8-weights",
    level=5,
    title="weights in 8 bits",
    contract="fp8",
    changes="weights in int8 with one scale per row, dequantized inside the matrix product: half the bytes, if memory bandwidth is the limit",
    requires=(
        *EITHER,
        COMPILED,  # uncompiled, it would widen every weight before its product
        unless(
            "one token a step, or max-autotune",
            lambda c: c.facts.tokens == 1 or dict(c.plan.inductor).get("max_autotune"),
            "with more than one token a step, Inductor writes every weight widened before its product, unless max-autotune is in effect.",
        ),
    ),
    remaining=lambda c: {"gemm": (0.6, 1.1)},
    change=_int8,
    effect="products that read 8-bit weights",
    proof=all_of(counted("eight_bits", "linear layers with int8 weights"), reported(f"inductor {TUNED}", True, TUNED)),
    replaces=("fp8-linears",),
    prepare_seconds=30.0,
)

EIGHT_BITS = (FP8, INT8)
