"""Level 2: what training alone has: the optimizer, gradients of weights, and activations kept for them."""

from __future__ import annotations

from dataclasses import replace

from rung.rungs.precision import turned_on_the_way
from rung.rungs.proofs import both, fewer, less_memory, named, rarer, told
from rung.rungs.rung import FOR_GPUS, OTHER_MODE, Context, Inapplicable, Rung, already


def _fused_applies(c: Context) -> Inapplicable | None:
    if not c.training:
        return Inapplicable("inference has no optimizer.", group=OTHER_MODE)
    if c.facts["optimizer_is_fused"]:
        return already("the optimizer is already fused.")
    if why := c.facts.get("optimizer_not_fused"):
        return Inapplicable(f"{why}.")
    return None


FUSED_OPTIMIZER = Rung(
    "fused-optimizer", 2, "fused optimizer", "reassociated", "the same optimizer with fused=True",
    _fused_applies,
    lambda c: {"optimizer": (0.25, 0.8), "launch_gap": (0.7, 1.0)},
    lambda p: replace(p, fused_optimizer=True),
    "the optimizer steps in fused kernels",
    both(told("optimizer_fused", True, "fused"), named(r"(?i)_fused_(adam|sgd|adagrad)|Fused(Adam|SGD)", "fused steps")),
)  # fmt: skip


def _gradients_apply(c: Context) -> Inapplicable | None:
    if not c.training:
        return Inapplicable("inference has no gradients.", group=OTHER_MODE)
    if not c.gpu:
        return Inapplicable("such products exist on GPUs only.", group=FOR_GPUS)
    if not c.autocast:
        return Inapplicable("products are not computed in half precision by autocast, whose gradients are widened.")
    if c.facts.get("dtype") != "torch.float32":
        return already(f"the weights are {c.facts.get('dtype')}: their gradients are not widened.")
    if not c.facts.get("products_widen"):
        return Inapplicable("this torch's Inductor has no product that reads half precision and writes float32.")
    if not c.plan.compiles:
        return Inapplicable(
            "it changes what torch.compile makes of the backward pass, and that is not in effect so far."
        )
    return None


FLOAT32_GRADIENTS = Rung(
    "float32-gradients", 2, "gradients of weights straight in float32", "reassociated",
    "the product that gives a weight's gradient writes float32; no bfloat16 copy of it is written, read and widened",
    _gradients_apply,
    # 8 bytes a weight become 4: 2 written, 2 read, 4 written before.
    lambda c: {"pointwise": (0.88, 1.0)},
    lambda p: replace(p, within=(*p.within, "float32-gradients")),
    "no kernels that widen gradients",
    both(told("pass float32-gradients", True, "the rewrite of gradients"), fewer("kernels", "kernels")),
    prepares=20.0,
)  # fmt: skip


def _joins_apply(c: Context) -> Inapplicable | None:
    if not c.training:
        return Inapplicable("inference has no gradients.", group=OTHER_MODE)
    if not c.gpu:
        return Inapplicable("on a CPU, Inductor writes such joins in place by itself.", group=FOR_GPUS)
    if not c.plan.compiles:
        return Inapplicable("it changes what torch.compile makes of the backward pass, which is not in effect so far.")
    rotated = {"fused-qkv", "triton-rope"} <= {*c.plan.passes}
    if not rotated and "fused-gate-up" not in c.plan.passes and not c.facts.get("captured", {}).get("split"):
        return Inapplicable(
            "no product whose result is read in parts, as those of fused-gate-up, or of fused-qkv beside triton-rope, are."
        )
    return None


JOINED_GRADIENTS = Rung(
    "joined-gradients", 2, "gradients of parts written where they are joined", "reassociated",
    "the gradients of a product's parts (gate and up) are written into their places of the whole, each input loaded once",
    _joins_apply,
    # Of 12 kernels that took 7 % of the step of `medium` on one H100, a fifth of the bytes; more where they are computed again.
    lambda c: {"pointwise": (0.85, 1.0)},
    lambda p: replace(p, within=(*p.within, "joined-gradients")),
    "fewer kernels that choose by the place",
    both(told("pass joined-gradients", True, "the rewrite of joins"), rarer("triton_.*_cat_", "kernels that join")),
    prepares=20.0,
)  # fmt: skip


def _k_major_applies(c: Context) -> Inapplicable | None:
    if not c.training:
        return Inapplicable("inference has no gradients.", group=OTHER_MODE)
    if no := turned_on_the_way(c):
        return no
    if not c.plan.compiles:
        return Inapplicable("it changes what torch.compile makes of the backward pass, which is not in effect so far.")
    return None


K_MAJOR_GRADIENTS = Rung(
    "k-major-gradients", 5, "factors of gradients in the order that TF32 takes", "reassociated",
    "the smaller factor of a weight's gradient is copied with its tokens side by side, the order in which Hopper multiplies TF32; "
    "so is the weight for its input's gradient, where there are many tokens",
    _k_major_applies,
    # A third of the products are gradients of weights; on one H100 they took two thirds to all of their time, with the copies.
    lambda c: {"gemm": (0.85, 1.0), "pointwise": (1.0, 1.1)},
    lambda p: replace(p, within=(*p.within, "k-major-gradients")),
    "copies of factors before the products that read them",
    both(told("pass k-major-gradients", True, "the order of factors"), named("k_major_copy", "copied factors")),
    prepares=20.0,
)  # fmt: skip


def _recompute_applies(c: Context) -> Inapplicable | None:
    if not c.training:
        return Inapplicable("inference keeps nothing for a backward pass.", group=OTHER_MODE)
    if not c.gpu:
        return Inapplicable("what it spares is the memory of a GPU.", group=FOR_GPUS)
    if not c.plan.compiles:
        return Inapplicable("it changes what torch.compile keeps for the backward pass, and that is not in effect.")
    return None


RECOMPUTE = Rung(
    "recompute", 2, "elementwise inputs of products computed again", "reassociated",
    "the backward pass computes gated activations and normed values again from what it reads in any case; they are not kept",
    _recompute_applies,
    # One more value is written where both its inputs are read already.
    lambda c: {"pointwise": (1.0, 1.1)},
    lambda p: replace(p, within=(*p.within, "recompute")),
    "less memory in use at the peak",
    both(told("pass recompute", True, "the choice of what is kept"), less_memory),
    prepares=20.0, spares="memory",
)  # fmt: skip
