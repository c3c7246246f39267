"""A rewritten value may have other strides than the value that it replaces: make its readers indifferent."""

from __future__ import annotations

import operator

import torch
from torch import fx

from rung.rewrites.graph.kernel_ops import called
from rung.rewrites.graph.normalize import CASTS, VIEWS, kind, names, value
from rung.rewrites.graph.normalize import called as computed
from rung.rewrites.graph.writes import aliases, opaque, written

# These read raw strides; Dynamo has already folded sizes and strides that the user asked for into constants.
STRIDE_READERS = ("as_strided", "set", "data_ptr", "view_as_real", "view_as_complex")
# Results of these lie in an order of their own. Of any other operation a result as large as what it reads is taken to lie as that does:
# where it does not, that costs nothing.
OF_THEIR_OWN = names(
    """contiguous linear matmul addmm mm baddbmm einsum conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d
    scaled_dot_product_attention layer_norm rms_norm group_norm embedding cross_entropy"""
)


def laid_as(graph: fx.Graph, node: fx.Node, like: torch.Tensor) -> fx.Node:
    """The node, copied where it does not lie in memory as this tensor of its shape does: dense, its dimensions in the same order."""
    order = sorted(range(like.dim()), key=lambda k: -like.stride(k))
    if order == sorted(order):
        return computed(graph, "contiguous", node)
    outermost_first = computed(graph, "permute", node, *order)
    return computed(
        graph, "permute", computed(graph, "contiguous", outermost_first), *map(order.index, range(like.dim()))
    )


def free_readers(node: fx.Node) -> bool:
    """Turn ``view`` into ``reshape`` on the memory of a node, and on that of what is computed from it elementwise, which lies as
    the node does; True if a contiguous copy is needed as well.

    A value that leaves the graph must keep the strides that Dynamo promised to the code after it. One that is written to must
    share its memory with its views, which a reshape of other strides does not.
    """
    alike = _lying_alike(node)
    leaving = [each for each in alike if _leaves(each)]
    given = any(alike[each] for each in leaving)
    for each in leaving:
        if not alike[each]:
            _pin(each)
    # A list: each of them is freed, whatever the others need.
    return any([given, *(_free(each) for each in alike)])


def _pin(node: fx.Node) -> None:
    """Its readers get it as it lay, by a copy where it does not."""
    promised, readers = value(node), list(node.users)
    if promised is None:
        return
    with node.graph.inserting_before(node.next):
        pinned = laid_as(node.graph, node, promised)
    for reader in readers:
        reader.replace_input_with(node, pinned)


def _leaves(node: fx.Node) -> bool:
    return any(user.op == "output" or opaque(user) for alias in aliases(node) for user in alias.users)


def _lying_alike(node: fx.Node) -> dict[fx.Node, str]:
    """What lies in memory as the node does, itself included, and why code after the graph may rely on how it lies: it is the `value` itself
    or a cast of it, or one of `ours`, Rung's kernels, is on the way to it. Empty for what torch's own operations make of it."""
    found, waiting = {node: "value"}, [node]
    for item in waiting:
        shared = aliases(item)
        for alias in shared:
            for user in list(alias.users):
                for made in _following(user):
                    if made not in found and made not in shared and _size(made) >= _size(alias) >= 0:
                        cast = found[item] == "value" and kind(user) in CASTS
                        found[made] = "ours" if called(user) or found[item] == "ours" else "value" if cast else ""
                        waiting.append(made)
    return found


def _following(user: fx.Node) -> list[fx.Node]:
    """What a node makes that lies as what it reads: our kernels' results do so, too, of which some are a pair's first."""
    if called(user):
        return [user, *(part for part in user.users if part.target is operator.getitem)]
    return [user] if kind(user) and kind(user) not in VIEWS | OF_THEIR_OWN else []


def _size(node: fx.Node) -> int:
    tensor = value(node)
    return tensor.numel() if tensor is not None else -1


def _free(node: fx.Node) -> bool:
    needs_copy, viewed, shared = False, False, aliases(node)
    held = list(shared)  # with what is a copy now and is none where strides are others
    for alias in shared:
        for user in list(alias.users):
            if kind(user) in STRIDE_READERS:
                needs_copy = True
            elif kind(user) in VIEWS:  # of other strides, some of them are copies
                viewed = True
                held += aliases(user)
                if kind(user) != "view":
                    continue
                if any(isinstance(item, torch.dtype) for item in (*user.args, *user.kwargs.values())):
                    needs_copy = True
                elif not user.kwargs:
                    user.op, user.target = "call_method", "reshape"
                else:
                    needs_copy = True
    return needs_copy or (viewed and any(item in written(user) for item in held for user in item.users))
