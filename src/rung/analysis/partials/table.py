"""What is kept of one trace file: a Parquet file of one row, with the tables that questions over ranks need as lists in it."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import msgspec
import polars as pl

from rung.analysis.between import STRETCHES, WORK, between
from rung.analysis.collective_calls import SCHEMA as CALLS
from rung.analysis.collective_calls import collective_calls
from rung.analysis.overview import completeness, gpu_names, notes, parts
from rung.analysis.per_step import before_steps
from rung.analysis.skew import recorded_ranks, world_size
from rung.analysis.steps import found_steps, step_spans
from rung.analysis.timeline import SCHEMA as TIMELINE
from rung.analysis.timeline import timeline
from rung.errors import InputError
from rung.records.analyze import Counted, OfRank
from rung.records.record import record_of
from rung.trace.ranks import Stated, stated
from rung.trace.table import Trace

VERSION = 1  # to be raised whenever a partial of the same trace becomes another one
ENDING = ".partial.parquet"

SPANS: dict[str, pl.DataType] = {"rank": pl.Int32(), "step": pl.Int64(), "ts": pl.Int64()}  # steps on the host, ns
_CALLS = {name: dtype for name, dtype in CALLS.items() if name != "name"}

# The tables of a partial. `rank` is null where the file does not say it: the merge knows it.
TABLES: dict[str, dict[str, pl.DataType]] = {
    "calls": _CALLS,  # collectives, as in collective_calls
    "spans": SPANS,
    "stretches": STRETCHES,  # what was computed between them, as in between
    "work": WORK,
    "timeline": TIMELINE,
}


class Facts(msgspec.Struct, kw_only=True):
    """What a partial says of its trace in a few values.

    state: changes when the trace or this program does. problem: why the trace could not be read; then there is nothing else.
    stated: what tells its rank. events, ts_sum, dur_sum: of copies of one file they are the same. steps: how many are recorded, by which the
    figures of `parts` are divided. calls: collectives. gpu_ns, before_ns: the GPUs' time, and that before the first recorded step. parts: one a rank.
    """

    version: int = VERSION
    file: str
    state: str
    problem: str = ""
    stated: Stated = Stated(None, "", 0, 0)
    world_size: int = 0
    ranks: list[int] = []
    calls: int = 0
    events: int = 0
    ts_sum: int = 0
    dur_sum: int = 0
    counters: int = 0
    steps: int = 0
    gpu_ns: int = 0
    before_ns: int = 0
    unread: dict[str, int] = {}
    completeness: list[Counted] = []
    notes: list[str] = []
    gpus: list[str] = []
    parts: list[OfRank] = []
    clocks: dict[int, tuple[int, int]] = {}


def partial_of(trace: Trace, file: str, state: str) -> bytes:
    """A partial, as the content of a Parquet file."""
    steps = found_steps(trace)
    before_ns, gpu_ns = before_steps(trace)
    damage = {str(trace.meta[key]) for key in ("cut", "replaced") if trace.meta.get(key)}
    facts = Facts(
        file=file,
        state=state,
        stated=stated(trace),
        world_size=world_size(trace),
        ranks=recorded_ranks(trace),
        events=trace.events.height,
        ts_sum=int(trace.events["ts"].sum()),
        dur_sum=int(trace.events["dur"].sum()),
        counters=trace.counters.height,
        steps=steps,
        gpu_ns=gpu_ns,
        before_ns=before_ns,
        unread=dict(trace.unread),
        completeness=record_of(list[Counted], completeness(trace).to_dicts()),
        notes=[f"{file}: {note}" if note in damage else note for note in notes(trace)],
        gpus=gpu_names(trace),
        parts=parts(trace, steps=max(1, steps)),
        clocks=trace.meta.get("clocks", {}),
    )
    calls, did = collective_calls(trace), between(trace)
    facts.calls = calls.height
    tables = {
        "calls": calls.select(list(_CALLS)),
        "spans": step_spans(trace).select(list(SPANS)),
        "stretches": did.stretches,
        "work": did.work,
        "timeline": timeline(trace),
    }
    return _written(facts, tables)


def unreadable(file: str, state: str, problem: str) -> bytes:
    """The partial of a trace that cannot be read, so that the merge can name it."""
    return _written(Facts(file=file, state=state, problem=problem), {})


def _written(facts: Facts, tables: dict[str, pl.DataFrame]) -> bytes:
    columns = [pl.Series("facts", [msgspec.json.encode(facts).decode()])]
    for name, schema in TABLES.items():
        table = tables[name] if name in tables else pl.DataFrame(schema=schema)
        columns.append(table.select(pl.struct(pl.all()).implode().alias(name)).to_series())
    file = io.BytesIO()
    pl.DataFrame(columns).write_parquet(file, statistics=False)
    return file.getvalue()


def facts_in(file: Path) -> Facts:
    """The facts of a partial. Raises InputError where the file is none, or of another version."""
    try:
        text = pl.read_parquet(file, columns=["facts"])["facts"][0]
        if msgspec.json.decode(text, type=_Versioned).version != VERSION:
            raise InputError(f"{file} is a partial of another version of rung: reduce its trace again.")
        return msgspec.json.decode(text, type=Facts)
    except (pl.exceptions.PolarsError, msgspec.MsgspecError, OSError, IndexError, TypeError) as error:
        raise _no_partial(file, error) from None


def tables_in(files: Sequence[Path], ranks: Sequence[int], name: str) -> pl.DataFrame:
    """One of TABLES, of several partials below each other. ranks: of each, for rows that do not say theirs. Raises InputError where a file is no
    partial."""
    own = pl.Series("of_file", ranks, dtype=pl.Int32)
    try:
        rows = pl.read_parquet(list(files), columns=[name]).with_columns(own) if files else pl.DataFrame()
        if rows.is_empty() or not rows[name].list.len().sum():
            return pl.DataFrame(schema=TABLES[name])
        table = rows.filter(pl.col(name).list.len() > 0).explode(name).unnest(name)
        table = table.with_columns(pl.col("rank").fill_null(pl.col("of_file")))
        return table.select(pl.col(column).cast(dtype) for column, dtype in TABLES[name].items())
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        if len(files) == 1:
            raise _no_partial(files[0], error) from None
        return pl.concat([tables_in([file], [rank], name) for file, rank in zip(files, ranks, strict=True)])


def _no_partial(file: Path, error: BaseException) -> InputError:
    return InputError(f"{file} is damaged or not a partial ({type(error).__name__}): reduce its trace again.")


class _Versioned(msgspec.Struct):
    version: int = 0
