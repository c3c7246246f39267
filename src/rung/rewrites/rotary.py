"""Rotary embeddings (rotation.py finds them) become one call of a Triton kernel, rung.kernels.rope."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import fx

from rung.rewrites.graph import kernel_ops
from rung.rewrites.graph.constants import sweep
from rung.rewrites.graph.layout import free_readers
from rung.rewrites.graph.normalize import cast_source, kind, names, source_line, value
from rung.rewrites.graph.writes import between, may_touch, storage, switches_mode
from rung.rewrites.rotation import Rotation, rotation

_JOINS = names("cat concat concatenate")


def fuse_rotary(graph: fx.Graph) -> tuple[int, list[str]]:
    """Rewrite every rotary embedding found; how many, and why not others."""
    count, skipped = 0, []
    for node in list(graph.nodes):
        embedding = None if node._erased else rotation(node)
        if embedding is None:
            continue
        reason = _obstacle(embedding) or _rewrite(graph, embedding)
        if reason:
            skipped.append(f"rotary embedding at {source_line(node)}: {reason}")
        else:
            count += 1
    return count, skipped


def _obstacle(embedding: Rotation) -> str:
    x, tables = value(embedding.x), [value(item) for item in embedding.tables]
    assert x is not None
    real = [t for t in tables if t is not None and not t.is_complex()]
    if reason := kernel_ops.obstacle(x, *real):
        return reason
    if any(t is not None and t.requires_grad for t in tables):
        return "its tables require a gradient"
    if _axis(embedding) is None:
        return "its tables do not vary along one dimension of the tokens"
    if _is_joined(embedding.out):
        return "its result is joined with other tokens or features, and Inductor turns and joins in one kernel"
    memory = {storage(item) for item in (_source(embedding)[0], embedding.x, *embedding.tables)}
    if any(switches_mode(node) or may_touch(node, memory) for node in between(_first_reader(embedding), embedding.out)):
        return "a tensor is written, or autocast changes, inside of it"
    return ""


def _is_joined(node: fx.Node) -> bool:
    """Whether a tensor becomes a part of a larger one. Behind a kernel of its own, joining it reads and writes it once more: a training step
    of eva02_small took 1.09 times as long (docs/internals/zoo.md). A cache of transformers that is empty yet joins nothing to it."""
    return any(
        (kind(user) in _JOINS and _grows(node, user)) or (cast_source(user) is node and _is_joined(user))
        for user in node.users
    )


def _grows(part: fx.Node, joined: fx.Node) -> bool:
    before, after = value(part), value(joined)
    return before is None or after is None or after.numel() > before.numel()


def _first_reader(embedding: Rotation) -> fx.Node:
    """The first node that reads what the kernel reads at the end: it may be the cast before the rotation, or a table's negation."""
    read = {_source(embedding)[0], *embedding.tables}
    inner = {*embedding.inner, *(item for node in embedding.inner for item in node.all_input_nodes)}
    return min(node for node in inner if read.intersection(node.all_input_nodes))


def _axis(embedding: Rotation) -> int | None:
    """The dimension of the tokens, of four: 2 where heads come first, 1 where tokens do; None for other tables."""
    sizes = _four(value(embedding.x).shape)  # type: ignore[union-attr]
    shapes = [_four(t.shape) for item in embedding.tables if (t := value(item)) is not None]
    if any(shape[:3] != shapes[0][:3] or shape[0] not in (1, sizes[0]) for shape in shapes):
        return None
    axes = [axis for axis in (2, 1) if shapes[0][3 - axis] == 1 and shapes[0][axis] in (1, sizes[axis])]
    return axes[0] if axes else None


def _four(shape: torch.Size) -> tuple[int, ...]:
    return (1,) * (4 - len(shape)) + tuple(shape)


def _rewrite(graph: fx.Graph, embedding: Rotation) -> str:
    out, result, axis = embedding.out, value(embedding.out), _axis(embedding)
    assert result is not None
    x, dtype = _source(embedding)
    copied = free_readers(out)
    if copied and not result.is_contiguous():
        return "its result is returned with non-contiguous strides"
    before = out.prev
    with graph.inserting_before(out):
        x = x if value(x).dtype == dtype else graph.call_method("to", (x, dtype))  # type: ignore[union-attr]
        x = graph.call_method("unsqueeze", (x, 0)) if result.dim() == 3 else x
        x = graph.call_method("transpose", (x, 1, 2)) if axis == 1 else x
        cos, sin = _as_tables(graph, embedding, axis)
        made = graph.call_function(kernel_ops.operator("rope"), (x, cos, sin, embedding.interleaved, False))
        made = graph.call_method("transpose", (made, 1, 2)) if axis == 1 else made
        made = graph.call_method("squeeze", (made, 0)) if result.dim() == 3 else made
        made = made if dtype == result.dtype else graph.call_method("to", (made, result.dtype))
        made = graph.call_method("contiguous", (made,)) if copied else made
    for node in between(before, out):
        node.meta["stack_trace"] = out.meta.get("stack_trace")
    made.meta = dict(out.meta)
    out.replace_all_uses_with(made)
    for node in reversed(embedding.inner):
        if not node.users:
            graph.erase_node(node)
    sweep([embedding.x, *embedding.tables])
    return ""


def _source(embedding: Rotation) -> tuple[fx.Node, torch.dtype]:
    """What the kernel reads, and the dtype in which it reads and writes it. It computes in float32 in any case: where the
    result is only ever rounded to the dtype that x had before it was widened, that is left to the kernel."""
    x, result = value(embedding.x), value(embedding.out)
    assert x is not None
    assert result is not None
    narrow = cast_source(embedding.x) or embedding.x
    before = value(narrow)
    rounded = {
        r.dtype if cast_source(user) and (r := value(user)) is not None else None for user in embedding.out.users
    }
    if before is not None and before.itemsize < result.itemsize and rounded == {before.dtype}:
        return narrow, before.dtype
    return embedding.x, torch.promote_types(x.dtype, result.dtype)


def _as_tables(graph: fx.Graph, embedding: Rotation, axis: int | None) -> Iterator[fx.Node]:
    """cos and sin as [batch or 1, tokens, width]."""
    pair = embedding.tables
    if len(pair) == 1:
        pair = tuple(graph.call_function(part, (pair[0],)) for part in (torch.real, torch.imag))
    shape = _four(value(embedding.tables[0]).shape)  # type: ignore[union-attr]
    for k, item in enumerate(pair):
        table = graph.call_method("reshape", (item, shape[0], shape[axis or 2], shape[3]))
        yield graph.call_function(torch.neg, (table,)) if k == 1 and embedding.negative else table
