"""What hand-written attention may do to whole rows around its softmax: take their largest score off, and give each a score more.

An attention sink is a score that belongs to no key (gpt-oss): it takes its share of a row's softmax, and is dropped before the values.
"""

from __future__ import annotations

from torch import fx

from rung.rewrites.graph.normalize import argument, kind, value


def less_its_largest(node: fx.Node) -> tuple[fx.Node, list[fx.Node]] | None:
    """(x, nodes), where the node is x less the largest of each of its rows, which leaves a softmax as it is: what stands between
    the two, last first. None where it is anything else, or others read x, too."""
    source, largest = argument(node, 0, "input"), argument(node, 1, "other")
    if kind(node) != "sub" or len(node.args) != 2 or node.kwargs or not isinstance(source, fx.Node):
        return None
    between: list[fx.Node] = []
    while isinstance(largest, fx.Node) and largest is not source and len(largest.users) == 1:
        between.append(largest)
        what, inner = kind(largest), largest.args[0] if largest.args else None
        if what in ("max", "amax"):
            last = argument(largest, 1, "dim") in (-1, [-1], (-1,), *_last(source))
            same = inner is source and last and argument(largest, 2, "keepdim", default=False) is True
            return (source, between) if same and {*source.users} == {node, largest} else None
        if what != "detach" and not (what == "getitem" and largest.args[1:] == (0,)):
            return None
        largest = inner
    return None


def with_a_sink(node: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """(scores, sink), where the node is the scores with one more at the end of each row."""
    parts = argument(node, 0, "tensors")
    if kind(node) not in ("cat", "concat") or not isinstance(parts, (list, tuple)) or len(parts) != 2:
        return None
    scores, sink = parts
    made, one = value(scores), value(sink)
    if made is None or one is None or argument(node, 1, "dim", default=0) not in (-1, made.dim() - 1):
        return None
    return (scores, sink) if one.shape[-1] == 1 < made.shape[-1] else None


def without_the_last(node: fx.Node, source: fx.Node) -> bool:
    """Whether the node is the source without the last of each of its rows."""
    made, whole = value(node), value(source)
    if kind(node) != "getitem" or node.args[0] is not source or made is None or whole is None:
        return False
    *others, last = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
    full = all(item is Ellipsis or item == slice(None) for item in others)
    start = isinstance(last, slice) and last.start in (None, 0) and last.step in (None, 1)
    return full and start and made.shape == (*whole.shape[:-1], whole.shape[-1] - 1)


def _last(node: fx.Node) -> tuple[int, ...]:
    made = value(node)
    return () if made is None else (made.dim() - 1,)
