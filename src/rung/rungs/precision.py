"""Level 1: the format in which matrix products are computed."""

from __future__ import annotations

from dataclasses import replace

from rung.rungs.proofs import reported
from rung.rungs.requirements import GPU, allowed
from rung.rungs.rung import OTHER_CHIP, Context, Inapplicable, Requirement, Rung, TimeFactors, already


def _float32_products(c: Context) -> Inapplicable | None:
    if c.rates and c.rates["tf32"] <= c.rates["fp32"]:
        return Inapplicable("this chip's TF32 rate is its float32 rate.", group=OTHER_CHIP)
    if c.plan.bf16:
        return already("autocast already runs the matrix products in bfloat16.")
    if c.facts.matmul_precision != "highest":
        return already(f"the workload already sets float32 matmul precision to {c.facts.matmul_precision!r}.")
    if c.facts.dtype in ("torch.bfloat16", "torch.float16"):
        return already(f"the model's weights are {c.facts.dtype}: no product is computed in float32.")
    return None


# On gfx950 TunableOp may choose TF32 kernels of hipBLASLt that lose alpha where beta is not 0 (ROCm/rocm-libraries#12226,
# open): what that changes, the verification refuses.
def _tf32_factors(c: Context) -> TimeFactors:
    ratio = c.rates["fp32"] / c.rates["tf32"] if c.rates else 0.25
    # Not convolutions: cuDNN's may use TF32 by torch's own default.
    return {"gemm": (ratio * 0.9, min(1.0, ratio * 3.5)), "attention": (0.4, 1.0)}


def _not_under_autocast(c: Context) -> Inapplicable | None:
    if c.facts.amp:
        return already(f"the workload already runs under autocast ({c.facts.amp}).")
    if c.facts.dtype != "torch.float32":
        return already(f"the model computes in {c.facts.dtype} by itself.")
    return None


def _bf16_factors(c: Context) -> TimeFactors:
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
    name="tf32",
    level=1,
    title="TF32 matrix products",
    contract="tf32",
    changes='torch.set_float32_matmul_precision("high")',
    requires=(GPU, allowed("tf32"), Requirement("products in float32", _float32_products)),
    remaining=_tf32_factors,
    change=lambda p: replace(p, tf32=True),
    effect="float32 products may use TF32",
    proof=reported("precision", "high", "float32 matmul precision"),
)

BF16 = Rung(
    name="bf16",
    level=1,
    title="bfloat16 autocast",
    contract="bf16",
    changes="forward and loss under torch.autocast(dtype=torch.bfloat16)",
    requires=(allowed("bf16"), Requirement("float32 weights without autocast", _not_under_autocast)),
    remaining=_bf16_factors,
    change=lambda p: replace(p, bf16=True),
    effect="the step runs under autocast",
    proof=reported("autocast", "torch.bfloat16", "autocast"),
)
