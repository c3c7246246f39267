"""A convolution whose windows touch and do not overlap is one matrix product: each window is a row.

So vision transformers embed patches, and some networks halve their images. A library's convolution copies images into another layout
first, and its weight's gradient is slow for large windows; the rows are one copy, which a compiler makes together with the cast.
"""

from __future__ import annotations

import math
from itertools import chain

import torch.nn.functional as F
from torch import fx

from rung.rewrites.graph.layout import laid_as
from rung.rewrites.graph.normalize import argument, called, kind, per_dimension, source_line, value

_RANK = {"conv1d": 1, "conv2d": 2, "conv3d": 3}


def multiply_patches(graph: fx.Graph) -> tuple[int, list[str]]:
    """Rewrite every convolution whose stride is its window; how many, and why not others."""
    count, skipped = 0, []
    for node in list(graph.nodes):
        rank = _RANK.get(kind(node), 0)
        window = _window(node, rank) if rank else None
        if window is None:
            continue
        if reason := _obstacle(node, rank):
            skipped.append(f"convolution at {source_line(node)}: {reason}")
        else:
            _rewrite(graph, node, window)
            count += 1
    return count, skipped


def _window(node: fx.Node, rank: int) -> tuple[int, ...] | None:
    """The window of a convolution that moves by just its size; None for others, and for one of single points."""
    weight = value(argument(node, 1, "weight"))
    if weight is None or weight.dim() != rank + 2:
        return None
    window = tuple(int(size) for size in weight.shape[2:])
    stride = per_dimension(rank, argument(node, 3, "stride", default=1))
    return window if stride == window and math.prod(window) > 1 else None


def _obstacle(node: fx.Node, rank: int) -> str:
    source, weight = value(argument(node, 0, "input")), value(argument(node, 1, "weight"))
    padding = argument(node, 4, "padding", default=0)
    if padding != "valid" and per_dimension(rank, padding) != (0,) * rank:
        return "it pads its input"
    if per_dimension(rank, argument(node, 5, "dilation", default=1)) != (1,) * rank:
        return "its windows have gaps"
    if argument(node, 6, "groups", default=1) != 1:
        return "its channels are in groups"
    made = value(node)
    if source is None or weight is None or made is None:
        return "the sizes of its input are not known"
    if source.dim() != rank + 2:
        return "its input has no batch"
    return "" if made.numel() else "its result is empty"


def _rewrite(graph: fx.Graph, node: fx.Node, window: tuple[int, ...]) -> None:
    source, weight, bias = (argument(node, k, name) for k, name in enumerate(("input", "weight", "bias")))
    made, held, image = value(node), value(weight), value(source)
    assert made is not None
    assert held is not None
    assert image is not None
    rank, counts = len(window), made.shape[2:]
    with graph.inserting_before(node):
        for k, (count, size) in enumerate(zip(counts, window, strict=True)):
            if image.shape[2 + k] != count * size:  # what is left over at the end belongs to no window
                source = called(graph, "narrow", source, 2 + k, 0, count * size)
        split = called(graph, "reshape", source, *image.shape[:2], *chain(*zip(counts, window, strict=True)))
        # The places of the windows, then what a window holds in the order in which the weight has it: channels, and points.
        places, points = range(2, 2 + 2 * rank, 2), range(3, 3 + 2 * rank, 2)
        turned = called(graph, "permute", split, 0, *places, 1, *points)
        rows = called(graph, "reshape", turned, image.shape[0], *counts, held[0].numel())
        matrix = called(graph, "reshape", weight, held.shape[0], held[0].numel())
        product = graph.call_function(F.linear, (rows, matrix, bias))
        product.meta["example_value"] = made.detach().movedim(1, -1).contiguous().requires_grad_(made.requires_grad)
        product.meta["patches"] = True
        result = called(graph, "permute", product, 0, 1 + rank, *range(1, 1 + rank))
        # Whoever reads it may rely on how it lies, through any operation. Inductor makes the copy as part of a reader.
        result = laid_as(graph, result, made)
    for one in (split, turned, rows, matrix, product):
        one.meta["stack_trace"] = node.meta.get("stack_trace")
    result.meta = dict(node.meta)
    node.replace_all_uses_with(result)
    graph.erase_node(node)
