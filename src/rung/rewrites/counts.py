"""What a captured graph holds: counted before and after the passes, so that what they did is told by the graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from torch import fx

from rung.hardware.aiter import Product
from rung.rewrites.attention.flex import flex_attention
from rung.rewrites.attention.multi_head import FAST_PATHS
from rung.rewrites.gelu_between import BETWEEN
from rung.rewrites.graph import kernel_ops
from rung.rewrites.graph.normalize import argument, kind, per_dimension, value
from rung.rewrites.horizontal_fusion import projection
from rung.rewrites.residual_dtype import summands, wide_sum
from rung.rewrites.routed import ROUTED, linear_product

# gemm: matrix products, by weights and inside hand-written attention; masked_sdpa: SDPA calls with a mask tensor;
# triton: calls of our own kernels; flex: calls of FlexAttention; layer_flop: floating-point operations of the linear
# layers, going forward, patches of images left out; gemm_flop: those of the matrix products but einsum's; unaligned_flop: those
# of the products of which a size is no multiple of 8; depthwise: convolutions of images that go one point at a time through each channel
# by itself; split: splits of a tensor into parts; sum: additions of two activations of one shape, residuals among
# them; wide_sum: those of a float32 and a bfloat16 one.
NAMES = (
    "gemm", "sdpa", "masked_sdpa", "softmax", "convolution", "batch_norm", "triton", "flex", "layer_flop", "gemm_flop",
    "unaligned_flop", "depthwise", "split", "sum", "wide_sum",
)  # fmt: skip

ALIGNED = 8  # elements: 16 bytes in bfloat16, which the kernels of libraries load at once

_KINDS = {
    **dict.fromkeys(("linear", "matmul", "addmm", "mm", "baddbmm", "einsum"), "gemm"),
    "scaled_dot_product_attention": "sdpa",
    **dict.fromkeys(("split", "chunk"), "split"),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), "convolution"),
    **{name: name for name in ("softmax", "batch_norm")},
}


def count(parts: Iterable[fx.GraphModule]) -> Counter[str]:
    """Occurrences by `NAMES`."""
    counted: Counter[str] = Counter()
    for node in (node for part in parts for node in part.graph.nodes):
        what = "triton" if kernel_ops.called(node) else _KINDS.get(kind(node))
        what = "gemm" if node.target is ROUTED else "flex" if node.target is flex_attention else what
        if what:
            counted[what] += 1
            counted["masked_sdpa"] += what == "sdpa" and argument(node, 3, "attn_mask") is not None
            counted["layer_flop"] += _flop(node)
            counted["depthwise"] += kind(node) == "conv2d" and _each_channel_alone(node)
            if what == "gemm":
                counted.update(_product_flop(node))
        elif node.target in BETWEEN.values():
            counted.update(_both_products(node))
        elif node.target in FAST_PATHS:  # as on a GPU
            layer = FAST_PATHS[node.target] == "layer"
            by_hand = argument(node, 18 if layer else 9, "mask") is not None
            by_hand = by_hand or (not layer and bool(argument(node, 10, "need_weights", default=True)))
            counted.update(gemm=(4 if layer else 2) + 2 * by_hand, sdpa=not by_hand)
        elif summands(node):
            counted["sum"] += 1
            counted["wide_sum"] += wide_sum(node)
    return counted


def _each_channel_alone(node: fx.Node) -> bool:
    weight, groups = value(argument(node, 1, "weight")), argument(node, 6, "groups")
    steps = per_dimension(2, argument(node, 3, "stride", default=1))
    return weight is not None and 1 < weight.shape[0] == groups and weight.shape[1] == 1 and set(steps) == {1}


def _product_flop(node: fx.Node) -> Counter[str]:
    """The operations of a matrix product, and the same again under `unaligned_flop` where a size is none that the matrix
    units of 16 bits take as it is. A weight's gradient has the same three sizes. Nothing of a product with a vector."""
    what, made = kind(node), value(node)
    spot = 1 if what in ("addmm", "baddbmm") else 0
    left = value(argument(node, spot, *("mat1", "batch1") if spot else ("input",)))
    right = value(argument(node, spot + 1, "mat2", "batch2", "other", "weight"))
    if made is None or left is None or right is None or min(left.dim(), right.dim()) < 2 or not made.numel():
        return Counter()
    flop, inner, columns = 2 * made.numel() * left.shape[-1], left.shape[-1], made.shape[-1]
    # All rows of a batch meet one matrix: Inductor multiplies them at once.
    rows = made.numel() // columns if right.dim() == 2 else made.shape[-2]
    return Counter(gemm_flop=flop, unaligned_flop=flop * any(size % ALIGNED for size in (rows, columns, inner)))


def _both_products(node: fx.Node) -> Counter[str]:
    """Those of two linear layers with an activation in between. Only where their weights lie as `F.linear` has them a layer is told by itself."""
    x, bias, made = value(node.args[0]), value(node.args[2]), value(node)
    if x is None or bias is None or made is None:
        return Counter(gemm=2)
    counted, rows, inner = Counter(gemm=2), made.numel() // made.shape[-1], bias.numel()
    for size, turned in zip((x.shape[-1], made.shape[-1]), node.args[5], strict=True):
        flop = 2 * rows * size * inner
        unaligned = flop * any(each % ALIGNED for each in (rows, size, inner))
        counted.update(gemm_flop=flop, layer_flop=flop * (not turned), unaligned_flop=unaligned)
    return counted


def _flop(node: fx.Node) -> int:
    read = node.args if node.target is ROUTED else None if "patches" in node.meta else projection(node)
    weight, made = value(read[1]) if read else None, value(node)
    return 2 * made.numel() * weight.shape[1] if weight is not None and made is not None and weight.dim() == 2 else 0


def attention(part: fx.GraphModule) -> Counter[str]:
    """Of the SDPA calls, going forward and without regard to a mask: `scores`, the elements of their score matrices, and
    `flop`, the operations of the products on both sides of these."""
    sizes: Counter[str] = Counter()
    for node in part.graph.nodes:
        if _KINDS.get(kind(node)) == "sdpa":
            query, key, values = (value(argument(node, i, name)) for i, name in enumerate(("query", "key", "value")))
            if query is not None and key is not None and values is not None and query.shape[-1]:
                scores = query.numel() // query.shape[-1] * key.shape[-2]
                sizes.update(scores=scores, flop=2 * scores * (query.shape[-1] + values.shape[-1]))
    return sizes


def products(parts: Iterable[fx.GraphModule]) -> Counter[Product]:
    """The shapes of the products of linear layers, and how many layers have each."""
    return Counter(made for part in parts for node in part.graph.nodes if (made := linear_product(node)))
