"""Plain modes that are still compiled once the best one is verified: the first rungs are tried meanwhile, and what is ready is timed after.

A mode is timed against the best so far, whose gain over the untouched model is known. One that is faster than the best plain mode takes
its place: all answers are held against it from then on.
"""

from __future__ import annotations

import logging
import math
import statistics
import time
from dataclasses import replace
from typing import Any

from rung.ladder.climb.ahead import champion_of
from rung.ladder.climb.answer import offer
from rung.ladder.climb.mode_timing import ALIKE
from rung.ladder.climb.modes import NAME, title
from rung.ladder.climb.race import SLOW_MOST
from rung.ladder.climb.restarts import time_for_blocks
from rung.ladder.climb.schedule import room
from rung.ladder.climb.state import OutOfTime, State
from rung.timing.duel import Duel, SideFailed, Start
from rung.timing.tasks import Task

progress = logging.getLogger(__name__)


def time_late(state: State, *, wait: bool = False) -> None:
    """Times those that are ready. wait: first waits for the others, as long as the answer can be confirmed afterwards; those that are
    not ready then are given up."""
    if wait and state.late:
        progress.info("compiling: %s", ", ".join(state.late))
        until = time.monotonic() + SLOW_MOST
        state.pool.wait(
            lambda: all(task.done for task in state.late.values()), lambda: min(room(state), until - time.monotonic())
        )
    elif room(state) <= 0:
        return
    for name in [name for name, task in state.late.items() if task.done]:
        task = state.late.pop(name)
        try:
            _tell(state, name, task, _beside_the_best(state, name, task))
        finally:
            task.end()
    if wait:
        give_up_late(state)


def give_up_late(state: State) -> None:
    """Says of those that are left that there was no time for them."""
    for name, task in state.late.items():
        task.end()
        _tell(state, name, task, {"error": "it was not ready in time"})
    state.late = {}


def _beside_the_best(state: State, name: str, task: Task) -> dict[str, Any]:
    """What one restart shows of a mode, beside the best so far; or its `error`."""
    if task.error:
        return {"error": f"{task.error.kind}: {task.error}"}
    if task.ended:
        return {"error": "its memory was needed"}
    best = champion_of(state, state.kept, f"01-{NAME}-{name}-beside")
    state.wait(best)
    time_for_blocks(state, 2)
    progress.info("timing %s", name)
    duel = Duel()
    try:
        if best.error:
            raise SideFailed("best", best.error)
        start = Start.of(state.setup_within(state.left()), {"best": best, "candidate": task})
        ratio = math.exp(start.timed(duel).log_ratio())
    except SideFailed as failure:
        if state.left() <= 1:
            raise OutOfTime from failure
        return {"error": f"{failure.error.kind}: {failure}"}
    step = statistics.median_high(duel.samples[-1]["candidate"])
    return {"speedup": state.over_untouched() * ratio, "step_ns": step, "prepared_seconds": task.since_open("warm")}


def _tell(state: State, name: str, task: Task, seen: dict[str, Any]) -> None:
    """Writes down what was seen of a mode, and takes it for the best plain one where it is."""
    record = next((a for a in state.attempts if a["rung"] == NAME), None)
    if record is None or not state.plain:  # no mode was timed, or the one that was computes something else
        return
    mode = {"name": name, "title": title(name), "rungs": list(task.side.rungs), "ready_seconds": state.spent(), **seen}
    record["modes"].append(mode)
    better = mode.get("speedup", 0.0) > ALIKE * state.plain["speedup"]
    state.plain = record["plain"] = {**(mode if better else state.plain), "modes": record["modes"]}
    state.run.add_attempt(record)
    state.say("mode", mode)
    if better and (answer := state.answer) and answer.status != "confirmed":
        offer(state, replace(answer, over_plain={"value": answer.speedup["value"] / mode["speedup"]}))
