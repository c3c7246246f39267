"""Recorded traces: the formats that are read, and the analyses."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from reference.markdown import code, page, sentence, table
from rung.analysis.analyses import ANALYSES, COLUMNS, described
from rung.analysis.analyses import table as analysis
from rung.trace.formats import FORMATS
from rung.trace.table import SCHEMA, Trace

TYPES = {
    "Int": "integer",
    "UInt": "integer",
    "Float": "number",
    "String": "text",
    "Boolean": "true or false",
    "List": "list of texts",
}
UNITS = {
    "_ns": "ns",
    "_bytes": "bytes",
    "share": "fraction",
    "_flops": "FLOP",
    "gb_per_s": "10⁹ bytes/s",
    "tb_per_s": "10¹² bytes/s",
    "tflop_per_s": "10¹² FLOP/s",
    "tokens_per_s": "tokens/s",
    "_mhz": "MHz",
}
CLOCK = ("ts", "end", "at")  # moments on the trace's clock


def formats() -> str:
    return page(
        "Trace formats",
        "`rung analyze`, `diff`, `query` and `replay` read every format below. Rung recognizes a format by the content of the file, not by its "
        "name. Files may be compressed with gzip. A folder is read as one run, each file a rank.",
        "An analysis that needs what a format lacks has no rows. `rung analyze PATH --show completeness` lists what was left out of your file.",
        table(
            ["format", "written by", "recognized by", "has", "lacks"],
            [
                [
                    f"**{one.tool}** {code(name)}",
                    one.made_by,
                    sentence(one.recognized),
                    sentence(one.has),
                    sentence(one.lacks),
                ]
                for name, one in FORMATS.items()
            ],
        ),
        "## Written formats",
        "`rung analyze TRACE --write FILE` writes the events again: `.json` or `.json.gz` for chrome://tracing and Perfetto, `.pftrace` or "
        "`.pftrace.gz` for Perfetto, `.csv` for tables.",
        "## More",
        "[The trace engine](../internals/trace.md) describes limits, damaged files and the cache, and its neighbours what is read from "
        "[AMD's profilers](../internals/trace-rocprof.md), [SQLite databases](../internals/trace-sqlite.md) and "
        "[Perfetto](../internals/trace-perfetto.md).",
    )


def analyses() -> str:
    return page(
        "Analyses",
        '`rung analyze TRACE --show NAME` prints the table of one analysis, and `rung query TRACE "select * from NAME"` queries it. '
        "`--json` and `--csv FILE` have all rows and columns.",
        "Times are integer nanoseconds, sizes bytes, shares fractions of 1. Counts and times are averages per step unless the text says "
        "otherwise. A value that is not known is null.",
        table(["analysis", "question"], [[f"[{name}](#{name})", one.question] for name, one in ANALYSES.items()]),
        *(text for name in ANALYSES for text in _section(name)),
    )


def _section(name: str) -> Iterator[str]:
    """The columns in the order of the table; those that share a meaning in one row."""
    rows, columns = described(name)
    schema = analysis(name, Trace(pl.DataFrame(schema=SCHEMA))).schema
    by_column = {column: names for names in columns for column in names}
    yield f"## {name}"
    yield f"*{sentence(ANALYSES[name].question)}*"
    yield rows
    shown: dict[tuple[str, ...], list[str]] = {}
    for column, dtype in schema.items():
        names = by_column.get(column, (column,))
        meaning = columns.get(names) or COLUMNS.get(column, "")
        if meaning and names not in shown:
            shown[names] = [", ".join(map(code, names)), _type(dtype), _unit(column), sentence(meaning)]
    yield table(["column", "type", "unit", "meaning"], shown.values())


def _type(dtype: pl.DataType) -> str:
    return next(word for start, word in TYPES.items() if str(dtype).startswith(start))


def _unit(column: str) -> str:
    return "ns" if column in CLOCK else next((unit for end, unit in UNITS.items() if column.endswith(end)), "")
