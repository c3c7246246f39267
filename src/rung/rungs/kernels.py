"""Level 4: Triton kernels in the place of what Inductor makes. Where one was measured to lose is in kernels.toml."""

from __future__ import annotations

import re
from functools import cache

from rung.rungs.graph_rewrites import graph_rewrite
from rung.rungs.proofs import more_often
from rung.rungs.requirements import COMPILED, GPU, HALF, INFERENCE, TRAINING
from rung.rungs.rung import Context, Inapplicable, Requirement
from rung.toml import Row, shipped_rows

WORTH = 1.02  # times Inductor's speed, from which a kernel is worth a try


class Measurement(Row, kw_only=True, frozen=True):
    """A row of kernels.toml, whose comment says what its fields are."""

    kernel: str
    arch: str
    infer: float
    train: float
    shape: str
    source: str


@cache
def measurements() -> tuple[Measurement, ...]:
    return shipped_rows("rungs/kernels.toml", "measured", Measurement)


def measured(kernel: str, arch: str) -> Measurement | None:
    """The row of a kernel for an architecture; None where it was not measured."""
    rows = (row for row in measurements() if row.kernel == kernel)
    return next((row for row in rows if re.fullmatch(row.arch, arch)), None)


def beats_inductor(kernel: str) -> Requirement:
    """Where it was measured not to, it is not tried."""

    def refuses(c: Context) -> Inapplicable | None:
        row = measured(kernel, str(c.facts.arch))
        speed = (row.train if c.training else row.infer) if row else WORTH
        if not row or speed >= WORTH:
            return None
        doing = "in training" if c.training else "going forward"
        return Inapplicable(
            f"on {c.facts.arch} its kernel takes no less time than Inductor's {doing}: {speed:.2f}× its speed at "
            f"{row.shape} ({row.source})."
        )

    return Requirement("a chip on which its kernel is not known to be slower", refuses)


ROPE = graph_rewrite(
    name="triton-rope",
    level=4,
    title="rotary embedding by a Triton kernel",
    contract="reassociated",
    changes="each rotary embedding (interleaved or half-split) is one kernel, forward and backward",
    matches="rotary embedding",
    requires=(COMPILED, beats_inductor("rope")),
    remaining=lambda c: {"pointwise": (0.85, 1.0)},
    effect="the kernel rope_rotate in the trace",
    proofs=(more_often("rope_rotate", "rope_rotate kernels"),),
)

CROSS_ENTROPY = graph_rewrite(
    name="triton-cross-entropy",
    level=4,
    title="cross-entropy by a Triton kernel",
    contract="reassociated",
    changes="the loss reads the logits once forward and once backward, in their own dtype",
    asks_first=(TRAINING,),
    matches="cross-entropy",
    requires=(COMPILED, beats_inductor("cross_entropy")),
    remaining=lambda c: {"pointwise": (0.85, 1.0)},
    effect="the kernel cross_entropy_forward in the trace",
    proofs=(more_often("cross_entropy_forward", "cross_entropy_forward kernels"),),
    replaces=("fused-cross-entropy",),
)

DECODE_ATTENTION = graph_rewrite(
    name="triton-decode-attention",
    level=4,
    title="attention of one query by a Triton kernel",
    contract="reassociated",
    changes="attention of one query per head splits the cache's keys over the multiprocessors (split-K) and skips masked blocks",
    matches="attention of one query under a mask",
    requires=(COMPILED, beats_inductor("decode_attention")),
    remaining=lambda c: {"attention": (0.15, 1.0), "pointwise": (0.85, 1.0)},
    effect="the kernel decode_attention_part in the trace",
    proofs=(more_often("decode_attention_part", "decode_attention_part kernels"),),
)

GEMV = graph_rewrite(
    name="triton-gemv",
    level=4,
    title="products of one row by a Triton kernel",
    contract="reassociated",
    changes="linear layers of one row in 16 bits (GEMV) read their weights with all loads of a thread in flight at once",
    matches="linear layer of one row",
    requires=(COMPILED, GPU, INFERENCE, beats_inductor("gemv")),
    # On one H200 0.71 to 0.97 of the time of cuBLAS' kernels was left (benchmarks/kernels/gemv.py).
    remaining=lambda c: {"gemm": (0.7, 0.98)},
    effect="the kernel gemv_rows in the trace",
    proofs=(more_often("gemv_rows", "gemv_rows kernels"),),
)

BIASED_ATTENTION = graph_rewrite(
    name="biased-attention",
    level=4,
    title="attention with an added bias by a Triton kernel",
    contract="reassociated",
    changes="attention in 16 bits whose mask is numbers, as a bias by the distance of two tokens, is a Triton kernel, which also has the bias' gradient and dropout",
    matches="attention with a bias that is added to its scores",
    requires=(COMPILED, HALF, beats_inductor("biased_attention")),
    # On one H200, forward and backward together, 0.31 to 0.75 of the time of torch's kernels was left (benchmarks/kernels/biased_attention.py).
    remaining=lambda c: {"attention": (0.3, 0.8), "pointwise": (0.9, 1.0)},
    with_passes=("sdpa",),  # which makes calls of what is written by hand
    effect="the kernel biased_attention_forward in the trace",
    proofs=(more_often("biased_attention_forward", "biased_attention_forward kernels"),),
)

KERNELS = (ROPE, CROSS_ENTROPY, DECODE_ATTENTION, GEMV, BIASED_ATTENTION)
