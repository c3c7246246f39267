"""ReLU behind a convolution, and a sum of its result and another tensor before that, computed as the convolution's result is written.

cuDNN has convolutions that end so. torch has them as `torch.cudnn_convolution_relu` and `torch.cudnn_convolution_add_relu`, which nothing calls
by itself. Inductor writes the result, and a kernel of its own reads it again, adds the bias and cuts it off. There is no gradient.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import fx

from rung.rewrites.graph.kernel_ops import cast
from rung.rewrites.graph.normalize import argument, in_place, kind, per_dimension, source_line, value
from rung.rewrites.graph.writes import between, may_touch, storage, switches_mode

# Channels of which cuDNN's kernels load 16 bytes at once. On one H200, in bfloat16, those with an epilogue take 0.56 to 0.97 of the time of a
# convolution and a kernel behind it, and with 18 channels, or with groups, 1.3 to 1.5 times as long (benchmarks/kernels/epilogues.py).
ALIGNED = 8

# torch 2.6 reads no schema from annotations of built-in lists.
SCHEMA = (
    "(Tensor x, Tensor weight, Tensor? bias, Tensor? summand, int[] stride, int[] padding, int[] dilation) -> Tensor"
)


@torch.library.custom_op("rung::convolution_relu", mutates_args=(), schema=SCHEMA)
def _in_one_kernel(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    summand: torch.Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
) -> torch.Tensor:
    if summand is None:
        return torch.cudnn_convolution_relu(x, weight, bias, stride, padding, dilation, 1)
    return torch.cudnn_convolution_add_relu(x, weight, summand, 1.0, bias, stride, padding, dilation, 1)


@_in_one_kernel.register_fake
def _(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, summand: torch.Tensor | None, *window: list[int]
) -> torch.Tensor:
    return F.conv2d(x, weight, bias, *window)


def convolution_relu(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    summand: torch.Tensor | None,
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
) -> torch.Tensor:
    """relu(F.conv2d(x, weight, bias, ...) + summand), in one kernel where cuDNN is. x: [B, C, H, W], weight: [N, C, h, w], bias: [N],
    summand: as the result [B, N, ...], or none."""
    if not x.is_cuda or torch.version.hip:
        made = F.conv2d(x, weight, bias, stride, padding, dilation)
        return F.relu(made if summand is None else made + summand)
    x, weight, bias = cast(x), cast(weight), None if bias is None else cast(bias)
    return _in_one_kernel(x, weight, bias, summand, list(stride), list(padding), list(dilation))


convolution_relu.reads_only = True  # type: ignore[attr-defined]


def join_relu(graph: fx.Graph) -> tuple[int, list[str]]:
    """Join ReLU, and a sum before it, with the convolution that it follows; how many, and why not others."""
    count, skipped = 0, []
    for node in list(graph.nodes):
        source = argument(node, 0, "input", "self") if kind(node) == "relu" else None
        if not isinstance(source, fx.Node):
            continue
        convolution, summand = _summed(source)
        if convolution is None:
            continue
        if reason := _obstacle(convolution, source, summand, node):
            skipped.append(f"convolution at {source_line(convolution)}: {reason}")
        else:
            _rewrite(graph, convolution, source, summand, node)
            count += 1
    return count, skipped


def _summed(source: fx.Node) -> tuple[fx.Node | None, fx.Node | None]:
    """(convolution, what is added to it or None); (None, None) where there is no convolution."""
    if kind(source) == "conv2d":
        return source, None
    if kind(source) != "add" or len(source.args) != 2 or source.kwargs:
        return None, None
    # A sum in place writes to its first argument, which another may read.
    for spot in (0,) if in_place(source) else (1, 0):
        one, other = source.args[spot], source.args[1 - spot]
        nodes = isinstance(one, fx.Node) and isinstance(other, fx.Node) and one is not other
        if nodes and kind(one) == "conv2d" and len(one.users) == 1:
            return one, other
    return None, None


def _obstacle(convolution: fx.Node, source: fx.Node, summand: fx.Node | None, relu: fx.Node) -> str:
    made, weight, added = value(convolution), value(argument(convolution, 1, "weight")), value(summand)
    if made is None or weight is None or not made.numel():
        return "its size is not known"
    if made.dim() != 4:
        return "its input has no batch"
    if made.requires_grad or (added is not None and added.requires_grad):
        return "it needs a gradient"
    if len(convolution.users) > 1 or len(source.users) > 1:
        return "its result is used elsewhere, too"
    if argument(convolution, 6, "groups", default=1) != 1:
        return "its channels are in groups"
    if any(channels % ALIGNED for channels in weight.shape[:2]):
        return f"its {weight.shape[1]} and {weight.shape[0]} channels are no multiples of {ALIGNED}"
    if isinstance(argument(convolution, 4, "padding", default=0), str):
        return "its padding is a word"
    if summand is not None and (added is None or added.shape != made.shape or added.dtype != made.dtype):
        return "what is added to it has another shape or dtype"
    end = value(relu)
    if end is None or end.stride() != made.stride() or (added is not None and added.stride() != made.stride()):
        return "what is added to it lies otherwise"
    memory = {storage(item) for item in convolution.all_input_nodes}
    if any(switches_mode(item) or may_touch(item, memory) for item in between(convolution, relu) if item is not source):
        return "a tensor is written, or autocast changes, in between"
    if summand is not None and any(may_touch(item, {storage(summand)}) for item in between(source, relu)):
        return "what is added to it is written in between"
    return ""


def _rewrite(graph: fx.Graph, convolution: fx.Node, source: fx.Node, summand: fx.Node | None, relu: fx.Node) -> None:
    x, weight, bias = (argument(convolution, k, name) for k, name in enumerate(("input", "weight", "bias")))
    stride, padding, dilation = (
        per_dimension(2, argument(convolution, k, name, default=default))
        for k, name, default in ((3, "stride", 1), (4, "padding", 0), (5, "dilation", 1))
    )
    with graph.inserting_before(relu):
        made = graph.call_function(convolution_relu, (x, weight, bias, summand, stride, padding, dilation))
    made.meta = dict(relu.meta)
    relu.replace_all_uses_with(made)
    for one in dict.fromkeys((relu, source, convolution)):
        graph.erase_node(one)
