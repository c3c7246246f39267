"""Where each GPU event comes from: the call that launched it, and the operator that made the call."""

from __future__ import annotations

import polars as pl

from rung.analysis.calls import launching_calls
from rung.analysis.captures import joined
from rung.analysis.gpu_events import launched
from rung.analysis.once import once
from rung.trace.table import Trace


@once
def origins(trace: Trace) -> pl.DataFrame:
    """The GPU events of `gpu_events` with what launched them, in file order:

    launch: the position in `host_calls` of the runtime call with the event's correlation id, null where the trace has
        none (launched before the recording began). Of several calls with one id, the first.
    op: the position in `launching_calls` of the innermost operator around the launch; where no operator is, of the one
        with the event's external id; null where there is none. Of what a graph replays it is the operator that was
        captured, where a capture trace tells it for certain; else null.
    graph: replayed by the launch of a graph.
    call: one number for each call of an operator: a captured one is called once in every replay.
    placed: which call of the operator it was is certain, too, so that its module and its line of Python are.
    """
    return launched(trace).with_columns(joined(trace).columns)


def op_column(trace: Trace, column: str) -> pl.Series:
    """A column of `launching_calls` for the operator of each GPU event of `origins`, null where there is none."""
    return launching_calls(trace)[column].gather(origins(trace)["op"])
