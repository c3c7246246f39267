"""Gradients of a rotated query and key, rotated back into the place where they are joined.

Where one product gives query, key and value, its gradient is theirs, joined, and those of query and key come out of the kernel
for rotary embeddings (rotary.py). Inductor joins them in a kernel of its own, which reads and writes all of them once
more. Here the kernel writes each into its place of the whole, and only what is not rotated, the value's, is copied there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import fx
from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table, triton_kernel_wrapper_functional

from rung import kernels
from rung.rewrites.graph import kernel_ops
from rung.rewrites.inductor_passes.base import VIEWS, aten, dimension, for_products, is_item

RESHAPES = {aten.view.default, aten.reshape.default, aten._unsafe_view.default}
THROUGH = VIEWS | {aten.clone.default}


class Rotated(NamedTuple):
    """What the kernel reads, x as [batch, heads, tokens, d]; and how it rotates."""

    x: fx.Node
    cos: fx.Node
    sin: fx.Node
    interleaved: bool
    backward: bool


def place_rotated(graph: fx.Graph) -> int:
    """Let joins that products read be made by `rotate_into_join` where the kernel rotates parts for them alone; how many."""
    if not kernels.available():
        return 0
    return sum(_rewrite(joined) for joined in graph.find_nodes(op="call_function", target=aten.cat.default))


def _rewrite(joined: fx.Node) -> bool:
    chains, made = [_chain(part) for part in joined.args[0]], joined.meta["val"]
    rotated = {
        k: found
        for k, chain in enumerate(chains)
        if all(len(node.users) == 1 for node in chain) and (found := _rotated(chain[-1])) and _tokens_first(chain)
    }
    forms = {(found.interleaved, found.backward, *_rows(found.x)) for found in rotated.values()}
    last = dimension(joined) == made.dim() - 1
    if len(forms) != 1 or not last or _mixed(joined) or not for_products(joined):
        return False
    interleaved, backward, batch, tokens = forms.pop()
    with joined.graph.inserting_before(joined):
        parts = [rotated[k].x if k in rotated else _with_heads(chain, batch, tokens) for k, chain in enumerate(chains)]
        cos, sin = [found.cos for found in rotated.values()], [found.sin for found in rotated.values()]
        arguments = (parts, list(rotated), cos, sin, interleaved, backward)
        whole = joined.graph.call_function(kernel_ops.operator("rotate_into_join"), arguments)
        whole.meta = {**joined.meta, "val": made.new_empty((batch, tokens, made.shape[-1]))}
        shaped = _reshaped(whole, made.shape)
    joined.replace_all_uses_with(shaped)
    _erase(joined)
    return True


def _chain(part: fx.Node) -> list[fx.Node]:
    """It, what it is a view of, what that is a view of, ..."""
    chain = [part]
    while chain[-1].target in THROUGH:
        chain.append(chain[-1].args[0])
    return chain


def _rotated(node: fx.Node) -> Rotated | None:
    """How it is made: by the operator or, where AOTAutograd took that apart, by the kernel, which writes to Y."""
    if node.target is kernel_ops.operator("rope"):
        return Rotated(*node.args)
    call = node.args[0] if is_item(node) else None
    if not isinstance(call, fx.Node) or call.target is not triton_kernel_wrapper_functional or len(call.users) > 1:
        return None
    from rung.kernels.families.rope import rope_rotate

    kernel: Any = kernel_side_table.get_kernel(call.kwargs["kernel_idx"])
    given: Any = call.kwargs["kwargs"]
    # Where the number of warps is given, the kernel is one of an autotuner.
    ours = rope_rotate in (kernel, kernel.fn)
    return Rotated(*(given[name] for name in ("X", "COS", "SIN", "INTERLEAVED", "BACKWARD"))) if ours else None


def _tokens_first(chain: list[fx.Node]) -> bool:
    """Whether views turn its last, [batch, heads, tokens, d], into [..., heads * d], rows in the order of [batch, tokens].

    They are then views of memory where heads lie inside tokens, and see it as it lies.
    """
    shape = chain[-1].meta["val"].shape
    if len(shape) != 4 or not all(isinstance(size, int) for size in shape):
        return False
    batch, heads, tokens, dim = shape
    made = torch.empty(batch, tokens, heads, dim, device="meta").transpose(1, 2)
    try:
        for node in reversed(chain[:-1]):
            if node.target in RESHAPES:
                made = made.view(node.args[1])
            elif node.target in VIEWS:
                made = node.target(made, *node.args[1:])
    except RuntimeError:
        return False
    return bool(made.is_contiguous() and made.shape[-1] == heads * dim)


def _rows(x: fx.Node) -> tuple[int, int]:
    batch, _, tokens, _ = x.meta["val"].shape
    return batch, tokens


def _mixed(joined: fx.Node) -> bool:
    return any(part.meta["val"].dtype != joined.meta["val"].dtype for part in joined.args[0])


def _with_heads(chain: list[fx.Node], batch: int, tokens: int) -> fx.Node:
    """What is not rotated, as [batch, heads, tokens, d]: as it was before it was copied for the join, or as one head."""
    for k, node in enumerate(chain):
        if _tokens_first(chain[: k + 1]) and _rows(node) == (batch, tokens):
            return node
    return _reshaped(chain[0], (batch, 1, tokens, chain[0].meta["val"].shape[-1]))


def _reshaped(node: fx.Node, shape: Sequence[int]) -> fx.Node:
    if node.meta["val"].shape == tuple(shape):
        return node
    made = node.graph.call_function(aten.reshape.default, (node, list(shape)))
    made.meta = {**node.meta, "val": node.meta["val"].reshape(shape)}
    return made


def _erase(node: fx.Node) -> None:
    """Itself and whatever is left without a reader."""
    todo = [node]
    while todo:
        node = todo.pop()
        if not node._erased and not node.users and node.op == "call_function":
            todo += node.all_input_nodes
            node.graph.erase_node(node)
