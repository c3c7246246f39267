"""Makes a large trace from a small real one: copies of its events, shifted in time, ids included.

Every copy is later than the one before and has ids of its own, so that links, gaps and counts stay what they are
in a real recording. The same base and number of copies always give the same bytes.
"""

from __future__ import annotations

import gzip
import re
from pathlib import Path

IDS = rb'"(?:correlation|External id|Record function id|Ev Idx|Python id|Python parent id|id)":(?=\d)'
NUMBER = re.compile(rb'(?:"ts":|' + IDS + rb")(\d+)")
EVENTS = b'"traceEvents":['


def make(base: Path, out: Path, copies: int) -> int:
    """Writes `copies` copies of the events of `base` (.json.gz) into `out` (.json.gz); the uncompressed size."""
    text = gzip.decompress(base.read_bytes())
    start = text.index(EVENTS) + len(EVENTS)
    end = _end_of_list(text, start)
    pieces, numbers, is_time = _template(text[start:end])
    times = [n for n, t in zip(numbers, is_time, strict=True) if t]
    ids = [n for n, t in zip(numbers, is_time, strict=True) if not t]
    # Events at time 0 or so are metadata; the recording is what lies around the middle.
    middle = sorted(times)[len(times) // 2]
    recorded = [t for t in times if abs(t - middle) < 3_600_000_000]
    step_us, step_id = max(recorded) - min(recorded) + 1_000_000, max(ids) + 1
    size = 0
    partial = out.with_name(out.name + ".partial")
    with open(partial, "wb") as raw, gzip.GzipFile("", "wb", 1, raw, mtime=0) as file:
        size += file.write(text[:start])
        for i in range(copies):
            shifts = (step_id * i, step_us * i)
            moved = [str(n + shifts[t]).encode() for n, t in zip(numbers, is_time, strict=True)]
            body = [b"," if i else b""]
            for piece, number in zip(pieces, moved, strict=False):
                body += (piece, number)
            size += file.write(b"".join([*body, pieces[-1]]))
        size += file.write(text[end:])
    partial.replace(out)
    return size


def _template(body: bytes) -> tuple[list[bytes], list[int], list[bool]]:
    """The text between the numbers to shift, these numbers (whole part), and whether each is a time."""
    pieces, numbers, is_time, last = [], [], [], 0
    for found in NUMBER.finditer(body):
        pieces.append(body[last : found.start(1)])
        numbers.append(int(found[1]))
        is_time.append(found[0].startswith(b'"ts"'))
        last = found.end(1)
    return [*pieces, body[last:]], numbers, is_time


def _end_of_list(text: bytes, start: int) -> int:
    """Where the list that begins before `start` ends: brackets in strings do not count."""
    depth = 1
    for found in re.finditer(rb'"(?:[^"\\]|\\.)*"|[\[\]]', text[start:]):
        if found[0] == b"[":
            depth += 1
        elif found[0] == b"]":
            depth -= 1
            if not depth:
                return start + found.start()
    raise ValueError("the list of events has no end")
