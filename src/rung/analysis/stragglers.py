"""Which rank was late, in which step, and what did it do before?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import polars as pl

from rung.analysis.between import Between, Did, between
from rung.analysis.collectives import keyed, matched
from rung.analysis.steps import step_spans
from rung.trace.table import Trace

LEAST_SHARE = 0.02  # of a step: a smaller lateness is no finding
LEAST_NS = 20_000  # about what ranks are apart when nothing is wrong
MOST_EXPLAINED = 1000  # rows with a cause: the latest ones
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
    """One row for each step and rank for which others waited 2% of a step or longer, by step and lateness.

    On traces without GPUs the host's operators stand for the GPU's work. Of more than 1,000 rows, those that are least late have no cause.

    late_ns: how much sooner the collective on which most was lost would have begun if this rank had come with the one before it: the
        difference of the two shortest durations, so no common clock is needed.
    late_share: of a step.
    cause: "computation" if the rank ran more GPU work in that time; "host" if its GPU waited for the host; "earlier" if neither shows.
    op: the operator (otherwise kernel) whose time grew most; for "host", the one that ended the longest wait of the GPU, if that is half of
        its waiting.
    op_ns, others_op_ns: its time on this rank and on the others; for "host", how long the GPU had nothing to do.
    collective, seq: the collective of late_ns.
    last_in: in how many of the step's collectives this rank came last.
    of: how many collectives the step has.
    before_ns: from the rank's previous collective to this one, or from where it was already late in the step before.
    others_before_ns: the same of the rank that came before it.
    """
    calls, operations = keyed(trace), matched(trace)
    spans, did = step_spans(trace), between(trace)

    def history(rank: int) -> History:
        of_rank = pl.col("rank") == rank
        return History(calls.filter(of_rank), spans.filter(of_rank), did)

    return explained(worst(lates(calls, operations)), step_ns(periods(calls)), history)


class History(NamedTuple):
    """What one rank did. calls: its collectives (`step`, `ts`, `end`); spans: its steps on the host (`step`, `ts`)."""

    calls: pl.DataFrame
    spans: pl.DataFrame
    between: Between


def lates(calls: pl.DataFrame, operations: pl.DataFrame) -> pl.DataFrame:
    """One row an operation of a step that several ranks have: late_ns as in `stragglers`, `last_rank` and `next_rank`, which came last and
    next to last, and when each called it (`ts`, `next_ts`, in ns). calls: as `with_key` gives them."""
    rows = operations.filter(pl.col("ranks") > 1, pl.col("step").is_not_null())
    ordered = pl.col("rank", "ts").sort_by("dur_ns")
    durations = calls.group_by("key").agg(
        ordered.slice(1, 1).first().name.prefix("next_"),
        ts=pl.col("ts").sort_by("dur_ns").first(),
        late_ns=pl.col("dur_ns").sort().slice(0, 2).diff().last(),
    )
    found = rows.select("key", "step", "last_rank", "collective", "seq").join(durations, on="key")
    return found.drop("key").with_columns(last_in=pl.lit(1, pl.Int64))


def worst(lates: pl.DataFrame) -> pl.DataFrame:
    """Of each step and rank the row in which it was latest, and in how many it was last. lates: one row an operation, or an answer of this
    function about some of them."""
    return (
        lates.sort("late_ns", "ts", descending=[True, False], maintain_order=True)
        .group_by("step", "last_rank", maintain_order=True)
        .agg(pl.exclude("last_in").first(), pl.col("last_in").sum())
    )


def explained(worst: pl.DataFrame, step_ns: float, history: Callable[[int], History]) -> pl.DataFrame:
    """The table of `stragglers`. history: of a rank."""
    found = (
        worst.with_columns(of=pl.col("last_in").sum().over("step"), late_share=pl.col("late_ns") / step_ns)
        .filter(pl.col("late_share") >= LEAST_SHARE, pl.col("late_ns") >= LEAST_NS)
        .sort("step", "late_ns", "last_rank", descending=[False, True, False])
    )
    costly = set(found.with_row_index("row").top_k(MOST_EXPLAINED, by="late_ns")["row"])
    rows = [
        {**row, "rank": row["last_rank"], **(_evidence(row, history) if number in costly else {})}
        for number, row in enumerate(found.iter_rows(named=True))
    ]
    return pl.DataFrame(rows, schema=SCHEMA)


def periods(calls: pl.DataFrame) -> pl.DataFrame:
    """The mean time between the starts of each rank's steps (`ns`), by its collectives; else what they span. One row a rank."""
    calls = calls.filter(pl.col("step").is_not_null(), pl.col("matched") != "alone")
    firsts = calls.group_by("rank", "step").agg(first=pl.col("ts").min(), end=pl.col("end").max())
    first = pl.col("first")
    between = (first.max() - first.min()) / (pl.len() - 1).cast(pl.Float64)
    span = (pl.col("end").max() - first.min()).cast(pl.Float64)
    return firsts.group_by("rank").agg(ns=pl.when(pl.len() > 1).then(between).otherwise(span))


def step_ns(periods: pl.DataFrame) -> float:
    """The length of a step, over all ranks."""
    value = periods["ns"].median()
    return float(value) if isinstance(value, float) and value else 1.0


def _evidence(row: dict[str, Any], history: Callable[[int], History]) -> dict[str, Any]:
    """What the last rank did since the collective before, against what the next to last did; where it was late by
    then, since the step before."""
    answer: dict[str, Any] = {}
    both = (row["last_rank"], row["ts"]), (row["next_rank"], row["next_ts"])
    for since in (_collective_before, _step_before):
        late, other = (_did(history(rank), since, row["step"], start) for rank, start in both)
        if late is None or other is None:
            continue
        found = _compared(late, other, row["late_ns"])
        if found["cause"] != "earlier":
            return found
        answer = answer or found
    return answer or {"cause": "earlier"}


def _did(of: History, since: Callable[[History, int, int], int | None], step: int, start: int) -> Did | None:
    begin = since(of, step, start)
    rank = of.calls["rank"][0]
    return None if begin is None else of.between.did(rank, begin, start)


def _compared(late: Did, other: Did, late_ns: int) -> dict[str, Any]:
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


def _collective_before(of: History, step: int, start: int) -> int | None:
    return _latest(of.calls.filter(pl.col("end") <= start)["end"])


def _step_before(of: History, step: int, start: int) -> int | None:
    """The end of the last collective of an earlier step; in the first, the beginning of the step on the host."""
    begin = _latest(of.calls.filter(pl.col("step") < step)["end"])
    if begin is None:
        spans = of.spans.filter(pl.col("step") == step)
        begin = int(spans["ts"][0]) if spans.height else None
    return begin


def _latest(times: pl.Series) -> int | None:
    return int(times.to_numpy().max()) if times.len() else None
