"""Prefetching: workers and verifications are started before they are needed.

These are workers of the best so far, the candidate that may be next, and the verification of a candidate while it compiles.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from rung.ladder.climb.answer import PROVISIONAL_GAIN
from rung.ladder.climb.bundles import effective_stack, stack_with
from rung.ladder.climb.checks import (
    answered_before,
    end_checks,
    end_checks_of,
    part_of,
    peak_of,
    verifying,
    verifying_bytes,
)
from rung.ladder.climb.schedule import fits_budget, may_finish, next_rung
from rung.ladder.climb.state import CONTEXT_BYTES, WARM, Profile, State
from rung.rungs import LADDER, Evidence, Rung, plan_of
from rung.timing.tasks import Task
from rung.timing.timed import Warmed

# Seconds of the budget that are left, below which one compilation after another seldom ends in time. In many cases of the zoo (docs/zoo.md, H100
# and H200) compiling a model as a whole took 60 to 100 s, and its verification comes after that.
TWO_COMPILATIONS = 150.0
EXPECTED = 1.005  # times as fast, of a candidate that is verified while it compiles: cores are idle otherwise


def worker_of_best(state: State, rungs: Sequence[str], name: str) -> Task:
    """A worker of these rungs, the best so far or what will be: the present one, or a new one that is not warm yet."""
    now = state.best_worker
    if now is not None and now.ready and list(now.side.rungs) == list(rungs):
        now.reclaimable = False
        return now
    if now is not None:
        now.end()
    best = Task(f"{name}-1-best", state.side(rungs), WARM, state.step_bytes())
    state.best_worker = state.pool.add(best, first=True)  # what is timed waits for it
    return state.best_worker


def note_memory(state: State, task: Task) -> None:
    """Replaces the guess of a warm worker's GPU memory by what it took."""
    if state.facts.gpu:
        task.memory = max(task.answer("warm", Warmed).memory.values()) + CONTEXT_BYTES


def is_short(state: State) -> bool:
    """Whether the time that is left is too short for two compilations one after the other."""
    return state.left() < TWO_COMPILATIONS


def prefetch_next(state: State, stack: Sequence[str], profile: Profile, without: Collection[str] = ()) -> None:
    """Starts to compile the candidate that would come after this one, if cores are idle. Once that is warm, starts to verify it. May be called
    again and again.

    stack: of the present candidate, which is being verified; profile: its own; without: its members that did nothing, which are not tried
    after it."""
    if state.next_worker is not None:
        _verify_next(state)
        return
    if state.pool.idle() < 1 or state.request.rungs is not None or state.request.over_ranks or state.survey_task:
        return
    before = state.kept, state.breakdown, state.counters
    state.kept = list(stack)
    state.set_profile(profile)
    try:
        rung = next_rung(state, [rung for rung in LADDER if rung.name not in without])
        if isinstance(rung, Rung) and rung.improves == "step" and not rung.tuning_env:
            number, after = 2 + max([0, *(a.number for a in state.attempts)]), stack_with(stack, rung)
            name = f"{number:02d}-{rung.name}-1-candidate"
            state.next_worker = Task(name, state.side(after), WARM, state.step_bytes())
            state.next_worker.low_priority = True
            state.pool.add(state.next_worker, first=True)  # before plain modes that add nothing
            state.next_rung = rung
            state.next_gain = rung.predict(state.context()).middle
    finally:
        state.kept, state.breakdown, state.counters = before


def _verify_next(state: State) -> None:
    """Starts to verify the next candidate while it compiles, where it should be faster and cores are idle. Once it is warm, its worker reports
    which members of a bundle did nothing. Then the verification starts again without them."""
    task, rung = state.next_worker, state.next_rung
    if task is None or rung is None or task.ended or task.error or state.next_gain < PROVISIONAL_GAIN:
        return
    if state.pool.idle() < 2 or state.pool.waiting(low_priority=False):
        return
    stack, name = _effective_candidate(state, task, rung)
    if not stack:
        return
    others_done = all(check.done for check in state.all_checks if list(check.side.rungs) != stack)
    if not (task.ready or others_done or is_short(state)):
        return  # what is verified before it has the cores to itself
    if state.next_checks and list(state.next_checks[0].side.rungs) != stack:
        end_checks(state, keep=[check for check in state.all_checks if check.side.rungs != task.side.rungs])
        state.next_checks = []
    if not state.next_checks:
        state.next_checks = verifying(state, stack, plan_of(stack).phases(state.own_precision), name)


def verify_while_compiling(state: State, rung: Rung, task: Task) -> None:
    """Starts to verify the present candidate while its worker compiles. It does so only where that was not started before, and where cores and
    memory of the GPU are free beside what times the candidate.

    It starts in full precision, in which nothing else compiles the candidate. It is called again once the worker is warm. Then it continues at
    the candidate's own precision, whose code is in the cache by then. It starts again without members of a bundle that did nothing. With
    dropout, that code is never in the cache, because a verification runs without dropout. So both precisions start at once."""
    if (
        not state.facts.gpu
        or not state.many_cores
        or rung.improves != "step"
        or rung.tuning_env
        or task.error
        or task.ended
    ):
        return
    stack, name = _effective_candidate(state, task, rung)
    if state.next_checks and list(state.next_checks[0].side.rungs) != stack:
        end_checks_of(state, state.next_checks)
        state.next_checks = []
    if not stack or answered_before(state, stack, name):
        return
    parts = list(plan_of(stack).phases(state.own_precision))
    if not (task.ready or state.random):
        parts = parts[:-1]
    parts = [part for part in parts if part not in map(part_of, state.next_checks)]
    expected = rung.predict(state.context()).middle >= EXPECTED
    if parts and expected and state.pool.idle() >= len(parts) and _fit_beside(state, task, parts):
        state.next_checks = [*state.next_checks, *verifying(state, stack, parts, name)]


def _fit_beside(state: State, task: Task, parts: Sequence[str]) -> bool:
    """Whether the GPU has memory for these parts of a verification beside the workers of an attempt and two more that time it."""
    if state.pool.elsewhere:
        return True
    needs = [verifying_bytes(state, peak_of(state), part) for part in parts]
    waiting = [each for each in (task, state.best_worker) if each is not None and each.worker is None]
    held = state.pool.held(waiting=waiting) + 2 * state.step_bytes() + sum(beside for beside, _ in needs)
    return held + max((in_turns for _, in_turns in needs), default=0.0) <= state.pool.memory


def _effective_candidate(state: State, task: Task, rung: Rung) -> tuple[list[str], str]:
    """The stack of a candidate without members of a bundle that did nothing, as far as its worker has reported, and the name of its tasks. The
    stack is empty where no member did anything."""
    stack, name = list(task.side.rungs), task.name.removesuffix("-1-candidate")
    if not task.ready:
        return stack, name
    note_memory(state, task)
    found = effective_stack(rung, stack, Evidence(None, None, task.answer("warm", Warmed).applied))
    if rung.members and not {member.name for member in rung.members} & {*found}:
        return [], name  # it is the best so far
    return (stack, name) if found == stack else (found, f"{name}-fewer")


def _seconds_prepared(task: Task) -> float:
    """How many seconds a candidate has been prepared for."""
    return task.took["warm"] if task.ready else task.running


def _seconds_verified(state: State, task: Task, rung: Rung) -> dict[str, float]:
    """How many seconds each part of the next candidate's verification has run for; infinite where it has ended."""
    stack, _ = _effective_candidate(state, task, rung)
    begun = {part_of(check): check for check in state.next_checks if list(check.side.rungs) == stack}
    parts = rung.change(plan_of(state.kept)).phases(state.own_precision)
    return {p: 0.0 if p not in begun else math.inf if begun[p].done else begun[p].running for p in parts}


def prefetched_rung(state: State) -> Rung | None:
    """The rung of the prefetched candidate, if the candidate before it was kept and there is time to decide this one."""
    if state.next_worker is None or state.next_rung is None:
        return None
    rung, task, state.next_rung = state.next_rung, state.next_worker, None
    fits = stack_with(state.kept, rung) == list(task.side.rungs) and rung.applies(state.context()) is None
    if fits and not task.error and not task.ended:
        so_far = math.inf if task.ready else task.running
        if fits_budget(state, rung, _seconds_prepared(task)) or may_finish(
            state, rung, so_far, _seconds_verified(state, task, rung)
        ):
            return rung
    state.take_next_worker([])
    return None
