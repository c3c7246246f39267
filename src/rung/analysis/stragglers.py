"""Which rank was late, in which step, and what did it do before?"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from rung.analysis.calls import host_calls
from rung.analysis.collectives import keyed, matched
from rung.analysis.intervals import union
from rung.analysis.nesting import outermost
from rung.analysis.origins import op_column, origins
from rung.analysis.steps import step_spans
from rung.trace.table import Trace

LEAST_SHARE = 0.02  # of a step: a smaller lateness is no finding
LEAST_NS = 20_000  # about what ranks are apart when nothing is wrong
SCHEMA: dict[str, pl.DataType] = {
    "step": pl.Int64(),
    "rank": pl.Int32(),
    "late_ns": pl.Int64(),
    "late_share": pl.Float64(),
    "cause": pl.String(),
    "op": pl.String(),
    "op_ns": pl.Int64(),
    "others_op_ns": pl.Int64(),
    "collective": pl.String(),
    "last_in": pl.Int64(),
    "of": pl.Int64(),
    "before_ns": pl.Int64(),
    "others_before_ns": pl.Int64(),
    "seq": pl.Int64(),
}


def stragglers(trace: Trace, *, steps: int = 1) -> pl.DataFrame:
    """One row for each step and rank on which others waited for 2 % of a step or more, by step and lateness.

    late_ns: how much sooner the collective on which most was lost would have begun if this rank had come with the one
        before it: the difference of the two shortest durations, so no common clock is needed. late_share: of a step.
    last_in, of: in how many of the step's collectives this rank came last. collective, seq: the one of late_ns.
    before_ns: from the rank's previous collective to this one, or where it was late by then already from the step before;
        others_before_ns: the same of the rank that came before it.
    cause: "computation", where the rank ran more GPU work in that time; "host", where its GPU waited for the host;
        "earlier", where neither shows. op: the operator (else kernel) whose time grew most; of "host", the
        one that ended the longest wait of the GPU, where that is half of its waiting. op_ns, others_op_ns: its time; of
        "host", how long the GPU had nothing to do.
    On traces without GPUs the operators of the host stand for the GPU's work.
    """
    calls, rows = keyed(trace), matched(trace).filter(pl.col("ranks") > 1, pl.col("step").is_not_null())
    if rows.is_empty():
        return pl.DataFrame(schema=SCHEMA)
    durations = calls.group_by("key").agg(
        late_ns=pl.col("dur_ns").sort().slice(0, 2).diff().last(),
        next_rank=pl.col("rank").sort_by("dur_ns").slice(1, 1).first(),
    )
    lates = rows.join(durations, on="key")
    in_step = lates.group_by("step").agg(of=pl.len())
    worst = (
        lates.sort("late_ns", descending=True, maintain_order=True)
        .group_by("step", "last_rank", maintain_order=True)
        .agg(pl.col("key", "late_ns", "collective", "seq", "next_rank").first(), last_in=pl.len())
        .join(in_step, on="step")
        .with_columns(late_share=pl.col("late_ns") / step_ns(trace))
        .filter(pl.col("late_share") >= LEAST_SHARE, pl.col("late_ns") >= LEAST_NS)
        .sort("step", "late_ns", descending=[False, True])
    )
    work = _work(trace) if worst.height else pl.DataFrame()
    found = [
        {**row, "rank": row["last_rank"], **_evidence(trace, calls, work, row)} for row in worst.iter_rows(named=True)
    ]
    return pl.DataFrame(found, schema=SCHEMA)


def step_ns(trace: Trace) -> float:
    """The mean time between the starts of a rank's steps, by its collectives; else what they span."""
    calls = keyed(trace).filter(pl.col("step").is_not_null(), pl.col("matched") != "alone")
    firsts = calls.group_by("rank", "step").agg(first=pl.col("ts").min(), end=pl.col("end").max())
    spans = firsts.group_by("rank").agg(
        between=(pl.col("first").max() - pl.col("first").min()) / (pl.len() - 1).cast(pl.Float64),
        span=pl.col("end").max() - pl.col("first").min(),
        steps=pl.len(),
    )
    value = spans.select(pl.when(pl.col("steps") > 1).then("between").otherwise("span").median()).item()
    return float(value) if value else 1.0


def _work(trace: Trace) -> pl.DataFrame:
    """What computes: `rank`, `name` (operator, else kernel), `ts`, `end`; GPU work, or without any the top operators."""
    gpu = origins(trace)
    if gpu.height:
        gpu = gpu.with_columns(name=op_column(trace, "name").fill_null(gpu["name"]))
        return gpu.filter(pl.col("role") != "communication").select("rank", "name", "ts", "end").sort("ts")
    calls = host_calls(trace)
    is_op = (calls["kind"] == "cpu_op").to_numpy()
    top = (outermost(calls["caller"].to_numpy(), is_op) == np.arange(calls.height)) & is_op
    return calls.filter(pl.Series(top)).select("rank", "name", "ts", "end").sort("ts")


def _evidence(trace: Trace, calls: pl.DataFrame, work: pl.DataFrame, row: dict[str, Any]) -> dict[str, Any]:
    """What the last rank did since the collective before, against what the next to last did; where it was late by
    then, since the step before."""
    answer: dict[str, Any] = {}
    for since in (_collective_before, _step_before):
        late, other = (
            _did(calls, work, row["key"], rank, since(trace, calls, row, rank))
            for rank in (row["last_rank"], row["next_rank"])
        )
        if late is None or other is None:
            continue
        found = _compared(late, other, row["late_ns"])
        if found["cause"] != "earlier":
            return found
        answer = answer or found
    return answer or {"cause": "earlier"}


def _compared(late: _Did, other: _Did, late_ns: int) -> dict[str, Any]:
    answer: dict[str, Any] = {"before_ns": late.ns, "others_before_ns": other.ns, "cause": "earlier"}
    lost = late.ns - other.ns
    if lost < late_ns / 2:
        return answer
    grown = {name: ns - other.times.get(name, 0) for name, ns in late.times.items()}
    op = max(grown, key=lambda name: grown[name], default=None)
    if op is not None and sum(grown.values()) >= lost / 2:
        return answer | {
            "cause": "computation", "op": op, "op_ns": late.times[op], "others_op_ns": other.times.get(op, 0)
        }  # fmt: skip
    return answer | {"cause": "host", "op": late.after, "op_ns": late.idle, "others_op_ns": other.idle}


def _collective_before(trace: Trace, calls: pl.DataFrame, row: dict[str, Any], rank: int) -> int | None:
    own = calls.filter(pl.col("rank") == rank)
    start = own.filter(pl.col("key") == row["key"])["ts"][0]
    return _latest(own.filter(pl.col("end") <= start)["end"])


def _step_before(trace: Trace, calls: pl.DataFrame, row: dict[str, Any], rank: int) -> int | None:
    """The end of the last collective of an earlier step; in the first, the beginning of the step on the host."""
    begin = _latest(calls.filter(pl.col("rank") == rank, pl.col("step") < row["step"])["end"])
    if begin is None:
        spans = step_spans(trace).filter(pl.col("rank") == rank, pl.col("step") == row["step"])
        begin = int(spans["ts"][0]) if spans.height else None
    return begin


def _latest(times: pl.Series) -> int | None:
    return int(times.to_numpy().max()) if times.len() else None


class _Did(NamedTuple):
    """ns: the time looked at; idle: how much of it nothing ran; after: what ended the longest such gap, where that is
    half of them; times: ns by name."""

    ns: int
    idle: int
    after: str | None
    times: dict[str, int]


def _did(calls: pl.DataFrame, work: pl.DataFrame, key: int, rank: int, begin: int | None) -> _Did | None:
    """What a rank computed from `begin` to the start of a collective."""
    if begin is None:
        return None
    start = int(calls.filter(pl.col("rank") == rank, pl.col("key") == key)["ts"][0])
    part = work.filter(pl.col("rank") == rank, pl.col("end") > begin, pl.col("ts") < start).with_columns(
        pl.col("ts").clip(begin, start), pl.col("end").clip(begin, start)
    )
    times = dict(part.group_by("name", maintain_order=True).agg((pl.col("end") - pl.col("ts")).sum()).iter_rows())
    low, high = union(part["ts"].to_numpy(), part["end"].to_numpy())
    edges = [(begin, begin), *zip(low.tolist(), high.tolist(), strict=True), (start, start)]
    gaps = [(after[0] - before[1], after[0]) for before, after in pairwise(edges)]
    idle, (longest, resumed) = sum(gap for gap, _ in gaps), max(gaps)
    after = part.filter(pl.col("ts") == resumed)["name"] if longest >= idle / 2 else part["name"].clear()
    return _Did(start - begin, idle, after[0] if after.len() else None, times)
