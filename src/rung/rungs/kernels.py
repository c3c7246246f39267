"""Level 4: Triton kernels in the place of what Inductor makes. Where one was measured to lose is in kernels.toml."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from rung.rungs.proofs import both, named, rewritten
from rung.rungs.rung import OTHER_MODE, Context, Inapplicable, Rung
from rung.rungs.surgery import matches, with_pass
from rung.toml import shipped

WORTH = 1.02  # times Inductor's speed, from which a kernel is worth a try


def measurements() -> tuple[Mapping[str, Any], ...]:
    """The rows of kernels.toml."""
    return tuple(shipped("rungs/kernels.toml")["measured"])


def measured(kernel: str, arch: str) -> Mapping[str, Any] | None:
    """The row of a kernel for an architecture; None where it was not measured."""
    rows = (row for row in measurements() if row["kernel"] == kernel)
    return next((row for row in rows if re.fullmatch(row["arch"], arch)), None)


def _applies(kernel: str, pattern: str, what: str, *, trained: bool) -> Callable[[Context], Inapplicable | None]:
    def applies(c: Context) -> Inapplicable | None:
        if trained and not c.training:
            return Inapplicable("inference has no loss.", group=OTHER_MODE)
        if no := matches(pattern, what)(c):
            return no
        if not c.plan.compiles:
            return Inapplicable("it is to beat what torch.compile makes, which is not in effect so far.")
        row = measured(kernel, str(c.facts.get("arch")))
        mode = "train" if c.training else "infer"
        if row and row[mode] < WORTH:
            doing = "in training" if c.training else "going forward"
            return Inapplicable(
                f"on {c.facts['arch']} its kernel takes no less time than Inductor's {doing}: {row[mode]:.2f} times its speed at "
                f"{row['shape']} ({row['source']})."
            )
        return None

    return applies


ROPE = Rung(
    "triton-rope", 4, "rotary embedding by a Triton kernel", "reassociated",
    "rotary embeddings, in pairs or in halves, are one kernel each, forward and backward",
    _applies("rope", "triton-rope", "rotary embedding", trained=False),
    lambda c: {"pointwise": (0.85, 1.0)}, with_pass("triton-rope"),
    "the kernel rope_rotate in the trace", both(rewritten("triton-rope"), named("rope_rotate", "rope_rotate kernels")),
)  # fmt: skip

CROSS_ENTROPY = Rung(
    "triton-cross-entropy", 4, "cross-entropy by a Triton kernel", "reassociated",
    "the loss reads the logits once going forward and once going back, in the dtype in which they were made",
    _applies("cross_entropy", "triton-cross-entropy", "cross-entropy", trained=True),
    lambda c: {"pointwise": (0.85, 1.0)}, with_pass("triton-cross-entropy"),
    "the kernel cross_entropy_forward in the trace",
    both(rewritten("triton-cross-entropy"), named("cross_entropy_forward", "cross_entropy_forward kernels")),
    replaces=("fused-cross-entropy",),
)  # fmt: skip

DECODE_ATTENTION = Rung(
    "triton-decode-attention", 4, "attention of one query by a Triton kernel", "reassociated",
    "one query a head meets a cache whose keys are shared out among the multiprocessors; hidden blocks are not read",
    _applies("decode_attention", "triton-decode-attention", "attention of one query under a mask", trained=False),
    lambda c: {"attention": (0.15, 1.0), "pointwise": (0.85, 1.0)}, with_pass("triton-decode-attention"),
    "the kernel decode_attention_part in the trace",
    both(rewritten("triton-decode-attention"), named("decode_attention_part", "decode_attention_part kernels")),
)  # fmt: skip

KERNELS = (ROPE, CROSS_ENTROPY, DECODE_ATTENTION)
