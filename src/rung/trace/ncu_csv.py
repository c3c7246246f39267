"""Reads the counters that Nsight Compute prints: `ncu --csv --page raw --print-units base --log-file FILE`.

A line of titles, a line of units, a line a kernel; lines that begin with `==` are its progress.
"""

from __future__ import annotations

import csv
import io
import math
import re
from pathlib import Path
from typing import Any

import polars as pl

from rung.errors import InputError
from rung.trace import source
from rung.trace.table import COUNTERS, SCHEMA, Trace
from rung.trace.unread import Unread

_TITLES = ("ID", "Process ID", "Kernel Name")
# Times are ns: the base unit is that or, by version, the second.
_NS = {"second": 1e9, "s": 1e9, "msecond": 1e6, "ms": 1e6, "usecond": 1e3, "us": 1e3}
# A counter is named unit__what; what else stands there is about the launch. A raw page has facts of the machine named so.
# Of the machine, what is known of a GPU elsewhere, too.
_FACTS = {"name": "display_name", "multiprocessor_count": "multiprocessor_count", "total_memory": "total_memory"}
_DEVICES = 1 << 16  # no machine has more: a list of them ends at the highest number
_COUNTER = re.compile(r"^(?!(?:device|numa|nvlink|c2clink)__)[a-z0-9]+__\w")


def sniff(head: bytes, path: Path) -> bool:
    """Whether the first line that is not progress has the titles of such a table."""
    if path.is_dir():
        return False
    text = head.decode(errors="replace")
    first = next((line for line in text.splitlines() if line.strip() and not line.startswith("==")), "")
    return all(f'"{title}"' in first for title in _TITLES)


def read(path: Path, *, partial: bool = False, max_bytes: int | None = None) -> Trace:
    """One row a kernel and counter; `correlation` is the kernel's ID. No kernel has a time of its own here: a replayed
    one does not happen at a moment.

    Raises InputError where a line is cut off; with `partial`, those before it are read.
    """
    path = Path(path)
    text = source.content(path, max_bytes=max_bytes, partial=partial).decode(errors="replace")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("==")]
    try:
        rows = list(csv.reader(io.StringIO("\n".join(lines))))
    except csv.Error as error:  # a cell beyond all measure; before Python 3.11 a zero byte, too
        raise InputError(f"{path} is damaged ({error}): record it again.") from error
    titles = rows[0]
    unread = Unread()
    body = rows[1:]
    units: dict[str, str] = {}
    if body and not body[0][0].strip():
        units = dict(zip(titles, body[0], strict=False))
        body = body[1:]
    if body and len(body[-1]) != len(titles):
        if not partial:
            raise InputError(
                f"{path} is cut off in its last line: record it again, or read what is whole with --partial."
            )
        body.pop()
        unread["row cut off at the end of the file"] += 1
    if not body:
        raise InputError(f"{path} has titles and no kernels: the program ran none, or none that was asked for.")
    index = {title: place for place, title in enumerate(titles)}
    # A column of texts (the cache's configuration) is no counter either.
    counters = [(title, place) for title, place in index.items() if _COUNTER.match(title)
                and any(_number(row[place]) is not None for row in body if len(row) == len(titles))]  # fmt: skip
    found: list[tuple[Any, ...]] = []
    for row in body:
        if len(row) != len(titles):
            unread["row with another number of cells"] += 1
            continue
        number, device = _whole(row[index["ID"]]), _whole(row[index["Device"]], _DEVICES) if "Device" in index else 0
        for title, place in counters:
            value = _number(row[place])
            if value is None:
                unread["counter without a number"] += 1
            else:
                value *= _NS.get(units.get(title, ""), 1.0)
                found.append((number, device, row[index["Kernel Name"]], title, value, None))
    return Trace(
        events=pl.DataFrame(schema=SCHEMA),
        devices=_devices(body, index),
        source=str(path),
        unread=dict(unread),
        unread_ns=dict(unread.ns),
        format="ncu-csv",
        counters=pl.DataFrame(found, schema=COUNTERS, orient="row"),
    )


def _devices(body: list[list[str]], index: dict[str, int]) -> list[dict[str, Any]]:
    """What the raw page says of each GPU, at its number; empty at those that ran nothing."""
    places = {key: index[title] for key, name in _FACTS.items() if (title := f"device__attribute_{name}") in index}
    found: dict[int, dict[str, Any]] = {}
    for row in body if places and "Device" in index else ():
        number = _whole(row[index["Device"]], _DEVICES) if len(row) == len(index) else None
        if number is not None and number not in found:
            texts = {key: row[place] for key, place in places.items()}
            found[number] = {key: text if (n := _whole(text)) is None else n for key, text in texts.items()}
    return [found.get(number, {}) for number in range(max(found, default=-1) + 1)]


def _number(text: str) -> float | None:
    """A number with or without commas at its thousands; `n/a` and infinity are none."""
    try:
        number = float(text.replace(",", ""))
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _whole(text: str, below: int = 2**63) -> int | None:
    """A number as an id or a size, where it can be one of a table."""
    number = _number(text)
    return int(number) if number is not None and 0 <= number < below else None
