"""The history on the terminal: a list of entries, one of them, what would be removed; and as CSV."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Sequence
from typing import Any

from rung.records.history import Collected, Entry, Measured, Point, Series
from rung.report import units
from rung.report.benchmarks import columns
from rung.report.tables import shortened

FIRST = {"compare": "speedup", "climb": "speedup"}  # the figure that stands for an entry; of others, the time
_CSV = ("entry", "created", "command", "target", "options", "variant", "figure", "unit", "value", "low", "high", "device", "host", "status", "tags")  # fmt: skip


def figure(value: Any, unit: str) -> str:
    """A value with its unit: of ns a duration, of bytes a size, of x a ratio."""
    return {"ns": units.duration, "bytes": units.data_size, "x": units.ratio}.get(unit, units.count)(value)


def figure_interval(found: Measured | Point, unit: str) -> str:
    """Such as "2.75 ms (2.71 ms – 2.80 ms)"."""
    text = figure(found.value, unit)
    if found.low is None or found.high is None:
        return text
    return f"{text} ({figure(found.low, unit)} – {figure(found.high, unit)})"


def moment(created: Any) -> str:
    """2026-01-02T03:04:05+00:00 -> "2026-01-02 03:04"."""
    return units.one_line(created)[:16].replace("T", " ")


def short_target(target: str) -> str:
    """A file below the current folder by its way from here."""
    here = os.getcwd() + os.sep
    return units.one_line(target.replace(here, "", 1))


def what(found: Measured | Series) -> str:
    """A target with its options, and how it was measured: "model.py:make --batch 8 (mode train, rungs compile)"."""
    options = "".join(f" --{name} {value}" for name, value in found.options.items())
    variant = ", ".join(f"{name} {value}" for name, value in found.variant.items())
    return units.one_line(short_target(found.target) + options + (f" ({variant})" if variant else ""))


def first_figure(entry: Entry) -> Measured | None:
    """The figure that stands for an entry."""
    name = FIRST.get(entry.of, "time")
    return next((one for one in entry.measured if one.name == name), None)


def target_of(entry: Entry) -> str:
    """The target with its options, as it could be typed."""
    options = entry.measured[0].options if entry.measured else {}
    return units.one_line(short_target(entry.target) + "".join(f" --{n} {v}" for n, v in options.items()))


WIDEST = 60  # characters of a target or a result in a list; `rung runs show` has all of it


def list_lines(entries: Sequence[Entry]) -> list[str]:
    """A line an entry: number, when (UTC), command, target, what it gave, tags."""
    rows = [["entry", "UTC", "command", "target", "result", "tags"]]
    for entry in entries:
        first = first_figure(entry)
        status = "" if entry.status == "complete" else entry.status
        gave = [figure_interval(first, first.unit) if first else "", status, entry.answer]
        tags = f"[{', '.join(entry.tags)}]" if entry.tags else ""
        said = ", ".join(units.one_line(part) for part in gave if part)
        target, said = shortened(target_of(entry), WIDEST), shortened(said, WIDEST)
        rows.append([str(entry.id), moment(entry.created), entry.of, target, said, units.one_line(tags)])
    return columns(rows)


def entry_lines(entry: Entry) -> list[str]:
    """All that is known of one entry, but for its document."""
    rows = entry_rows(entry) + [(one.name, f"{figure_interval(one, one.unit)}  {what(one)}") for one in entry.measured]
    return [f"{name:<11}{units.one_line(said)}" for name, said in rows]


def entry_rows(entry: Entry) -> list[tuple[str, str]]:
    """(name, what is known) of an entry, but for its figures and its document."""
    environment = entry.environment or {}
    versions = [f"{name} {units.clean(environment[name])}" for name in ("rung", "torch", "rocm", "cuda", "python", "git") if environment.get(name)]  # fmt: skip
    rows = [
        ("entry", f"{entry.id}, {moment(entry.created)} UTC" + (f", tags: {', '.join(entry.tags)}" if entry.tags else "")),
        ("command", entry.command),
        ("in", entry.folder),
        ("target", entry.target),
        ("status", entry.status + (f": {entry.answer}" if entry.answer else "")),
        ("machine", ", ".join(filter(None, [entry.device, entry.host]))),
        ("versions", ", ".join(versions)),
        ("directory", entry.directory or ""),
    ]  # fmt: skip
    return [(name, said) for name, said in rows if said]


def csv_text(entries: Sequence[Entry]) -> str:
    """A row a figure."""
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(_CSV)
    for entry in entries:
        for one in entry.measured:
            texts = [json.dumps(named) for named in (one.options, one.variant)]
            rows.writerow([entry.id, entry.created, entry.of, one.target, *texts, one.name, one.unit, one.value,
                           one.low, one.high, entry.device, entry.host, entry.status, " ".join(entry.tags)])  # fmt: skip
    return out.getvalue()


def garbage_lines(found: Collected) -> list[str]:
    """What goes, what stays, and how to have it done."""
    did, lines = found.done, []
    for one in found.removed:
        verb = "removed" if did else "would remove"
        which = f"entry {one.entry} and {one.directory}" if one.directory else f"entry {one.entry}"
        lines.append(units.one_line(f"{verb} {which}: {one.why}"))
    lines += [units.one_line(f"kept entry {one.entry}{' and ' + one.directory if one.directory else ''}: {one.why}") for one in found.kept]  # fmt: skip
    if not found.removed:
        lines.append("nothing to remove.")
    elif not did:
        lines.append("Nothing was removed yet. Add --yes to remove these.")
    return lines
