"""Each analysis in one sentence, for the page of a trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rung.report import distributed, units
from rung.report.tables import shortened

if TYPE_CHECKING:
    import polars as pl

# What to say of an analysis's table; "" where there is nothing to say. In the order of the page.
HEADLINES: dict[str, Callable[[pl.DataFrame], str]] = {
    "critical_path": lambda table: critical_path_line(table),
    "what_if": lambda table: what_if_line(table),
    "communication": distributed.communication_line,
    "stragglers": distributed.stragglers_line,
    "skew": distributed.skew_line,
}


def headlines(table: Callable[[str], pl.DataFrame]) -> dict[str, str]:
    """The sentences of the analyses that have something to say. table: gives an analysis's table by its name."""
    said = {name: say(table(name)) for name, say in HEADLINES.items()}
    return {name: text for name, text in said.items() if text}


def critical_path_line(table: pl.DataFrame) -> str:
    """ "set by computation 94 %, host 5 %; most of it: aten::_softmax 35 %" """
    rows = table.to_dicts()
    if not rows or rows[0]["what"] == "none":
        return rows[0]["name"] if rows else ""
    shares: dict[str, float] = {}
    for row in rows:
        shares[row["what"]] = shares.get(row["what"], 0.0) + row["path_share"]
    order = sorted(shares.items(), key=lambda item: -item[1])
    said = ", ".join(f"{what} {units.percent(round(share, 2))}" for what, share in order if share >= 0.005)
    of = "" if rows[0]["of"] == "recording" else f" in {rows[0]['of']}"
    where = f" of rank {rows[0]['rank']}" if rows[0]["rank"] is not None else ""
    name = f"the host before {rows[0]['name']}" if rows[0]["what"] == "host" else rows[0]["name"]
    return f"the pace{of} is set by {said}; first: {shortened(name, 60)}{where}, {units.percent(round(rows[0]['path_share'], 2))}"


def what_if_line(table: pl.DataFrame) -> str:
    """ "at most: -34.5 % if aten::_softmax took no time, -33.2 % if aten::bmm" """
    said = []
    for row in table.to_dicts()[:3]:
        if row["saved_share"] >= 0.01:
            what = {"host": "the host", "communication": "collectives", "memcpy": "copies"}.get(
                row["what"], row["what"]
            )
            said.append(
                f"-{units.percent(round(row['saved_share'], 3))} if {shortened(row['name'], 40) if row['name'] else what}"
            )
    return f"at most: {', '.join([f'{said[0]} took no time', *said[1:]])}" if said else ""
