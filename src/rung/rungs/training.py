"""Level 2: what training alone has: the optimizer, gradients of weights, and activations kept for them."""

from __future__ import annotations

from dataclasses import replace

from rung.rungs.graph_rewrites import inductor_rewrite
from rung.rungs.proofs import all_of, fewer, less_memory, less_often, more_often, reported
from rung.rungs.requirements import AUTOCAST, COMPILED, GPU, TF32_ON_HOPPER, TRAINING, captured, share_of, unless
from rung.rungs.rung import Context, Inapplicable, Requirement, Rung, already

FUSED_SHARDS = ("Adam", "AdamW")  # with a sharding strategy; torch 2.13 has none for others


def _unfused(c: Context) -> Inapplicable | None:
    if c.facts.optimizer_is_fused:
        return already("the optimizer is already fused.")
    if why := c.facts.optimizer_not_fused:
        return Inapplicable(f"{why}.")
    if c.distributed and c.facts.parallel in ("fsdp2", "tensor") and c.facts.optimizer not in FUSED_SHARDS:
        return Inapplicable(f"torch's fused {c.facts.optimizer} does not step weights that ranks share out.")
    return None


FUSED_OPTIMIZER = Rung(
    name="fused-optimizer",
    level=2,
    title="fused optimizer",
    contract="reassociated",
    changes="the same optimizer with fused=True",
    requires=(TRAINING, Requirement("an optimizer that has a fused form", _unfused)),
    remaining=lambda c: {"optimizer": (0.25, 0.8), "launch_gap": (0.7, 1.0)},
    change=lambda p: replace(p, fused_optimizer=True),
    effect="the optimizer steps in fused kernels",
    proof=all_of(
        reported("optimizer_fused", True, "fused"),
        more_often(r"(?i)_fused_(adam|sgd|adagrad)|Fused(Adam|SGD)", "fused steps"),
    ),
)


def _widened(c: Context) -> Inapplicable | None:
    if c.facts.dtype != "torch.float32":
        return already(f"the weights are {c.facts.dtype}: their gradients are not widened.")
    if not c.facts.products_widen:
        return Inapplicable("this torch's Inductor has no product that reads half precision and writes float32.")
    return None


FLOAT32_GRADIENTS = inductor_rewrite(
    name="float32-gradients",
    level=2,
    title="weight gradients directly in float32",
    contract="reassociated",
    changes="the matrix product for a weight's gradient writes float32 directly, without a bfloat16 copy that is then widened",
    requires=(TRAINING, GPU, AUTOCAST, Requirement("gradients that are widened to float32", _widened), COMPILED),
    # 8 bytes a weight become 4: 2 written, 2 read, 4 written before.
    remaining=lambda c: {"pointwise": (0.88, 1.0)},
    effect="no kernels that widen gradients",
    reported_as="the rewrite of gradients",
    proof=fewer("kernels", "kernels"),
)


def _read_in_parts(c: Context) -> bool:
    rotated = {"fused-qkv", "triton-rope"} <= {*c.plan.passes}
    return rotated or "fused-gate-up" in c.plan.passes or bool((c.facts.captured or {}).get("split"))


FUSED_DGRAD = inductor_rewrite(
    name="fused-dgrad",
    level=2,
    title="fused input gradients",
    contract="reassociated",
    changes="gradients of a product's parts (gate and up) are written directly into the joined gradient",
    requires=(
        TRAINING,
        GPU,  # on a CPU, Inductor writes such joins in place by itself
        COMPILED,
        unless(
            "a product whose result is read in parts",
            _read_in_parts,
            "no product whose result is read in parts, as those of fused-gate-up, or of fused-qkv beside triton-rope, are.",
        ),
    ),
    # Of 12 kernels that took 7 % of the step of `medium` on one H100, a fifth of the bytes; more where they are computed again.
    remaining=lambda c: {"pointwise": (0.85, 1.0)},
    effect="fewer kernels that choose by the place",
    reported_as="the rewrite of joins",
    proof=less_often("triton_.*_cat_", "kernels that join"),
)

DEPTHWISE_DGRAD = inductor_rewrite(
    name="depthwise-dgrad",
    level=3,
    title="input gradients of depthwise convolutions by forward convolutions",
    contract="reassociated",
    changes="the gradient of the input of a depthwise convolution of stride 1 is a forward convolution, with the window turned around",
    requires=(
        TRAINING,
        GPU,
        COMPILED,
        captured("depthwise", "depthwise convolution of images with a stride of 1"),
        share_of("convolution"),
    ),
    # On one H200 in bfloat16, 0.42 to 0.71 of the time of such a gradient was left channels-last, and 0.56 to 0.94 otherwise. It is a third to a half of
    # what a depthwise convolution takes in training, and others are beside it (docs/internals/zoo.md).
    remaining=lambda c: {"convolution": (0.75, 1.0)},
    effect="fewer kernels for input gradients of convolutions",
    reported_as="the rewrite of convolutions",
    # col2im: MIOpen's products, and torch's own, put together what such a gradient is summed of.
    proof=less_often(r"(?i)dgrad|depthwise2d_backward_kernel|conv.*bwd|igemm_bwd|col2im", "kernels for such gradients"),
)

K_MAJOR_WGRAD = inductor_rewrite(
    name="k-major-wgrad",
    level=5,
    title="K-major weight gradients",
    contract="reassociated",
    changes="copies the smaller operand of a weight gradient into K-major layout, in which Hopper multiplies TF32; with many tokens, also "
    "the weight for the input gradient",
    requires=(TRAINING, *TF32_ON_HOPPER, COMPILED),
    # A third of the products are gradients of weights; on one H100 they took two thirds to all of their time, with the copies.
    remaining=lambda c: {"gemm": (0.85, 1.0), "pointwise": (1.0, 1.1)},
    effect="copies of factors before the products that read them",
    reported_as="the order of factors",
    proof=more_often("k_major_copy", "copied factors"),
)

RECOMPUTE = inductor_rewrite(
    name="recompute",
    level=2,
    title="recomputed activations",
    contract="reassociated",
    changes="the backward pass recomputes gated activations and normalized values instead of saving them",
    requires=(TRAINING, GPU, COMPILED),
    # One more value is written where both its inputs are read already.
    remaining=lambda c: {"pointwise": (1.0, 1.1)},
    effect="less memory in use at the peak",
    reported_as="the choice of what is kept",
    proof=less_memory,
    improves="memory",
)
