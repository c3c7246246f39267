"""What a trace says, on one screen."""

from __future__ import annotations

import textwrap
from typing import Any

from rung.report import units, words
from rung.report.findings import findings_lines
from rung.report.kernel_names import readable
from rung.report.tables import shortened
from rung.report.terminal import breakdown_lines

TOP = 10


def analyze_lines(found: dict[str, Any], width: int = 100) -> list[str]:
    """The trace's facts and what to do first; for each rank its bottleneck, its GPUs, where the time went and the kernels that took most of
    it; then a sentence of each analysis.
    """
    many = f", {found['ranks']} ranks" if found["ranks"] > 1 else ""
    counters = f", {units.count(found['counters'])} counter values" if found["counters"] else ""
    steps = f", {found['steps']} steps" if found["steps"] > 1 else ""
    lines = [
        f"{units.clean(found['source'])}: {found['format']}, {units.count(found['events'])} events{counters}{steps}{many}"
    ]
    for in_table, where in ((False, "not in the table"), (True, "counted, too")):
        rows = [row for row in found["completeness"] if row["in_table"] is in_table]
        if rows:
            lines += textwrap.wrap(f"{where}: {', '.join(map(_counted, rows))}", width, subsequent_indent="  ")
    for note in found["notes"]:
        lines += textwrap.wrap(f"note: {units.clean(note)}", width, subsequent_indent="  ")
    first = findings_lines(found.get("findings") or [], width)
    lines += ["", *first] if first else []
    for part in found["parts"]:
        lines += ["", *_part(part, found["ranks"] > 1, width, found["steps"])]
    if found["ranks"] > len(found["parts"]):
        lines.append(f"... and {found['ranks'] - len(found['parts'])} more ranks")
    said = found.get("headlines") or {}
    if said:
        margin = max(map(len, said)) + 2
        lines.append("")
        for name, text in said.items():
            lines += textwrap.wrap(f"{name:<{margin}}{units.clean(text)}", width, subsequent_indent=" " * margin)
        lines.append("As tables: rung analyze PATH --show NAME,NAME (--show list: all of them)")
    return lines


def _counted(row: dict[str, Any]) -> str:
    time = f" ({units.duration(row['time_ns'])})" if row["time_ns"] else ""
    return f"{units.count(row['events'])} x {units.clean(row['what'])}{time}"


def _part(part: dict[str, Any], name: bool, width: int, steps: int) -> list[str]:
    lines = [f"rank {part['rank']}"] if name else []
    record = part["breakdown"]
    if record and record.get("bottleneck"):
        lines.append(f"Bottleneck: {words.bottleneck(record)} ({units.clean(record['clock']).upper()} time).")
    for row in part["timeline"]:
        total = max(row["total_ns"], 1)
        said = [f"{what} {row[key] / total:.1%}" for what, key in
                (("computation", "computation_ns"), ("exposed communication", "exposed_communication_ns"),
                 ("exposed copies", "exposed_memcpy_ns"), ("idle", "idle_ns"))
                if row[key] or key in ("computation_ns", "idle_ns")]  # fmt: skip
        text = f"GPU {row['device']}: {units.duration(row['total_ns'])}, of it {', '.join(said)}; {units.count(row['kernels'])} kernels"  # fmt: skip
        lines += textwrap.wrap(text, width, subsequent_indent="  ")
        if row["unlinked"] and part["launches"]:
            lines.append(
                f"  {units.count(row['unlinked'])} GPU events ({units.duration(row['unlinked_ns'])}) were launched outside of the trace"
            )
    if record is None:
        return [*lines, "no GPU event and no operator is in it: there is no time to break down."]
    what = f"A step, the mean of {steps}" if steps > 1 else "The recording"
    lines.append(f"{what}: {units.duration(record['step_ns'])}")
    for line in breakdown_lines(record, bottleneck=False):
        lines += textwrap.wrap(line, width, initial_indent="  ", subsequent_indent="    ") if line.startswith("Note") else [f"  {line}"]  # fmt: skip
    if record["top"]:
        lines.append("  most time:")
        longest = max(len(units.duration(ns)) for _, _, ns, _ in record["top"][:TOP])
        for title, category, ns, count in record["top"][:TOP]:
            share = ns / record["step_ns"] if record["step_ns"] else 0.0
            start = f"    {units.duration(ns):>{longest}}  {share:>4.0%}  {category:<13} {units.count(count):>6} x  "
            lines.append(start + shortened(readable(units.clean(title)), max(20, width - len(start))))
    return lines
