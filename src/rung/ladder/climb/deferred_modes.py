"""Deferred plain modes: those that still compile once the best one is verified. Rungs are tried meanwhile.

A mode that is ready is timed against the best so far, whose gain over the untouched model is known. If it is faster than the best plain mode,
it becomes that, and all answers are compared with it from then on.
"""

from __future__ import annotations

import logging
import math
import statistics
import time
from dataclasses import replace

from rung.ladder.climb.answer import offer
from rung.ladder.climb.mode_timing import ALIKE
from rung.ladder.climb.modes import NAME, mode_of_task, the_best, title
from rung.ladder.climb.prefetch import worker_of_best
from rung.ladder.climb.race import SLOW_MOST
from rung.ladder.climb.restarts import time_for_blocks
from rung.ladder.climb.schedule import confirmation_seconds, trial_budget
from rung.ladder.climb.state import OutOfTime, State
from rung.records.climb import Mode
from rung.records.measured import Figure
from rung.records.progress import Raced
from rung.timing.ab_run import ABRun
from rung.timing.tasks import Task
from rung.timing.worker_group import SideFailed, WorkerGroup

progress = logging.getLogger(__name__)

GAVE_WAY = "not timed, because others needed its memory of the GPU"
NO_TIME = "not timed, because the budget left no time for it"


def time_deferred_modes(state: State, *, wait: bool = False) -> None:
    """Times the deferred modes that are ready. wait: first waits for the others, as long as time is left for confirming the answer. Those that are
    not ready then are given up."""
    if wait and state.deferred_modes:
        progress.info("preparing %s", "; ".join(map(title, state.deferred_modes)))
        until = time.monotonic() + SLOW_MOST
        state.pool.wait(
            lambda: all(task.done for task in state.deferred_modes.values()),
            lambda: min(trial_budget(state), until - time.monotonic()),
        )
    elif trial_budget(state) <= 0:
        return
    for name in [name for name, task in state.deferred_modes.items() if task.done]:
        task = state.deferred_modes.pop(name)
        try:
            mode = mode_of_task(name, task)
            try:
                _beside_the_best(state, mode, task)
            except OutOfTime:  # what is left is for confirming the answer, or nothing is
                mode.error = NO_TIME
            _tell(state, mode)
        finally:
            task.end()
    if wait:
        give_up_deferred_modes(state)


def give_up_deferred_modes(state: State) -> None:
    """Ends the modes that are left, and records that there was no time for them."""
    for name, task in state.deferred_modes.items():
        task.end()
        _tell(state, mode_of_task(name, task, error="it was not ready in time"))
    state.deferred_modes = {}


def _beside_the_best(state: State, mode: Mode, task: Task) -> None:
    """Times a mode in one restart beside the best so far, and notes its speedup or its error. Raises OutOfTime where only the time for confirming
    the answer is left."""
    if task.error:
        mode.error = task.error.sentence
        return
    if task.ended:
        mode.error = GAVE_WAY
        return
    task.reclaimable = False  # the best is to have other room
    best = worker_of_best(state, state.kept, f"01-{NAME}-{mode.name}-beside")
    state.wait(best, keep=confirmation_seconds(state))
    time_for_blocks(state, 2)
    progress.info("timing %s", mode.title)
    ab_run = ABRun()
    try:
        if best.error:
            raise SideFailed("best", best.error)
        if not task.ready:
            mode.error = GAVE_WAY
            return
        group = WorkerGroup.of(state.setup_within(state.left()), {"best": best, "candidate": task})
        ratio = math.exp(group.timed(ab_run).log_ratio())
    except SideFailed as failure:
        if state.left() <= 1:
            raise OutOfTime from failure
        mode.error = failure.error.sentence
        return
    mode.speedup = state.gain_over_baseline() * ratio
    mode.step_ns = statistics.median_high(ab_run.samples[-1]["candidate"])
    mode.prepared_seconds = task.since_open("warm")


def _tell(state: State, mode: Mode) -> None:
    """Records a mode, and makes it the best plain mode where it is faster."""
    record = next((a for a in state.attempts if a.rung == NAME), None)
    if record is None or not state.plain:  # no mode was timed, or the one that was computes something else
        return
    mode.ready_seconds = state.spent()
    record.modes = [*(record.modes or ()), mode]
    better = (mode.speedup or 0.0) > ALIKE * (state.plain.speedup or 0.0)
    state.plain = record.plain = the_best(mode if better else state.plain, record.modes)
    state.run.add_attempt(record)
    state.say(Raced(mode))
    if better and mode.speedup and (answer := state.answer) and answer.status != "confirmed":
        offer(state, replace(answer, over_plain=Figure(value=answer.speedup.value / mode.speedup)))
