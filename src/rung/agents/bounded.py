"""Answers of a bounded size: an agent reads all of what it gets, and its memory is small."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from rung.errors import UsageError

MOST = 20_000  # characters of an answer, about 7,000 tokens
# How many entries of a list, and characters of a text, are kept: the first pair with which the answer fits.
_KEPT = (
    (400, 4000),
    (200, 2000),
    (100, 1000),
    (50, 1000),
    (30, 500),
    (20, 500),
    (10, 300),
    (5, 300),
    (3, 200),
    (1, 120),
)
_DEPTHS = (6, 5, 4, 3, 2, 1)  # then: how deep what is nested is shown
_FIELDS = 40  # of an object that are kept in any case: a record has fewer
_SAMPLES = 3  # of a list of numbers
_NAMED = 6  # cuts that are named one by one


@dataclass(frozen=True)
class Cut:
    """pointer: where, as RFC 6901 has it; kept, of: entries or characters."""

    pointer: str
    kept: int
    of: int
    what: str

    def sentence(self) -> str:
        return f"{self.pointer or 'the document'}: {self.kept} of {self.of} {self.what} are shown"


def text_of(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": "))


def bounded(value: Any, most: int = MOST) -> tuple[Any, list[Cut]]:
    """A document that is not longer than `most` characters as `text_of` writes it, and what was left out of it.

    All long lists and texts are cut to one length: the largest that fits. Of lists of numbers, which are samples, a tenth of it is kept.
    Where no length does, what is nested deeply becomes null.
    """
    if len(text_of(value)) <= most:
        return value, []
    for entries, letters in _KEPT:
        cuts: list[Cut] = []
        smaller = _cut(value, "", _Limits(entries, letters), cuts)
        if len(text_of(smaller)) <= most:
            return smaller, cuts
    for depth in _DEPTHS:
        cuts = []
        smaller = _cut(value, "", _Limits(*_KEPT[-1], depth), cuts)
        if len(text_of(smaller)) <= most:
            return smaller, cuts
    return None, [Cut("", 0, 1, "parts")]


@dataclass(frozen=True)
class _Limits:
    entries: int
    letters: int
    depth: int = 1000


def _cut(value: Any, pointer: str, limits: _Limits, cuts: list[Cut]) -> Any:
    if isinstance(value, str):
        if len(value) <= limits.letters:
            return value
        cuts.append(Cut(pointer, limits.letters, len(value), "characters"))
        return value[: limits.letters] + "…"
    if not isinstance(value, (dict, list)) or not value:
        return value
    if pointer.count("/") >= limits.depth:
        cuts.append(Cut(pointer, 0, len(value), "entries"))
        return None
    kept = min(len(value), _entries(value, limits))
    if kept < len(value):
        cuts.append(Cut(pointer, kept, len(value), "entries"))
    if isinstance(value, list):
        return [_cut(one, f"{pointer}/{k}", limits, cuts) for k, one in enumerate(value[:kept])]
    return {name: _cut(one, f"{pointer}/{escaped(name)}", limits, cuts) for name, one in list(value.items())[:kept]}


def _entries(value: dict[str, Any] | list[Any], limits: _Limits) -> int:
    if isinstance(value, dict):
        return max(limits.entries, _FIELDS)
    return max(_SAMPLES, limits.entries // 10) if isinstance(value[0], float | int) else limits.entries


def escaped(name: str) -> str:
    """A field's name as part of a pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def part_of(document: Any, pointer: str) -> Any:
    """What a pointer names. Raises UsageError, with what there is, where it names nothing."""
    found, passed = document, ""
    for step in pointer.removeprefix("/").split("/") if pointer else ():
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and name in found:
            found = found[name]
        elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            raise UsageError(f"part={pointer!r}: {passed or 'the document'} has no {name!r}; {_has(found)}.")
        passed += f"/{step}"
    return found


def _has(value: Any) -> str:
    if isinstance(value, dict):
        return f"it has {', '.join(list(value)[:20])}"
    return f"it has {len(value)} entries, from 0" if isinstance(value, list) else "it is a plain value"


def slice_of(document: Any, pointer: str, start: int, most: int = MOST) -> dict[str, Any]:
    """As much of the list, object or text at `pointer` as fits, from entry or character `start` on."""
    whole = part_of(document, pointer)
    head = {"kind": "part", "part": pointer, "start": start}
    if not isinstance(whole, (list, dict, str)):
        return {**head, "start": 0, "of": 1, "value": whole, "cut": []}

    def first(count: int) -> Any:
        end = start + count
        return dict(list(whole.items())[start:end]) if isinstance(whole, dict) else whole[start:end]

    # Entries may be of any size: as many as fit, and one in any case, which is cut itself where it is too long.
    room = most - 1000
    count = max(1, _largest(lambda n: len(text_of(first(n))) <= room, len(whole) - start))
    value, cuts = bounded(first(count), room)
    moved = start if isinstance(whole, list) else None
    below = [replace(one, pointer=_moved(one.pointer, pointer, moved)) for one in cuts[:_NAMED]]
    return {**head, "of": len(whole), "value": value, "cut": [one.sentence() for one in below]}


def _moved(pointer: str, whole: str, start: int | None) -> str:
    """A pointer into a slice, as one into the document. start: the first entry of a list's slice."""
    _, _, rest = pointer.partition("/")
    name, slash, below = rest.partition("/")
    if not name:
        return whole
    return f"{whole}/{name if start is None else int(name) + start}{slash}{below}"


def _largest(fits: Callable[[int], bool], most: int) -> int:
    low, high = 0, max(0, most)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def cut_to_fit(document: Any, job: str, most: int = MOST) -> tuple[Any, str]:
    """A document and the note on what was left out of it, which together are not longer than `most` characters."""
    note = ""
    while True:  # each round leaves more room for the note
        smaller, cuts = bounded(document, most - len(note))
        longer = how_to_see_more(job, cuts)
        if len(text_of(smaller)) + len(longer) <= most or len(longer) <= len(note):
            return smaller, longer
        note = longer


def how_to_see_more(job: str, cuts: list[Cut]) -> str:
    """What was left out, and the call that gives it; empty where nothing was."""
    if not cuts:
        return ""
    # Entries first: rows that are missing matter more than the end of a text, however many characters that has.
    largest = sorted(cuts, key=lambda one: (one.what == "characters", one.kept - one.of))[:_NAMED]
    others = f", and {len(cuts) - len(largest)} more" if len(cuts) > len(largest) else ""
    first = largest[0]
    ask = f'job_result(job="{job}", part="{first.pointer}", start={first.kept})'
    return f"Cut to fit: {'; '.join(one.sentence() for one in largest)}{others}. For the rest, call {ask}, or ask for less."
