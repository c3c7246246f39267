"""SQL over a trace: its tables, and every analysis by name."""

from __future__ import annotations

import polars as pl
import polars.selectors as cs

from rung.analysis.analyses import ANALYSES, table
from rung.analysis.sql import checked
from rung.errors import UsageError
from rung.trace.table import SCHEMA, Trace

LONGEST_REASON = 300  # characters
RECORDED = ("events", "counters", "memory_records")


def catalogue() -> pl.DataFrame:
    """One row a table: its name and its columns."""
    nothing = Trace(pl.DataFrame(schema=SCHEMA))
    found = _tables(nothing, [*RECORDED, *ANALYSES], 1)
    return pl.DataFrame([{"table": name, "columns": ", ".join(frame.columns)} for name, frame in found.items()])


def query(trace: Trace, sql: str, *, steps: int = 1) -> pl.DataFrame:
    """The answer of a SELECT in polars' SQL. Only the analyses that it names are worked out, and it reads nothing else.

    Raises UsageError, which says what is wrong, where the text is no SELECT, or a table, column or function does not exist.
    """
    text, reads = checked(sql, (*RECORDED, *ANALYSES))
    named = _tables(trace, [name for name in (*RECORDED, *ANALYSES) if name in reads], steps)
    # SQL knows no coded texts: a kind is compared as the text that it is.
    frames = {
        name: frame.lazy().with_columns(pl.col(pl.Enum, pl.Categorical).cast(pl.String))
        for name, frame in named.items()
    }
    try:
        answer = pl.SQLContext(frames).execute(text).collect()
        # polars' SQL reads 1e3 and 1000.0 as decimals, and has dates: a document knows numbers and texts.
        return answer.with_columns(cs.decimal().cast(pl.Float64), cs.temporal().cast(pl.String))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise UsageError(f"the query cannot be answered: {_reason(str(error))}") from None


def _tables(trace: Trace, names: list[str], steps: int) -> dict[str, pl.DataFrame]:
    recorded = {"events": trace.events, "counters": trace.counters, "memory_records": trace.memory}
    return {name: recorded[name] if name in recorded else table(name, trace, steps=steps) for name in names}


def _reason(text: str) -> str:
    """What polars says, without its hints, and without the tree or the pattern that it may print whole."""
    said = " ".join(text.split("\n\n")[0].split()).rstrip(".") + "."
    return said if len(said) <= LONGEST_REASON else f"{said[:LONGEST_REASON]} ..."
