"""SQL over a trace: its tables, and every analysis by name."""

from __future__ import annotations

import re

import polars as pl
import polars.selectors as cs

from rung.analysis.analyses import ANALYSES, table
from rung.errors import UsageError
from rung.trace.table import SCHEMA, Trace

RECORDED = ("events", "counters", "memory_records")
_READS = ("select", "with", "(")
# Functions of polars' SQL that would read files: a question about a trace needs none.
_FILES = re.compile(r"\bread_(csv|parquet|ipc|json|ndjson)\s*\(", re.IGNORECASE)


def catalogue() -> pl.DataFrame:
    """One row a table: its name and its columns."""
    nothing = Trace(pl.DataFrame(schema=SCHEMA))
    found = _tables(nothing, [*RECORDED, *ANALYSES], 1)
    return pl.DataFrame([{"table": name, "columns": ", ".join(frame.columns)} for name, frame in found.items()])


def query(trace: Trace, sql: str, *, steps: int = 1) -> pl.DataFrame:
    """The answer of a SELECT in polars' SQL. Only the analyses that it names are worked out.

    Raises UsageError, which says what is wrong, where the text is no SELECT, or a table or column does not exist.
    """
    if not sql.strip().lower().startswith(_READS) or _FILES.search(sql):
        raise UsageError("a query reads the tables of the trace: write SELECT ... FROM events, or from an analysis.")
    words = set(re.findall(r"\w+", sql))
    named = _tables(trace, [name for name in (*RECORDED, *ANALYSES) if name in words], steps)
    # SQL knows no enumerations: a kind is compared as the text that it is.
    frames = {name: frame.lazy().with_columns(pl.col(pl.Enum).cast(pl.String)) for name, frame in named.items()}
    try:
        answer = pl.SQLContext(frames).execute(sql).collect()
        # polars' SQL reads 1e3 and 1000.0 as decimals, and has dates: a document knows numbers and texts.
        return answer.with_columns(cs.decimal().cast(pl.Float64), cs.temporal().cast(pl.String))
    except pl.exceptions.PolarsError as error:
        raise UsageError(f"the query cannot be answered: {_reason(str(error))}{_hint(named)}") from None


def _tables(trace: Trace, names: list[str], steps: int) -> dict[str, pl.DataFrame]:
    recorded = {"events": trace.events, "counters": trace.counters, "memory_records": trace.memory}
    return {name: recorded[name] if name in recorded else table(name, trace, steps=steps) for name in names}


def _reason(text: str) -> str:
    return " ".join(text.split("\n\n")[0].split()).rstrip(".") + "."


def _hint(named: dict[str, pl.DataFrame]) -> str:
    return f" Tables: {', '.join((*RECORDED, *ANALYSES))}." if not named else ""
