"""What a trace says around a call that its inputs do not say, and that its work depends on.

Paged attention: how long the sequences are; vLLM and SGLang annotate each step with it. A mixture of experts whose operator
is given no weights: the experts of a token, and the kernels with their grids.
"""

from __future__ import annotations

import re

import msgspec
import numpy as np
import polars as pl

from rung.analysis.calls import captured_calls, host_calls, launching_calls
from rung.analysis.costs import needs_kernels, needs_lengths
from rung.analysis.intervals import Ints
from rung.analysis.nesting import nearest
from rung.analysis.once import once
from rung.analysis.origins import origins
from rung.analysis.server_steps import BEGINNING, read_step
from rung.trace.table import Trace

# The experts of a token, of triton_kernels' TopK(scores, k, ...): as recorded, ["", "4", "True", ...].
_CHOSEN = re.compile(r'^\["", *"(\d{1,6})"')


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
    """For operators that need it, by their position in `launching_calls`: as JSON {"chosen": experts of a token,
    "kernels": [[name, grid], ...]}, of what they launched into a graph. Grids are known of captured launches alone.
    """
    if trace.captured is None:
        return {}
    calls, own = captured_calls(trace), host_calls(trace).height
    wanted = calls["name"].unique().to_list()
    wanted = [name for name in wanted if needs_kernels(name)]
    if not wanted:
        return {}
    experts = ((calls["kind"] == "cpu_op") & calls["name"].is_in(wanted)).to_numpy()
    inside: Ints = nearest(calls["caller"].to_numpy(), experts)
    found: dict[int, tuple[list[int], list[tuple[str, list[int]]]]] = {
        at: ([], []) for at in np.flatnonzero(experts).tolist()
    }
    for at in np.flatnonzero((calls["name"] == "TopK").to_numpy() & (inside >= 0)).tolist():
        chosen = _CHOSEN.match(calls["concrete"][at] or "")
        found[int(inside[at])][0].extend([int(chosen[1])] if chosen else [])
    launches = trace.captured.launches
    position = np.searchsorted(calls["row"].to_numpy(), launches["row"].to_numpy())
    for at, kernel, grid in zip(inside[position].tolist(), launches["kernel"], launches["grid"], strict=True):
        if at >= 0 and kernel and grid:
            found[at][1].append((kernel, msgspec.json.decode(grid)))
    return {
        at + own: msgspec.json.encode({"chosen": chosen[0], "kernels": kernels}).decode()
        for at, (chosen, kernels) in found.items()
        if len(chosen) == 1
    }
