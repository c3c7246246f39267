"""Statistics of every kernel of a rocpd database, without reading the trace.

Two columns are moved: the kernel's id and the duration. SQLite's own `GROUP BY` sorts the whole table first and takes
2.5 times as long; docs/internals/trace-sqlite.md has the figures.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from rung.trace.databases import rocpd_info
from rung.trace.databases.columns import check_tables
from rung.trace.databases.sqlite import open_database

STATISTICS: dict[str, pl.DataType] = {
    "name": pl.String(),
    "count": pl.Int64(),
    "total": pl.Int64(),  # ns, as all that follow but the share
    "mean": pl.Float64(),
    "median": pl.Float64(),
    "min": pl.Int64(),
    "max": pl.Int64(),
    "share": pl.Float64(),  # of the time of all kernels together, 0 to 1
}


def kernel_statistics(path: Path, *, partial: bool = False, max_bytes: int | None = None) -> pl.DataFrame:
    """One row a kernel name, longest total first, columns as in STATISTICS.

    Kernels that overlap count in full. Rows of negative duration or without a time are left out, as `read` leaves them.
    """
    path = Path(path)
    parts: list[pl.DataFrame] = []
    # Numbers stand for the names until there is one row a kernel: five million strings would cost more than the reading.
    numbers: dict[str, int] = {}
    with open_database(path, partial=partial, max_bytes=max_bytes) as database:
        found = rocpd_info.suffixes(database)
        check_tables(database, bool(found), "rocpd database")
        for suffix in found:
            rows = database.integers(
                f"rocpd_kernel_dispatch{suffix}", {"kernel": "kernel_id"}, differences={"dur": ("end", "start")}
            ).filter(pl.col("dur") >= 0)
            names = rocpd_info.kernel_names(database, suffix)
            for kernel in rows["kernel"].unique().to_list():
                names[kernel] = names.get(kernel) or f"kernel {-1 if kernel is None else kernel}"
            known = {kernel: numbers.setdefault(name or "", len(numbers)) for kernel, name in names.items()}
            number = (
                pl.col("kernel").replace_strict(known, default=None, return_dtype=pl.UInt32) if known else pl.lit(0)
            )
            parts.append(rows.select("dur", number=number.cast(pl.UInt32)))
    return _statistics(pl.concat(parts), list(numbers))


def _statistics(rows: pl.DataFrame, names: list[str]) -> pl.DataFrame:
    dur = pl.col("dur")
    table = rows.group_by("number").agg(
        count=pl.len(), total=dur.sum(), mean=dur.mean(), median=dur.median(), min=dur.min(), max=dur.max()
    )
    name = pl.Series(names, dtype=pl.String).gather(table["number"])
    share = pl.col("total") / pl.max_horizontal(pl.col("total").sum(), 1)
    table = table.with_columns(name.alias("name"), share=share).select(list(STATISTICS)).cast(pl.Schema(STATISTICS))
    return table.sort("total", "name", descending=[True, False])
