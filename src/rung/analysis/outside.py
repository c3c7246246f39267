"""Work that was launched before the recording, told by recorded work that is the same, kernel by kernel.

A profiler that starts while steps run sees the end of a step whose launches it has not seen. Where the kernels of a stream up to
the first recorded launch are, in their order, a stretch of what was recorded on that stream, they are taken for the same work.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from rung.analysis.intervals import Ints
from rung.analysis.once import once
from rung.analysis.origins import origins
from rung.trace.table import Trace

LEAST = 16  # kernels: fewer may be alike by chance
NEAR = 0.1  # by how much the stretch may take longer or less: at other sizes the same kernels take other times
MOST = 64  # stretches that are compared
_FIRST = 0x10000  # a kernel's name becomes one character, past those that are halves of others


@once
def repeated(trace: Trace) -> tuple[Ints, list[Ints]]:
    """Rows of `origins` that were launched before the recording, and lists of the rows that they repeat.

    Each list has one stretch of recorded rows for every stream. Several lists mean that several stretches fit: whoever uses
    them has to see whether these agree.
    """
    events = origins(trace).select("rank", "device", "stream", "ts", "name", "linked", "dur").with_row_index("row")
    if events["linked"].all() or not events["linked"].any():
        return np.empty(0, np.int64), []
    rows: list[Ints] = []
    found: list[list[Ints]] = []
    for (_, _, _), stream in events.sort("ts", "row").group_by("rank", "device", "stream", maintain_order=True):
        outside = (~stream["linked"]).to_numpy()
        before = int(outside.sum())
        if before < LEAST or not outside[:before].all():
            continue
        places = list(_stretches(stream, before))
        if 0 < len(places) <= MOST:
            number = stream["row"].to_numpy().astype(np.int64)
            rows.append(number[:before])
            found.append([number[place : place + before] for place in places])
    most = max(map(len, found), default=0)
    # A stream on which fewer stretches fit repeats its last one: it adds nothing to compare.
    return (
        np.concatenate(rows) if rows else np.empty(0, np.int64),
        [np.concatenate([of[min(at, len(of) - 1)] for of in found]) for at in range(most)],
    )


def _stretches(stream: pl.DataFrame, before: int) -> Iterator[int]:
    """Where in the stream its first events are found again among the others, in about the same time."""
    codes = stream["name"].rank("dense").to_list()
    text = "".join([chr(_FIRST + code) for code in codes]) if max(codes) < 0x100000 else ""
    total = np.r_[0, np.cumsum(stream["dur"].to_numpy())]
    wanted, place, seen = text[:before], text.find(text[:before], before), 0
    while wanted and place >= 0 and seen <= MOST:
        seen += 1
        took = total[place + before] - total[place]
        if abs(total[before] - took) <= NEAR * took:
            yield place
        place = text.find(wanted, place + 1)
