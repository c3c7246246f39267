"""Gradients of weights from factors in the order that the chip multiplies.

A weight's gradient sums over tokens, and both its factors hold the features of a token side by side. In 16 bits a tensor core
takes either order; Hopper's in TF32 takes only the one in which what is summed lies side by side (PTX, wgmma: no transpose of
tf32 operands), so the library's kernel turns both around on their way, at two thirds of the rate. The smaller one is copied
into that order first here. This is a pass on Inductor's graphs, because gradients are nodes only there.
"""

from __future__ import annotations

import torch
from torch import fx

from rung import kernels
from rung.ladder.surgery.lowered import Pass, aten

if kernels.available():  # compiled code that comes out of a cache calls the operator, too, and no pass has run then
    from rung.kernels.families import k_major  # noqa: F401  registers it

# The larger side of a gradient from which the copy pays, where the smaller one has 1024 (benchmarks/kernels/tf32.py on one H100: at 1024 it
# costs as much as it spares).
WIDEST = 2048


class KMajor(Pass):
    """For `torch._inductor.config.post_grad_custom_post_pass`."""

    def __call__(self, graph: fx.Graph) -> None:
        turn_factors(graph)


def turn_factors(graph: fx.Graph) -> int:
    """Copy the smaller factor of each float32 product of which neither has what is summed side by side; how many products."""
    if not kernels.available():
        return 0
    copies: dict[tuple[fx.Node, int], fx.Node] = {}
    count = 0
    for product in graph.find_nodes(op="call_function", target=aten.mm.default):
        left, right = product.args
        if not (_apart(left, 1) and _apart(right, 0)):
            continue
        sides = left.meta["val"].shape[0], right.meta["val"].shape[1]
        if max(sides) < WIDEST:
            continue
        place = int(sides[1] < sides[0])
        key = ((left, 1), (right, 0))[place]
        if key not in copies:
            with graph.inserting_before(product):  # and not where the factor is made: a copy that waits takes memory
                copies[key] = graph.call_function(torch.ops.rung.k_major.default, key)
            copies[key].meta["val"] = torch.ops.rung.k_major.default(key[0].meta["val"], key[1])
        product.update_arg(place, copies[key])
        count += 1
    return count


def _apart(factor: fx.Node, summed: int) -> bool:
    """Whether it is a float32 matrix whose other dimension is the one that lies side by side."""
    made = factor.meta.get("val") if isinstance(factor, fx.Node) else None
    if not isinstance(made, torch.Tensor) or made.dtype != torch.float32:
        return False
    fixed = all(isinstance(n, int) for n in (*made.shape, *made.stride()))
    return fixed and made.stride(summed) != 1 and made.stride(1 - summed) == 1
