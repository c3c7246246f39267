"""A convolution whose windows touch and do not overlap is one matrix product: each window is a row.

So vision transformers embed patches, and some networks halve their images. A library's convolution copies images into another layout
first, and its weight's gradient is slow for large windows; the rows are one copy, which a compiler makes together with the cast.
"""

from __future__ import annotations

import math
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from rung.rewrites.graph.layout import free_readers
from rung.rewrites.graph.normalize import argument, called, kind, source_line, value

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
    stride = _each(argument(node, 3, "stride", default=1), rank)
    return window if stride == window and math.prod(window) > 1 else None


def _obstacle(node: fx.Node, rank: int) -> str:
    source, weight = value(argument(node, 0, "input")), value(argument(node, 1, "weight"))
    padding = argument(node, 4, "padding", default=0)
    if padding != "valid" and _each(padding, rank) != (0,) * rank:
        return "it pads its input"
    if _each(argument(node, 5, "dilation", default=1), rank) != (1,) * rank:
        return "its windows have gaps"
    if argument(node, 6, "groups", default=1) != 1:
        return "its channels are in groups"
    if source is None or weight is None or source.dim() != rank + 2:
        return "the sizes of its input are not known, or it has no batch"
    return ""


def _each(given: Any, rank: int) -> tuple[Any, ...]:
    """An argument of a convolution, for each of its dimensions."""
    several = tuple(given) if isinstance(given, (tuple, list)) else (given,)
    return several * rank if len(several) == 1 else several


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
        rows = called(graph, "reshape", turned, image.shape[0], *counts, -1)
        matrix = called(graph, "reshape", weight, held.shape[0], -1)
        product = graph.call_function(F.linear, (rows, matrix, bias))
        product.meta["example_value"] = made.detach().movedim(1, -1).contiguous().requires_grad_(made.requires_grad)
        result = called(graph, "permute", product, 0, 1 + rank, *range(1, 1 + rank))
    for one in (split, turned, rows, matrix, product, result):
        one.meta["stack_trace"] = node.meta.get("stack_trace")
    dense = free_readers(node)
    if dense:
        with graph.inserting_before(node):
            result = graph.call_method("contiguous", (result,), _as_it_lies(made))
    result.meta = dict(node.meta)
    node.replace_all_uses_with(result)
    graph.erase_node(node)


def _as_it_lies(made: torch.Tensor) -> dict[str, Any]:
    """The layout that the convolution promised to the code after the graph."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    layout = formats.get(made.dim(), torch.contiguous_format)
    if made.is_contiguous() or not made.is_contiguous(memory_format=layout):
        layout = torch.contiguous_format
    return {"memory_format": layout}
