"""What a rung may be kept for at the same step: a shorter first run, less memory, fewer graphs over the shapes."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from rung.ladder.climb.schedule import room
from rung.ladder.climb.state import State
from rung.rungs import Rung
from rung.timing.workers import open_worker

progress = logging.getLogger(__name__)

LESS_TIME = 0.5  # of the best's first run
LESS_MEMORY = 0.9  # of the best's peak


def spared(record: Mapping[str, Any], rung: Rung) -> str | None:
    """What the candidate of an attempt spares, in words; None where that is too little, or the rung is there for the
    step alone."""
    if rung.spares == "first run":
        best, mine = (record["first_run_seconds"][side] for side in ("best", "candidate"))
        return f"its first run takes {mine:.0f} s instead of {best:.0f} s" if mine < LESS_TIME * best else None
    if rung.spares == "memory":
        for key, verb in (("allocated", "takes"), ("reserved", "reserves")):
            best, mine = (record["memory"][side].get(key, 0) for side in ("best", "candidate"))
            if mine < LESS_MEMORY * best:
                return f"it {verb} {_gib(mine)} instead of {_gib(best)} at its peak"
        return None
    if rung.spares == "graphs":
        best, mine = (record["over_shapes"][side] for side in ("best", "candidate"))
        times = f"{mine['seconds']:.0f} s instead of {best['seconds']:.0f} s for {mine['shapes']} shapes"
        graphs = f"it compiles {mine['graphs']} graph{'s' if mine['graphs'] != 1 else ''} instead of {best['graphs']}"
        return f"{graphs}, {times}" if mine["graphs"] < best["graphs"] else None
    return None


def over_shapes(state: State, candidate: list[str], name: str) -> dict[str, Any]:
    """By side, what compiling takes for all shapes that the workload offers, in a fresh worker each: `graphs`, `seconds`
    and how many different `shapes` there were (`Candidate.over_shapes`)."""
    found = {}
    for side, rungs in (("best", state.kept), ("candidate", candidate)):
        with ExitStack() as stack:
            worker = open_worker(stack, state.setup, state.side(rungs), f"{name}-shapes-{side}")
            progress.info("compiling for every shape, %s", side)
            limit = state.setup_within(room(state)).limits.prepare
            worker.receive("open", limit)
            found[side] = worker.call("over_shapes", limit)
    return found


def _gib(count: int) -> str:
    return f"{count / 2**30:.2f} GiB"
