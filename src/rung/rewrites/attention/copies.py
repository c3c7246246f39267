"""Copies into another layout that attention does not need: its kernels read rows at any distance.

``q.transpose(1, 2).contiguous()`` in front of an attention call moves every head's rows together, in a kernel of its own,
because Inductor fuses nothing into the call. Other copies are left to it: it fuses them, or finds that they copy nothing.
"""

from __future__ import annotations

from torch import fx

from rung.rewrites.attention.flex import flex_attention
from rung.rewrites.graph.layout import free_readers
from rung.rewrites.graph.normalize import kind, source_line, value
from rung.rewrites.graph.writes import between, may_touch, storage, switches_mode

ALIGNED = 16  # bytes: distances between rows that the fused kernels take as they are


def drop_copies(graph: fx.Graph) -> tuple[int, list[str]]:
    """Rewrite every such copy; how many, and why not others."""
    count, skipped = 0, []
    for node in list(graph.nodes):
        source = node.args[0] if kind(node) == "contiguous" and node.args else None
        if not isinstance(source, fx.Node) or not _strided(source):
            continue
        readers = [user for user in node.users if _attends(user) and node in user.args[:3]]
        left = next((reader for reader in readers if not _unchanged(source, node, reader)), None)
        if left is not None:
            skipped.append(f"copy at {source_line(node)}: a tensor is written between it and the attention")
        elif readers and len(readers) == len(node.users):  # for another reader it has to be made anyway
            for reader in readers:
                if reader.args[0] is node:
                    _any_order(graph, reader)
            node.replace_all_uses_with(source)
            graph.erase_node(node)
            count += 1
    return count, skipped


def _any_order(graph: fx.Graph, attention: fx.Node) -> None:
    """The result lies in memory as the query does: whoever reads it is made to read it in another order, too."""
    if not free_readers(attention):
        return
    with graph.inserting_after(attention):
        made = graph.call_method("contiguous", (attention,))
    made.meta = dict(attention.meta)
    attention.replace_all_uses_with(made, delete_user_cb=lambda user: user is not made)


def _strided(source: fx.Node) -> bool:
    """Whether its rows lie whole, at distances that the kernels take, and not one after the other."""
    tensor = value(source)
    if tensor is None or tensor.dim() != 4 or tensor.is_contiguous() or tensor.stride(-1) != 1:
        return False
    distances = [s for s, size in zip(tensor.stride()[:-1], tensor.shape[:-1], strict=True) if size > 1]
    return not any(distance * tensor.itemsize % ALIGNED for distance in distances)


def _attends(node: fx.Node) -> bool:
    return kind(node) == "scaled_dot_product_attention" or node.target is flex_attention


def _unchanged(source: fx.Node, node: fx.Node, reader: fx.Node) -> bool:
    memory = {storage(source)}
    return not any(may_touch(item, memory) or switches_mode(item) for item in between(node, reader))
