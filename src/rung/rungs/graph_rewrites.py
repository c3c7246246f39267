"""Level 3: rewrites of the graph that Dynamo captures (rung.rewrites), and how a rung of such a rewrite is declared."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rung.plan import Plan
from rung.rungs.proofs import Prove, all_of, fewer, reported, rewritten
from rung.rungs.requirements import (
    AUTOCAST,
    CAST_WEIGHTS,
    COMPILED,
    GPU,
    INFERENCE,
    KNOWN_SIZES,
    TRAINING,
    WHOLE_WEIGHTS,
    allowed,
    captured,
    chip,
    finds_match,
    unless,
    unless_backward_is_compiled,
)
from rung.rungs.rung import NOT_FOUND, Context, Inapplicable, Requirement, Rung, TimeFactors
from rung.rungs.tokens import factors_by_tokens


def graph_rewrite(
    *,
    name: str,
    matches: str = "",
    asks_first: tuple[Requirement, ...] = (),
    requires: tuple[Requirement, ...] = (),
    with_passes: tuple[str, ...] = (),
    proofs: tuple[Prove, ...] = (),
    **declared: Any,
) -> Rung:
    """A rung whose change is the rewrite of its name, and whose proof is that it rewrote something.

    matches       what the rewrite looks for in the captured graph, if the survey looked for it.
    asks_first    preconditions that come before the question whether there is a match; `requires` come after it.
    with_passes   other rewrites that it takes into the plan.
    proofs        further ones, beside that something was rewritten.
    declared      the rest, as of `Rung`.
    """

    def change(plan: Plan) -> Plan:
        return replace(plan, passes=tuple(dict.fromkeys((*plan.passes, *with_passes, name))))

    has_match = finds_match(name, matches) if matches else ()
    return Rung(
        name=name,
        requires=(WHOLE_WEIGHTS, *asks_first, *has_match, *requires),
        change=change,
        proof=all_of(rewritten(name), *proofs) if proofs else rewritten(name),
        **declared,
    )


BACKWARD_BY_INDUCTOR = unless_backward_is_compiled(
    "backward is compiled together with the exchange (ddp-compiled-backward), where it would not be in effect."
)


def inductor_rewrite(
    *, name: str, reported_as: str, proof: Prove, requires: tuple[Requirement, ...] = (), **declared: Any
) -> Rung:
    """A rung whose change is the rewrite of its name in Inductor's own graphs. reported_as: what the worker reports of it, in words;
    proof: from the trace or the memory, beside that report; declared: the rest, as of `Rung`."""
    return Rung(
        name=name,
        requires=(WHOLE_WEIGHTS, BACKWARD_BY_INDUCTOR, *requires),
        change=lambda p: replace(p, inductor_passes=(*p.inductor_passes, name)),
        proof=all_of(reported(f"pass {name}", True, reported_as), proof),
        **declared,
    )


def _hand_written_shares(c: Context) -> tuple[float, float]:
    """What hand-written attention takes at least of the time of products and of pointwise kernels, by the sizes in the graph:
    its part of the operations, and its scores through memory once in each direction. Of training, three times that of forward.
    """
    times = 3 if c.training else 1
    attention = c.facts.written_out or {}
    flop, scores = attention.get("flop", 0), attention.get("scores", 0)
    total, bandwidth = c.facts.flops, c.facts.bandwidth
    pointwise = c.parts.get("pointwise", 0.0)
    moved = 2 * times * scores * (2 if c.half_precision else 4)
    return (
        min(1.0, times * flop / total) if total else 0.0,
        min(1.0, moved / bandwidth * 1e9 / pointwise) if bandwidth and pointwise else 0.0,
    )


def _sdpa_factors(c: Context) -> TimeFactors:
    if c.share("attention") >= 0.005:
        return {"attention": (0.15, 0.8), "pointwise": (0.85, 1.0), "launch_gap": (0.7, 1.0)}
    # The profile does not tell attention apart, as that of a captured graph: its products and pointwise kernels are among others.
    products, pointwise = _hand_written_shares(c)
    return {
        "gemm": (1 - 0.85 * products, 1 - 0.2 * products),
        "pointwise": (min(0.85, 1 - pointwise), 1 - 0.2 * pointwise),
        "launch_gap": (0.7, 1.0),
    }


SDPA = graph_rewrite(
    name="sdpa",
    level=3,
    title="scaled_dot_product_attention",
    contract="reassociated",
    changes="hand-written attention becomes F.scaled_dot_product_attention, with is_causal and enable_gqa where they apply",
    matches="hand-written attention",
    remaining=_sdpa_factors,
    effect="attention by F.scaled_dot_product_attention",
)

_, MASKED = finds_match("sdpa-no-mask", "attention with a mask tensor or repeated heads")


def _no_mask_to_drop(c: Context) -> Inapplicable | None:
    # Once the model's own switch has put SDPA in the place of what the survey found, its masks are there to be seen.
    switched = dict(c.plan.switches).get("attention") == "sdpa" and c.facts.matches.get("sdpa")
    return None if switched else MASKED.refuses(c)


SDPA_NO_MASK = graph_rewrite(
    name="sdpa-no-mask",
    level=3,
    title="attention without mask tensors and repeated heads",
    contract="reassociated",
    changes="a provably causal (or empty) mask becomes is_causal=True (or no mask); heads of grouped-query attention are not repeated",
    requires=(KNOWN_SIZES, Requirement(MASKED.needs, _no_mask_to_drop)),
    remaining=lambda c: {"attention": (0.25, 0.95), "pointwise": (0.7, 1.0), "copy": (0.5, 1.0)},
    effect="attention calls without a mask tensor or a repeat",
)

FLEX = graph_rewrite(
    name="flex-attention",
    level=3,
    title="FlexAttention for capped scores, sinks and sliding windows",
    contract="reassociated",
    changes="attention with capped scores (`tanh`), sinks or a sliding window becomes FlexAttention: one kernel that skips masked blocks",
    matches="attention with capped scores, sinks or a sliding window",
    requires=(GPU, COMPILED),
    remaining=lambda c: {"attention": (0.2, 0.9), "gemm": (0.9, 1.0), "pointwise": (0.7, 1.0)},
    effect="attention by FlexAttention, and no scores between two matrix products",
    prepare_seconds=20.0,
)

FLEX_FOR_SDPA = graph_rewrite(
    name="flex-for-sdpa",
    level=3,
    title="FlexAttention instead of SDPA",
    contract="reassociated",
    changes="causal or unmasked attention becomes FlexAttention, which skips masked blocks in float32, too",
    asks_first=(
        unless(
            "products in float32",
            lambda c: not c.half_precision,
            "in 16 bits SDPA's own kernels leave hidden blocks out, and are faster.",
        ),
    ),
    matches="attention without a mask or with the causal one",
    requires=(GPU, COMPILED),
    remaining=lambda c: {"attention": (0.3, 1.5), "gemm": (0.9, 1.0), "pointwise": (0.8, 1.0)},
    with_passes=("sdpa",),  # which makes calls of what is written by hand
    effect="attention by FlexAttention",
    prepare_seconds=20.0,
)

STRIDED_SDPA_INPUTS = graph_rewrite(
    name="strided-sdpa-inputs",
    level=3,
    title="strided attention inputs",
    contract="reassociated",
    changes="removes copies of q, k and v into a dense layout before an attention call, whose kernels accept strides",
    matches="copy in front of an attention call",
    remaining=lambda c: {"pointwise": (0.9, 1.0), "copy": (0.7, 1.0)},
    effect="fewer kernels",
    proofs=(fewer("kernels", "kernels"),),
)

IN_PLACE_CACHE = graph_rewrite(
    name="in-place-cache",
    level=3,
    title="cache updates in place",
    contract="exact",
    changes="a write to a slice of a cache becomes a write to the whole cache, which the compiler does in place without a copy",
    matches="write to a part of a cache",
    remaining=lambda c: {"pointwise": (0.4, 1.0), "copy": (0.3, 1.0)},
    effect="fewer kernels",
    proofs=(fewer("kernels", "kernels"),),
)

HOISTED_CONSTANTS = graph_rewrite(
    name="hoisted-constants",
    level=3,
    title="constant tables computed once",
    contract="reassociated",
    changes="tables that depend only on constants, such as rotary angles, are computed once (constant folding)",
    matches="table of constants that costs arithmetic",
    remaining=lambda c: {"pointwise": (0.75, 1.0)},
    effect="tables read and not recomputed",
)


def _narrow_logits_factors(c: Context) -> TimeFactors:
    before, after = ((counts or {}).get("layer_flop", 0) for counts in (c.facts.captured, c.facts.rewritten))
    left = after / before if before else 1.0
    return {"gemm": (0.9 * left, min(1.0, 1.1 * left)), "pointwise": (left, 1.0)}


def _besides_batch_norms(c: Context) -> Inapplicable | None:
    # Of each folded batch norm there are two, a weight and a bias.
    if c.facts.matches.get("folded-weights", 0) > 2 * c.facts.matches.get("folded-batch-norm", 0):
        return None
    return Inapplicable(
        "there are no more of them than folded batch norms have, and `folded-batch-norm` keeps those.", group=NOT_FOUND
    )


FOLDED_WEIGHTS = graph_rewrite(
    name="folded-weights",
    level=3,
    title="values of weights computed once",
    contract="reassociated",
    changes="what is computed of weights alone, such as standardized weights and tables of attention biases, is computed once (constant folding), "
    "and again when a weight has changed; the values take memory of their own",
    asks_first=(INFERENCE,),  # in training the weights are others at every step
    matches="value that depends on weights alone",
    requires=(Requirement("such values besides folded batch norms", _besides_batch_norms),),
    # Its kernels are small beside the others, and there are many.
    remaining=lambda c: {"pointwise": (0.7, 1.0), "copy": (0.7, 1.0)},
    effect="no kernel that computes them",
)

NARROW_LOGITS = graph_rewrite(
    name="narrow-logits",
    level=3,
    title="only the logits that are read",
    contract="reassociated",
    changes="a layer computes only the rows that the workload reads, such as the last token's logits",
    matches="layer whose rows are sliced afterwards",
    remaining=_narrow_logits_factors,
    effect="fewer rows in the output layer",
)

FUSED_CROSS_ENTROPY = graph_rewrite(
    name="fused-cross-entropy",
    level=3,
    title="chunked cross-entropy",
    contract="reassociated",
    changes="output layer and cross-entropy run in chunks of rows, so the logits of all tokens never exist at once",
    asks_first=(TRAINING,),
    matches="cross-entropy over a layer's output",
    remaining=lambda c: {"pointwise": (0.6, 1.0), "gemm": (1.0, 1.1)},
    effect="output layer and loss a few rows at a time",
)

GROUPED_EXPERTS = graph_rewrite(
    name="grouped-experts",
    level=3,
    title="grouped experts",
    contract="reassociated",
    changes="tokens are sorted by expert, and each layer of all experts is one grouped matrix product",
    matches="loop over experts",
    requires=(
        INFERENCE,  # in training, the weights of its experts would be copied together in every step, for their gradients
        GPU,
        chip(
            r"sm(90|10\d)", "sm90 and sm100", "torch's grouped product waits for the sizes elsewhere"
        ),  # rewrites/grouped_mm.py
        Requirement(
            "weights in bfloat16",
            lambda c: (
                None
                if c.facts.dtype == "torch.bfloat16"
                else Inapplicable(f"torch's grouped product is for weights in bfloat16; these are {c.facts.dtype}.")
            ),
        ),
    ),
    remaining=lambda c: {"launch_gap": (0.1, 0.7), "idle": (0.2, 1.0), "gemm": (0.6, 1.1), "pointwise": (0.5, 1.0)},
    effect="no product of an expert's own",
    proofs=(fewer("kernels", "kernels"),),
    prepare_seconds=20.0,
)

FUSED_QKV = graph_rewrite(
    name="fused-qkv",
    level=3,
    title="one GEMM for q, k and v",
    contract="reassociated",
    changes="linear layers that read the same input become one (horizontal fusion); in inference their weights are packed",
    matches="sibling projections",
    remaining=factors_by_tokens("fused-qkv"),
    effect="fewer matrix products",
    proofs=(fewer("gemms", "matrix products"),),
)

FUSED_GATE_UP = graph_rewrite(
    name="fused-gate-up",
    level=3,
    title="one GEMM for gate and up",
    contract="reassociated",
    changes="the gate and up projections of a gated MLP become one",
    matches="gate and up projections",
    remaining=factors_by_tokens("fused-gate-up"),
    effect="fewer matrix products",
    proofs=(fewer("gemms", "matrix products"),),
)

FOLDED_BATCH_NORM = graph_rewrite(
    name="folded-batch-norm",
    level=3,
    title="batch norm folded into convolution",
    contract="reassociated",
    changes="folds a batch norm in evaluation mode into the weights of the convolution before it; in inference the folded weights are kept until "
    "a weight or statistic changes",
    matches="batch norm after a convolution",
    with_passes=("folded-weights",),  # or every call would fold them
    remaining=lambda c: {"pointwise": (0.7, 1.0)},
    effect="no batch norm of its own",
)


AUTOCAST_TO_BFLOAT16 = unless(
    "autocast to bfloat16",
    lambda c: c.plan.bf16 or c.facts.amp == "torch.bfloat16",
    "it needs autocast to bfloat16, which is not in effect so far.",
)

BF16_STREAM = graph_rewrite(
    name="bf16-stream",
    level=3,
    title="residual stream in bfloat16",
    contract="bf16",
    changes="the residual stream is bfloat16: sums of float32 and bfloat16 are computed in bfloat16; norms stay in float32",
    requires=(
        allowed("bf16"),
        AUTOCAST_TO_BFLOAT16,
        # Counted in the graph as its author wrote it, mostly without autocast, where no sum mixes precisions yet.
        captured("sum", "sum of two activations, as a residual is,"),
    ),
    # On one H100, 12 layers of width 1024 in training, 8192 tokens, compiled: 0.97 of the step was left, 0.4 GiB less.
    remaining=lambda c: {"pointwise": (0.75, 1.0)},
    effect="sums of float32 and bfloat16 taken in bfloat16",
)


def _weight_cast_factors(c: Context) -> TimeFactors:
    """Six bytes an element, four read and two written, are no longer moved: at the memory's bandwidth, or at half of it."""
    bandwidth, elements = c.facts.bandwidth, (c.facts.weights_read or {}).get("4", 0)
    time = c.parts.get("copy", 0.0) + c.parts.get("pointwise", 0.0)
    if not bandwidth or not time:
        return {"copy": (0.3, 1.0), "pointwise": (0.7, 1.0)}
    saved = min(0.95, 6e9 * elements / bandwidth / time)
    left = (max(0.05, 1 - 2 * saved), 1 - saved)
    return {"copy": left, "pointwise": left}


BF16_WEIGHTS = graph_rewrite(
    name="bf16-weights",
    level=3,
    title="weights kept in bfloat16",
    contract="bf16",
    changes="keeps the bfloat16 copies that autocast makes of the weights in every call; this takes half the weights' memory more. Rung casts a changed weight again",
    # In training the weights are others at every step.
    requires=(allowed("bf16"), INFERENCE, AUTOCAST, CAST_WEIGHTS, KNOWN_SIZES),
    remaining=_weight_cast_factors,
    effect="products that read kept weights",
)

GRAPH_REWRITES = (
    SDPA,
    SDPA_NO_MASK,
    FLEX,
    FLEX_FOR_SDPA,
    STRIDED_SDPA_INPUTS,
    IN_PLACE_CACHE,
    HOISTED_CONSTANTS,
    FOLDED_WEIGHTS,
    NARROW_LOGITS,
    FUSED_CROSS_ENTROPY,
    GROUPED_EXPERTS,
    FUSED_QKV,
    FUSED_GATE_UP,
    FOLDED_BATCH_NORM,
    BF16_STREAM,
    BF16_WEIGHTS,
)
