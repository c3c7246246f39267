"""Level 3: what follows a product or a convolution elementwise, in the library's own kernel for both."""

from __future__ import annotations

import re

from rung.rungs.graph_rewrites import graph_rewrite
from rung.rungs.requirements import BFLOAT16, GPU, INFERENCE, allowed, chip, share_of, unless
from rung.rungs.rung import OTHER_CHIP, Context, TimeFactors

_SM80 = r"sm(8\d|9\d|1\d\d)"  # and later

LIBRARY = unless(
    "inference, or an NVIDIA GPU of sm80 and later",
    lambda c: not c.training or re.fullmatch(_SM80, str(c.facts.arch)),
    "in training it is for NVIDIA's GPUs from sm80 on: the epilogues of hipBLASLt that have gradients are not called so far.",
    OTHER_CHIP,
)


def _factors(c: Context) -> TimeFactors:
    """On one H200 at bf16, compiled and captured, 0.91 of the step of vit_base was left in inference (docs/internals/zoo.md). In training the activation
    is a smaller part of what is elementwise."""
    return {"pointwise": (0.6, 0.97) if c.training else (0.4, 0.9), "gemm": (1.0, 1.06)}


ACTIVATION_EPILOGUE = graph_rewrite(
    name="activation-epilogue",
    level=3,
    title="activations in the epilogue of matrix products",
    contract="reassociated",
    changes="a linear layer with a bias, and ReLU or GELU with tanh behind it, become one kernel of cuBLASLt or hipBLASLt; "
    "in training GELU with tanh between two linear layers, and its derivative, which are kernels of cuBLASLt",
    asks_first=(GPU, LIBRARY),
    matches="ReLU or GELU with tanh behind a linear layer or pointwise convolution with a bias",
    requires=(share_of("pointwise"),),
    remaining=_factors,
    effect="no kernel of the activation's own",
)

GELU_EPILOGUE = graph_rewrite(
    name="gelu-epilogue",
    level=3,
    title="GELU in the epilogue of matrix products, by tanh",
    contract="bf16",
    changes="a linear layer with a bias, and GELU behind it, become one kernel of cuBLASLt or hipBLASLt, which has the form with tanh: up to 0.0005 off, "
    "and rounded to bfloat16 once where the two are rounded twice; in training GELU between two linear layers, and its derivative",
    asks_first=(GPU, LIBRARY),
    matches="GELU behind a linear layer or pointwise convolution with a bias",
    requires=(allowed("bf16"), BFLOAT16, share_of("pointwise")),
    remaining=_factors,
    effect="no kernel of the activation's own",
)

CONVOLUTION_EPILOGUE = graph_rewrite(
    name="convolution-epilogue",
    level=3,
    title="sums and ReLU in the epilogue of convolutions",
    contract="reassociated",
    changes="a convolution, a sum with another tensor and ReLU behind it become one kernel of cuDNN; batch norms in between are folded",
    asks_first=(
        INFERENCE,
        GPU,
        chip(
            _SM80,
            "sm80 and later",
            "MIOpen has such kernels for float32 alone, and older chips were not tried",
        ),
    ),
    matches="convolution with ReLU behind it",
    requires=(
        unless(
            "convolutions in channels-last layout",
            lambda c: c.plan.channels_last or not c.facts.contiguous_convolutions,
            "the kernels are for the layout that `channels-last` gives, which is not in effect so far.",
        ),
        share_of("convolution"),
        share_of("pointwise"),
    ),
    # On one H200 at bf16, compiled and captured: 0.85 of the step of resnet50 was left (docs/internals/zoo.md).
    # Of a convolution by itself 1.00 to 1.4 (benchmarks/kernels/epilogues.py), and not all are rewritten.
    remaining=lambda c: {"pointwise": (0.3, 0.95), "convolution": (0.98, 1.2)},
    with_passes=("folded-batch-norm", "folded-weights"),
    effect="no kernel of ReLU's own behind these convolutions",
)

EPILOGUES = (ACTIVATION_EPILOGUE, GELU_EPILOGUE, CONVOLUTION_EPILOGUE)
