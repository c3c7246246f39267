"""What is verified while the plain modes compile and take turns: the likely one ahead, the best one meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rung.ladder.climb.ahead import prepare_next
from rung.ladder.climb.answer import PROVISIONAL_GAIN, VERIFIED_GAIN, Answer, offer
from rung.ladder.climb.begin import surveyed
from rung.ladder.climb.checks import checks_of, end_checks, part_of, peak_of, verified, verifying, verifying_bytes
from rung.ladder.climb.mode_timing import Race
from rung.ladder.climb.modes import BLOCKS, NAME, mode_of
from rung.ladder.climb.state import CONTEXT_BYTES, State
from rung.records.measured import Figure
from rung.rungs import plan_of

# To be the answer for a while, or for good: verified while it is compiled, where there are many cores.
LIKELY = (BLOCKS, "compile-and-graph", "default", "channels-last", "eager")


def verifies_beside(state: State, mode: float) -> bool:
    """Whether a mode can be verified while others compile: there are cores, and the GPU has room for it beside the untouched workload and
    the mode itself, or another GPU is there for it. The pool starts it when there is room. mode: bytes that its worker is taken to need."""
    peak = peak_of(state)
    beside = 0.0 if state.pool.elsewhere else peak + CONTEXT_BYTES + mode
    needed = beside + verifying_bytes(state, peak)
    return state.many_cores and (not state.facts.gpu or needed <= state.pool.memory)


def verify_ahead(state: State, rungs: Sequence[str], name: str) -> None:
    """Begins to verify the mode that is likely to be the fastest, while it compiles."""
    state.ahead = verifying(state, rungs, plan_of(rungs).phases(state.own_precision), name)


def use_the_time(state: State, result: Race) -> None:
    """While further modes compile: what is verified is said, then the best is verified; the candidate after it is begun."""
    _offer_verified(state, result)
    best = result.modes.get(result.best)
    if best is None or mode_of(result.best) not in LIKELY or (best.speedup or 0.0) < PROVISIONAL_GAIN:
        return
    of_best = [task for task in state.ahead if list(task.side.rungs) == best.rungs]
    fits = verifies_beside(state, result.task.memory if result.task else state.mode_bytes)
    if not of_best and not state.likely and state.audited and fits and not _nearly_verified(state, result):
        end_checks(state, keep=state.next_ahead)
        state.ahead = checks_of(state, best.rungs, f"01-{NAME}-{result.best}")
    prepare_after(state, result)


def _offer_verified(state: State, result: Race) -> None:
    """Offers the best mode once all checks of it have passed; one that was the best for a while, too, as long as nothing else is verified:
    that is worth more than a faster answer which is not."""
    answer = _answer_checked(state, result)
    if answer is None or answer.status != "provisional" or not state.audited or state.facts.one_shape:
        return
    kept = list(answer.kept)
    if kept not in [
        mode.rungs for mode in result.modes.values() if mode.speedup
    ]:  # it failed when it was timed once more
        return
    if _is_verified(state) and not (result.best and kept == result.modes[result.best].rungs):
        return
    phases = plan_of(answer.kept).phases(state.own_precision)
    complete = {part_of(task) for task in state.ahead} == {*phases}
    passed = all((found := verified(task)) and found.passed for task in state.ahead)
    if complete and passed and answer.speedup.value >= VERIFIED_GAIN:
        fastest = max(mode.speedup for mode in result.modes.values() if mode.speedup)
        offer(state, replace(answer, status="verified", over_plain=Figure(value=answer.speedup.value / fastest)))


def _is_verified(state: State) -> bool:
    return state.answer is not None and state.answer.status != "provisional"


def _nearly_verified(state: State, result: Race) -> bool:
    """Whether an answer is being checked, and there is none yet that was: it comes first, even where another is faster by now."""
    checking = any(not task.done for task in state.ahead)
    return checking and not _is_verified(state) and _answer_checked(state, result) is not None


def _answer_checked(state: State, result: Race) -> Answer | None:
    """The answer, or what might have become one, that the verification which is under way is of."""
    answers = [*([state.answer] if state.answer else []), *result.answers]
    stacks = {tuple(task.side.rungs) for task in state.ahead}
    return next((a for a in answers if {a.kept} == stacks), None)


def prepare_after(state: State, result: Race) -> None:
    """Begins the candidate after the best mode, and its verification."""
    best = result.modes.get(result.best)
    if best is None or "compile" not in best.rungs or (best.speedup or 0.0) < PROVISIONAL_GAIN:
        return
    if state.next or (not state.pool.waiting() and surveyed(state, wait=False)):
        prepare_next(state, best.rungs, (None, None))
