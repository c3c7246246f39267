"""What a rung may be kept for at the same step: a shorter first run, less memory, fewer graphs over the shapes."""

from __future__ import annotations

import logging
from contextlib import ExitStack

from rung.ladder.climb.schedule import room
from rung.ladder.climb.state import State
from rung.records.climb import Attempt, OverShapes
from rung.records.record import record_of
from rung.rungs import Rung
from rung.timing.workers import open_worker

progress = logging.getLogger(__name__)

LESS_TIME = 0.5  # of the best's first run
LESS_MEMORY = 0.9  # of the best's peak
SIDES = ("best", "candidate")


def spared(record: Attempt, rung: Rung) -> str | None:
    """What the candidate of an attempt spares, in words; None where that is too little, or the rung is there for the
    step alone."""
    if rung.spares == "first run":
        assert record.first_run_seconds
        best, mine = (record.first_run_seconds[side] for side in SIDES)
        return f"its first run takes {mine:.0f} s instead of {best:.0f} s" if mine < LESS_TIME * best else None
    if rung.spares == "memory":
        assert record.memory
        for key, verb in (("allocated", "takes"), ("reserved", "reserves")):
            peaks = [record.memory[side].get(key, 0) for side in SIDES]
            if peaks[1] < LESS_MEMORY * peaks[0]:
                return f"it {verb} {_gib(peaks[1])} instead of {_gib(peaks[0])} at its peak"
        return None
    if rung.spares == "graphs":
        assert record.over_shapes
        before, now = (record.over_shapes[side] for side in SIDES)
        times = f"{now.seconds:.0f} s instead of {before.seconds:.0f} s for {now.shapes} shapes"
        graphs = f"it compiles {now.graphs} graph{'s' if now.graphs != 1 else ''} instead of {before.graphs}"
        return f"{graphs}, {times}" if now.graphs < before.graphs else None
    return None


def over_shapes(state: State, candidate: list[str], name: str) -> dict[str, OverShapes]:
    """By side, what compiling takes for all shapes that the workload offers, in a fresh worker each (`Candidate.over_shapes`)."""
    found = {}
    for side, rungs in zip(SIDES, (state.kept, candidate), strict=True):
        with ExitStack() as stack:
            worker = open_worker(stack, state.setup, state.side(rungs), f"{name}-shapes-{side}")
            progress.info("compiling for every shape, %s", side)
            limit = state.setup_within(room(state)).limits.prepare
            worker.receive("open", limit)
            found[side] = record_of(OverShapes, worker.call("over_shapes", limit))
    return found


def _gib(count: int) -> str:
    return f"{count / 2**30:.2f} GiB"
