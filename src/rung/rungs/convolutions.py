"""Convolutions: in which layout, by which of the library's kernels, or by none."""

from __future__ import annotations

from dataclasses import replace

from rung.rungs.graph_rewrites import graph_rewrite
from rung.rungs.proofs import counted, reported
from rung.rungs.requirements import GPU, share_of, unless
from rung.rungs.rung import NOT_FOUND, Context, Requirement, Rung, TimeFactors, already


def _only_patches(c: Context) -> bool:
    """Whether every convolution of the graph is one over patches."""
    found, convolutions = c.facts.matches.get("patch-matmul", 0), (c.facts.captured or {}).get("convolution", 0)
    return 0 < convolutions <= found


def _layout_factors(c: Context) -> TimeFactors:
    """On one H100 with TF32, 30 convolutions of KernelBench's level 1, 2-D and 3-D: 0.31 to 1.3 of the step was left, 0.95 in the median
    (benchmarks/ladder/convolutions.py). Activations follow convolutions; behind one over patches they are tokens in any case, and as a
    product it has no layout."""
    if not _only_patches(c):
        return {"convolution": (0.6, 1.05), "pointwise": (0.8, 1.0)}
    return {} if "patch-matmul" in c.plan.passes else {"convolution": (0.6, 1.05)}


def _patch_factors(c: Context) -> TimeFactors:
    """Of the time of convolutions, of which the product in their place takes a part. Where no other is in the graph, little more is left."""
    return {"convolution": (0.1, 0.8) if _only_patches(c) else (0.5, 1.0)}


CHANNELS_LAST = Rung(
    name="channels-last",
    level=3,
    title="channels-last convolutions",
    contract="reassociated",
    changes="weights of 2-D and 3-D convolutions use memory_format=channels_last, and activations follow",
    requires=(
        unless(
            "a 2-D or 3-D convolution layer, its weight in the usual layout",
            lambda c: c.facts.contiguous_convolutions,
            "no 2-D or 3-D convolution layer has a weight of its own in the usual layout.",
            NOT_FOUND,
        ),
    ),
    remaining=_layout_factors,
    change=lambda p: replace(p, channels_last=True),
    effect="weights in channels-last layout",
    proof=counted("channels_last", "weights in channels-last layout"),
)

CUDNN_BENCHMARK = Rung(
    name="cudnn-benchmark",
    level=1,
    title="convolution kernels by measurement",
    contract="reassociated",
    changes="torch.backends.cudnn.benchmark = True: cuDNN (on AMD, MIOpen) times its kernels at the first call of each shape, and takes the fastest",
    requires=(
        GPU,
        Requirement(
            "a process that does not do so by itself",
            lambda c: already("torch.backends.cudnn.benchmark is True already.") if c.facts.cudnn_benchmark else None,
        ),
        share_of("convolution"),
    ),
    # On one H200 at bf16, compiled networks: 0.88 of the time of convolutions was left in training regnety_032, 0.96 to 1.0 in others
    # (docs/internals/zoo.md). On ROCm, several versions of torch have it on by themselves (aten/src/ATen/Context.h).
    remaining=lambda c: {"convolution": (0.85, 1.0)},
    change=lambda p: replace(p, cudnn_benchmark=True),
    effect="convolutions are searched for",
    proof=reported("cudnn_benchmark", True, "torch.backends.cudnn.benchmark"),
    prepare_seconds=10.0,
)


PATCH_MATMUL = graph_rewrite(
    name="patch-matmul",
    level=3,
    title="patch convolutions as matrix products",
    contract="reassociated",
    changes="a convolution whose windows touch and do not overlap, as a patch embedding, becomes one matrix product",
    matches="convolution whose stride is its window",
    requires=(share_of("convolution"),),
    remaining=_patch_factors,
    effect="no convolution over patches",
)

CONVOLUTIONS = (CHANNELS_LAST, CUDNN_BENCHMARK, PATCH_MATMUL)
