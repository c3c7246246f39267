"""What a trace says, on one screen."""

from __future__ import annotations

import textwrap
from typing import Any

from rung.report import units
from rung.report.findings import findings_lines
from rung.report.terminal import breakdown_lines

TOP = 10


def analyze_lines(found: dict[str, Any], width: int = 100) -> list[str]:
    """The trace's facts and what to do first; for each rank its GPUs, where the time went, and the kernels that took most of it."""
    many = f", {found['ranks']} ranks" if found["ranks"] > 1 else ""
    counters = f", {units.count(found['counters'])} counter values" if found["counters"] else ""
    lines = [
        f"{units.clean(found['source'])}: {found['format']}, {units.count(found['events'])} events{counters}{many}"
    ]
    if found["unread"]:
        unread = ", ".join(f"{units.count(n)} x {units.clean(why)}" for why, n in sorted(found["unread"].items()))
        lines.append(f"not in the table: {unread}")
    lines += [f"note: {units.clean(note)}" for note in found["notes"]]
    first = findings_lines(found.get("findings") or [], width)
    lines += ["", *first] if first else []
    for part in found["parts"]:
        lines += ["", *_part(part, found["ranks"] > 1)]
    if found["ranks"] > len(found["parts"]):
        lines.append(f"... and {found['ranks'] - len(found['parts'])} more ranks")
    said = found.get("headlines") or {}
    if said:
        head = max(map(len, said))
        indent = " " * (head + 2)
        lines.append("")
        for name, text in said.items():
            lines += textwrap.wrap(f"{name:<{head}}  {units.clean(text)}", width, subsequent_indent=indent)
        lines.append("As a table: rung analyze PATH --show NAME")
    return lines


def _part(part: dict[str, Any], name: bool) -> list[str]:
    lines = [f"rank {part['rank']}"] if name else []
    for row in part["timeline"]:
        total = max(row["total_ns"], 1)
        said = [f"{what} {row[key] / total:.1%}" for what, key in
                (("computation", "computation_ns"), ("exposed communication", "exposed_communication_ns"),
                 ("exposed copies", "exposed_memcpy_ns"), ("idle", "idle_ns"))]  # fmt: skip
        lines.append(f"GPU {row['device']}: {units.duration(row['total_ns'])}, of it {', '.join(said)}; {units.count(row['kernels'])} kernels")  # fmt: skip
        if row["unlinked"] and part["launches"]:
            lines.append(
                f"  {units.count(row['unlinked'])} GPU events ({units.duration(row['unlinked_ns'])}) were launched outside of the trace"
            )
    record = part["breakdown"]
    if record is None:
        return [*lines, "no GPU event and no operator is in it: there is no time to break down."]
    lines += [f"  {line}" for line in breakdown_lines(record)]
    if record["top"]:
        lines.append("  most time:")
        width = max(len(units.duration(ns)) for _, _, ns, _ in record["top"][:TOP])
        for title, category, ns, count in record["top"][:TOP]:
            share = ns / record["step_ns"] if record["step_ns"] else 0.0
            lines.append(f"    {units.duration(ns):>{width}}  {share:>4.0%}  {category:<13} {count:>7.6g} x  {_short(units.clean(title))}")  # fmt: skip
    return lines


def _short(name: str) -> str:
    return name if len(name) <= 90 else f"{name[:60]} ... {name[-25:]}"
