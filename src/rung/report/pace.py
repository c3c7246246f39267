"""What sets the pace, in a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rung.analysis.kernel_names import readable
from rung.report import units
from rung.report.tables import shortened

if TYPE_CHECKING:
    import polars as pl


_KINDS = {"launch": "launch latency and gaps"}  # of the path; the others are words already


def critical_path_line(table: pl.DataFrame) -> str:
    """ "set by computation 94 %, host 5 %; most of it: aten::_softmax 35 %" """
    rows = table.to_dicts()
    if not rows or rows[0]["what"] == "none":
        return rows[0]["name"] if rows else ""
    shares: dict[str, float] = {}
    for row in rows:
        shares[row["what"]] = shares.get(row["what"], 0.0) + row["path_share"]
    if not any(shares.values()):  # nothing in it took any time
        return ""
    order = sorted(shares.items(), key=lambda item: -item[1])
    said = ", ".join(
        f"{_KINDS.get(what, what)} {units.percent(round(share, 2))}" for what, share in order if share >= 0.005
    )
    of = "" if rows[0]["of"] == "recording" else f" in {rows[0]['of']}"
    where = f" of rank {rows[0]['rank']}" if rows[0]["rank"] is not None else ""
    name = f"the host before {rows[0]['name']}" if rows[0]["what"] == "host" else rows[0]["name"]
    return f"the pace{of} is set by {said}; first: {shortened(readable(name), 60)}{where}, {units.percent(round(rows[0]['path_share'], 2))}"


def what_if_line(table: pl.DataFrame) -> str:
    """ "the end comes at most 34.5 % sooner if aten::_softmax takes no time (27.6 % at its floor), 33.2 % if aten::bmm takes none" """
    said: list[str] = []
    kinds = {"host": "the host", "communication": "collectives", "memcpy": "copies"}
    for row in table.to_dicts()[:3]:
        if row["saved_share"] < 0.01:
            continue
        name = shortened(readable(row["name"]), 40) if row["name"] else kinds.get(row["what"], row["what"])
        name = "unnamed collectives" if (row["what"], name) == ("communication", "unnamed") else name
        floor = row["floor_saved_share"]
        at_floor = f" ({units.percent(round(floor, 3))} at its floor)" if floor is not None else ""
        verb = "takes none" if said else "takes no time"
        sooner = "" if said else " sooner"
        said.append(f"{units.percent(round(row['saved_share'], 3))}{sooner} if {name} {verb}{at_floor}")
    return f"the end comes at most {', '.join(said)}" if said else ""
