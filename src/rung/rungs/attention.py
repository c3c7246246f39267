"""Level 5: attention by the kernels that a vendor's library has for one architecture."""

from __future__ import annotations

from dataclasses import replace

from rung.rungs.graph_rewrites import graph_rewrite
from rung.rungs.proofs import more_often
from rung.rungs.requirements import COMPILED, GPU, TF32_ON_HOPPER, chip, unless
from rung.rungs.rung import Context, Inapplicable, Requirement, Rung, TimeFactors, already

CUDNN = "CUDNN_ATTENTION"
NO_ORDER = Inapplicable("this torch cannot be told an order of attention kernels; 2.6 and later can.")


def _calls(c: Context) -> bool:
    """Whether the best so far calls SDPA."""
    by_itself = bool((c.facts.captured or {}).get("sdpa"))
    rewritten = bool(c.facts.matches.get("sdpa")) and "sdpa" in c.plan.passes
    return by_itself or rewritten or dict(c.plan.switches).get("attention") == "sdpa"


def _cudnn_comes_first(c: Context) -> Inapplicable | None:
    choices = c.facts.attention_choices or {}
    if not choices:
        return NO_ORDER
    if choices["default"] == CUDNN:
        return already("torch asks cuDNN first by itself on this device.")
    if choices["cudnn first"] != CUDNN:
        return Inapplicable("cuDNN refuses even a plain call here: torch without it, an old one, or switched off.")
    return None


CUDNN_ATTENTION = Rung(
    name="cudnn-attention",
    level=5,
    title="attention by cuDNN",
    contract="reassociated",
    changes="scaled_dot_product_attention tries cuDNN first, and falls back to the other kernels",
    requires=(
        GPU,
        # It uses the matrix units of Hopper and later as they were made for; torch's flash kernels are those of the architecture before
        # (FlashAttention 2). On older chips both are alike. Source: cuDNN release notes, 9.0 and later.
        chip(r"sm(9\d|1\d\d)", "sm90 and later", "cuDNN's attention kernels are made for those"),
        Requirement("a torch that asks another library first", _cudnn_comes_first),
        unless("a call of SDPA", _calls, "nothing calls scaled_dot_product_attention so far."),
        unless(
            "half precision", lambda c: c.half_precision, "it takes half precision only; nothing runs in it so far."
        ),
    ),
    remaining=lambda c: {"attention": (0.5, 1.0)},
    change=lambda p: replace(p, attention="cudnn"),
    effect="attention kernels of cuDNN",
    proof=more_often(r"(?i)cudnn.*(sdpa|fmha|attention)", "attention kernels of cuDNN"),
    prepare_seconds=10.0,
)


def _cudnn_not_first(c: Context) -> Inapplicable | None:
    choices = c.facts.attention_choices or {}
    if not choices:
        return NO_ORDER
    first = CUDNN if c.plan.attention == "cudnn" else choices["default"]
    return None if first == CUDNN else Inapplicable("torch does not ask cuDNN for attention first on this device.")


def _short_factors(c: Context) -> TimeFactors:
    calls = (c.facts.captured or {}).get("sdpa", 0) + c.facts.matches.get("sdpa", 0)
    return {"attention": (0.3, 0.8) if c.facts.matches.get("short-attention", 0) >= calls else (0.5, 1.0)}


SHORT_ATTENTION = graph_rewrite(
    name="short-attention",
    level=5,
    title="memory-efficient attention for short sequences",
    contract="reassociated",
    changes="scaled_dot_product_attention over at most 64 queries and keys, as in windows of an image, tries the memory-efficient kernel before cuDNN's",
    asks_first=(GPU, Requirement("a torch that asks cuDNN first", _cudnn_not_first)),
    matches="attention over at most 64 queries and keys",
    requires=(
        unless(
            "half precision",
            lambda c: c.half_precision,
            "in float32 torch takes the memory-efficient kernel by itself.",
        ),
    ),
    # On one H200: 0.30 to 0.72 of the time going forward was left, 0.53 to 0.79 going back (benchmarks/kernels/short_attention.py).
    remaining=_short_factors,
    with_passes=("sdpa",),  # which makes calls of what is written by hand
    effect="memory-efficient attention kernels",
    proofs=(more_often(r"(?i)fmha_cutlass", "memory-efficient attention kernels"),),
)

TF32_ATTENTION = graph_rewrite(
    name="tf32-attention",
    level=5,
    title="TF32 attention kernel for Hopper",
    contract="reassociated",
    changes="causal or unmasked attention in float32 is a Triton kernel that skips masked blocks and copies its operands into the "
    "layout in which sm90 multiplies TF32",
    asks_first=(GPU, *TF32_ON_HOPPER),
    matches="attention in float32 without a mask or with the causal one",
    requires=(COMPILED,),
    # Hand-written attention is products and elementwise kernels in a profile.
    remaining=lambda c: {"attention": (0.3, 1.0), "gemm": (0.85, 1.0), "pointwise": (0.75, 1.0), "copy": (0.8, 1.0)},
    with_passes=("sdpa",),  # which makes calls of what is written by hand
    effect="the kernel float32_attention_forward in the trace",
    proofs=(more_often("float32_attention_forward", "float32_attention_forward kernels"),),
    replaces=("flex-for-sdpa",),
    prepare_seconds=20.0,
)
