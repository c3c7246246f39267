"""Tables with one row a dispatch and one column a counter: legacy rocprof, rocprofv2 and rocprof-compute."""

from __future__ import annotations

import re
from collections.abc import Mapping

import polars as pl

from rung.trace import rows as _rows
from rung.trace.rocprof import tool_csv as _tool_csv
from rung.trace.unread import Unread

# What stands beside the counters, in the spelling of `_tool_csv.plain`, by column of the event table.
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "start": ("start_timestamp", "beginns"),
    "end": ("end_timestamp", "endns"),
    "name": ("kernel_name", "kernelname"),
    "pid": ("pid",),
    "tid": ("tid",),
    "stream": ("queue_id",),
    "gpu": ("gpu_id",),
}
_NO_COUNTERS = frozenset(title for titles in COLUMNS.values() for title in titles) | {
    *("dispatch_id", "index", "queue_index", "grd", "grid_size", "wgr", "workgroup_size", "lds", "lds_per_workgroup"),
    *("scr", "scratch_per_workitem", "arch_vgpr", "vgpr", "accum_vgpr", "sgpr", "wave_size", "sig", "obj"),
    *("correlation_id", "kernel_id", "xcc_index", "dispatchns", "completens", "durationns", ""),
}
# Joining the passes of a run numbers the columns that all of them have: Wave_Size_1, Wave_Size_2.
_NUMBERED = re.compile(r"_\d+$")


def is_counter(title: str) -> bool:
    return title not in _NO_COUNTERS and _NUMBERED.sub("", title) not in _NO_COUNTERS


def devices(frame: pl.DataFrame) -> dict[str, int]:
    """The position of each GPU that is named: these files list no agents, so those seen are counted in order."""
    gpus = {text for text in frame["gpu_id"].unique() if text} if "gpu_id" in frame.columns else set()
    return {text: place for place, text in enumerate(sorted(gpus, key=lambda text: (len(text), text)))}


def rows(frame: pl.DataFrame, gpus: Mapping[str, int]) -> pl.DataFrame:
    """One row a dispatch, with what the event table wants and the place of the row as its correlation."""
    wanted = {"kind": pl.lit("kernel"), "pid": pl.lit(""), "tid": pl.lit("")}
    for column, choice in COLUMNS.items():
        found = next((title for title in choice if title in frame.columns), None)
        if found is None:
            continue
        if column == "gpu":
            wanted["device"] = pl.col(found).replace_strict(dict(gpus), default=None, return_dtype=pl.Int32)
        else:
            text = column in ("name", "pid", "tid")
            wanted[column] = pl.col(found) if text else _tool_csv.integer(found)
    made = frame.select(expression.alias(column) for column, expression in wanted.items())
    return made.with_columns(correlation=pl.int_range(pl.len(), dtype=pl.Int64))


def events(frame: pl.DataFrame, gpus: Mapping[str, int], unread: Unread) -> pl.DataFrame:
    """The dispatches with their times; those whose times a spreadsheet has rounded are counted apart."""
    made = rows(frame, gpus)
    titles = [title for column in ("start", "end") for title in COLUMNS[column] if title in frame.columns]
    text = frame.select(titles).with_columns(place=pl.int_range(pl.len(), dtype=pl.Int64))
    kept, rounded = _tool_csv.without_rounded(text, titles)
    if rounded:
        unread[_rows.ROUNDED] += rounded
        made = made.filter(pl.col("correlation").is_in(kept["place"].implode()))
    return _rows.events(made, unread)


def counters(frame: pl.DataFrame, names: Mapping[str, str], gpus: Mapping[str, int], unread: Unread) -> pl.DataFrame:
    """One row a dispatch and counter. names: the columns to take → what the counter is called. Empty cells are none."""
    there = rows(frame, gpus)
    there = _rows.conformed(
        there.rename({"name": "kernel"}),
        {"correlation": pl.Int64(), "device": pl.Int32(), "kernel": pl.String()},
    )
    if not names:
        return pl.DataFrame()
    wide = pl.concat(
        [there, frame.select(pl.col(title).alias(name) for title, name in names.items())], how="horizontal"
    )
    long = wide.unpivot(
        on=list(names.values()), index=["correlation", "device", "kernel"], variable_name="counter", value_name="text"
    )
    long = long.with_columns(pl.col("text").str.strip_chars()).filter(pl.col("text") != "")
    return _rows.counters(long.with_columns(value=pl.col("text").cast(pl.Float64, strict=False)), unread)
