"""Timing of the plain modes, and the choice of the best so far."""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from msgspec import UNSET

from rung.ladder.climb.answer import PROVISIONAL_GAIN, Answer, offer, take_back
from rung.ladder.climb.begin import GRACE
from rung.ladder.climb.busy_cpu import with_solo_baseline
from rung.ladder.climb.modes import NAME, mode_of_task, title
from rung.ladder.climb.prefetch import note_memory
from rung.ladder.climb.state import UNSEEN, WARM, OutOfTime, State
from rung.ladder.climb.tamper_checks import reason_to_distrust
from rung.ladder.climb.unfinished import Unfinished, discard, save
from rung.ladder.climb.verdict import slowed_by_others
from rung.records.climb import Mode
from rung.records.measured import Figure
from rung.records.progress import Raced, Warned
from rung.timing.ab_run import ABRun, pair_of
from rung.timing.tasks import Task, end_all
from rung.timing.worker_group import SideFailed, WorkerGroup, blocks_seconds

progress = logging.getLogger(__name__)

BRIEFLY = (
    45.0  # seconds that are left, below which modes are timed in the fewest rounds: each costs twice as much otherwise
)
ALIKE = 1.01  # times as fast: of modes that differ by less, the first to be ready stays the best
# Times as long as alone, of the untouched model's step: more is the host's doing. On an H200 the graph of ghostnet_100 took the same time
# to 1 % in every restart, and the untouched model 8.7 to 17.2 ms.
SLOWED = 1.25
WHOLE = 1.02  # so much faster have compiled blocks to be than the model compiled as a whole, which rungs can go on from


@dataclass
class Race:
    """What was measured of the modes, by name. Speedups over the untouched model are of one restart. best: the name of the fastest mode;
    ab_run: the A/B run with the best as candidate."""

    modes: dict[str, Mode] = field(default_factory=dict)
    best: str = ""
    ab_run: ABRun = field(default_factory=ABRun)
    task: Task | None = None
    asked: bool = False  # whether the audit has told which further modes there are
    until: float = math.inf  # when modes that take minutes are given up, by the monotonic clock
    without: tuple[str, ...] = ()  # precisions at which a mode was slower than the untouched model, or none ran
    # Of the modes that were the best for a while, as they were timed.
    answers: list[Answer] = field(default_factory=list)
    dropped: bool = False  # whether the best was withdrawn, and nothing was begun for it yet
    refused: list[list[str]] = field(default_factory=list)  # the rungs of modes that compute something else
    rounding: list[str] = field(default_factory=list)  # names of those that 16 bits refused, and full precision did not
    died: bool = False  # whether the untouched model was started again once


def time_modes(state: State, result: Race, done: dict[str, Task]) -> None:
    """Times modes that are ready against the untouched model and the best mode so far, in one restart, and chooses the best. done: modes that
    are ready or have failed."""
    before = dict(result.modes)
    _time_ready(state, result, _record_done(state, result, done), before)


def _time_ready(state: State, result: Race, ready: Mapping[str, Task], before: Mapping[str, Mode]) -> None:
    """before: the records of modes as they were before these were ready."""
    if not ready:
        return
    assert state.baseline_worker is not None
    best = {result.best: result.task} if result.task and result.task.ready else {}
    sides = {"best": state.baseline_worker, **best, **ready}
    briefly = state.left() < BRIEFLY
    if result.best and _too_long(state, result, list(sides), briefly):
        _skip(state, result, ready, before)
        return
    progress.info("timing %s", "; ".join(map(title, ready)))
    # Without an answer there is nothing to show: the first one may take a moment more than the budget has.
    group = WorkerGroup.of(state.setup_within(state.left() if state.answer else max(state.left(), GRACE)), sides)
    try:
        ab_run = _time_undisturbed(state, group, briefly)
    except SideFailed as failure:
        _drop_failed(state, result, failure)
        _time_ready(state, result, {name: task for name, task in ready.items() if name != failure.side}, before)
        return
    _note_memory(state, ready)
    _record_times(state, result, sides, ready, ab_run)
    _choose_best(state, result, list(sides)[1:], ab_run, group)
    end_all(task for name, task in ready.items() if name != result.best)
    if result.best:
        stack = list(result.modes[result.best].rungs)
        save(state, "plain", Unfinished(result.best, stack, "baseline", result.ab_run, modes=result.modes))
    if result.task and _needs_memory(state, result):
        if result.task.ready:  # its verdict needs no worker of it once it is profiled
            group = WorkerGroup.of(state.setup_within(state.left()), {result.best: result.task})
            group.profile(state.trace(trace_name(result.best)))
        result.task.end()


def _record_done(state: State, result: Race, done: Mapping[str, Task]) -> dict[str, Task]:
    """Makes a record of each mode, and returns those that are ready to be timed."""
    for name, task in done.items():
        record = result.modes[name] = mode_of_task(name, task)
        record.ready_seconds = state.spent()
        if task.error:
            record.error = task.error.sentence
            state.say(Raced(record))
    return {name: task for name, task in done.items() if not task.error}


def _skip(state: State, result: Race, ready: Mapping[str, Task], before: Mapping[str, Mode]) -> None:
    """Ends modes for which no time is left. before: the records as they were: one that was to be timed again keeps its own."""
    for name, task in ready.items():
        task.end()
        if name in before and before[name].speedup:
            result.modes[name] = before[name]
            continue
        result.modes[name].error = "too little time was left to time it"
        state.say(Raced(result.modes[name]))


def _drop_failed(state: State, result: Race, failure: SideFailed) -> None:
    """Withdraws a mode that failed while it was timed. The untouched model is started again, once. Raises OutOfTime, and the error of the
    untouched model where that fails twice."""
    if state.left() <= 1:
        raise OutOfTime from failure
    if failure.side != "best":
        withdraw(state, result, failure.side, failure.error.sentence)
        return
    if result.died:
        raise failure.error from None
    result.died = True  # it has run before: what hit it is chance (an out-of-memory killer), so once more
    state.say(Warned(f"the untouched model failed ({failure}); it is started again"))
    if state.baseline_worker:
        state.baseline_worker.end()
    ensure_baseline_worker(state)


def _note_memory(state: State, ready: Mapping[str, Task]) -> None:
    """Replaces guesses of the memory that modes take: of these by what they took, of those that wait or compile by the largest of these."""
    for task in ready.values():
        note_memory(state, task)
    state.mode_bytes = min(state.mode_bytes, UNSEEN * max(task.memory for task in ready.values()))
    for task in state.mode_workers.values():
        if not task.done:
            task.memory = min(task.memory, state.mode_bytes)


def _record_times(
    state: State, result: Race, sides: Mapping[str, Task], ready: Mapping[str, Task], ab_run: ABRun
) -> None:
    """Records what a restart shows of the modes in it. sides: the untouched model and after it the modes, of which some were timed before."""
    for k, name in enumerate(sides):
        if not k:
            continue
        record = result.modes[name]
        record.speedup = math.exp(ab_run.restarts[-1].log_ratio(0, k))
        record.step_ns = statistics.median_high(ab_run.samples[-1][name])
        record.prepared_seconds = sides[name].since_open("warm")
        if name in ready:
            state.say(Raced(record))
            if record.speedup >= PROVISIONAL_GAIN and (doubt := ab_run.doubt(0, k)):
                state.say(Warned(f"{doubt}."))


def _time_undisturbed(state: State, group: WorkerGroup, briefly: bool) -> ABRun:
    """One restart. On a host that others keep busy the untouched model waits for its launches or its cores. A graph of launches does not, and would look
    too good. So all are timed once more where the untouched model took much longer than alone, or where usual and shortest steps disagree. The
    restart counts in which it was faster, or in which they disagree less."""
    began = time.monotonic()
    ab_run = _one_restart(state, group, briefly)
    took = time.monotonic() - began
    waited = _disagreement(ab_run) > math.log(SLOWED)
    if took >= state.left() or not (waited or _baseline_step(ab_run) > SLOWED * state.baseline.time.value):
        return ab_run
    again = _one_restart(state, group, briefly)
    found = min(ab_run, again, key=_disagreement if waited else _baseline_step)
    both = [one.restarts[-1].shortest for one in (ab_run, again)]
    if all(both):  # of the same processes
        found.restarts[-1] = replace(found.restarts[-1], shortest=tuple(map(min, *both)))
    return found


def _disagreement(ab_run: ABRun) -> float:
    """How far usual and shortest steps disagree on the ratio of the untouched model to another side, as a logarithm; 0 where no threads waited."""
    restart, others = ab_run.restarts[-1], range(1, len(ab_run.samples[-1]))
    return max((abs(restart.usual(0, k) - restart.least(0, k)) for k in others if restart.shortest), default=0.0)


def _one_restart(state: State, group: WorkerGroup, briefly: bool) -> ABRun:
    ab_run = ABRun()
    ab_run.restarts.append(with_solo_baseline(state, group.timed(ab_run, briefly=briefly)))
    return ab_run


def _baseline_step(ab_run: ABRun) -> float:
    """Nanoseconds of the untouched model in the last restart."""
    return statistics.median_high(ab_run.samples[-1]["best"])


def _too_long(state: State, result: Race, sides: list[str], briefly: bool) -> bool:
    """Whether there is no time for the blocks of one more restart. Modes that were not timed yet are taken to be as fast as the best."""
    usual = state.baseline.time.value
    best = result.modes[result.best].step_ns or usual
    steps = [usual, *((result.modes[name].step_ns or best) for name in sides[1:])]
    return blocks_seconds(steps, state.facts.gpu, briefly=briefly) > state.left()


def ensure_baseline_worker(state: State) -> None:
    """Starts a worker of the untouched model and waits until it is warm, unless there is one."""
    if state.baseline_worker is None or not state.baseline_worker.ready:
        name, memory = f"01-{NAME}-untouched-{time.monotonic_ns()}", state.baseline_bytes()
        state.baseline_worker = state.pool.add(Task(name, state.side([]), WARM, memory))
        state.wait(state.baseline_worker)
        if state.baseline_worker.error:
            raise state.baseline_worker.error


def withdraw(state: State, result: Race, name: str, why: str, *, wrong: bool = False) -> None:
    """Withdraws a mode, and the answer with its rungs. Its process failed or is not believed, or it computes something else (`wrong`)."""
    record = result.modes[name]
    record.error, record.speedup = why, UNSET
    state.say(Raced(record))
    if task := state.mode_workers.get(name):
        task.end()
    result.answers = [answer for answer in result.answers if list(answer.kept) != record.rungs]
    if wrong:
        result.refused.append(list(record.rungs))
    if name == result.best:
        if result.task:
            result.task.end()
        result.best, result.task, result.ab_run, result.dropped = "", None, ABRun(), True
        state.take_next_worker([])  # what was to come after it
        discard(state, "plain")
    take_back(state, record.rungs, why.rstrip("."), wrong=wrong)


def _choose_best(state: State, result: Race, timed: list[str], ab_run: ABRun, group: WorkerGroup) -> None:
    """Makes the fastest of the timed modes the best so far, or the next fastest where its process fails while its outputs are checked."""
    beside = result.best in timed
    for name in sorted(timed, key=lambda name: -_merit(result.modes[name].speedup or 0.0, result.modes[name])):
        if name == result.best:
            break
        if result.best and not _replaces(result.modes[name], result.modes[result.best], beside):
            continue
        if _make_best(state, result, name, ab_run, group, beat=beside):
            return
    if beside:  # so that its gain and that of the others are of the same blocks
        again = pair_of(ab_run, result.best)
        again.witness, result.ab_run = result.ab_run.witness, again


def trace_name(mode: str) -> str:
    """The name of the trace of a mode that was ended while others were raced."""
    return f"01-{NAME}-{mode}"


def _merit(speed: float, mode: Mode) -> float:
    """A mode's speed for comparisons. Blocks compiled one by one are discounted, so they must be clearly faster than the whole."""
    return speed / (WHOLE if "compile-regions" in mode.rungs else 1.0)


def _replaces(mode: Mode, best: Mode, beside: bool) -> bool:
    """Whether a mode is faster than the best so far. beside: they took turns. Else the two speedups are of two restarts, and a host that slowed the
    untouched model in one of them decides, so the mode's own step has to be shorter, too. On an H200 it took 20 to 27 ms a step beside four
    graphs of llama-3.2-1b, and the slowest of these by its own clock had the largest speedup."""
    least = 1.0 if "compile-regions" in best.rungs and "compile" in mode.rungs else ALIKE
    if _merit(mode.speedup or 0.0, mode) < least * _merit(best.speedup or 0.0, best):
        return False
    if beside:
        return True
    assert mode.step_ns  # both were timed
    assert best.step_ns
    return _merit(1 / mode.step_ns, mode) >= least * _merit(1 / best.step_ns, best)


def _needs_memory(state: State, result: Race) -> bool:
    """Whether the next mode has no room beside the best so far; or what verifies the mode that should replace it has none."""
    replaced = bool(state.likely_modes) and result.best not in state.likely_modes
    return state.pool.held() + state.mode_bytes > state.pool.memory or (replaced and state.pool.lacks_memory())


def _make_best(state: State, result: Race, name: str, ab_run: ABRun, group: WorkerGroup, beat: bool) -> bool:
    """Makes a mode the best so far: its outputs are checked in the process that was timed. beat: the best took turns with it. False where
    that process failed, or is not believed."""
    task, of_two = state.mode_workers[name], pair_of(ab_run, name)
    record = result.modes[name]
    try:
        of_two.witness = group.witness(name)
    except SideFailed as failure:
        withdraw(state, result, name, failure.error.sentence)
        return False
    seen, speedup = of_two.record(), record.speedup or 0.0
    faster = speedup >= PROVISIONAL_GAIN and not slowed_by_others(state, seen)
    if speedup >= PROVISIONAL_GAIN and (doubt := reason_to_distrust(seen, speedup)):
        withdraw(state, result, name, doubt)
        return False
    if result.task:
        result.task.end()
    state.trace(trace_name(result.best)).unlink(missing_ok=True)
    result.best, result.task, result.ab_run = name, task, of_two
    state.best_worker = task
    if faster:
        answer = Answer(
            tuple(record.rungs), "provisional", Figure(value=speedup), Figure(value=1.0),
            times={"baseline": seen.times["best"], "best": seen.times["candidate"]},
            memory={"baseline": seen.memory["best"], "best": seen.memory["candidate"]},
            first_run_seconds={"baseline": seen.first_run_seconds["best"], "best": seen.first_run_seconds["candidate"]},
            busy=seen.busy,
        )  # fmt: skip
        result.answers.append(answer)
        offer(state, answer, beat)
    return True
