"""What to do first: in two rows a finding, or in full."""

from __future__ import annotations

import textwrap
from typing import Any

from rung.report import units

MOST = 5


def findings_lines(rows: list[dict[str, Any]], width: int = 100) -> list[str]:
    """The first findings: what and how much of the step; what it can give, what to do, and the rungs that do it."""
    if not rows:
        return []
    lines = ["do first:"]
    for number, row in enumerate(rows[:MOST], 1):
        evidence = f" ({units.clean(row['evidence'])})" if row["evidence"] else ""
        lines.append(_cut(f"{number}. {units.percent(round(row['share'], 2))}: {row['what']}{evidence}", width))
        rungs = f"rung {', '.join(row['rungs'])}: " if row["rungs"] else ""
        lines.append(_cut(f"   {gain(row)}  {rungs}{row['do']}", width))
    if len(rows) > MOST:
        lines.append(f"   {len(rows) - MOST} more: --show findings")
    return lines


def findings_blocks(rows: list[dict[str, Any]], width: int = 100) -> list[str]:
    """Each finding with the answers to what one asks before a change."""
    if not rows:
        return ["nothing: no rule finds enough of the time in one place."]
    lines = []
    for number, row in enumerate(rows, 1):
        said = {
            "evidence": row["evidence"],
            "gain": f"{gain(row)} for the step, by Amdahl's law",
            "do": row["do"],
            "rungs": ", ".join(row["rungs"]) or "none does this by itself",
            "not": row["gives_not"],
            "compile": row["compile_safe"],
            "verify": row["verify"],
        }
        head = f"{number}. {row['finding']}, {units.percent(round(row['share'], 3))} of the GPUs' time: {row['what']}"
        lines += ["", *textwrap.wrap(head, width, subsequent_indent="   ")]
        for name, text in said.items():
            if text:
                lines += textwrap.wrap(f"   {name:<9} {units.clean(text)}", width, subsequent_indent=" " * 13)
    return lines[1:]


def gain(row: dict[str, Any]) -> str:
    """ "1.1-1.4x" """
    low, high = (
        f"{row[key]:.2f}" if row[key] < 9.995 else f"{row[key]:.0f}" for key in ("speedup_low", "speedup_high")
    )
    return f"{low}x" if low == high else f"{low}-{high}x"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 3].rstrip()}..."
