"""Level 1: the format in which matrix products are computed."""

from __future__ import annotations

from dataclasses import replace

from rung.plan import CONTRACTS
from rung.rungs.proofs import told
from rung.rungs.rung import FOR_GPUS, NOT_ALLOWED, OTHER_CHIP, Context, Inapplicable, Rung, already


def allowed(c: Context, contract: str) -> Inapplicable | None:
    """None where the climb's numeric contract covers this one."""
    if CONTRACTS.index(c.numerics) < CONTRACTS.index(contract):  # type: ignore[arg-type]
        return Inapplicable(
            f"the numeric contract is {c.numerics}; allow it with --numerics {contract}.", group=NOT_ALLOWED
        )
    return None


def turned_on_the_way(c: Context) -> Inapplicable | None:
    """None where products are TF32 on a chip that takes their factors in one order only (PTX, wgmma), as Hopper does."""
    if c.facts.get("arch") != "sm90":
        return Inapplicable("it is for sm90, whose TF32 products take factors in one order only.", group=OTHER_CHIP)
    if c.autocast or c.facts.get("dtype") != "torch.float32":
        return Inapplicable("products are not computed in float32: in 16 bits the chip takes factors in both orders.")
    if not c.tf32:
        return Inapplicable("float32 products do not use TF32 so far.")
    return None


def _tf32_applies(c: Context) -> Inapplicable | None:
    if not c.gpu:
        return Inapplicable("TF32 is a GPU's matrix format.", group=FOR_GPUS)
    if no := allowed(c, "tf32"):
        return no
    if c.rates and c.rates["tf32"] <= c.rates["fp32"]:
        return Inapplicable("this chip's TF32 rate is its float32 rate.", group=OTHER_CHIP)
    if c.plan.bf16:
        return already("autocast already runs the matrix products in bfloat16.")
    if c.facts["matmul_precision"] != "highest":
        return already(f"the workload already sets float32 matmul precision to {c.facts['matmul_precision']!r}.")
    if c.facts.get("dtype") in ("torch.bfloat16", "torch.float16"):
        return already(f"the model's weights are {c.facts['dtype']}: no product is computed in float32.")
    return None


def _tf32_shrinks(c: Context) -> dict[str, tuple[float, float]]:
    ratio = c.rates["fp32"] / c.rates["tf32"] if c.rates else 0.25
    # Not convolutions: cuDNN's may use TF32 by torch's own default.
    return {"gemm": (ratio * 0.9, min(1.0, ratio * 3.5)), "attention": (0.4, 1.0)}


def _bf16_applies(c: Context) -> Inapplicable | None:
    if no := allowed(c, "bf16"):
        return no
    if c.facts["amp"]:
        return already(f"the workload already runs under autocast ({c.facts['amp']}).")
    if c.facts["dtype"] != "torch.float32":
        return already(f"the model's weights are already {c.facts['dtype']}.")
    return None


def _bf16_shrinks(c: Context) -> dict[str, tuple[float, float]]:
    ratio = c.rates["tf32" if c.plan.tf32 else "fp32"] / c.rates["bf16"] if c.rates else 0.5
    parts = {
        "gemm": (min(1.0, ratio * 1.1), min(1.0, ratio * 2.5)),
        "attention": (0.25, 0.8),
        "convolution": (0.4, 1.05),
    }
    if c.plan.compiles:
        return {**parts, "pointwise": (0.5, 1.0)}
    # Without torch.compile every cast is a kernel: copies took three times as long in `small` on one H100, the rest 0.9 times.
    return {**parts, "pointwise": (0.8, 1.05), "copy": (1.0, 3.0)}


TF32 = Rung(
    "tf32", 1, "TF32 matrix products", "tf32", 'torch.set_float32_matmul_precision("high")',
    _tf32_applies, _tf32_shrinks, lambda p: replace(p, tf32=True),
    "float32 products may use TF32", told("precision", "high", "float32 matmul precision"),
)  # fmt: skip

BF16 = Rung(
    "bf16", 1, "bfloat16 autocast", "bf16", "forward and loss under torch.autocast(dtype=torch.bfloat16)",
    _bf16_applies, _bf16_shrinks, lambda p: replace(p, bf16=True),
    "the step runs under autocast", told("autocast", "torch.bfloat16", "autocast"),
)  # fmt: skip
