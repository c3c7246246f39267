"""Level 5: attention by the kernels that a vendor's library has for one architecture."""

from __future__ import annotations

import re
from dataclasses import replace

from rung.rungs.precision import turned_on_the_way
from rung.rungs.proofs import both, named, rewritten
from rung.rungs.rung import FOR_GPUS, OTHER_CHIP, Context, Inapplicable, Rung, already
from rung.rungs.surgery import matches, with_pass

# cuDNN's attention uses the matrix units of Hopper and later as they were made for; torch's flash kernels are those of
# the architecture before (FlashAttention 2). On older chips both are alike. Source: cuDNN release notes, 9.0 and later.
NEW_UNITS = r"sm(9\d|1\d\d)"
CUDNN = "CUDNN_ATTENTION"


def _calls(c: Context) -> bool:
    """Whether the best so far calls SDPA."""
    by_itself = bool(c.facts.get("captured", {}).get("sdpa"))
    rewritten = bool(c.facts.get("matches", {}).get("sdpa")) and "sdpa" in c.plan.passes
    return by_itself or rewritten or dict(c.plan.switches).get("attention") == "sdpa"


def _applies(c: Context) -> Inapplicable | None:
    if not c.gpu:
        return Inapplicable("cuDNN is for GPUs.", group=FOR_GPUS)
    if not re.fullmatch(NEW_UNITS, str(c.facts.get("arch"))):
        return Inapplicable("its attention kernels are made for sm90 and later.", group=OTHER_CHIP)
    choices = c.facts.get("attention_choices", {})
    if not choices:
        return Inapplicable("this torch cannot be told an order of attention kernels; 2.6 and later can.")
    if choices["default"] == CUDNN:
        return already("torch asks cuDNN first by itself on this device.")
    if choices["cudnn first"] != CUDNN:
        return Inapplicable("cuDNN refuses even a plain call here: torch without it, an old one, or switched off.")
    if not _calls(c):
        return Inapplicable("nothing calls scaled_dot_product_attention so far.")
    if not c.half:
        return Inapplicable("it takes half precision only; nothing runs in it so far.")
    return None


CUDNN_ATTENTION = Rung(
    "cudnn-attention", 5, "attention by cuDNN", "reassociated",
    "scaled_dot_product_attention asks cuDNN first; what cuDNN refuses goes to the other kernels as before",
    _applies,
    lambda c: {"attention": (0.5, 1.0)}, lambda p: replace(p, attention="cudnn"),
    "attention kernels of cuDNN", named(r"(?i)cudnn.*(sdpa|fmha|attention)", "attention kernels of cuDNN"),
    prepares=10.0,
)  # fmt: skip


def _tf32_applies(c: Context) -> Inapplicable | None:
    if not c.gpu:
        return Inapplicable("its kernel is for GPUs.", group=FOR_GPUS)
    if no := turned_on_the_way(c):
        return no
    if no := matches("tf32-attention", "attention in float32 without a mask or with the causal one")(c):
        return no
    if not c.plan.compiles:
        return Inapplicable("it is to beat what torch.compile makes, which is not in effect so far.")
    return None


TF32_ATTENTION = Rung(
    "tf32-attention", 5, "attention in TF32 by a kernel for Hopper", "reassociated",
    "attention in float32, without a mask or with the causal one, is a Triton kernel: hidden blocks are left out, and factors "
    "are copied into the one order in which sm90 multiplies TF32",
    _tf32_applies,
    # Hand-written attention is products and elementwise kernels in a profile.
    lambda c: {"attention": (0.3, 1.0), "gemm": (0.85, 1.0), "pointwise": (0.75, 1.0), "copy": (0.8, 1.0)},
    lambda p: with_pass("tf32-attention")(with_pass("sdpa")(p)),  # which makes calls of what is written by hand
    "the kernel float32_attention_forward in the trace",
    both(rewritten("tf32-attention"), named("float32_attention_forward", "float32_attention_forward kernels")),
    replaces=("flex-for-sdpa",), prepares=20.0,
)  # fmt: skip
