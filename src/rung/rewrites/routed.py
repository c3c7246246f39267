"""Linear layers that aiter has a tuned kernel for are computed by it; all others stay as they are.

aiter itself would take any shape and call F.linear for those that its tables lack, as an operator that Inductor cannot
look into: so only what is tuned goes there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from rung.hardware import pick
from rung.hardware.aiter import Product, Tuned, tuned
from rung.rewrites.graph.normalize import source_line, value
from rung.rewrites.horizontal_fusion import is_dense_input, projection


@torch.library.custom_op("rung::aiter_linear", mutates_args=())
def aiter_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x [..., K] times weight [N, K], transposed -> [..., N], by aiter; all in bfloat16, without gradients.

    aiter declares its own operator as one that writes to every tensor it is given, weights included, which it does not:
    a compiler that believed it would copy them, and leave graphs with it out of replay. In here that does not show.
    """
    from aiter.tuned_gemm import gemm_a16w16  # type: ignore[import-not-found]

    rows = x.reshape(-1, x.shape[-1]).contiguous()
    out = gemm_a16w16(rows, weight.contiguous(), bias)
    return out.view(*x.shape[:-1], weight.shape[0])


@aiter_linear.register_fake
def _(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


ROUTED = torch.ops.rung.aiter_linear.default


def linear_product(node: fx.Node) -> Product | None:
    """The matrix product of a linear layer, where its weight is a plain tensor that exists before the graph runs."""
    read = projection(node) if node.users and node.target is not ROUTED else None
    made = value(node)
    if read is None or made is None or not is_dense_input(read[1]) or value(read[0]) is None or not made.numel():
        return None
    n, k = value(read[1]).shape  # type: ignore[union-attr]
    return Product(made.numel() // n, n, k, read[2] is not None)


def route_to_aiter(graph: fx.Graph) -> tuple[int, list[str]]:
    """Route every tuned product of a graph that needs no gradients; how many, and why not others. Nothing is said where
    there is no aiter: the survey says that once (`rung.hardware.aiter`)."""
    count, skipped = 0, []
    for node in list(graph.nodes):
        product, made = linear_product(node), value(node)
        if product is None or made is None or made.dtype != torch.bfloat16 or made.requires_grad:
            continue
        table = _table(made.device)
        if table is None:
            return 0, []
        answer = table.answer(product)
        if not answer.library:
            skipped.append(f"linear at {source_line(node)}: {product}: {answer.why}")
        elif not made.is_contiguous():
            skipped.append(f"linear at {source_line(node)}: {product}: its result is not laid out in rows")
        else:
            _route(graph, node)
            count += 1
    return count, skipped


def _table(device: torch.device) -> Tuned | None:
    found = tuned(pick(str(device)))
    return found if isinstance(found, Tuned) else None


def _route(graph: fx.Graph, node: fx.Node) -> None:
    arguments: list[Any] = []
    with graph.inserting_before(node):
        for item in projection(node) or ():
            held = value(item)
            if held is not None and held.dtype != torch.bfloat16:  # what autocast does inside of F.linear
                item = graph.call_method("to", (item, torch.bfloat16))
                item.meta["example_value"] = held.to(torch.bfloat16)
            arguments.append(item)
        made = graph.call_function(ROUTED, tuple(arguments))
    made.meta = dict(node.meta)
    node.replace_all_uses_with(made)
    graph.erase_node(node)
