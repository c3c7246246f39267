"""What changed between two traces: by operator, module, category; sums reconcile with the two timelines."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import polars as pl
from msgspec import UNSET

from rung.analysis.account import account
from rung.analysis.captures import joined
from rung.analysis.classified import scores_of
from rung.analysis.host_time import HostCalls, host_calls
from rung.analysis.overview import gpu_names
from rung.analysis.per_step import common_steps, divisor, of_steps, per_step
from rung.analysis.steps import found_steps
from rung.analysis.timeline import timeline
from rung.errors import UsageError
from rung.records.diff import Changed, Difference, Side
from rung.records.record import record_of
from rung.trace.ranks import named_ranks, of_rank
from rung.trace.table import Trace

# What rows are aligned by → the columns of `account`. Kernel names change with vendor and version; the others do not.
BY = {
    "op": ["op"],
    "shape": ["op", "dims"],
    "module": ["module"],
    "instance": ["instance"],
    "category": ["category"],
    "kernel": ["name"],
}
ON_HOST = ("op", "shape", "category")  # what operators are aligned by, where neither trace has GPU events
PARTS = ("computation_ns", "exposed_communication_ns", "exposed_memcpy_ns", "idle_ns")
SAME_SHARE = 0.02  # of the larger of the two
SAME_STEP_SHARE = 0.0005  # of the base's step
FEW_STEPS = 5
BY_CHANCE = 0.05  # processes of one program differ by 1 to 3 %, and so may single steps (docs/internals/measurement.md)
SCHEMA: dict[str, pl.DataType] = {
    "what": pl.String(),
    "change": pl.String(),
    "base_ns": pl.Float64(),
    "new_ns": pl.Float64(),
    "delta_ns": pl.Float64(),
    "delta_share": pl.Float64(),
    "base_count": pl.Float64(),
    "new_count": pl.Float64(),
    "base_total_ns": pl.Int64(),
    "new_total_ns": pl.Int64(),
    "base_kernel": pl.String(),
    "new_kernel": pl.String(),
}


@dataclass(frozen=True)
class Diff:
    """base, new: the two traces; tables: for each key of BY a table of SCHEMA, the largest changes first.

    In a table: base_ns, new_ns, base_count, new_count are of one step of one GPU, delta_ns = new - base, delta_share of
    the base's step; base_total_ns and new_total_ns are sums over the whole trace, which add up to busy_ns exactly.
    change: faster, slower, same (within 2 %, or 0.05 % of the step), appeared, vanished. base_kernel, new_kernel: the
    kernel that took most of it.

    clock: "gpu"; "cpu" where neither trace has GPU events. Then times are the operators' own on the host, as in the breakdown of such a
    trace, "of one GPU" means of one rank, and there are no kernels.
    """

    base: Side
    new: Side
    tables: dict[str, pl.DataFrame]
    notes: tuple[str, ...]
    clock: Literal["gpu", "cpu"] = "gpu"

    @property
    def ratio(self) -> float:
        """The new step's time over the base's."""
        return self.new.step_ns / self.base.step_ns

    def rows(self) -> pl.DataFrame:
        """All tables below each other; `by`: the key of BY that a row is of."""
        named = [table.select(pl.lit(name).alias("by"), pl.all()) for name, table in self.tables.items()]
        return pl.concat(named) if named else pl.DataFrame(schema={"by": pl.String(), **SCHEMA})

    def record(self, failed: bool = False) -> Difference:
        """failed: whether the new trace is slower than was allowed."""
        return Difference(
            base=self.base,
            new=self.new,
            ratio=self.ratio,
            tables={name: record_of(list[Changed], table.to_dicts()) for name, table in self.tables.items()},
            notes=list(self.notes),
            slower=self.ratio > 1,
            failed=failed,
            clock="cpu" if self.clock == "cpu" else UNSET,
        )


def diff(
    base: Trace, new: Trace, *, base_steps: int | None = None, new_steps: int | None = None, by: tuple[str, ...] = ()
) -> Diff:
    """Compares two traces, each per step and GPU. by: the keys of BY to have tables of, all if none is named.

    steps: how many were recorded; as the trace says where they are not given. Then, where more than a little of the GPU's
    time was launched before the first marked step, that is left out, and a note says so.
    Raises UsageError where one trace has GPU events and the other has none, or where there is no time to compare.
    """
    if _clock(base, new) == "cpu":
        return _on_host(base, new, base_steps, new_steps, by)
    base, base_steps, cut_base = whole_steps(base, base_steps, "base")
    new, new_steps, cut_new = whole_steps(new, new_steps, "new")
    sides = (_side(base, base_steps), _side(new, new_steps))
    accounts = [account(base), account(new)]
    shared = set(accounts[0]["name"].unique()) & set(accounts[1]["name"].unique())
    accounts = [_with_names(events, shared) for events in accounts]
    notes = [note for note in (cut_base, cut_new) if note] + _notes(sides, accounts, (base, new)) + _few(*sides)
    tables = {key: _table(sides, accounts, BY[key]) for key in by or BY}
    for key in ("module", "instance"):
        if key in tables and not any(events[key].str.starts_with("(").not_().any() for events in accounts):
            del tables[key]
            notes.append(
                "Neither trace records nn.Modules, so nothing is aligned by module (record with torch.profiler(with_stack=True))."
            )
    return Diff(sides[0], sides[1], tables, tuple(dict.fromkeys(notes)))


def _clock(base: Trace, new: Trace) -> str:
    """The clock that both traces can be compared on."""
    without = [trace for trace in (base, new) if timeline(trace).is_empty()]
    if len(without) == 1:
        raise UsageError(
            f"{without[0].source or 'one trace'} has no GPU events, but the other trace has: record both with "
            "torch.profiler(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])."
        )
    return "cpu" if without else "gpu"


def _on_host(base: Trace, new: Trace, base_steps: int | None, new_steps: int | None, by: tuple[str, ...]) -> Diff:
    """The operators' own times, of traces without GPU events."""
    sides, accounts = [], []
    notes = [
        "Neither trace has GPU events; times are CPU time.",
        "Recording slows operators down, some more than others: `rung compare` says which side is faster without it.",
    ]
    for name, trace, steps in (("base", base, base_steps), ("new", new, new_steps)):
        if steps is None:
            trace, steps, note = per_step(trace)
            notes += [f"{name}: {note}"] if note else []
        steps = _at_least_one(steps)
        ranks = _ranks(trace)
        side, events = _host_side(trace, ranks, steps)
        sides.append(side)
        accounts.append(events)
        notes += [f"{name}: {note}" for rank in ranks for note in rank.notes]
    wanted = by or ON_HOST
    if lacking := [key for key in wanted if key not in ON_HOST]:
        notes.append(f"Without GPU events there is no table by {' or '.join(lacking)}.")
    if _unlike(sides[0], sides[1]):
        notes.append("Times are per step and per rank, as the traces have different numbers of steps or ranks.")
    notes += _few(*sides)
    tables = {key: _table((sides[0], sides[1]), accounts, BY[key]) for key in wanted if key in ON_HOST}
    return Diff(sides[0], sides[1], tables, tuple(dict.fromkeys(notes)), "cpu")


def _ranks(trace: Trace) -> list[HostCalls]:
    """The operators of each rank: threads of several may have the same numbers."""
    scores, events = scores_of(trace)[1], trace.events
    return [host_calls(replace(trace, events=events.filter(of_rank(rank))), scores) for rank in named_ranks(events)]


def _host_side(trace: Trace, ranks: list[HostCalls], steps: int) -> tuple[Side, pl.DataFrame]:
    """A side, and its operators with the columns of `account` that there are; own_ns in whole ns that add up to busy_ns."""
    calls = pl.concat([rank.calls for rank in ranks]) if ranks else pl.DataFrame()
    if calls.is_empty():
        raise UsageError(
            f"{trace.source or 'the trace'} has neither GPU events nor operators, so there is nothing to compare: "
            "record it with torch.profiler around the work."
        )
    until = np.rint(np.cumsum(calls["own_ns"].to_numpy())).astype(np.int64)
    events = calls.select(
        pl.Series("own_ns", np.diff(until, prepend=0)),
        pl.lit(None, pl.String).alias("name"),
        pl.col("dims").fill_null(""),
        "category",
        op="name",
    )
    busy = int(until[-1])
    total = max(busy, sum(rank.window for rank in ranks))
    if not total:
        raise UsageError(f"the operators of {trace.source or 'the trace'} take no time: there is nothing to compare.")
    return Side(
        source=trace.source,
        device="",
        ranks=len(ranks),
        gpus=len(ranks),
        steps=steps,
        total_ns=total,
        busy_ns=busy,
        parts={**dict.fromkeys(PARTS, 0), "computation_ns": busy, "idle_ns": total - busy},
        kernels=calls.height,
        step_ns=total / (len(ranks) * steps),
    ), events


def _at_least_one(steps: int) -> int:
    if steps < 1:
        raise UsageError(f"the number of recorded steps is {steps}; it must be at least 1.")
    return steps


def _unlike(base: Side, new: Side) -> bool:
    return base.gpus != new.gpus or base.steps != new.steps


def whole_steps(trace: Trace, steps: int | None, name: str = "base") -> tuple[Trace, int, str]:
    """The trace of the recorded steps, how many they are (steps: as was said), and what there is to say of that; name: base or new."""
    if steps is not None:
        return trace, steps, ""
    if common_steps(trace)[1]:
        trace, steps, note = per_step(trace)
        return trace, steps, f"{name}: {note}"
    steps, before = divisor(trace)
    if not before:
        return trace, steps, ""
    note = f"{name}: work that was launched before the recorded steps is left out (--{name}-steps N takes the whole recording)."
    return of_steps(trace, None), found_steps(trace), note


def _side(trace: Trace, steps: int) -> Side:
    rows = timeline(trace).filter(pl.col("step").is_null())
    sums = rows.sum().row(0, named=True)
    if not sums["total_ns"]:
        raise UsageError(f"the GPU events of {trace.source or 'the trace'} take no time: there is nothing to compare.")
    return Side(
        source=trace.source,
        device=", ".join(gpu_names(trace)),
        ranks=rows["rank"].n_unique(),
        gpus=rows.height,
        steps=_at_least_one(steps),
        total_ns=sums["total_ns"],
        busy_ns=sums["busy_ns"],
        parts={part: sums[part] for part in PARTS},
        kernels=sums["kernels"],
        step_ns=sums["total_ns"] / (rows.height * steps),
    )


def _with_names(events: pl.DataFrame, shared: set[str]) -> pl.DataFrame:
    """What no operator launched (graph replays, work from before the recording) is aligned by kernel where both have
    it, else by category."""
    alone = pl.when(pl.col("name").is_in(list(shared))).then(pl.col("name")).otherwise("category")
    return events.with_columns(
        pl.col("op").fill_null(pl.format("(no operator) {}", alone)),
        pl.col("dims").fill_null(""),
        pl.col("module").fill_null("(no module)"),
        pl.col("instance").fill_null("(no module)"),
    )


def _table(sides: tuple[Side, Side], accounts: list[pl.DataFrame], columns: list[str]) -> pl.DataFrame:
    what = pl.concat_str(columns, separator=" ").str.strip_chars()
    grouped = [
        events.group_by(what=what).agg(
            total_ns=pl.col("own_ns").sum(),
            count=pl.len(),
            kernel=pl.col("name").sort_by("own_ns").last(),
        )
        for events in accounts
    ]
    base, new = sides
    base_row, new_row = pl.col("base_count") > 0, pl.col("new_count") > 0
    joined = (
        grouped[0]
        .rename({name: f"base_{name}" for name in ("total_ns", "count", "kernel")})
        .join(
            grouped[1].rename({name: f"new_{name}" for name in ("total_ns", "count", "kernel")}),
            on="what",
            how="full",
            coalesce=True,
        )
        .with_columns(pl.col("base_total_ns", "new_total_ns", "base_count", "new_count").fill_null(0))
        .with_columns(
            base_ns=pl.col("base_total_ns") / base.per,
            new_ns=pl.col("new_total_ns") / new.per,
            base_count=pl.col("base_count") / base.per,
            new_count=pl.col("new_count") / new.per,
        )
        .with_columns(delta_ns=pl.col("new_ns") - pl.col("base_ns"))
        .with_columns(delta_share=pl.col("delta_ns") / base.step_ns)
    )
    least = pl.max_horizontal(
        SAME_SHARE * pl.max_horizontal("base_ns", "new_ns"), pl.lit(SAME_STEP_SHARE * base.step_ns)
    )
    change = (
        pl.when(~base_row).then(pl.lit("appeared"))
        .when(~new_row).then(pl.lit("vanished"))
        .when(pl.col("delta_ns").abs() <= least).then(pl.lit("same"))
        .when(pl.col("delta_ns") < 0).then(pl.lit("faster"))
        .otherwise(pl.lit("slower"))
    )  # fmt: skip
    return (
        joined.with_columns(change=change)
        .sort(pl.col("delta_ns").abs(), "what", descending=[True, False])
        .select(pl.col(name).cast(dtype) for name, dtype in SCHEMA.items())
    )


def _few(base: Side, new: Side) -> list[str]:
    """That a small change may be chance: a trace has few steps, of one process."""
    fewest, change = min(base.steps, new.steps), abs(new.step_ns / base.step_ns - 1)
    if fewest >= FEW_STEPS or change > BY_CHANCE:
        return []
    of = "one step" if fewest == 1 else f"{fewest} steps"
    return [f"A trace of {of} shows no small change for certain: `rung compare` times both sides in turns."]


def _notes(sides: tuple[Side, Side], accounts: list[pl.DataFrame], traces: tuple[Trace, Trace]) -> list[str]:
    notes = []
    for name, side, events, trace in zip(("base", "new"), sides, accounts, traces, strict=True):
        if not events["linked"].any():
            notes.append(f"{name}: no launches are recorded, so no kernel belongs to an operator.")
            continue
        notes += [f"{name}: {note}" for note in joined(trace).notes]
        outside = events.filter(~pl.col("linked"))
        share = int(outside["own_ns"].sum()) / max(1, side.busy_ns)
        if share > 0.005:
            notes.append(
                f"{name}: {share:.0%} of the busy time was launched outside of the recording and belongs to no operator."
            )
        replayed = int(
            events.filter(pl.col("graph").fill_null(False), pl.col("row_of_op").is_null())["own_ns"].sum()
        ) / max(1, side.busy_ns)
        if replayed > 0.005:
            notes.append(f"{name}: {replayed:.0%} of the busy time was replayed by graphs and belongs to no operator.")
    if _unlike(*sides):
        notes.append("Times are per step and per GPU, as the traces have different numbers of steps or GPUs.")
    return notes
