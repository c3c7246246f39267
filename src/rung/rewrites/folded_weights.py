"""What is computed of weights alone is computed once (constant folding), and again once a weight is another.

Folded batch norms are such, weights that are standardized or normalized, and biases of attention that a table holds. The compiler computes them in
every call, each in a kernel of its own, for most are read by kernels of libraries. Their values are kept as those of casts are (`weight_cache.py`), and as
autocast casts them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.utils._python_dispatch import _disable_current_modes

from rung.rewrites.batch_norm import STATISTIC
from rung.rewrites.cast_cache import NARROW, PRODUCTS
from rung.rewrites.graph.captured import without_numbers
from rung.rewrites.graph.constants import COMPUTED, COSTLY, sweep
from rung.rewrites.graph.normalize import argument, kind, names, source_line, value
from rung.rewrites.graph.writes import storage, switches_mode, written
from rung.rewrites.hoisted_constants import VIEWS
from rung.rewrites.packed_weights import PLACEMENT
from rung.rewrites.weight_cache import add_cached, replay_views

# What a compiler cannot compute as part of whatever reads it.
HEAVY = names(
    """batch_norm layer_norm softmax norm linalg_vector_norm _weight_norm normalize mean var std var_mean std_mean sum cumsum
    amax reciprocal"""
)
PURE = (
    COMPUTED | HEAVY | names("flatten unflatten reshape_as view_as pad roll index_select gather embedding broadcast_to")
)
# Reads what is in memory: kernels of libraries.
READERS = frozenset(
    (*PRODUCTS, "bmm", "baddbmm", "einsum", "scaled_dot_product_attention", "conv_transpose1d", "conv_transpose2d")
)
# Other operations whose result has memory of its own: a view of a value that is kept must not leave the graph.
FRESH = READERS | names("add sub mul div pow where cat stack embedding")
VIEWED = (VIEWS - {"getitem"}) | names("broadcast_to squeeze detach flatten unflatten")
MOST_ELEMENTS = 2**28  # as many as the largest weights have
# Bytes of a value that may be larger than what it is made of: a table's biases for 577 tokens and 12 heads.
SMALL = 2**24
# Operations that read whole numbers as places. Any other reads them for what they are: codes of a weight in few bits.
PLACES = names("getitem embedding index_select gather")


class Folded:
    """A value that a program makes of tensors, in memory as that of an example."""

    def __init__(self, program: fx.Graph, example: torch.Tensor) -> None:
        self._program, self._dtype, self._device = program, example.dtype, example.device
        self._size, self._stride = tuple(example.shape), tuple(example.stride())
        # Made when it is asked, for a graph is read more often than it runs.
        self._run: Callable[..., torch.Tensor] | None = None
        places = {node: f"%{k}" for k, node in enumerate(program.nodes)}  # two graphs may name their nodes otherwise
        read = [fx.map_arg((node.args, node.kwargs), places.__getitem__) for node in program.nodes]
        steps = "; ".join(
            f"{n.op} {n.target if n.op != 'placeholder' else ''} {r}" for n, r in zip(program.nodes, read, strict=True)
        )
        self.key: Hashable = (steps, self._dtype, self._device, self._size, self._stride)

    def new(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        made = torch.empty_strided(self._size, self._stride, dtype=self._dtype, device=self._device)
        self.write(made, tensors)
        return made

    def write(self, made: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
        self._run = self._run or fx.GraphModule(nn.Module(), self._program).forward
        with _disable_current_modes(), torch.autocast(made.device.type, enabled=False):
            made.copy_(self._run(*(t.detach() for t in tensors)))


def fold_weights(graph: fx.Graph) -> tuple[int, list[str]]:
    """Makes an input of every value that depends on weights alone, and that a kernel reads from memory; how many, and why not others."""
    if torch.is_grad_enabled():  # every step of an optimizer would have all values computed anew
        return 0, []
    touched = {storage(item) for node in graph.nodes for item in written(node)}
    weights, skipped = _weights(graph, touched)
    sources = _of_weights(graph, weights, touched)
    made: dict[tuple[fx.Node, torch.dtype], fx.Node] = {}
    count = 0
    for node in list(graph.nodes):
        if node in sources or node.op == "output":
            continue
        for read in node.all_input_nodes:
            views, inner = _without_views(read, sources)
            if not sources.get(inner) or inner in weights or not _worth(node, inner, sources):
                continue
            dtype = _as_read(node, inner)
            if _takes_more_memory(inner, dtype, sources[inner]):
                skipped.append(f"weight of {source_line(node)}: its value takes more memory than what it is made of")
                continue
            if (inner, dtype) not in made:
                made[inner, dtype] = _cached(graph, inner, dtype, sources)
                count += 1
            node.replace_input_with(read, replay_views(graph, views, made[inner, dtype]))
            sweep([read])
    return count, skipped


def _weights(graph: fx.Graph, touched: set[int | None]) -> tuple[dict[fx.Node, None], list[str]]:
    """The inputs whose changes are seen, and why others are none of them, where something is computed of these alone."""
    found: dict[fx.Node, None] = {}
    skipped = []
    for node in graph.find_nodes(op="placeholder"):
        placement = node.meta.get(PLACEMENT)
        if placement is None:
            continue
        fills_storage = placement.fills_storage and not placement.shared
        seen = placement.writes_seen and not (placement.parameter and STATISTIC in node.meta)
        if seen and fills_storage and storage(node) not in touched:
            found[node] = None
        elif not seen and STATISTIC in node.meta:
            skipped.append(f"statistics {node.name}: no counter says when batch norm writes them")
    return found, skipped


def _of_weights(
    graph: fx.Graph, weights: dict[fx.Node, None], touched: set[int | None]
) -> dict[fx.Node, dict[fx.Node, None]]:
    """What depends on weights and on constants alone, and on which weights."""
    sources: dict[fx.Node, dict[fx.Node, None]] = {node: {node: None} for node in weights}
    autocast = _under_autocast(graph)
    for node in graph.nodes:
        made = value(node)
        if kind(node) not in PURE or made is None or made.numel() > MOST_ELEMENTS:
            continue
        if storage(node) in touched or written(node) or not all(item in sources for item in node.all_input_nodes):
            continue
        if kind(node) == "batch_norm" and not _without_statistics(node):
            continue
        narrow = any((held := value(item)) is not None and held.dtype in NARROW for item in node.all_input_nodes)
        if autocast and narrow and kind(node) in COSTLY | HEAVY:
            continue  # which autocast computes in float32, and its values are made outside of it
        if (
            kind(node) not in PLACES
            and made.is_floating_point()
            and any(sources[item] and _coded(item) for item in node.all_input_nodes)
        ):
            continue  # the model stores fewer bits on purpose
        sources[node] = {weight: None for item in node.all_input_nodes for weight in sources[item]}
    return sources


def _without_statistics(node: fx.Node) -> bool:
    """Whether a batch norm standardizes what it is given, and reads and writes no running statistics."""
    running = argument(node, 1, "running_mean"), argument(node, 2, "running_var")
    return node.target is F.batch_norm and running == (None, None)


def _under_autocast(graph: fx.Graph) -> bool:
    """Whether autocast is on around the graph, or switched within it."""
    devices = {held.device.type for node in graph.find_nodes(op="placeholder") if (held := value(node)) is not None}
    return any(map(torch.is_autocast_enabled, devices)) or any(map(switches_mode, graph.nodes))


def _coded(node: fx.Node) -> bool:
    """Whether it holds whole numbers, or numbers of 8 bits."""
    held = value(node)
    return held is not None and held.dtype != torch.bool and (not held.dtype.is_floating_point or held.itemsize == 1)


def _takes_more_memory(inner: fx.Node, dtype: torch.dtype, members: Iterable[fx.Node]) -> bool:
    """Whether its value takes more memory than the weights that it is made of."""
    held = value(inner)
    read = sum(t.nbytes for member in members if (t := value(member)) is not None and t.is_floating_point())
    return held is not None and held.numel() * dtype.itemsize > max(read, SMALL)


def _without_views(read: fx.Node, sources: dict[fx.Node, dict[fx.Node, None]]) -> tuple[list[fx.Node], fx.Node]:
    """The views through which a value is read, which may repeat it, the first of them first; and the value without them."""
    views: list[fx.Node] = []
    while read in sources and kind(read) in VIEWED and len(read.all_input_nodes) == 1:
        source = read.all_input_nodes[0]
        before, after = value(source), value(read)
        if before is None or after is None or before.dtype != after.dtype:
            break
        views.insert(0, read)
        read = source
    return views, read


def _worth(node: fx.Node, inner: fx.Node, sources: dict[fx.Node, dict[fx.Node, None]]) -> bool:
    """Whether a kernel of its own computes it in every call."""
    if kind(node) not in FRESH or value(node) is None:
        return False
    if kind(node) in READERS:
        return True
    todo, seen = [inner], set()
    while todo:
        item = todo.pop()
        if kind(item) in HEAVY:
            return True
        seen.add(item)
        todo += [one for one in item.all_input_nodes if one in sources and one not in seen]
    return False


def _as_read(node: fx.Node, inner: fx.Node) -> torch.dtype:
    """The dtype that autocast casts it to; its own, where nothing is cast."""
    held, made = value(inner), value(node)
    assert held is not None
    if kind(node) not in READERS or held.dtype != torch.float32 or made is None or made.dtype not in NARROW:
        return held.dtype
    # Attention takes a bias in float32 beside queries in 16 bits as it is, where nothing casts it.
    cast = kind(node) != "scaled_dot_product_attention" or torch.is_autocast_enabled(made.device.type)
    return made.dtype if cast else held.dtype


def _cached(
    graph: fx.Graph, inner: fx.Node, dtype: torch.dtype, sources: dict[fx.Node, dict[fx.Node, None]]
) -> fx.Node:
    members, held = list(sources[inner]), value(inner)
    assert held is not None
    needed, todo = set(), [inner]
    while todo:
        item = todo.pop()
        if item not in needed:
            needed.add(item)
            todo += item.all_input_nodes
    program, copies = fx.Graph(), {}
    for k, member in enumerate(members):
        copies[member] = program.placeholder(f"weight_{k}")
    for item in graph.nodes:
        if item in needed and item not in copies:
            copies[item] = program.node_copy(item, copies.__getitem__)
            copies[item].meta = {}
    program.output(copies[inner])
    with without_numbers(held), torch.no_grad():
        example = held.detach().to(dtype)
        if 0 in example.stride():  # one element may be read as many, and not written as such
            example = example.contiguous()
    return add_cached(graph, example, members, Folded(program, example))
