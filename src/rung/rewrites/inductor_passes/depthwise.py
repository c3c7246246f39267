"""Gradients of the inputs of depthwise convolutions, as forward convolutions.

The gradient of the input of a convolution whose stride is 1 is a convolution, too: of the output's gradient, with the window turned around.
Where each channel is convolved by itself, the weight keeps its shape. The library has a kernel for either, and the one for
the gradient takes up to twice as long. On one H200 (torch 2.11, bfloat16, channels-last), 64 images of 96 channels, 56 x 56, with a window of
7 x 7: 331 us, and 140 us for a forward convolution; of 512 channels with 3 x 3: 323 and 173 us. This is a pass on Inductor's graphs, because gradients are
nodes only there.
"""

from __future__ import annotations

import torch
from torch import fx

from rung.rewrites.graph.normalize import per_dimension
from rung.rewrites.inductor_passes.base import InductorPass, aten, is_item

SCHEMA = "(Tensor slope, Tensor weight, int[] padding, int[] dilation, bool channels_last) -> Tensor"


@torch.library.custom_op("rung::depthwise_dgrad", mutates_args=(), schema=SCHEMA)
def depthwise_dgrad(
    slope: torch.Tensor, weight: torch.Tensor, padding: list[int], dilation: list[int], channels_last: bool
) -> torch.Tensor:
    """The gradient of the input of conv2d(x, weight, None, 1, padding, dilation, channels). slope: [N, C, H, W], of the output; weight:
    [C, 1, h, w]; channels_last: the layout in which it is computed."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    window = zip(weight.shape[2:], padding, dilation, strict=True)
    left = [step * (size - 1) - before for size, before, step in window]
    # Backward may be called under autocast, and compiled code knows the dtype of what it gets.
    with torch.autocast(slope.device.type, enabled=False):
        made = torch.conv2d(
            slope.contiguous(memory_format=layout), weight.flip(2, 3), None, 1, left, dilation, weight.shape[0]
        )
    return made.contiguous(memory_format=layout)  # as it is already, where the library computes in this layout


@depthwise_dgrad.register_fake
def _(
    slope: torch.Tensor, weight: torch.Tensor, padding: list[int], dilation: list[int], channels_last: bool
) -> torch.Tensor:
    sizes = zip(slope.shape[2:], weight.shape[2:], padding, dilation, strict=True)
    shape = [*slope.shape[:2], *(out + step * (size - 1) - 2 * before for out, size, before, step in sizes)]
    return slope.new_empty(shape).contiguous(
        memory_format=torch.channels_last if channels_last else torch.contiguous_format
    )


class DepthwiseDgrad(InductorPass):
    """For `torch._inductor.config.post_grad_custom_pre_pass`."""

    def __call__(self, graph: fx.Graph) -> None:
        turn_windows(graph)


def turn_windows(graph: fx.Graph) -> int:
    """Compute the gradient of the input of every such convolution so; how many."""
    count = 0
    for node in graph.find_nodes(op="call_function", target=aten.convolution_backward.default):
        gradient = next((user for user in node.users if is_item(user) and user.args[1] == 0), None)
        if gradient is None or not _turns(node):
            continue
        slope, x, weight, _, _, padding, dilation, *_, wanted = node.args
        given = slope, weight, [*per_dimension(2, padding)], [*per_dimension(2, dilation)], _is_channels_last(x)
        with graph.inserting_before(node):
            made = graph.call_function(torch.ops.rung.depthwise_dgrad.default, given)
        made.meta = dict(gradient.meta)
        made.meta["val"] = torch.ops.rung.depthwise_dgrad.default(
            *(item.meta["val"] if isinstance(item, fx.Node) else item for item in given)
        )
        gradient.replace_all_uses_with(made)
        graph.erase_node(gradient)
        if node.users:
            node.update_arg(len(node.args) - 1, [False, *wanted[1:]])
            _, *rest = node.meta["val"]
            node.meta["val"] = (None, *rest)
        else:
            graph.erase_node(node)
        count += 1
    return count


def _turns(node: fx.Node) -> bool:
    """Whether a gradient is one of a depthwise convolution in two dimensions, of stride 1, that a convolution can give."""
    _, x, weight, _, stride, padding, dilation, transposed, _, groups, wanted = node.args
    images, window = (item.meta.get("val") if isinstance(item, fx.Node) else None for item in (x, weight))
    if not isinstance(images, torch.Tensor) or not isinstance(window, torch.Tensor) or images.dim() != 4:
        return False
    channels = images.shape[1]
    alone = groups == channels == window.shape[0] and channels > 1 and window.shape[1] == 1
    if not alone or transposed or not wanted[0] or any(each != 1 for each in stride):
        return False
    if not all(isinstance(each, int) for each in (*padding, *dilation)):  # it is computed in the graph
        return False
    # torch writes padding="valid" as one number of both.
    reach = zip(per_dimension(2, padding), per_dimension(2, dilation), window.shape[2:], strict=True)
    return all(0 <= p <= d * (k - 1) for p, d, k in reach)


def _is_channels_last(x: fx.Node) -> bool:
    made = x.meta["val"]
    return bool(made.is_contiguous(memory_format=torch.channels_last) and not made.is_contiguous())
