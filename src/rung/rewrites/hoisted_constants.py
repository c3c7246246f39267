"""Tables that depend on constants only, worked out once: the angles of rotary embeddings above all.

A model that computes them in its forward has them recomputed by the compiler in every kernel that reads them: a pointwise
operation without reads seems free to it. But cosines and powers are arithmetic, and a kernel that else only moves memory
is bound by them.
"""

from __future__ import annotations

import torch
from torch import fx

from rung.rewrites.added_inputs import VALUE
from rung.rewrites.graph.captured import add_weight
from rung.rewrites.graph.constants import COMPUTED, COSTLY, evaluate, first_alike, sweep
from rung.rewrites.graph.normalize import kind, names, source_line, value
from rung.rewrites.graph.writes import aliases

VIEWS = names("expand expand_as unsqueeze view reshape repeat repeat_interleave getitem transpose permute T mT")
MOST_ELEMENTS = 2**24  # 64 MiB of float32: a table is held as long as the compiled graph is


def hoist_constants(graph: fx.Graph) -> tuple[int, list[str]]:
    """Makes an input of every table that costs arithmetic and depends on constants; how many, and why not others."""
    made: dict[fx.Node, fx.Node] = {}
    count, skipped = 0, []
    for node, first in _tables(graph).items():
        if any(user.op == "output" for alias in aliases(node) for user in alias.users):
            table: fx.Node | str = "it is returned, so the caller may write to it"
        else:
            table = made.get(first) or _table(graph, node)
        if isinstance(table, str):
            skipped.append(f"table at {source_line(node)}: {table}")
            continue
        made[first] = table
        node.replace_all_uses_with(table)
        sweep([node])
        count += 1
    return count, skipped


def _tables(graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """The last nodes that depend on constants only, as small as they are before they are broadcast, each with the first that
    computes the same. What is written stands for several values, so it is like nothing but itself."""
    alike = first_alike(graph)
    costs: dict[fx.Node, bool] = {}  # of those that depend on constants only, whether arithmetic is behind them
    for node in graph.nodes:
        tensor = value(node)
        if kind(node) not in COMPUTED or tensor is None or tensor.numel() > MOST_ELEMENTS:
            continue
        if all(source in costs for source in node.all_input_nodes):
            costs[node] = kind(node) in COSTLY or any(costs[source] for source in node.all_input_nodes)
    tables: dict[fx.Node, fx.Node] = {}
    for node, costly in costs.items():
        if costly and any(user not in costs for user in node.users):
            while kind(node) in VIEWS:
                node = node.all_input_nodes[0]
            if costs[node]:
                tables[node] = alike.get(node, node)
    return tables


def _table(graph: fx.Graph, node: fx.Node) -> fx.Node | str:
    """The new input that holds this node's value; why there is none."""
    wanted = value(node)
    assert wanted is not None
    with torch.autocast(wanted.device.type, enabled=False):
        table = evaluate(node, COMPUTED, there=True)
    if table is None:
        return "something writes to it"
    if table.dtype != wanted.dtype or table.shape != wanted.shape:
        return f"it is {table.dtype} outside of autocast"
    return add_weight(
        graph, torch.empty_like(wanted, memory_format=torch.contiguous_format), {VALUE: table.contiguous()}
    )
