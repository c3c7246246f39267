"""Measurements that were kept: a test session's table, and two files against each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import UnsetType

from rung.records.bench import Bench, Change
from rung.records.compare import Saved
from rung.report import units
from rung.report.bench import between


def session_lines(
    rows: Sequence[Bench],
    base: Mapping[str, Any] | None = None,
    differs: Mapping[str, Sequence[Any]] | None = None,
    warnings: Sequence[str] = (),
) -> list[str]:
    """One line a benchmark, in the order in which they ran; notes below. base: the saved measurements, by test; differs, warnings: what is
    not the same around them (`rung.timing.saved.beside`)."""
    lines = [["benchmark", "median", "95% interval", "samples", *(["against saved"] if base is not None else [])]]
    for row in rows:
        cells = [_short(row.test or ""), units.duration(row.time.value), between(row), str(len(row.samples))]
        lines.append([*cells, *([change(row.against)] if base is not None else [])])
    notes = [f"note: {_short(row.test or '')}: {note}" for row in rows for note in row.notes]
    missing = sorted(set(base or {}) - {row.test for row in rows})
    return [
        *columns(lines),
        *notes,
        *difference_lines(differs or {}),
        *(units.clean(f"note: {warning}") for warning in warnings),
        *([f"not run this time: {', '.join(map(units.clean, missing))}"] if missing else []),
    ]


def saved_lines(result: Saved) -> list[str]:
    """Two files: every change, what differs around them, and what that is worth."""
    lines = [["", units.clean(f"A {result.a}"), units.clean(f"B {result.b}"), "B against A"]]
    lines += [
        [units.clean(row.name), units.duration(row.before), units.duration(row.after), change(row)]
        for row in result.rows
    ]
    only = [
        f"only in {side.upper()}: {', '.join(map(units.clean, names))}"
        for side, names in result.only_in.items()
        if names
    ]
    return [
        *columns(lines),
        *only,
        *difference_lines(result.differs),
        *(f"note: {warning}" for warning in result.warnings),
    ]


def difference_lines(differs: Mapping[str, Sequence[Any]]) -> list[str]:
    """What was not the same for all sides."""
    return [
        units.clean(f"differs in {name}: {' and '.join('not set' if v is None else str(v) for v in values)}")
        for name, values in differs.items()
    ]


def change(found: Change | UnsetType | None) -> str:
    """Such as "3.1% slower", or "not apart (+0.2%)" where the intervals overlap; "new" without an earlier one.

    Faster is of the speed, as where both sides are timed in turns: a fifth of the time is 5.00× faster, and not 80%."""
    if not found:
        return "new"
    if not found.apart:
        return f"no clear difference ({found.change:+.1%})"
    slower = found.change > 0
    ratio = 1 + found.change if slower else found.before / max(found.after, 1e-3)
    return f"{f'{ratio - 1:.1%}' if ratio < 3 else units.ratio(ratio)} {'slower' if slower else 'faster'}"


def columns(lines: Sequence[Sequence[str]]) -> list[str]:
    """Cells below each other."""
    widths = [max(len(line[k]) for line in lines) for k in range(len(lines[0]))]
    return ["  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines]


def _short(test: str) -> str:
    return units.clean(test.rpartition("/")[2])
