"""Gradients from factors in the order that the chip multiplies.

A weight's gradient sums over tokens, and both its factors hold the features of a token side by side; an input's gradient sums
over what a weight has one above the other. In 16 bits a tensor core takes either order; Hopper's in TF32 takes only the one in
which what is summed lies side by side (PTX, wgmma: no transpose of tf32 operands), so the library's kernel turns factors around
on their way, at two thirds of the rate where it does so with both. The smaller one is copied into that order first here. This
is a pass on Inductor's graphs, because gradients are nodes only there.
"""

from __future__ import annotations

import torch
from torch import fx

from rung import kernels
from rung.rewrites.inductor_passes.base import InductorPass, aten

if kernels.available():  # compiled code that comes out of a cache calls the operator, too, and no pass has run then
    from rung.kernels.families import k_major  # noqa: F401  registers it

# The larger side of a gradient from which the copy pays, where the smaller one has 1024 (benchmarks/kernels/tf32.py on one H100: at 1024 it
# costs as much as it spares).
WIDEST = 2048
# Where one factor alone is turned: the rows of the other from which its copy pays, whatever else its size is (it costs what it
# holds, and spares that times the rows), and the longest sum; of more the library's kernel is as fast in either order there.
ROWS, LONGEST = 4096, 2048


class KMajorWgrad(InductorPass):
    """For `torch._inductor.config.post_grad_custom_post_pass`."""

    def __call__(self, graph: fx.Graph) -> None:
        turn_factors(graph)


def turn_factors(graph: fx.Graph) -> int:
    """Copy a factor of each float32 product that does not have what is summed side by side, where that pays; how many products."""
    if not kernels.available():
        return 0
    copies: dict[tuple[fx.Node, int], fx.Node] = {}
    count = 0
    for product in graph.find_nodes(op="call_function", target=aten.mm.default):
        left, right = product.args
        place = _turned(left, right)
        if place is None:
            continue
        key = ((left, 1), (right, 0))[place]
        if key not in copies:
            with graph.inserting_before(product):  # and not where the factor is made: a copy that waits takes memory
                copies[key] = graph.call_function(torch.ops.rung.k_major.default, key)
            copies[key].meta["val"] = torch.ops.rung.k_major.default(key[0].meta["val"], key[1])
        product.update_arg(place, copies[key])
        count += 1
    return count


def _turned(left: fx.Node, right: fx.Node) -> int | None:
    """Which of the two it pays to copy; None: neither."""
    a, b = _dense(left), _dense(right)
    if a is None or b is None or b.stride(0) == 1:
        return None
    (rows, summed), cols = a.shape, b.shape[1]
    if a.stride(1) != 1:
        return int(cols < rows) if max(rows, cols) >= WIDEST else None
    return 1 if rows >= ROWS and summed <= LONGEST else None


def _dense(factor: fx.Node) -> torch.Tensor | None:
    """The factor, where it is a float32 matrix of fixed size with one dimension side by side."""
    made = factor.meta.get("val") if isinstance(factor, fx.Node) else None
    if not isinstance(made, torch.Tensor) or made.dtype != torch.float32:
        return None
    return made if all(isinstance(n, int) for n in (*made.shape, *made.stride())) and 1 in made.stride() else None
