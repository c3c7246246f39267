"""Verification while the plain modes are compiled and timed: first of modes that are likely to become the answer, then of the best one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from rung.ladder.climb.answer import PROVISIONAL_GAIN, VERIFIED_GAIN, Answer, offer, write_result
from rung.ladder.climb.begin import finish_survey
from rung.ladder.climb.bundles import stack_with
from rung.ladder.climb.checks import (
    checks_of,
    end_checks,
    end_checks_of,
    part_of,
    parts_of,
    peak_of,
    refusal,
    verified,
    verifying,
    verifying_bytes,
)
from rung.ladder.climb.mode_timing import Race, withdraw
from rung.ladder.climb.modes import BLOCKS, NAME, mode_of, mode_of_task, the_best
from rung.ladder.climb.prefetch import is_short, prefetch_next
from rung.ladder.climb.state import CONTEXT_BYTES, Profile, State
from rung.records.climb import Mode
from rung.records.measured import Figure
from rung.timing.tasks import Task, end_all

# To be the answer for a while, or for good: verified while it is compiled, where there are many cores.
LIKELY = (BLOCKS, "compile-and-graph", "default", "channels-last", "eager")


def can_verify_now(state: State, mode: float) -> bool:
    """Whether a mode can be verified while others compile. There must be enough cores, and memory on the GPU beside the untouched workload and
    the mode itself, or another GPU. The pool starts it when there is room. mode: bytes that its worker is taken to need."""
    peak = peak_of(state)
    beside = 0.0 if state.pool.elsewhere else peak + CONTEXT_BYTES + mode
    needed = beside + sum(verifying_bytes(state, peak))
    return state.many_cores and (not state.facts.gpu or needed <= state.pool.memory)


def verify_mode_early(state: State, name: str) -> None:
    """Begins to verify a mode that may become the answer, while it compiles for the first time.

    Blocks are ready early. So they are verified at their own precision once their code is in the cache (`verify_remaining_parts`), and before in
    full precision, in which nobody else compiles them. With dropout it will not be there, because a verification leaves that out. And a model
    that is compiled as a whole is ready late: on an H200, what was left then took 23 to 38 s (four models of timm in training, of which one was
    not verified in 132 s)."""
    rungs = state.mode_workers[name].side.rungs
    state.likely_modes.append(name)
    parts = parts_of(state, rungs)
    waits = mode_of(name) == BLOCKS and not state.random
    state.mode_checks += verifying(state, rungs, parts[:1] if waits else parts, f"01-{NAME}-{name}")


def verify_likely(state: State, names: Sequence[str]) -> None:
    """Has the first of these modes that may become the answer verified while it compiles, where there is room for that; beside a model's
    blocks the whole, which takes longer and is a little faster."""
    likely = [name for name in names if mode_of(name) in LIKELY]
    for name in likely[: 2 if likely and mode_of(likely[0]) == BLOCKS else 1]:
        if can_verify_now(state, state.mode_workers[name].memory):
            verify_mode_early(state, name)


def verify_remaining_parts(state: State, name: str) -> None:
    """Starts the remaining parts of the verification of a mode that has just become ready."""
    rungs = state.mode_workers[name].side.rungs
    begun = {part_of(task) for task in _checks_of_mode(state, rungs)}
    left = [part for part in parts_of(state, rungs) if part not in begun]
    state.mode_checks += verifying(state, rungs, left, f"01-{NAME}-{name}", first=True)


def end_mode_checks(state: State, name: str) -> None:
    """Ends the verification of a mode that will not become the answer."""
    if name in state.likely_modes:
        state.likely_modes.remove(name)
    rungs = state.mode_workers[name].side.rungs
    end_all(task for task in state.all_checks if task.side.rungs == rungs)
    state.mode_checks = [task for task in state.mode_checks if task.side.rungs != rungs]


def note_likely(state: State, done: Mapping[str, Task], open_: Mapping[str, Task]) -> None:
    """Handles likely modes that are ready now: the rest of their verification starts. Where one failed, the next one is verified in its place."""
    for name in [name for name in state.likely_modes if name in done]:
        state.likely_modes.remove(name)
        if done[name].error:
            end_mode_checks(state, name)
            if not state.likely_modes:
                verify_likely(state, list(open_))
        else:
            verify_remaining_parts(state, name)


def advance_checks(state: State, result: Race) -> None:
    """While further modes compile: offers what is verified, starts to verify the best, and prefetches the candidate after it."""
    _offer_verified(state, result)
    best = result.modes.get(result.best)
    if best is None or mode_of(result.best) not in LIKELY or (best.speedup or 0.0) < PROVISIONAL_GAIN:
        return
    of_best = _checks_of_mode(state, best.rungs)
    if of_best and not state.likely_modes and _is_verified(state, best.rungs):  # what else is verified is slower
        end_checks(state, keep=[*of_best, *state.next_checks])
        state.mode_checks = of_best
    fits = can_verify_now(state, result.task.memory if result.task else state.mode_bytes)
    if not of_best and not state.likely_modes and state.audited and fits and not _nearly_verified(state, result):
        end_checks(state, keep=state.next_checks)
        state.mode_checks = checks_of(state, best.rungs, f"01-{NAME}-{result.best}")
    prefetch_after(state, result)


def _offer_verified(state: State, result: Race) -> None:
    """Offers the best mode once all its checks have passed. A mode that was the best for a while is offered, too, as long as nothing else is
    verified: that is worth more than a faster answer that is not."""
    if not state.audited:
        return
    # Without those that failed when they were timed once more.
    timed = {tuple(mode.rungs): mode.speedup for mode in result.modes.values() if mode.speedup}
    best = result.modes[result.best].rungs if result.best else []
    for answer in _answers_in_verification(state, result):
        kept = list(answer.kept)
        gain = timed.get(answer.kept, 0.0)  # as it was seen last
        if answer.status != "provisional" or not gain or (_is_verified(state) and kept != best):
            continue
        tasks = _checks_of_mode(state, kept)
        complete = {part_of(task) for task in tasks} == {*parts_of(state, kept)}
        passed = all((found := verified(task)) and found.passed for task in tasks)
        if complete and passed and gain >= VERIFIED_GAIN:
            now = replace(answer, speedup=Figure(value=gain))
            offer(state, replace(now, status="verified", over_plain=_over_plain(now, result)))
    if state.answer and _is_verified(state) and state.answer.over_plain != (over := _over_plain(state.answer, result)):
        state.answer = replace(state.answer, over_plain=over)  # a faster mode was timed since
        write_result(state)


def withdraw_wrong(state: State, result: Race) -> bool:
    """Withdraws each mode that the verification refuses. Returns whether there was one."""
    refused = False
    for answer in _answers_in_verification(state, result) if state.audited else ():
        refusing = [task for task in _checks_of_mode(state, answer.kept) if refusal(task)]
        name = next((name for name, mode in result.modes.items() if mode.rungs == list(answer.kept)), "")
        if refusing and name:
            refused, why = True, refusal(refusing[0])
            if all(part_of(task) == "bf16" for task in refusing):
                result.rounding.append(name)
            end_checks_of(state, _checks_of_mode(state, answer.kept))
            state.mode_checks = [task for task in state.mode_checks if list(task.side.rungs) != list(answer.kept)]
            withdraw(state, result, name, f"{why}.", wrong=True)
    return refused


def _over_plain(answer: Answer, result: Race) -> Figure:
    """The gain of this answer over the fastest mode so far."""
    fastest = max((mode.speedup for mode in result.modes.values() if mode.speedup), default=answer.speedup.value)
    return Figure(value=answer.speedup.value / fastest)


def _checks_of_mode(state: State, rungs: Sequence[str]) -> list[Task]:
    """The tasks that verify this mode, as far as they were started."""
    return [task for task in state.mode_checks if list(task.side.rungs) == list(rungs)]


def _is_verified(state: State, rungs: Sequence[str] | None = None) -> bool:
    """Whether the answer is verified and, with `rungs`, has these."""
    answer = state.answer
    return answer is not None and answer.status != "provisional" and (rungs is None or list(answer.kept) == list(rungs))


def _nearly_verified(state: State, result: Race) -> bool:
    """Whether an answer is being verified while none is verified yet. It comes first, even where another one is faster by now."""
    checking = (
        task for answer in _answers_in_verification(state, result) for task in _checks_of_mode(state, answer.kept)
    )
    return not _is_verified(state) and any(not task.done for task in checking)


def _answers_in_verification(state: State, result: Race) -> list[Answer]:
    """The answer and earlier answers whose verification was started."""
    answers = {answer.kept: answer for answer in [*result.answers, *([state.answer] if state.answer else [])]}
    return [answer for kept, answer in answers.items() if _checks_of_mode(state, kept)]


def prefetch_after(state: State, result: Race) -> None:
    """Prefetches the candidate after the best mode. Where the time is short, it is the one after the model compiled as a whole, while that still
    compiles. It is ended where the whole does not become the best."""
    base = _compiled_best(result) or _likely_whole(state)
    if state.next_worker and state.next_rung:
        after = stack_with(base.rungs, state.next_rung) if base else []
        if list(state.next_worker.side.rungs) != after:
            state.take_next_worker([])
    if base is None or not (state.next_worker or finish_survey(state, wait=False)):
        return
    before = state.plain
    state.plain = the_best(base, list(result.modes.values()))  # after which no time is kept for confirming (rule 6)
    try:
        prefetch_next(state, base.rungs, Profile())
    finally:
        state.plain = before


def _compiled_best(result: Race) -> Mode | None:
    """The best mode, if it compiles the model as a whole and is worth going on from."""
    best = result.modes.get(result.best)
    return best if best and "compile" in best.rungs and (best.speedup or 0.0) >= PROVISIONAL_GAIN else None


def _likely_whole(state: State) -> Mode | None:
    """The mode that compiles the model as a whole and is verified meanwhile, where the time is too short for another compilation after it."""
    if not (state.facts.gpu and state.many_cores and is_short(state)):
        return None
    likely = {
        name: state.mode_workers[name]
        for name in state.likely_modes
        if "compile" in state.mode_workers[name].side.rungs
    }
    return next((mode_of_task(name, task) for name, task in likely.items() if not task.error), None)
