"""Level 3: rewrites of the graph that Dynamo captures (rung.rewrites)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from rung.plan import Plan
from rung.rungs.precision import allowed
from rung.rungs.proofs import both, counted, fewer, rewritten
from rung.rungs.rung import FOR_GPUS, NOT_FOUND, OTHER_CHIP, OTHER_MODE, Context, Inapplicable, Rung, already
from rung.rungs.tokens import shrinks_by_tokens


def matches(pattern: str, what: str) -> Callable[[Context], Inapplicable | None]:
    """Applies where the survey's capture found something for this pass; else says what it saw."""

    def applies(c: Context) -> Inapplicable | None:
        if c.plan.dynamic:
            return Inapplicable("it needs to know the sizes in the graph, and dynamic-shapes leaves them open.")
        if c.facts["matches"].get(pattern):
            return None
        skipped = [str(reason) for reason in c.facts["skipped"]]
        failed = next((s for s in skipped if s.startswith("capture failed: ")), None)
        if failed:  # nothing was looked at, so nothing can be said about what is there
            return Inapplicable(
                f"the graph could not be captured, so no {what} could be looked for: {failed}", group=NOT_FOUND
            )
        near = [s.removeprefix(f"{pattern}: ") for s in skipped if s.startswith(f"{pattern}: ")]
        if near:
            more = f" (and {len(near) - 1} more)" if len(near) > 1 else ""
            return Inapplicable(f"{what} found, but none that can be rewritten: {near[0]}{more}", group=NOT_FOUND)
        return Inapplicable(f"no {what} found in the captured graph.", group=NOT_FOUND)

    return applies


def with_pass(name: str) -> Callable[[Plan], Plan]:
    return lambda plan: replace(plan, passes=tuple(dict.fromkeys((*plan.passes, name))))


def _written_out(c: Context) -> tuple[float, float]:
    """What hand-written attention takes at least of the time of products and of pointwise kernels, by the sizes in the graph:
    its part of the operations, and its scores through memory once in each direction. Of training, three times that of forward.
    """
    times = 3 if c.training else 1
    found = c.facts.get("written_out", {})
    flop, scores = found.get("flop", 0), found.get("scores", 0)
    total, bandwidth = c.facts.get("workload", {}).get("flops"), c.facts.get("bandwidth")
    pointwise = c.parts.get("pointwise", 0.0)
    moved = 2 * times * scores * (2 if c.half else 4)
    return (
        min(1.0, times * flop / total) if total else 0.0,
        min(1.0, moved / bandwidth * 1e9 / pointwise) if bandwidth and pointwise else 0.0,
    )


def _sdpa_shrinks(c: Context) -> dict[str, tuple[float, float]]:
    if c.share("attention") >= 0.005:
        return {"attention": (0.15, 0.8), "pointwise": (0.85, 1.0), "launch_gap": (0.7, 1.0)}
    # The profile does not tell attention apart, as that of a captured graph: its products and pointwise kernels are among others.
    products, pointwise = _written_out(c)
    return {
        "gemm": (1 - 0.85 * products, 1 - 0.2 * products),
        "pointwise": (min(0.85, 1 - pointwise), 1 - 0.2 * pointwise),
        "launch_gap": (0.7, 1.0),
    }


SDPA = Rung(
    "sdpa", 3, "scaled_dot_product_attention", "reassociated",
    "hand-written attention becomes F.scaled_dot_product_attention, causal and grouped-query where it is",
    matches("sdpa", "hand-written attention"),
    _sdpa_shrinks, with_pass("sdpa"),
    "attention by F.scaled_dot_product_attention", rewritten("sdpa"),
)  # fmt: skip


def _lean_applies(c: Context) -> Inapplicable | None:
    # Once the model's own switch has put SDPA in the place of what the survey found, its masks are there to be seen.
    if dict(c.plan.switches).get("attention") == "sdpa" and c.facts["matches"].get("sdpa"):
        return None
    return matches("lean-sdpa", "attention with a mask tensor or repeated heads")(c)


LEAN_SDPA = Rung(
    "lean-sdpa", 3, "attention without mask tensors and repeated heads", "reassociated",
    "SDPA is told that its mask is the causal one, or none, where that is proved; grouped heads are not repeated",
    _lean_applies,
    lambda c: {"attention": (0.25, 0.95), "pointwise": (0.7, 1.0), "copy": (0.5, 1.0)}, with_pass("lean-sdpa"),
    "attention calls without a mask tensor or a repeat", rewritten("lean-sdpa"),
)  # fmt: skip


def _flex_applies(name: str, what: str) -> Callable[[Context], Inapplicable | None]:
    def applies(c: Context) -> Inapplicable | None:
        if no := matches(name, what)(c):
            return no
        if not c.gpu:
            return Inapplicable("it is for GPUs.", group=FOR_GPUS)
        if not c.plan.compiles:
            return Inapplicable("FlexAttention is a kernel that torch.compile makes, which is not in effect so far.")
        return None

    return applies


FLEX = Rung(
    "flex-attention", 3, "FlexAttention where scores are capped, rows have a sink or a window slides", "reassociated",
    "attention with capped scores (`tanh`), sinks or a sliding window becomes FlexAttention: one kernel, hidden blocks left out",
    _flex_applies("flex-attention", "attention with capped scores, sinks or a sliding window"),
    lambda c: {"attention": (0.2, 0.9), "gemm": (0.9, 1.0), "pointwise": (0.7, 1.0)}, with_pass("flex-attention"),
    "attention by FlexAttention, and no scores between two matrix products", rewritten("flex-attention"), prepares=20.0,
)  # fmt: skip


def _flex_for_sdpa_applies(c: Context) -> Inapplicable | None:
    if c.half:
        return Inapplicable("in 16 bits SDPA's own kernels leave hidden blocks out, and are faster.")
    return _flex_applies("flex-for-sdpa", "attention without a mask or with the causal one")(c)


FLEX_FOR_SDPA = Rung(
    "flex-for-sdpa", 3, "FlexAttention in the place of other attention", "reassociated",
    "attention without a mask, or with the causal one, becomes FlexAttention: hidden blocks are left out in float32, too",
    _flex_for_sdpa_applies,
    lambda c: {"attention": (0.3, 1.5), "gemm": (0.9, 1.0), "pointwise": (0.8, 1.0)},
    lambda p: with_pass("flex-for-sdpa")(with_pass("sdpa")(p)),  # which makes calls of what is written by hand
    "attention by FlexAttention", rewritten("flex-for-sdpa"), prepares=20.0,
)  # fmt: skip


UNCOPIED = Rung(
    "uncopied-attention", 3, "attention reads its inputs where they lie", "reassociated",
    "copies of q, k and v into a dense layout, right before an attention call, are left out: its kernels take strides",
    matches("uncopied-attention", "copy in front of an attention call"),
    lambda c: {"pointwise": (0.9, 1.0), "copy": (0.7, 1.0)}, with_pass("uncopied-attention"),
    "fewer kernels", both(rewritten("uncopied-attention"), fewer("kernels", "kernels")),
)  # fmt: skip

IN_PLACE_CACHE = Rung(
    "in-place-cache", 3, "a cache's new rows written where they lie", "exact",
    "a write to a part of a cache is said as one to the whole, which the compiler does in place; the part is not copied",
    matches("in-place-cache", "write to a part of a cache"),
    lambda c: {"pointwise": (0.4, 1.0), "copy": (0.3, 1.0)}, with_pass("in-place-cache"),
    "fewer kernels", both(rewritten("in-place-cache"), fewer("kernels", "kernels")),
)  # fmt: skip


def _narrow_logits_shrinks(c: Context) -> dict[str, tuple[float, float]]:
    before, after = (float(c.facts.get(k, {}).get("layer_flop", 0)) for k in ("captured", "rewritten"))
    left = after / before if before else 1.0
    return {"gemm": (0.9 * left, min(1.0, 1.1 * left)), "pointwise": (left, 1.0)}


NARROW_LOGITS = Rung(
    "narrow-logits", 3, "logits of the tokens that are read", "reassociated",
    "a layer of which the workload reads some rows only, as the last token's logits, computes only those",
    matches("narrow-logits", "layer whose rows are sliced afterwards"),
    _narrow_logits_shrinks, with_pass("narrow-logits"),
    "fewer rows in the output layer", rewritten("narrow-logits"),
)  # fmt: skip


def _fused_cross_entropy_applies(c: Context) -> Inapplicable | None:
    if not c.training:
        return Inapplicable("inference has no loss.", group=OTHER_MODE)
    return matches("fused-cross-entropy", "cross-entropy over a layer's output")(c)


FUSED_CROSS_ENTROPY = Rung(
    "fused-cross-entropy", 3, "cross-entropy without the logits", "reassociated",
    "output layer and cross-entropy run a few rows at a time, so that the logits of all tokens never exist together",
    _fused_cross_entropy_applies,
    lambda c: {"pointwise": (0.6, 1.0), "gemm": (1.0, 1.1)}, with_pass("fused-cross-entropy"),
    "output layer and loss a few rows at a time", rewritten("fused-cross-entropy"),
)  # fmt: skip

FOLDED_BATCH_NORM = Rung(
    "folded-batch-norm", 3, "batch norm in the convolution", "reassociated",
    "a batch norm in evaluation becomes part of the weights of the convolution before it, worked out in the graph",
    matches("folded-batch-norm", "batch norm after a convolution"),
    lambda c: {"pointwise": (0.7, 1.0)}, with_pass("folded-batch-norm"),
    "no batch norm of its own", rewritten("folded-batch-norm"),
)  # fmt: skip


def _channels_last_applies(c: Context) -> Inapplicable | None:
    if not c.facts.get("captured", {}).get("conv2d"):
        return Inapplicable("no 2-D convolution found in the captured graph.", group=NOT_FOUND)
    if not c.facts.get("contiguous_convolutions"):
        return already(
            "the weights of its convolutions are laid out so, or by their owner, or others hold their memory."
        )
    return None


CHANNELS_LAST = Rung(
    "channels-last", 3, "convolutions with channels innermost", "reassociated",
    "the weights of 2-D convolutions lie in channels-last layout, and activations follow them",
    _channels_last_applies,
    lambda c: {"convolution": (0.6, 1.05), "pointwise": (0.8, 1.0)}, lambda p: replace(p, channels_last=True),
    "weights in channels-last layout", counted("channels_last", "weights in channels-last layout"),
)  # fmt: skip

HOISTED = Rung(
    "hoisted-constants", 3, "tables worked out once", "reassociated",
    "tables that depend on constants only, as the angles of rotary embeddings, are computed once and read",
    matches("hoisted-constants", "table of constants that costs arithmetic"),
    lambda c: {"pointwise": (0.75, 1.0)}, with_pass("hoisted-constants"),
    "tables read and not recomputed", rewritten("hoisted-constants"),
)  # fmt: skip

FUSED_QKV = Rung(
    "fused-qkv", 3, "one GEMM for q, k and v", "reassociated",
    "linear layers that read the same input become one; in inference their weights move next to one another",
    matches("fused-qkv", "sibling projections"),
    shrinks_by_tokens("fused-qkv"), with_pass("fused-qkv"),
    "fewer matrix products", both(rewritten("fused-qkv"), fewer("gemms", "matrix products")),
)  # fmt: skip

FUSED_GATE_UP = Rung(
    "fused-gate-up", 3, "one GEMM for gate and up", "reassociated",
    "the two projections of a gated feed-forward become one",
    matches("fused-gate-up", "gate and up projections"),
    shrinks_by_tokens("fused-gate-up"), with_pass("fused-gate-up"),
    "fewer matrix products", both(rewritten("fused-gate-up"), fewer("gemms", "matrix products")),
)  # fmt: skip

GROUPED = r"sm(90|10\d)"  # where torch's grouped product leaves the sizes on the GPU (rewrites/grouped_mm.py)


def _experts_apply(c: Context) -> Inapplicable | None:
    if no := matches("grouped-experts", "loop over experts")(c):
        return no
    if c.training:
        return Inapplicable(
            "the weights of its experts would be copied together in every step, for their gradients.", group=OTHER_MODE
        )
    if not c.gpu:
        return Inapplicable("it is for GPUs.", group=FOR_GPUS)
    if not re.fullmatch(GROUPED, str(c.facts.get("arch"))):
        return Inapplicable(
            f"torch has no grouped product for {c.facts.get('arch')} that does not wait for the sizes.",
            group=OTHER_CHIP,
        )
    if c.facts.get("dtype") != "torch.bfloat16":
        return Inapplicable(f"torch's grouped product is for weights in bfloat16; these are {c.facts.get('dtype')}.")
    return None


GROUPED_EXPERTS = Rung(
    "grouped-experts", 3, "all experts in one product", "reassociated",
    "tokens are sorted by the expert that they chose, and each layer of all experts is one grouped product",
    _experts_apply,
    lambda c: {"launch_gap": (0.1, 0.7), "idle": (0.2, 1.0), "gemm": (0.6, 1.1), "pointwise": (0.5, 1.0)},
    with_pass("grouped-experts"),
    "no product of an expert's own", both(rewritten("grouped-experts"), fewer("kernels", "kernels")), prepares=20.0,
)  # fmt: skip


def _stream_applies(c: Context) -> Inapplicable | None:
    if no := allowed(c, "bf16"):
        return no
    if not c.plan.bf16 and c.facts.get("amp") != "torch.bfloat16":
        return Inapplicable("it follows from autocast to bfloat16, which is not in effect so far.")
    # Counted in the graph as its author wrote it, mostly without autocast, where no sum mixes precisions yet.
    if not c.facts.get("captured", {}).get("sum"):
        return Inapplicable(
            "no sum of two activations, as a residual is, found in the captured graph.", group=NOT_FOUND
        )
    return None


BF16_STREAM = Rung(
    "bf16-stream", 3, "residual stream in bfloat16", "bf16",
    "what autocast leaves in float32 is added to bfloat16 branches in bfloat16; norms compute in float32 as before",
    _stream_applies,
    # On one H100, 12 layers of width 1024 in training, 8192 tokens, compiled: 0.97 of the step was left, 0.4 GiB less.
    lambda c: {"pointwise": (0.75, 1.0)}, with_pass("bf16-stream"),
    "sums of float32 and bfloat16 taken in bfloat16", rewritten("bf16-stream"),
)  # fmt: skip


def _kept_applies(c: Context) -> Inapplicable | None:
    if no := allowed(c, "bf16"):
        return no
    if c.training:
        return Inapplicable("it is for inference: in training the weights are others at every step.", group=OTHER_MODE)
    if not c.autocast:
        return Inapplicable("it follows from autocast to bfloat16, which is not in effect so far.")
    if c.facts.get("dtype") != "torch.float32":
        return already(f"the weights are {c.facts.get('dtype')}: they are not cast.")
    if c.plan.linears:
        return already("the weights of linear layers are kept in 8 bits: they are not cast.")
    if c.plan.dynamic:
        return Inapplicable("it needs to know the sizes in the graph, and dynamic-shapes leaves them open.")
    return None


def _casts_left(c: Context) -> dict[str, tuple[float, float]]:
    """Six bytes an element, four read and two written, are no longer moved: at the memory's bandwidth, or at half of it."""
    bandwidth, read = c.facts.get("bandwidth"), c.facts.get("weights_read", {}).get("4", 0)
    among = c.parts.get("copy", 0.0) + c.parts.get("pointwise", 0.0)
    if not bandwidth or not among:
        return {"copy": (0.3, 1.0), "pointwise": (0.7, 1.0)}
    spared = min(0.95, 6e9 * read / bandwidth / among)
    left = (max(0.05, 1 - 2 * spared), 1 - spared)
    return {"copy": left, "pointwise": left}


BF16_WEIGHTS = Rung(
    "bf16-weights", 3, "weights kept in bfloat16", "bf16",
    "what autocast makes of the weights in every call is made once and kept, beside the weights: half as much memory again; a weight that was changed is cast anew",
    _kept_applies, _casts_left, with_pass("bf16-weights"),
    "products that read kept weights", rewritten("bf16-weights"),
)  # fmt: skip

SURGERY = (
    SDPA, LEAN_SDPA, FLEX, FLEX_FOR_SDPA, UNCOPIED, IN_PLACE_CACHE, HOISTED, NARROW_LOGITS, FUSED_CROSS_ENTROPY,
    GROUPED_EXPERTS, FUSED_QKV, FUSED_GATE_UP,
    FOLDED_BATCH_NORM, CHANNELS_LAST, BF16_STREAM, BF16_WEIGHTS,
)  # fmt: skip
