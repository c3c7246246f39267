"""What ran when, as lanes to draw: idle gaps, streams, collectives, host threads. Short events are drawn together where there are many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from rung.analysis.calls import launching_calls
from rung.analysis.classified import classified
from rung.analysis.collective_calls import collective_calls
from rung.analysis.gaps import LATE, caused
from rung.analysis.intervals import Ints
from rung.analysis.nesting import callers
from rung.analysis.roofline import readable
from rung.analysis.stabbing import THREAD_NUMBER
from rung.trace.table import Trace

MOST = {"gpu": 100_000, "host": 30_000, "beside": 10_000}  # slices: 100,000 kernels are drawn one by one
MOST_STREAMS, MOST_THREADS, MOST_GROUPS, MOST_RANKS = 12, 6, 6, 64  # the busiest of each rank
MOST_ROWS = 16  # of a host thread: calls within calls
SIDES = ("idle", "gpu", "collectives", "host")
_MODULE = "nn.Module: "
_EVENTS: dict[str, pl.DataType] = {
    "rank": pl.Int32(),
    "side": pl.Enum(SIDES),
    "where": pl.String(),
    "row": pl.Int32(),
    "ts": pl.Int64(),
    "end": pl.Int64(),
    "category": pl.String(),
    "name": pl.String(),
    "detail": pl.String(),
}
_LANE = ("rank", "side", "where")


@dataclass(frozen=True)
class Lanes:
    """The lanes of a timeline.

    lanes: one row a lane, in the order in which they are drawn: `rank`, `side` (SIDES), `where` (as in "GPU 0 stream 7"), `lane` (its number),
        `rows` (how many lie below each other: calls within calls, groups of collectives).
    slices: one row a slice, by lane, row and time: `lane`, `row`, `ts` (ns since `origin_ns`), `dur` (ns), `kind` (a row of kinds),
        `count` (events in it) and `busy_ns` (their durations). Of a slice with several events, kind is that of the longest.
    kinds: what slices share: `category`, `name`, `detail` (the operator and its inputs; of a gap what the host did).
    origin_ns, span_ns: the first start on the trace's clock, and from it to the last end.
    events: how many are drawn; together: how many of them share a slice with others, each of which is shorter than `shorter_ns`: of
        "gpu", "host" and, "beside" them, idle gaps and collectives. hidden: events of streams, threads, ranks and depths that have no
        lane, by what.
    """

    lanes: pl.DataFrame
    slices: pl.DataFrame
    kinds: pl.DataFrame
    origin_ns: int
    span_ns: int
    events: int
    together: int
    shorter_ns: dict[str, int]
    hidden: dict[str, int]


def lanes(trace: Trace, *, most: Mapping[str, int] = MOST) -> Lanes:
    """The lanes of a trace, with at most about so many slices: of the GPUs, of the hosts, and of what is drawn beside them.

    Of the host there are operators, runtime calls, annotations and nn.Modules. Other Python frames are not drawn: they are ten
    times as many, and say where the code is, not what it does.
    """
    hidden: dict[str, int] = {}
    found = pl.concat([_idle(trace), _streams(trace), _collectives(trace), _host(trace)])
    found = _kept(found, hidden)
    if found.is_empty():
        empty = pl.DataFrame(schema={"lane": pl.Int64, "row": pl.Int64, "ts": pl.Int64, "dur": pl.Int64, "kind": pl.Int64, "count": pl.Int64, "busy_ns": pl.Int64})  # fmt: skip
        return Lanes(pl.DataFrame(schema={"rank": pl.Int32, "side": pl.String, "where": pl.String, "lane": pl.Int64, "rows": pl.Int64}), empty, pl.DataFrame(schema={"category": pl.String, "name": pl.String, "detail": pl.String}), 0, 0, 0, 0, {}, hidden)  # fmt: skip
    origin = int(found["ts"].to_numpy().min())
    span = int(found["end"].to_numpy().max()) - origin
    first = pl.col("where").str.extract(r"(\d+)").cast(pl.UInt64, strict=False)
    last = pl.col("where").str.extract(r"(\d+)$").cast(pl.UInt64, strict=False)  # stream 7 is before 10
    order = (
        found.group_by(*_LANE)
        .agg(rows=pl.col("row").max().cast(pl.Int64) + 1)
        .sort("rank", "side", first, last, "where")
    )
    order = order.with_columns(lane=pl.int_range(pl.len()))
    kinds = found.select("category", "name", "detail").unique(maintain_order=True)
    kinds = kinds.with_columns(kind=pl.int_range(pl.len()))
    drawn = (
        found.join(order, on=_LANE, how="left", nulls_equal=True)
        .join(kinds, on=["category", "name", "detail"], how="left", nulls_equal=True)
        .select("side", "lane", "row", "kind", ts=pl.col("ts") - origin, dur=pl.col("end") - pl.col("ts"))
        .sort("lane", "row", "ts", "dur")
    )
    side = pl.col("side").cast(pl.String)
    group = pl.when(side.is_in(["gpu", "host"])).then(side).otherwise(pl.lit("beside"))
    parts = {name: _thinned(drawn.filter(group == name), limit, span) for name, limit in most.items()}
    slices = pl.concat([part for part, _ in parts.values()]).sort("lane", "row", "ts", "dur")
    many = slices.filter(pl.col("count") > 1)
    return Lanes(
        order.with_columns(pl.col("side").cast(pl.String)),
        slices,
        kinds.drop("kind"),
        origin,
        span,
        drawn.height,
        int(many["count"].sum()),
        {name: shorter for name, (_, shorter) in parts.items() if shorter},
        hidden,
    )


def _idle(trace: Trace) -> pl.DataFrame:
    """The gaps of each device with their causes; those in which it waited for a launch have the category of that part of a step."""
    late = pl.col("cause").is_in(LATE)
    category = pl.when(late).then(pl.lit("launch_gap")).otherwise(pl.lit("idle"))
    during = pl.concat_str("during", "call_site", separator=", ", ignore_nulls=True)
    return _table(caused(trace), "idle", pl.format("GPU {} idle", "device"), category, pl.col("cause"), detail=during)


def _streams(trace: Trace) -> pl.DataFrame:
    """Kernels, copies and memsets with the operators that launched them."""
    events, calls = classified(trace), launching_calls(trace)
    of_op = {column: calls[column].gather(events["op"]) for column in ("name", "dims", "dtypes")}
    shapes = _shapes(pl.DataFrame(of_op))
    said = events.with_columns(detail=pl.concat_str(of_op["name"], shapes, separator=" ", ignore_nulls=True))
    where = pl.format("GPU {} stream {}", "device", pl.col("stream").cast(pl.String).fill_null("unknown"))
    return _table(said, "gpu", where, pl.col("category"), pl.col("name"))


def _collectives(trace: Trace) -> pl.DataFrame:
    """A row a process group: the collectives of one follow each other."""
    calls = collective_calls(trace)
    rows = pl.col("group").rank("dense").cast(pl.Int32) - 1
    said = pl.format("group {}, {} bytes", "group", pl.col("size_bytes").cast(pl.String).fill_null("unknown"))
    return _table(calls.with_columns(row=rows), "collectives", pl.lit("collectives"), pl.lit("communication"), pl.col("collective"), detail=said, row=pl.col("row"))  # fmt: skip


def _host(trace: Trace) -> pl.DataFrame:
    """The calls of each host thread, those within others in the rows below."""
    module = (pl.col("kind") == "python") & pl.col("name").str.starts_with(_MODULE)
    chosen = trace.events.filter(pl.col("kind").is_in(["cpu_op", "runtime", "annotation"]) | module)
    calls = chosen.with_columns(end=pl.col("ts") + pl.col("dur"))
    thread = calls.select(THREAD_NUMBER).to_series().to_numpy()
    row = _depth(callers(calls["ts"].to_numpy(), calls["end"].to_numpy(), thread))
    said = calls.with_columns(row=pl.Series(row, dtype=pl.Int64), detail=_shapes(calls))
    where = pl.format("thread {}", pl.col("tid").fill_null("unknown"))
    category = pl.when(module).then(pl.lit("module")).otherwise(pl.col("kind").cast(pl.String))
    return _table(said, "host", where, category, pl.col("name").str.strip_prefix(_MODULE), row=pl.col("row"))


def _shapes(calls: pl.DataFrame) -> pl.Series:
    """The inputs of each call, as in "788x768 768x768 bf16"; null where none are recorded."""
    inputs = calls.select("dims", "dtypes").unique()
    texts = pl.Series("shapes", [readable(*pair) for pair in inputs.iter_rows()], dtype=pl.String)
    return calls.join(inputs.hstack([texts]), on=["dims", "dtypes"], how="left", nulls_equal=True, maintain_order="left")["shapes"]  # fmt: skip


def _table(
    frame: pl.DataFrame, side: str, where: pl.Expr, category: pl.Expr, name: pl.Expr,
    detail: pl.Expr | None = None, row: pl.Expr | None = None,
) -> pl.DataFrame:  # fmt: skip
    columns = {
        "rank": pl.col("rank"),
        "side": pl.lit(side),
        "where": where,
        "row": pl.lit(0) if row is None else row,
        "ts": pl.col("ts"),
        "end": pl.col("end"),
        "category": category,
        "name": name,
        "detail": (pl.col("detail") if detail is None else detail).fill_null(""),
    }
    return frame.select(expression.cast(_EVENTS[key]).alias(key) for key, expression in columns.items())


def _depth(caller: Ints) -> Ints:
    """How many calls each one is within."""
    depth, up = np.zeros(caller.size, dtype=np.int64), caller
    while (inside := up >= 0).any():
        depth += inside
        up = np.where(inside, caller[up], -1)
    return depth


def _kept(found: pl.DataFrame, hidden: dict[str, int]) -> pl.DataFrame:
    """The events that get a lane: of the busiest streams and threads. Counts the others in `hidden`."""
    ranks = found["rank"].unique().sort().head(MOST_RANKS)
    found = _without(found, ~pl.col("rank").is_in(ranks.implode(), nulls_equal=True), "of further ranks", hidden)
    limits = {"gpu": (MOST_STREAMS, "on further streams"), "host": (MOST_THREADS, "on further host threads")}
    for side, (most, what) in limits.items():
        busy = (
            found.filter(pl.col("side") == side)
            .group_by(*_LANE)
            .agg(busy=(pl.col("end") - pl.col("ts")).filter(pl.col("row") == 0).sum())
            .with_columns(place=pl.col("busy").rank("ordinal", descending=True).over("rank"))
            .select(*_LANE, crowded=pl.col("place") > most)
        )
        found = found.join(busy, on=_LANE, how="left", nulls_equal=True, maintain_order="left")
        found = _without(found, pl.col("crowded").fill_null(False), what, hidden).drop("crowded")
    deep = pl.col("row") >= pl.when(pl.col("side") == "host").then(MOST_ROWS).otherwise(MOST_GROUPS)
    return _without(found, deep, "within too many others", hidden)


def _without(found: pl.DataFrame, left_out: pl.Expr, what: str, hidden: dict[str, int]) -> pl.DataFrame:
    kept = found.filter(~left_out)
    if kept.height < found.height:
        hidden[what] = found.height - kept.height
    return kept


def _thinned(drawn: pl.DataFrame, most: int, span: int) -> tuple[pl.DataFrame, int]:
    """(at most about so many slices, the duration from which on events have one of their own).

    Time is cut into cells; the events that begin in a cell of their row and are shorter than it become one slice. A longer one that
    begins there ends in another cell, so slices of a row never swap places.
    """
    one = drawn.select("lane", "row", "ts", "dur", "kind", count=pl.lit(1, pl.Int64), busy_ns="dur")
    if one.height <= most:
        return one, 0
    cell = max(1, span >> 20)
    while _slices(one, cell) > most and cell < span:
        cell *= 2
    together = (
        one.filter(pl.col("dur") < cell)
        .group_by("lane", "row", pl.col("ts") // cell, maintain_order=True)
        .agg(
            start=pl.col("ts").first(),
            dur=(pl.col("ts") + pl.col("dur")).max() - pl.col("ts").first(),
            kind=pl.col("kind").sort_by("dur").last(),
            count=pl.len().cast(pl.Int64),
            busy_ns=pl.col("dur").sum(),
        )
        .select("lane", "row", pl.col("start").alias("ts"), "dur", "kind", "count", "busy_ns")
    )
    return pl.concat([one.filter(pl.col("dur") >= cell), together]), cell


def _slices(one: pl.DataFrame, cell: int) -> int:
    short = pl.col("dur") < cell
    cells = pl.struct("lane", "row", pl.col("ts") // cell).filter(short).n_unique()
    return int(one.select((~short).sum() + cells).item())
