"""What to do first: what, how much of the time and what to do about it, or each finding in full."""

from __future__ import annotations

from collections.abc import Sequence

from rung.records.analyze import Finding
from rung.report import units

MOST = 5
STAYS = "throughput stays"


def findings_lines(rows: Sequence[Finding], width: int = 100) -> list[str]:
    """The first findings: what and how much of the time; what it can give, what to do, and the rungs that do it."""
    if not rows:
        return []
    lines = ["Do first:"]
    for number, row in enumerate(rows[:MOST], 1):
        evidence = f" ({units.clean(row.evidence)})" if row.evidence else ""
        head = f"{number}. {row.what[:1].upper()}{row.what[1:]}: {units.percent(round(row.share, 2))}{evidence}"
        rungs = f" [rung climb: {', '.join(row.rungs)}]" if row.rungs else ""
        lines += units.wrapped(head, width, rest="   ")
        lines += units.wrapped(f"{gain(row)}: {row.do}{rungs}", width, "   ", "   ")
        if row.documentation:
            lines += units.wrapped(f"not tried by Rung; see {row.documentation}", width, "   ", "   ")
    if len(rows) > MOST:
        lines.append(f"   {len(rows) - MOST} more: --show findings")
    return lines


def findings_blocks(rows: Sequence[Finding], width: int = 100) -> list[str]:
    """Each finding with the answers to what one asks before a change."""
    if not rows:
        return ["nothing: no rule finds enough of the time in one place."]
    lines = []
    for number, row in enumerate(rows, 1):
        said = {
            "evidence": row.evidence,
            "gain": STAYS if gain(row) == STAYS else f"the step {gain(row)}, by Amdahl's law",
            "do": row.do,
            "rungs": ", ".join(row.rungs) or "none does this by itself",
            "not": row.gives_not,
            "compile": row.compile_safe,
            "verify": row.verify,
            "see": f"{row.documentation} (not tried by Rung)" if row.documentation else "",
        }
        head = f"{number}. {row.finding}, {units.percent(round(row.share, 3))} of the GPUs' time: {row.what}"
        lines += ["", *units.wrapped(head, width, rest="   ")]
        for name, text in said.items():
            if text:
                lines += units.wrapped(f"   {name:<9} {units.clean(text)}", width, rest=" " * 13)
    return lines[1:]


def gain(row: Finding) -> str:
    """ "1.10–1.40× faster", "at most 1.40× faster"; or that throughput stays, where what gets better is how long one request waits."""
    low, high = (
        f"{speedup:.2f}" if speedup < 9.995 else f"{speedup:.0f}" for speedup in (row.speedup_low, row.speedup_high)
    )
    if low == high == "1.00":
        return STAYS
    if low == high:
        return f"{low}× faster"
    return f"at most {high}× faster" if low == "1.00" else f"{low}–{high}× faster"
