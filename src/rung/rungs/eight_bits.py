"""Level 5: linear layers in 8 bits, in inference. What a chip has units for is in formats.toml."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rung.plan import Plan
from rung.rungs.precision import allowed
from rung.rungs.proofs import both, counted, told
from rung.rungs.rung import FOR_GPUS, OTHER_CHIP, OTHER_MODE, Context, Inapplicable, Rung
from rung.toml import shipped

TUNED = "coordinate_descent_tuning"


def fp8_format(arch: str) -> Mapping[str, Any] | None:
    """The row of formats.toml for an architecture; None where it has no such units."""
    return next((row for row in shipped("rungs/formats.toml")["fp8"] if re.fullmatch(row["arch"], arch)), None)


def _applies(c: Context) -> Inapplicable | None:
    if no := allowed(c, "fp8"):
        return no
    if c.training:
        return Inapplicable("it is for inference.", group=OTHER_MODE)
    if not c.gpu:
        return Inapplicable("it is for GPUs.", group=FOR_GPUS)
    if c.facts.get("dtype") != "torch.bfloat16" and not c.plan.bf16:
        return Inapplicable("it takes the place of products in bfloat16; nothing runs in bfloat16 so far.")
    if not c.facts.get("linears"):
        return Inapplicable("no linear layer can be taken: plain ones, without hooks, whose sizes are multiples of 16.")
    return None


def _fp8_applies(c: Context) -> Inapplicable | None:
    if no := _applies(c):
        return no
    if not fp8_format(str(c.facts.get("arch"))):
        return Inapplicable(f"{c.facts.get('arch')} has no units for products in FP8.", group=OTHER_CHIP)
    return None


def _int8_applies(c: Context) -> Inapplicable | None:
    if no := _applies(c):
        return no
    if not c.plan.compiles:
        return Inapplicable("uncompiled, it would widen every weight before its product; it needs torch.compile.")
    if c.facts.get("tokens") != 1 and not dict(c.plan.inductor).get("max_autotune"):
        return Inapplicable(
            "with more than one token a step, Inductor writes every weight widened before its product, unless "
            "max-autotune is in effect."
        )
    return None


def _int8(plan: Plan) -> Plan:
    """One row times a matrix is a sum like any other, into which widening is fused, where Inductor tunes its launches:
    torch/_inductor/decomposition.py, `mm`."""
    return replace(plan, linears="int8", inductor=tuple({**dict(plan.inductor), TUNED: True}.items()))


FP8 = Rung(
    "fp8-linears", 5, "linear layers in FP8", "fp8",
    "weights in FP8 with a scale a row, inputs brought to FP8 as they come, products by torch._scaled_mm",
    _fp8_applies, lambda c: {"gemm": (0.55, 1.0)}, lambda p: replace(p, linears="fp8"),
    "products of 8-bit floats", counted("eight_bits", "linear layers in FP8"),
    replaces=("int8-weights",), prepares=30.0,
)  # fmt: skip

INT8 = Rung(
    "int8-weights", 5, "weights in 8 bits", "fp8",
    "weights as int8 with a scale a row, widened inside of the product: half the bytes, where bytes are what counts",
    _int8_applies, lambda c: {"gemm": (0.6, 1.1)}, _int8,
    "products that read 8-bit weights",
    both(counted("eight_bits", "linear layers with int8 weights"), told(f"inductor {TUNED}", True, TUNED)),
    replaces=("fp8-linears",), prepares=30.0,
)  # fmt: skip

EIGHT_BITS = (FP8, INT8)
