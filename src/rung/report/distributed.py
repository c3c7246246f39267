"""What is said of collectives and ranks in a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rung.report import units

if TYPE_CHECKING:
    import polars as pl

_MOST = 8


def communication_line(table: pl.DataFrame, per: str = " a step", ranks: int = 1) -> str:
    """ "all_reduce 192 MiB: 863 µs a step, waiting 2.29 ms, exposed 3.16 ms (100%), 336 GB/s on the bus"

    ranks: of the run; a row is about those of its group alone.
    """
    if table.is_empty():
        return ""
    rows = table.to_dicts()
    weights = [min(1.0, row["ranks"] / ranks) for row in rows]
    sums = {
        key: sum(row[key] * weight for row, weight in zip(rows, weights, strict=True))
        for key in ("transfer_ns", "waiting_ns", "exposed_ns")
    }
    spent = sums["transfer_ns"] + sums["waiting_ns"]
    alone = all(row["ranks"] < 2 for row in rows)
    spend = "transfer and waiting" if alone else "transfer"
    text = f"{spend} {units.duration(sums['transfer_ns'])}{per}"
    if not alone:
        text += f", waiting for other ranks {units.duration(sums['waiting_ns'])}"
    text += f"; {units.duration(sums['exposed_ns'])} exposed ({units.percent(round(sums['exposed_ns'] / max(1, spent), 2))})"
    first = next((row for row in rows if row["bus_gb_per_s"]), None)
    if first:
        least = "at least " if first["ranks"] < (first["group_size"] or 0) else ""
        text += f"; {first['collective']} of {units.data_size(first['size_bytes'])}: {least}{first['bus_gb_per_s']:.3g} GB/s on the bus"
    return text


def skew_line(table: pl.DataFrame) -> str:
    """Which ranks have no trace."""
    missing = table.filter(~table["recorded"])["rank"].to_list()
    if not missing or len(missing) == table.height:
        return ""
    some = ", ".join(map(str, missing[:_MOST])) + (", ..." if len(missing) > _MOST else "")
    return (
        f"no trace of rank {some} (of {table.height} ranks): how long they waited, and who waited for them, is unknown"
    )


def stragglers_line(table: pl.DataFrame) -> str:
    """The worst lateness, and why."""
    if table.is_empty():
        return ""
    worst: dict[str, Any] = max(table.to_dicts(), key=lambda row: row["late_ns"])
    same = [row for row in table.to_dicts() if row["rank"] == worst["rank"]]
    steps = (
        "in steps " + ", ".join(str(row["step"]) for row in same[:_MOST])
        if len(same) > 1
        else f"in step {worst['step']}"
    )
    text = f"rank {worst['rank']} was late {steps}, at worst by {units.duration(worst['late_ns'])} ({units.percent(round(worst['late_share'], 2))} of a step)"
    return f"{text}: {cause(worst)}" if cause(worst) else text


def cause(row: dict[str, Any]) -> str:
    """The evidence of a row of `stragglers`."""
    if row["cause"] == "computation":
        return (
            f"{row['op']} took {units.duration(row['op_ns'])} on it before the {row['collective']}, "
            f"{units.duration(row['others_op_ns'])} on the next rank"
        )
    if row["cause"] == "host":
        until = f" until {row['op']}" if row["op"] else ""
        return f"its GPU waited {units.duration(row['op_ns'])} for the host{until}, the next rank's {units.duration(row['others_op_ns'])}"
    return ""


def slow_groups_line(table: pl.DataFrame) -> str:
    """The slowest group, against its likes."""
    if table.is_empty():
        return ""
    row: dict[str, Any] = table.row(0, named=True)
    more = table["group"].n_unique() - 1
    ranks = units.one_line(row["group_ranks"]).strip("[]")
    text = (
        f"group {row['group']}{f' (ranks {ranks})' if ranks else ''} takes {units.ratio(row['times'])} as long as others for "
        f"{row['collective']} of {units.data_size(row['size_bytes'])}"
    )
    if row["bus_gb_per_s"] and row["others_bus_gb_per_s"]:
        text += f": {row['bus_gb_per_s']:.3g} GB/s, the median of {row['groups']} groups is {row['others_bus_gb_per_s']:.3g}"
    return text + (f"; {more} more group{'s' * (more > 1)}" if more else "")


def scaling_line(table: pl.DataFrame) -> str:
    """What the ranks' GPUs make of a step, in the median of the steps."""
    if table.is_empty() or table["ranks"].max() == 1:
        return ""
    median = table.select("^.*_share$").median().row(0, named=True)
    if median["efficiency_share"] is None:
        return ""
    reasons = {"balance": "even work", "communication": "links and waiting for ranks", "host": "work for the GPU"}
    said = ", ".join(f"{text} {units.percent(round(median[f'{name}_share'], 2))}" for name, text in reasons.items())
    return f"{units.percent(round(median['efficiency_share'], 2))} of the GPUs' time computes, the product of {said}"
