"""The audit of a machine on the terminal, and the commands that would change it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby

from rung.records.doctor import Line
from rung.report import units

MARKS = {"ok": "✓", "note": "·", "warn": "!", "unknown": "?"}
_INDENT = 4


def doctor_lines(lines: Sequence[Line], width: int = 100, everything: bool = False) -> list[str]:
    """A line a finding; why it matters, how to change it and whose word that is, below those that are not "ok"."""
    told = [summary(lines)]
    for group, found in groupby(lines, key=lambda line: line.group):
        told += ["", group]
        for line in found:
            told += _finding(line, width, everything)
    return told


def summary(lines: Sequence[Line]) -> str:
    """In one sentence: what costs speed or honesty here, first of all."""
    count = {level: sum(line.level == level for line in lines) for level in MARKS}
    wrong = ", ".join(line.name for line in lines if line.level == "warn")
    first = f"{count['warn']} to change ({wrong})" if wrong else "nothing to change"
    return f"{first}; {count['note']} worth knowing, {count['unknown']} unknown, {count['ok']} good"


def fix_lines(lines: Sequence[Line]) -> list[str]:
    """A shell script of what could be changed; nothing runs it but its reader."""
    told = ["# What `rung doctor` would change. Read it, keep what you want, and run that yourself."]
    for line in (line for line in lines if line.level in ("warn", "note") and line.change):
        told += [
            "",
            *_comment(f"{line.group}, {line.name}: {line.value}. {line.matters}"),
            *map(units.clean, line.change),
        ]
    return told if len(told) > 1 else [*told, "# Nothing."]


def _comment(text: str) -> list[str]:
    return [f"# {part}" for part in textwrap.wrap(units.clean(text), 96)]


def _finding(line: Line, width: int, everything: bool) -> Iterator[str]:
    state = {True: " [default]", False: " [not the default]", None: ""}[line.default]
    head = f"  {MARKS.get(line.level, ' ')} {units.clean(line.name)}: {units.clean(line.value)}{state}"
    yield from textwrap.wrap(head, width, subsequent_indent=" " * _INDENT, break_on_hyphens=False, initial_indent="  ")
    if line.level == "ok" and not everything:
        return
    if line.matters:
        yield from _wrapped(line.matters, width)
    for command in line.change:
        yield f"{' ' * _INDENT}  $ {units.clean(command)}"
    if line.source:
        yield from _wrapped(f"source: {line.source}", width)


def _wrapped(text: str, width: int) -> list[str]:
    indent = " " * (_INDENT + 2)
    return textwrap.wrap(
        units.clean(text), width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )
