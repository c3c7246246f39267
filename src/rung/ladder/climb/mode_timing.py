"""The plain modes under the clock, and which of them is the best so far."""

from __future__ import annotations

import logging
import math
import statistics
from dataclasses import dataclass, field

from msgspec import UNSET

from rung.ladder.climb.ahead import note_memory
from rung.ladder.climb.answer import PROVISIONAL_GAIN, Answer, offer
from rung.ladder.climb.begun import Begun, keep
from rung.ladder.climb.modes import NAME, mode_of_task
from rung.ladder.climb.restarts import time_for_blocks
from rung.ladder.climb.state import UNSEEN, OutOfTime, State
from rung.ladder.climb.trust import distrusted
from rung.records.climb import Mode
from rung.records.measured import Figure
from rung.records.progress import Raced
from rung.timing.duel import Duel, between
from rung.timing.start import SideFailed, Start
from rung.timing.tasks import Task

progress = logging.getLogger(__name__)

BRIEFLY = (
    45.0  # seconds that are left, below which modes are timed in the fewest rounds: each costs twice as much otherwise
)
ALIKE = 1.01  # times as fast: of modes that differ by less, the first to be ready stays the best
WHOLE = 1.02  # so much faster have compiled blocks to be than the model compiled as a whole, which rungs can go on from


@dataclass
class Race:
    """What was seen of the modes, by name: the speedup over the untouched model is of one restart. best: the name of the fastest; duel:
    with the best as candidate."""

    modes: dict[str, Mode] = field(default_factory=dict)
    best: str = ""
    duel: Duel = field(default_factory=Duel)
    task: Task | None = None
    asked: bool = False  # whether the audit has told which further modes there are
    until: float = math.inf  # when modes that take minutes are given up, by the monotonic clock
    without: tuple[str, ...] = ()  # precisions at which a mode was slower than the untouched model
    # Of the modes that were the best for a while, as they were timed.
    answers: list[Answer] = field(default_factory=list)


def time_modes(state: State, result: Race, done: dict[str, Task]) -> None:
    for name, task in done.items():
        record = result.modes[name] = mode_of_task(name, task)
        record.ready_seconds = state.spent()
        if task.error:
            record.error = f"{task.error.kind}: {task.error}"
            state.say(Raced(record))
    ready = {name: task for name, task in done.items() if not task.error}
    if not ready:
        return
    untouched = state.untouched
    assert untouched is not None
    sides = {"best": untouched, **({result.best: result.task} if result.task and result.task.ready else {}), **ready}
    if result.best:
        time_for_blocks(state, len(sides))
    progress.info("timing %s", ", ".join(ready))
    duel = Duel()
    start = Start.of(state.setup_within(state.left()), sides)
    try:
        restart = start.timed(duel, briefly=state.left() < BRIEFLY)
        duel.restarts.append(restart)
    except SideFailed as failure:
        failed = failure.side
        if failed == "best":
            raise OutOfTime from failure
        record = result.modes[failed]
        record.error, record.speedup = f"{failure.error.kind}: {failure}", UNSET
        state.say(Raced(record))
        sides[failed].end()
        if failed == result.best:
            result.best, result.task = "", None
        time_modes(state, result, {name: task for name, task in ready.items() if name != failed})
        return
    names = list(sides)
    for task in ready.values():
        note_memory(state, task)
    state.mode_bytes = min(state.mode_bytes, UNSEEN * max(task.memory for task in ready.values()))
    for task in state.racing.values():  # those that still wait or compile
        if not task.done:
            task.memory = min(task.memory, state.mode_bytes)
    for k, name in enumerate(names[1:], start=1):
        record = result.modes[name]
        record.speedup = math.exp(restart.log_ratio(0, k))
        record.step_ns = statistics.median_high(duel.samples[-1][name])
        record.prepared_seconds = sides[name].since_open("warm")
        if name in ready:
            state.say(Raced(record))
    fastest = max([*names[1:], *([result.best] if result.best else [])], key=lambda name: _merit(result.modes[name]))
    if result.best and not _replaces(result.modes[fastest], result.modes[result.best]):
        fastest = result.best
    if fastest != result.best:
        _take(state, result, fastest, duel, start, beat=result.best in sides)
    elif fastest in sides:  # so that its gain and that of the others are of the same blocks
        again = between(duel, fastest)
        again.witness, result.duel = result.duel.witness, again
    for name, task in ready.items():
        if name != result.best:
            task.end()
    if result.best:
        stack = list(result.modes[result.best].rungs)
        keep(state, "plain", Begun(result.best, stack, "baseline", result.duel, modes=result.modes))
    if result.task and _needs_memory(state, result):
        if result.task.ready:  # its verdict needs no worker of it then
            start = Start.of(state.setup_within(state.left()), {result.best: result.task})
            start.profile(state.trace(traced(result.best)))
        result.task.end()


def traced(mode: str) -> str:
    """The name of the trace of a mode that was ended while others were raced."""
    return f"01-{NAME}-{mode}"


def _merit(mode: Mode) -> float:
    """Its speedup, in which blocks compiled one by one have to be ahead of the whole by more than a little."""
    return (mode.speedup or 0.0) / (WHOLE if "compile-regions" in mode.rungs else 1.0)


def _replaces(mode: Mode, best: Mode) -> bool:
    of_blocks = "compile-regions" in best.rungs and "compile" in mode.rungs
    return _merit(mode) >= (1.0 if of_blocks else ALIKE) * _merit(best)


def _needs_memory(state: State, result: Race) -> bool:
    """Whether the next mode has no room beside the best so far; or what verifies the mode that should replace it has none."""
    replaced = bool(state.likely) and result.best not in state.likely
    return state.pool.held() + state.mode_bytes > state.pool.memory or (replaced and state.pool.lacks_memory())


def _take(state: State, result: Race, name: str, duel: Duel, start: Start, beat: bool) -> None:
    """Makes a mode the best so far: its outputs are checked in the process that was timed. beat: the best took turns with it."""
    task, of_two = state.racing[name], between(duel, name)
    record = result.modes[name]
    try:
        of_two.witness = start.witness(name)
    except SideFailed as failure:
        record.error, record.speedup = f"{failure.error.kind}: {failure}", UNSET
        task.end()
        return
    if result.task:
        result.task.end()
    state.trace(traced(result.best)).unlink(missing_ok=True)
    result.best, result.task, result.duel = name, task, of_two
    state.champion = task
    seen, speedup = result.duel.record(), record.speedup or 0.0
    if speedup >= PROVISIONAL_GAIN and not distrusted(seen, speedup):
        answer = Answer(
            tuple(record.rungs), "provisional", Figure(value=speedup), Figure(value=1.0),
            times={"baseline": seen.times["best"], "best": seen.times["candidate"]},
            memory={"baseline": seen.memory["best"], "best": seen.memory["candidate"]},
            first_run_seconds={"baseline": seen.first_run_seconds["best"], "best": seen.first_run_seconds["candidate"]},
        )  # fmt: skip
        result.answers.append(answer)
        offer(state, answer, beat)
