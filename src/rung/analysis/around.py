"""What a trace says around a call that its inputs do not say, and that its work depends on.

Paged attention: how long the sequences are; vLLM and SGLang annotate each step with it. A mixture of experts whose operator
is given no weights: the experts of a token, and the kernels with their grids.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec
import numpy as np
import polars as pl

from rung.analysis.calls import captured_calls, host_calls, launching_calls
from rung.analysis.costs import needs_kernels, needs_lengths, tells_of_experts
from rung.analysis.intervals import Ints
from rung.analysis.nesting import nearest
from rung.analysis.once import once
from rung.analysis.origins import origins
from rung.analysis.server_steps import BEGINNING, read_step
from rung.trace.table import Trace

# Where an operator that chooses the experts of a token says how many: of triton_kernels' TopK(scores, k, ...) as recorded,
# ["", "4", "True", ...]; of topk_softmax(topk_weights [tokens, k], ...) of vLLM, SGLang and aiter in the first shape.
_CHOSEN = {"TopK": ("concrete", re.compile(r'^\["", *"(\d{1,6})"'))} | dict.fromkeys(
    ("_moe_C::topk_softmax", "_moe_C::topk_sigmoid", "aiter::topk_softmax", "vllm::rocm_aiter_topk_softmax"),
    ("dims", re.compile(r"^\[\[\d+, *(\d{1,6})\]")),
)


@once
def step_lengths(trace: Trace) -> pl.Series | None:
    """For each GPU event of `origins` the annotation with the lengths of its step's sequences; None where there is no
    need for any, or no such annotation.

    It is around the launch, not around the captured operator: that was given other sequences.
    """
    calls = host_calls(trace)
    if not any(needs_lengths(name) for name in launching_calls(trace)["name"].unique()):
        return None
    names = calls.filter(pl.col("kind") == "annotation", pl.col("name").str.contains(BEGINNING))["name"].unique()
    wanted = [name for name in names if (said := read_step(name)) and said.lengths]
    says = (calls["kind"] == "annotation") & calls["name"].is_in(wanted)
    if not says.any():
        return None
    around = pl.Series(nearest(calls["caller"].to_numpy(), says.to_numpy()))
    step = around.gather(origins(trace)["launch"])
    return calls["name"].gather(pl.select(pl.when(step >= 0).then(step)).to_series())


@once
def expert_kernels(trace: Trace) -> dict[int, str]:
    """For operators that need it, by their position in `launching_calls`: as JSON {"chosen": [experts of a token],
    "kernels": [[name, grid], ...], "alone": no other rank can have experts}, of what they launched, into a graph too.
    """
    calls = launching_calls(trace)
    wanted = [name for name in calls["name"].unique().to_list() if needs_kernels(name)]
    if not wanted:
        return {}
    experts = ((calls["kind"] == "cpu_op") & calls["name"].is_in(wanted)).to_numpy()
    inside: Ints = nearest(calls["caller"].to_numpy(), experts)
    chosen: dict[int, list[int]] = {at: [] for at in np.flatnonzero(experts).tolist()}
    kernels: dict[int, list[tuple[str, list[int]]]] = {at: [] for at in chosen}
    choosing = calls["name"].is_in(list(_CHOSEN)).to_numpy() & (inside >= 0)
    for at in np.flatnonzero(choosing).tolist():
        column, pattern = _CHOSEN[calls["name"][at]]
        if found := pattern.match(calls[column][at] or ""):
            chosen[int(inside[at])].append(int(found[1]))
    for at, kernel, grid in (*_recorded_kernels(trace), *_captured_kernels(trace)):
        if inside[at] >= 0 and tells_of_experts(kernel):
            kernels[int(inside[at])].append((kernel, msgspec.json.decode(grid) if grid else [0, 0, 0]))
    info = trace.meta.get("distributedInfo")
    alone = not isinstance(info, dict) or info.get("world_size") in (None, 1)
    return {
        at: msgspec.json.encode({"chosen": chosen[at], "kernels": kernels[at], "alone": alone}).decode()
        for at in chosen
    }


def _recorded_kernels(trace: Trace) -> Iterator[tuple[int, str, str | None]]:
    """The position in `launching_calls` of each recorded launch, its kernel's name, and its grid where that is known."""
    events = origins(trace).filter(pl.col("launch").is_not_null(), ~pl.col("graph"))
    found = events.join(trace.grids, on=["rank", "correlation"], how="left", nulls_equal=True, maintain_order="left")
    yield from found.sort("launched", maintain_order=True).select("launch", "name", "grid").iter_rows()


def _captured_kernels(trace: Trace) -> Iterator[tuple[int, str, str | None]]:
    """The same of launches that were captured."""
    if trace.captured is None:
        return
    launches, calls = trace.captured.launches, captured_calls(trace)
    position = np.searchsorted(calls["row"].to_numpy(), launches["row"].to_numpy()) + host_calls(trace).height
    for at, kernel, grid in zip(position.tolist(), launches["kernel"], launches["grid"], strict=True):
        if kernel:
            yield at, kernel, grid
