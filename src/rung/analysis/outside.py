"""Work that was launched before the recording, told by recorded work that is the same, kernel by kernel.

A profiler that starts while steps run sees the end of a step whose launches it has not seen. Where the kernels of a stream up to
the first recorded launch are, in their order, a stretch of what was recorded on that stream, they are taken for the same work.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

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


class Repeated(NamedTuple):
    """Work of one stream: rows of `origins` that were launched before the recording, and the stretches of recorded rows that they
    may repeat, each as long. Where several fit, whoever uses them has to see whether these agree."""

    rows: Ints
    stretches: list[Ints]


@once
def repeated(trace: Trace) -> list[Repeated]:
    """What was launched before the recording and is found again in it, of each stream that has any."""
    events = origins(trace).select("rank", "device", "stream", "ts", "name", "linked", "dur").with_row_index("row")
    if events["linked"].all() or not events["linked"].any():
        return []
    found: list[Repeated] = []
    for (_, _, _), stream in events.sort("ts", "row").group_by("rank", "device", "stream", maintain_order=True):
        outside = (~stream["linked"]).to_numpy()
        before = int(outside.sum())
        if before < LEAST or not outside[:before].all():
            continue
        places = list(_stretches(stream, before))
        if 0 < len(places) <= MOST:
            number = stream["row"].to_numpy().astype(np.int64)
            found.append(Repeated(number[:before], [number[place : place + before] for place in places]))
    return found


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
