"""Weights cast to half precision together.

Under autocast a step casts each float32 weight that a product reads, in a generated kernel of its own; where weights are joined into
one product, that kernel asks of each element which of them it is from. Here one operation copies all of them into the memory
of the results, a joined weight part by part: torch's copy of many tensors, which cuts them into pieces of one size.
This is a pass on Inductor's graphs, because the casts of autocast are nodes only there.
"""

from __future__ import annotations

import operator

import torch
from torch import fx

from rung.rewrites.inductor_passes.base import HALF, InductorPass, aten, for_products, prims

FEWEST = 2  # casts, from which one kernel is fewer
# torch 2.6 reads no schema from annotations of built-in lists.
SCHEMA = "(Tensor[] tensors, int[] counts, ScalarType dtype) -> Tensor[]"


@torch.library.custom_op("rung::cast_together", mutates_args=(), schema=SCHEMA)
def cast_together(tensors: list[torch.Tensor], counts: list[int], dtype: torch.dtype) -> list[torch.Tensor]:
    """As many results as counts: the next so many tensors, joined along their first dimension, as dtype."""
    results, parts = [], []
    for group in _groups(tensors, counts):
        results.append(_empty(group, dtype))
        parts += results[-1].split([t.shape[0] for t in group])
    torch._foreach_copy_(parts, tensors)
    return results


@cast_together.register_fake
def _(tensors: list[torch.Tensor], counts: list[int], dtype: torch.dtype) -> list[torch.Tensor]:
    return [_empty(group, dtype) for group in _groups(tensors, counts)]


class ForeachWeightCasts(InductorPass):
    """For `torch._inductor.config.post_grad_custom_pre_pass`."""

    def __call__(self, graph: fx.Graph) -> None:
        gather(graph)


def gather(graph: fx.Graph) -> int:
    """Let one operation make all casts of whole inputs, joined or not, that products read; how many. In a backward pass nothing
    is cast that the forward pass had not cast."""
    inputs = graph.find_nodes(op="placeholder")
    if any(node.name.startswith("tangents") for node in inputs):
        return 0
    casts = {
        c: s
        for c in graph.find_nodes(op="call_function", target=prims.convert_element_type.default)
        if (s := _sources(c))
    }
    made = 0
    for dtype in HALF:
        group = {c: s for c, s in casts.items() if c.args[1] == dtype}
        if len(group) < FEWEST:
            continue
        with graph.inserting_after(inputs[-1]):
            sources = [s for each in group.values() for s in each]
            whole = graph.call_function(
                torch.ops.rung.cast_together.default, (sources, [len(s) for s in group.values()], dtype)
            )
        whole.meta["val"] = [cast.meta["val"] for cast in group]
        at = whole
        for k, cast in enumerate(group):
            with graph.inserting_after(at):
                at = graph.call_function(operator.getitem, (whole, k))
            at.meta = dict(cast.meta)
            cast.replace_all_uses_with(at)
            joined = cast.args[0]
            graph.erase_node(cast)
            if isinstance(joined, fx.Node) and joined.op != "placeholder" and not joined.users:
                graph.erase_node(joined)
        made += len(group)
    return made


def _sources(cast: fx.Node) -> list[fx.Node]:
    """The inputs of the graph that it casts; none where it casts anything else, or is read by other than products."""
    source = cast.args[0]
    joins = isinstance(source, fx.Node) and source.target is aten.cat.default and list(source.users) == [cast]
    if joins and (source.args[1:] not in ((), (0,)) or source.kwargs):
        return []
    found = list(source.args[0]) if joins else [source]
    values = [item.meta.get("val") for item in found if isinstance(item, fx.Node) and item.op == "placeholder"]
    whole = len(values) == len(found) and all(
        isinstance(v, torch.Tensor) and v.dtype == torch.float32 and v.dim() > 1 and v.is_contiguous() for v in values
    )
    return found if whole and len({v.device for v in values}) == 1 and for_products(cast) else []


def _groups(tensors: list[torch.Tensor], counts: list[int]) -> list[list[torch.Tensor]]:
    left = iter(tensors)
    return [[next(left) for _ in range(count)] for count in counts]


def _empty(group: list[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    rows = sum(t.shape[0] for t in group)
    return group[0].new_empty((rows, *group[0].shape[1:]), dtype=dtype)
