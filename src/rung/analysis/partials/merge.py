"""Partials to the tables over ranks: the same as of the whole traces, in memory for a part of the run at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import polars as pl

from rung.analysis import skew
from rung.analysis.between import Between
from rung.analysis.collectives import SCHEMA as COLLECTIVES
from rung.analysis.collectives import how_matched, operations, with_key
from rung.analysis.communication import costs
from rung.analysis.overview import MISSING as COMPLETENESS
from rung.analysis.partials.buckets import Buckets
from rung.analysis.partials.summary import Part, Summary
from rung.analysis.partials.table import tables_in
from rung.analysis.scaling import efficiencies, step_sums
from rung.analysis.slow_groups import slower
from rung.analysis.stragglers import History, explained, lates, periods, step_ns, worst
from rung.errors import InputError
from rung.records.analyze import Overview
from rung.runs import temporary_folder

log = logging.getLogger(__name__)

ANSWERED = ("communication", "collectives", "skew", "stragglers", "slow_groups", "scaling", "timeline", "completeness")
LARGE = (
    "collectives",
    "timeline",
)  # a row for each operation, or for each rank and step: made where they are asked for
BATCH = 256  # partials in memory
HISTORIES = 32  # ranks of which the work between collectives is in memory


@dataclass
class Merged:
    """tables: by the name of the analysis. overview: without findings and headlines."""

    tables: dict[str, pl.DataFrame]
    overview: Overview


def merged(files: Sequence[Path], source: str, *, steps: int | None = None, wanted: Collection[str] = ()) -> Merged:
    """What partials say together. A file that is no partial, or that of a trace which could not be read, is named in the overview's notes.

    steps: by how many to divide figures (default: as the partials say). wanted: those of LARGE to be made, too; without, `timeline` has
    no steps. Raises InputError where no file has anything to say.
    """
    summary = Summary()
    for number, file in enumerate(files, 1):
        summary.add(file)
        if number % BATCH == 0:
            log.info("opened %d of %d partials", number, len(files))
    if not summary.files:
        why = next(iter(summary.unreadable.values()), "it holds no trace of a known format.")
        raise InputError(f"{source}: none of {len(files)} traces could be read. The first: {why}")
    parts = summary.parts()
    divisor, note = summary.divisor() if steps is None else (steps, "")
    with temporary_folder("rung-") as folder:
        tables = _tables(parts, summary, divisor, Path(folder), wanted)
    overview = summary.overview(parts, source, divisor)
    overview.notes += [note] if note else []
    return Merged(tables, overview)


def _tables(
    parts: Sequence[Part], summary: Summary, steps: int, folder: Path, wanted: Collection[str]
) -> dict[str, pl.DataFrame]:
    buckets = Buckets(summary.sums["calls"], folder)
    reference = _stacked([], "calls")  # the first rank's, by which clocks are compared
    offsets: dict[int, int] = {}
    lengths, sums, timeline = [], [], []
    for number, batch in enumerate(_batches(parts)):
        calls = _stacked(batch, "calls")
        buckets.add(calls)
        if reference.is_empty():
            joining = skew.joining(how_matched(calls))
            reference = joining.filter(pl.col("rank") == pl.col("rank").min()).drop("matched")
        others = calls.filter(~pl.col("rank").is_in(reference["rank"].unique().implode()))
        offsets |= skew.offsets(with_key(pl.concat([reference, others])))
        lengths.append(periods(how_matched(calls)))
        busy = _stacked(batch, "timeline")
        sums.append(step_sums(busy))
        timeline.append(busy if "timeline" in wanted else busy.filter(pl.col("step").is_null()))
        log.info("merged %d of %d ranks", number * BATCH + len(batch), len(parts))
    late, arrived, done = [], [], []
    for number, calls in enumerate(buckets):
        keyed = with_key(calls)
        found = operations(keyed)
        late.append(worst(lates(keyed, found)))
        arrived.append(skew.arrivals(keyed, found))
        place = folder / f"operations-{number}.parquet"
        found.write_parquet(place, compression="lz4", statistics=False)
        done.append(pl.scan_parquet(place))
        log.info("matched collectives, part %d", number + 1)
    offsets = skew.known_offsets(offsets, summary.clocks)
    every = pl.concat(done)
    recorded = sorted(summary.recorded)
    missing = sorted(set(range(summary.world_size)) - summary.recorded)
    tables = {
        "communication": costs(every, steps),
        "slow_groups": slower(every),
        "skew": skew.by_rank(pl.concat(arrived), recorded, missing, offsets, steps),
        "stragglers": explained(worst(pl.concat(late)), step_ns(pl.concat(lengths)), _histories(parts)),
        "scaling": efficiencies(pl.concat(sums)),
        "timeline": pl.concat(timeline).sort("rank", "device", maintain_order=True),
        "completeness": pl.DataFrame(
            [(row.what, row.in_table, row.events, row.time_ns) for row in summary.counted()],
            schema=COMPLETENESS,
            orient="row",
        ),
    }
    if "collectives" in wanted:
        ordered = every.sort("first_rank", "ts", maintain_order=True)
        tables["collectives"] = ordered.select(
            pl.col(name).cast(dtype) for name, dtype in COLLECTIVES.items()
        ).collect()
    return tables


def _batches(parts: Sequence[Part]) -> Iterator[Sequence[Part]]:
    for first in range(0, len(parts), BATCH):
        yield parts[first : first + BATCH]


def _stacked(parts: Sequence[Part], name: str) -> pl.DataFrame:
    """One of the tables of partials, of these ranks."""
    return tables_in([part.path for part in parts], [part.rank for part in parts], name)


def _histories(parts: Sequence[Part]) -> Callable[[int], History]:
    """What a rank did, read when it is asked for. A rank may have written several files, and a file may be of several ranks."""
    of_rank: dict[int, list[Part]] = {}
    for part in parts:
        for rank in part.ranks:
            of_rank.setdefault(rank, []).append(part)

    @lru_cache(maxsize=HISTORIES)
    def history(rank: int) -> History:
        calls, spans, stretches, work = (
            _stacked(of_rank[rank], name).filter(pl.col("rank") == rank)
            for name in ("calls", "spans", "stretches", "work")
        )
        return History(calls, spans, Between(stretches, work))

    return history
