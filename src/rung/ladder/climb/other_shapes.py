"""Verification of an answer on the workload's other input shapes.

A candidate is first verified on the measured shape, and its recipe leaves other inputs to the untouched model. The other shapes are verified in
the background once nothing else waits, and at the latest before the answer is confirmed. Then the recipe is for all of them.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Any

from rung.ladder.climb.answer import write_and_store
from rung.ladder.climb.checks import once_more, peak_of, refusal, turns, verified, verifying_bytes
from rung.ladder.climb.restarts import end_restarts
from rung.ladder.climb.state import OutOfTime, State
from rung.ladder.climb.verdict import refute
from rung.records.progress import OnAllShapes, Warned
from rung.rungs import plan_of
from rung.timing.tasks import Call, Task, end_all
from rung.verify.verdict import joined

progress = logging.getLogger(__name__)

Stack = tuple[str, ...]  # rungs

FEW = 2  # workers, one a precision, for which cores must be idle before it is begun in the background


def advance(state: State) -> None:
    """Starts to verify the answer on its other shapes where cores are idle, or applies the results. May be called again and again."""
    _end_outdated(state)
    kept = _unverified_stack(state)
    if state.shape_checks:
        if _decided(state.shape_checks):
            _apply_results(state)
    elif kept and kept not in state.failed_on_other_shapes and _cores_are_idle(state):
        _begin(state, kept)


def is_under_way(state: State) -> bool:
    """Starts to verify the answer on its other shapes where that is left to do, and waits until all workers of that have started. Returns whether
    they are still at work."""
    if not _begin_if_left(state):
        return False

    def begun() -> bool:
        return _decided(state.shape_checks) or all(task.worker is not None or task.error for task in state.shape_checks)

    return state.pool.wait(begun, state.left) and not _decided(state.shape_checks)


def wait_until_verified(state: State) -> bool:
    """Waits until the answer is verified on its other shapes. False where the budget ended before, or they could not be verified. An answer that
    computes something else there is withdrawn. Then there is another answer, or none."""
    kept = _begin_if_left(state)
    if not kept:
        return True
    if not state.pool.wait(lambda: _decided(state.shape_checks), state.left):
        return False
    if not any(map(refusal, state.shape_checks)):
        if any(task.error and not task.place for task in state.shape_checks):
            end_restarts(state)  # which were loaded meanwhile, and hold memory of its GPU
        _retry_failed(state)
    failed = next((task.error for task in state.shape_checks if task.error), None)
    _apply_results(state)
    if failed and kept not in state.verified_on_all_shapes:
        state.say(Warned(f"other input shapes could not be verified, and are left to the untouched model: {failed}"))
    return kept in state.verified_on_all_shapes


def _begin_if_left(state: State) -> Stack:
    """Starts the verification of what is left, unless that runs already, and returns its rungs."""
    _end_outdated(state)
    kept = _unverified_stack(state)
    if kept:
        if not state.shape_checks:
            _begin(state, kept)
        progress.info("verifying on other shapes")
    return kept


def _unverified_stack(state: State) -> Stack:
    """The answer's rungs, where it was kept, is verified on the measured shape alone, and the workload runs on others; else none."""
    kept = tuple(state.kept)
    verified = state.answer is not None and state.answer.kept == kept
    return kept if verified and not state.on_all_shapes(kept) else ()


def _cores_are_idle(state: State) -> bool:
    return state.many_cores and state.pool.idle() >= FEW and not state.pool.waiting()


def _begin(state: State, kept: Stack) -> None:
    state.shape_check_rounds += 1
    for precision in plan_of(kept).phases(state.own_precision):
        call = _call(precision, alone=False, turns=turns(state))
        name = f"shapes-{state.shape_check_rounds}-verify-{precision}"
        beside, in_turns = verifying_bytes(state, peak_of(state), precision)
        task = Task(name, state.side(kept), [call], beside, in_turns)
        task.ends_when_done = task.untimed = task.low_priority = task.single_process = True
        state.shape_checks.append(state.pool.add(task))


def _call(precision: str, **more: Any) -> Call:
    """The verification of what other shapes add: both changes of shape are seen, one at each precision."""
    return "verify", {"numerics": precision, "backwards": precision != "exact", "others": True, **more}


def _end_outdated(state: State) -> None:
    """Ends the verification of an answer that was replaced."""
    kept = state.answer.kept if state.answer else ()
    if any(task.side.rungs != kept for task in state.shape_checks):
        end_all(state.shape_checks)
        state.shape_checks = []


def _decided(tasks: list[Task]) -> bool:
    return all(task.done for task in tasks) or any(map(refusal, tasks))


def _apply_results(state: State) -> None:
    """Ends the verification, and refutes or extends the answer by its results."""
    tasks, kept = state.shape_checks, state.shape_checks[0].side.rungs
    end_all(tasks)
    state.shape_checks = []
    if why := next(filter(None, map(refusal, tasks)), ""):
        refute(state, kept, why)
        return
    found = [answered for task in tasks if (answered := verified(task))]
    if len(found) < len(tasks):  # it failed, or was given up when the budget ended
        state.failed_on_other_shapes.add(kept)
        return
    state.verified_on_all_shapes.add(kept)
    record = next((a for a in reversed(state.kept_attempts) if a.stack == list(kept)), None)
    if record is not None and record.verification:
        record.verification = joined([record.verification, *found])
        state.run.add_attempt(record)
    write_and_store(state)
    state.say(OnAllShapes(list(kept)))


def _retry_failed(state: State) -> None:
    """Repeats what failed, with the GPU to itself, as long as there is time. Memory may have been short beside others, and an out-of-memory killer
    ends any process."""
    with contextlib.suppress(OutOfTime):
        state.shape_checks = once_more(state, state.shape_checks, _call)
