"""The plain modes of torch.compile side by side: each is timed as soon as it is ready, until the race is decided.

It is over once all are timed, once the time is over, or once the best is verified and those that are left take long or add nothing to it.
Those are timed later (`rung.ladder.climb.deferred_modes`).
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence

from rung.ladder.answers import Untouched
from rung.ladder.climb.answer import PROVISIONAL_GAIN
from rung.ladder.climb.begin import finish_survey, wait_for_audit
from rung.ladder.climb.checks import may_pass
from rung.ladder.climb.mode_checks import advance_checks, end_mode_checks, note_likely, prefetch_after, withdraw_wrong
from rung.ladder.climb.mode_preparation import (
    ANEW,
    at_higher_precision,
    compiled_code_raises,
    first_modes,
    later_modes,
    prepared_mode,
    start_modes,
    timed_before,
    waits_for_cores,
    with_bias_kernel,
    with_eager_rounding,
    without_graph,
)
from rung.ladder.climb.mode_timing import Race, ensure_baseline_worker, time_modes
from rung.ladder.climb.modes import SLOW, mode_of, mode_of_task, title
from rung.ladder.climb.schedule import much_slower, verification_seconds
from rung.ladder.climb.state import OutOfTime, State
from rung.records.climb import Mode
from rung.records.progress import Raced
from rung.timing.tasks import Task, end_all

progress = logging.getLogger(__name__)

# Of the time that is left, and seconds: how long modes that take minutes are waited for when all others are timed.
SLOW_SHARE, SLOW_MOST = 0.25, 300.0
# How long further modes are waited for once the best is verified: times as long as the best took to prepare, and seconds.
PATIENCE, PATIENCE_SECONDS = 1.0, 15.0


def race(state: State) -> Race:
    """Times each mode as soon as it is ready, against the untouched model and the best mode so far, in one restart.

    A mode is in `later` until it may start, and in `preparing` until it is ready or has failed."""
    result = _new_or_unfinished(state)
    preparing = {name: state.mode_workers[name] for name in first_modes(state) if name not in result.modes}
    later = {
        name: task for name, task in state.mode_workers.items() if name not in preparing and name not in result.modes
    }
    tried_again: set[str] = set()

    def start_later(leave: Sequence[str] = ()) -> None:
        """Starts to prepare the other modes, which find in the cache what the first one compiled. Verification has the memory first. leave: modes
        that still wait."""
        nonlocal later
        if not result.asked:
            result.asked = True
            wait_for_audit(state)
            later = later_modes(state, result, later)
        for name in [name for name in later if mode_of(name) not in leave and not waits_for_cores(state, name)]:
            preparing[name] = later.pop(name)
            preparing[name].low_priority = True
            state.pool.add(preparing[name])

    preparing |= at_higher_precision(state, result)
    while preparing or later or not result.asked:
        if result.asked or not any("compile" in task.side.rungs for task in preparing.values()):
            start_later()
        waited = {name: task for name, task in preparing.items() if mode_of(name) not in SLOW or not result.best}
        if not waited and preparing:  # those that take minutes are left
            result.until = min(result.until, time.monotonic() + min(SLOW_MOST, SLOW_SHARE * state.left()))
            waited = dict(preparing)
        if not waited and not later:
            break
        if _can_defer(state, result, {**preparing, **later}):
            _defer(state, preparing, later)
            break
        progress.info("preparing %s", "; ".join(map(title, waited or later)))
        if not _wait_for_news(state, result, list(waited.values())):
            if not result.best:
                raise OutOfTime
            if _patience_is_over(state, result):
                _defer(state, preparing, later)
            else:
                _record_unready(state, result, {**preparing, **later})
            break
        finish_survey(state, wait=False)  # what refuses the workload ends the climb
        done = {name: preparing.pop(name) for name, task in waited.items() if task.done}
        again = [name for name, task in done.items() if task.error and may_pass(task.error) and name not in tried_again]
        for name in again:  # it failed beside others, so once more later
            tried_again.add(name)
            task = done.pop(name)
            later[name] = state.mode_workers[name] = prepared_mode(state, name, task.side.rungs, "-again")
        note_likely(state, done, preparing)
        preparing |= without_graph(state, done)
        known = state.survey_task is None or "audit" in state.survey_task.answers
        if known and any("compile" in task.side.rungs for task in done.values()):
            start_later(ANEW)  # the others compile while this one is timed and checked
        time_modes(state, result, done)
        # The survey tells whether other attention may help, and is waited for where nothing else is left to do.
        if compiled_code_raises(result) and finish_survey(state, wait=not (preparing or later)):
            preparing |= with_bias_kernel(state, result)
        _skip_hopeless(state, result, preparing, later)
        if withdraw_wrong(state, result):
            _give_up_refused(result, preparing, later)
            preparing |= with_eager_rounding(state, result)
        if result.dropped and (name := _fastest_left(result)) and name not in preparing:
            result.dropped = False
            preparing[name] = state.mode_workers[name] = prepared_mode(state, name, result.modes[name].rungs, "-again")
            state.pool.add(preparing[name], first=True)
        advance_checks(state, result)
        preparing |= at_higher_precision(state, result)
    end_all(preparing.values())
    if state.baseline_worker and result.best:
        state.baseline_worker.end()  # its memory is for others now
    return result


def _new_or_unfinished(state: State) -> Race:
    """A race that begins, or goes on from what an earlier sitting timed."""
    if state.baseline_worker is None:  # an earlier sitting measured it
        ensure_baseline_worker(state)
        assert state.baseline_worker is not None
        start_modes(state, state.baseline_worker.answer("warm", Untouched))
    if timed := timed_before(state):
        unfinished = state.unfinished["plain"]
        return Race(timed, unfinished.name, unfinished.ab_run)
    return Race()


def _record_unready(state: State, result: Race, tasks: Mapping[str, Task]) -> None:
    """Records that these modes were not ready in time, except those that were to be timed again."""
    for name, task in tasks.items():
        if name in result.modes and result.modes[name].speedup:
            continue
        result.modes[name] = mode_of_task(name, task, error="it was not ready in time")
        state.say(Raced(result.modes[name]))


def _wait_for_news(state: State, result: Race, tasks: Sequence[Task]) -> bool:
    """Waits until a mode is ready, the survey or a verification has answered, or the next candidate is ready. False where the time is over, or
    where the best is verified and the modes that are left take much longer than it did."""
    began = time.monotonic()

    def others() -> tuple[bool, int, bool]:
        known = state.survey_task is None or state.survey_task.done
        return (
            known,
            sum(task.done for task in state.mode_checks),
            state.next_worker is not None and state.next_worker.ready,
        )

    before = (state.survey_task is None, *others()[1:])

    def new() -> bool:
        prefetch_after(state, result)
        return others() != before or any(task.done for task in tasks)

    def left() -> float:
        best = result.modes.get(result.best)
        until = state.left() - (_unverified_seconds(state, best) if best else 0.0)
        if result.until < math.inf:
            return min(until, result.until - time.monotonic())
        if not _is_patient(state, best):
            return until
        assert best is not None
        patience = PATIENCE * (best.prepared_seconds or 0.0) + PATIENCE_SECONDS
        return min(until, began + patience - time.monotonic())

    return state.pool.wait(new, left)


def _is_patient(state: State, best: Mode | None) -> bool:
    """Whether further modes are waited for only for a while: the best is verified, and compiled as a whole. That takes far longer than
    compiling its blocks."""
    return bool(state.answer and state.answer.status != "provisional" and best and "compile" in best.rungs)


def _patience_is_over(state: State, result: Race) -> bool:
    """Whether the wait ended for that reason, and not for the budget, on a GPU. On a CPU nothing else has room beside the modes."""
    patient = _is_patient(state, result.modes.get(result.best))
    return bool(state.facts.gpu) and result.until == math.inf and state.left() > 0 and patient


def _unverified_seconds(state: State, best: Mode) -> float:
    """Seconds that the verification of the best mode will take, where it could not begin beside the others; 0 where it is not to be
    verified, or there is no time for it."""
    begun = any(list(task.side.rungs) == best.rungs for task in state.mode_checks)
    if begun or (best.speedup or 0.0) < PROVISIONAL_GAIN or (state.answer and state.answer.status != "provisional"):
        return 0.0
    needed = verification_seconds(state, best.rungs, best.prepared_seconds or 0.0)
    return needed if needed < state.left() else 0.0  # else there is no time for it


def _can_defer(state: State, result: Race, tasks: Mapping[str, Task]) -> bool:
    """Whether these modes may be timed later (`rung.ladder.climb.deferred_modes`): the best is verified, the candidate after it is ready, and
    they compile for long, or add nothing to the best."""
    verified = state.answer is not None and state.answer.status != "provisional"
    ready = state.next_worker is not None and state.next_worker.ready
    best = {*result.modes[result.best].rungs} if result.best else set()

    def may_wait(name: str, task: Task) -> bool:
        return mode_of(name) in (*ANEW, *SLOW) or _as_a_whole(task.side.rungs) <= best

    return (
        verified
        and ready
        and bool(result.best)
        and bool(tasks)
        and all(may_wait(name, task) for name, task in tasks.items())
    )


def _defer(state: State, preparing: dict[str, Task], later: dict[str, Task]) -> None:
    """Leaves modes to be timed later (`rung.ladder.climb.deferred_modes`), unless others need their memory meanwhile."""
    state.deferred_modes = {**preparing, **later}
    for task in state.deferred_modes.values():
        task.reclaimable = task.low_priority = True
    for task in later.values():
        state.pool.add(task)
    preparing.clear()


def _skip_hopeless(state: State, result: Race, preparing: dict[str, Task], later: dict[str, Task]) -> None:
    """Skips modes that would fail as another one did."""
    for name, task in {**preparing, **later}.items():
        if not (why := _reason_to_skip(result, task.side.rungs)):
            continue
        preparing.pop(name, None)
        later.pop(name, None)
        task.end()
        end_mode_checks(state, name)
        result.modes[name] = mode_of_task(name, task, error=f"skipped, because {why}")
        state.say(Raced(result.modes[name]))


def _reason_to_skip(result: Race, rungs: Sequence[str]) -> str:
    """Why a mode with these rungs would fail, as a clause; empty where it may succeed. It would where it adds to a mode that made the untouched
    model much slower, or where it compiles what raised and ran only with other attention."""
    timed = [mode for mode in result.modes.values() if mode.speedup]
    slow = next((mode for mode in timed if much_slower(mode) and {*mode.rungs} < {*rungs}), None)
    if slow:
        return f"it builds on a mode that is slower than the untouched model: {slow.title}, {slow.speedup:.2f}×"
    if (
        "compile" in rungs
        and "biased-attention" not in rungs
        and any(_attention_raised(result, mode) for mode in timed)
    ):
        return "what was compiled with torch's attention raised"
    return ""


def _attention_raised(result: Race, ran: Mode) -> bool:
    """Whether a mode that ran with Rung's attention has all rungs of one that raised without it. Otherwise a graph that could not be captured,
    or a precision, may have raised."""
    raised = [_as_a_whole(mode.rungs) for mode in result.modes.values() if mode.failed is True]
    return "biased-attention" in ran.rungs and any("compile" in rungs and rungs < {*ran.rungs} for rungs in raised)


def _as_a_whole(rungs: Sequence[str]) -> set[str]:
    """The rungs of a mode, where blocks that are compiled count as a model that is."""
    return {"compile" if rung == "compile-regions" else rung for rung in rungs}


def _give_up_refused(result: Race, preparing: dict[str, Task], later: dict[str, Task]) -> None:
    """Ends what is prepared of modes that the verification refused."""
    for name, task in {**preparing, **later}.items():
        if list(task.side.rungs) in result.refused:
            preparing.pop(name, None)
            later.pop(name, None)
            task.end()


def _fastest_left(result: Race) -> str:
    """The name of the fastest mode that is left once the best was withdrawn; empty where the present best is as fast. It is timed again,
    because its worker is gone."""
    timed = {name: mode.speedup for name, mode in result.modes.items() if mode.speedup}
    fastest = max(timed, key=lambda name: timed[name], default="")
    worth = fastest not in ("", result.best) and timed[fastest] >= PROVISIONAL_GAIN
    return fastest if worth and timed[fastest] > timed.get(result.best, 0.0) else ""
