"""Level 5: attention by the kernels that a vendor's library has for one architecture."""

from __future__ import annotations

import re
from dataclasses import replace

from rung.ladder.rungs.proofs import named
from rung.ladder.rungs.rung import Context, Inapplicable, Rung, already

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
        return Inapplicable("cuDNN is for GPUs.")
    if not re.fullmatch(NEW_UNITS, str(c.facts.get("arch"))):
        return Inapplicable("its attention kernels are made for sm90 and later.")
    choices = c.facts.get("attention_choices", {})
    if not choices:
        return Inapplicable("this torch cannot be told an order of attention kernels; 2.7 and later can.")
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
