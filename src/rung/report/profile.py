"""What was recorded and what it cost; the presets there are."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from rung.report import units


def profile_lines(record: Mapping[str, Any], width: int = 100) -> list[str]:
    """The recording in a few lines: the profiler, where it is, the overhead, what was left out."""
    plan = record["plan"]
    lines = [f"{plan['profiler']} {plan['version']}".rstrip() + f": {plan['collects']}"]
    lines.append(f"recorded in {units.clean(record['folder'])}")
    if cost := record["overhead"]:
        recorded, bare = units.duration(cost["recorded_ns"]), units.duration(cost["bare_ns"])
        more = f"{cost['share']:+.0%}" if cost["share"] > 0 else "no more than they scatter"
        lines.append(f"a step took {recorded} while it was recorded and {bare} without ({more}; medians of "
                     f"{cost['steps']}): the times below are the recorded ones.")  # fmt: skip
    for note in record["notes"]:
        lines += textwrap.wrap(f"note: {units.clean(note)}", width, subsequent_indent="  ")
    return lines


def preset_lines(
    rows: Sequence[Mapping[str, str]], overheads: Mapping[str, str], profilers: Mapping[str, Any], width: int = 100
) -> list[str]:
    margin = max(len(row["name"]) for row in rows) + 2
    lines = []
    for row in rows:
        lines += textwrap.wrap(f"{row['name']:<{margin}}{row['says']}", width, subsequent_indent=" " * margin)
        told = f"{row['with']}: {row['collects']}. Overhead: {row['overhead']}. Read by: {row['read_by']}."
        lines += textwrap.wrap(told, width, initial_indent=" " * margin, subsequent_indent=" " * margin)
    lines += ["", "overhead:"]
    lines += [f"  {name:<{margin - 2}}{text}" for name, text in overheads.items()]
    lines += ["", "here:"]
    for name, tool in profilers.items():
        lines.append(f"  {name:<24}" + (f"{tool['path']} ({tool['version']})" if tool else "not on PATH"))
    return lines
