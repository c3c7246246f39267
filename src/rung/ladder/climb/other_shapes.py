"""The verification of an answer on the workload's other input shapes.

A candidate is verified on the measured shape first, and its recipe leaves other inputs to the untouched model. They are verified in the
background once nothing else waits, and at the latest before the answer is confirmed: then its recipe is for all of them.
"""

from __future__ import annotations

import logging

from rung.ladder.climb.answer import write
from rung.ladder.climb.checks import numerics_of, part_of, peak_of, refusal, turns, verified, verifying_bytes
from rung.ladder.climb.state import State
from rung.ladder.climb.verdict import refute
from rung.records.progress import OnAllShapes, Warned
from rung.rungs import plan_of
from rung.timing.tasks import Task, end_all
from rung.verify.verdict import joined

progress = logging.getLogger(__name__)

Stack = tuple[str, ...]  # rungs

FEW = 2  # workers, one a precision, for which cores must be idle before it is begun in the background


def look(state: State) -> None:
    """Begins to verify the answer on its other shapes where cores are idle, and takes in what was found. May be called again and again."""
    _drop_others(state)
    kept = _left(state)
    if state.widening and _decided(state.widening):
        _take_in(state, kept)
    elif kept and not state.widening and kept not in state.narrow and _cores_are_idle(state):
        _begin(state, kept)


def finish(state: State) -> bool:
    """Waits until the answer is verified on its other shapes, as long as there is time; False where the budget ended before, or they
    could not be verified. What computes something else there is taken back: then there is another answer, or none."""
    _drop_others(state)
    kept = _left(state)
    if not kept or kept in state.narrow:
        return not kept
    if not state.widening:
        _begin(state, kept)
    progress.info("verifying on other shapes")
    if not state.pool.wait(lambda: _decided(state.widening), state.left):
        return False
    if any(map(_lacked_memory, state.widening)) and not any(map(refusal, state.widening)):
        _one_at_a_time(state)
    _take_in(state, kept, last=True)
    return kept in state.everywhere


def _left(state: State) -> Stack:
    """The answer's rungs where it was kept, is verified on the measured shape alone, and the workload runs on others; else none."""
    kept = tuple(state.kept)
    verified = state.answer is not None and state.answer.kept == kept
    return kept if verified and not state.facts.one_shape and kept not in state.everywhere else ()


def _cores_are_idle(state: State) -> bool:
    return state.many_cores and state.pool.idle() >= FEW and not state.pool.waiting()


def _begin(state: State, kept: Stack) -> None:
    state.widened += 1
    for precision in plan_of(kept).phases(state.own_precision):
        arguments = {
            "numerics": precision, "alone": False, "backwards": precision != "exact", "others": True, "turns": turns(state),
        }  # fmt: skip
        name = f"shapes-{state.widened}-verify-{precision}"
        beside, in_turns = verifying_bytes(state, peak_of(state), precision)
        task = Task(name, state.side(kept), [("verify", arguments)], beside, in_turns)
        task.passing = task.apart = task.yielding = task.single = True
        state.widening.append(state.pool.add(task))


def _drop_others(state: State) -> None:
    """Gives up what was begun of an answer that has been replaced."""
    kept = state.answer.kept if state.answer else ()
    if any(task.side.rungs != kept for task in state.widening):
        end_all(state.widening)
        state.widening = []


def _decided(tasks: list[Task]) -> bool:
    return all(task.done for task in tasks) or any(map(refusal, tasks))


def _lacked_memory(task: Task) -> bool:
    return task.error is not None and task.error.lacked_memory


def _take_in(state: State, kept: Stack, *, last: bool = False) -> None:
    """What was found of the answer. last: whether what found no memory is not tried again."""
    tasks = state.widening
    end_all(tasks)
    state.widening = []
    if why := next(filter(None, map(refusal, tasks)), ""):
        refute(state, kept, why)
        return
    if any(map(_lacked_memory, tasks)) and not last:
        return
    if failed := next((task.error for task in tasks if task.error), None):
        state.narrow.add(kept)
        state.say(
            Warned(f"its other input shapes could not be verified, and are left to the untouched model: {failed}")
        )
        return
    found = [answered for task in tasks if (answered := verified(task))]
    if len(found) < len(tasks):  # one was given up when the budget ended
        return
    state.everywhere.add(kept)
    record = next((a for a in reversed(state.kept_attempts) if a.stack == list(kept)), None)
    if record is not None and record.verification:
        record.verification = joined([record.verification, *found])
        state.run.add_attempt(record)
    write(state)
    state.say(OnAllShapes(list(kept)))


def _one_at_a_time(state: State) -> None:
    """What found no memory beside others once more, with the GPU's for itself, as long as there is time."""
    for k, task in enumerate(state.widening):
        if not _lacked_memory(task):
            continue
        precision = numerics_of(part_of(task))
        arguments = {"numerics": precision, "backwards": precision != "exact", "others": True}
        again = state.pool.add(Task(f"{task.name}-again", task.side, [("verify", arguments)]))
        again.apart = again.single = True
        state.widening[k] = again
        state.pool.wait(lambda: all(t.done for t in state.widening), state.left)
        again.end()
