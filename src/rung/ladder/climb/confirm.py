"""Confirmation: the answer is timed again in fresh restarts, which played no part in choosing it.

It is compared with the untouched model and the best plain mode, on the other input shapes, too.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rung.ladder.climb import other_shapes
from rung.ladder.climb.answer import Answer, lower_to_provisional, offer, write_result
from rung.ladder.climb.busy_cpu import doubt_by_cpu_time, with_solo_baseline
from rung.ladder.climb.checks import end_checks
from rung.ladder.climb.restarts import TaskGroup, begin_restarts, end_restarts, time_for_blocks, wait_until_warm
from rung.ladder.climb.schedule import most_restarts, planned_looks
from rung.ladder.climb.state import OutOfTime, State
from rung.ladder.climb.unfinished import Unfinished, discard, save, unfinished_of
from rung.ladder.climb.verdict import refute
from rung.measure import CLIMB, Comparison, Looks, judge, until_next_look
from rung.records.climb import Shape
from rung.records.measured import Figure, Ratio
from rung.records.progress import Confirms, Warned
from rung.records.record import record_of
from rung.side import Side
from rung.timing.ab_run import ABRun
from rung.timing.tasks import end_all
from rung.timing.worker_group import SideFailed, WorkerGroup

progress = logging.getLogger(__name__)

SIDES = {"best": "the untouched model", "plain": "the best plain mode", "candidate": "the answer"}
SMALL = 1.10  # times as fast: three restarts of processes that differ by 2 % show more than that
AS_FAST = 0.99  # times the best plain mode: what is slower by less counts as as fast


def confirm(state: State) -> None:
    """Confirms the answer, or withdraws it and then does the same with the answer before it. Where the budget ends first, the status stays as it
    is."""
    while (answer := state.answer) and answer.status != "confirmed" and list(answer.kept) == state.kept:
        end_warm_workers(state)
        sides = _sides(state, answer)
        unfinished = _unfinished(state, answer, sides)
        # Their workers load while others verify; which of them fails then may have lacked memory, and is begun anew.
        ahead = _begin(state, sides, unfinished) if state.many_cores and other_shapes.is_under_way(state) else []
        try:
            verified = other_shapes.wait_until_verified(state)
            if state.answer is not answer:  # taken back
                continue
            if not verified:  # its recipe is for the measured shape alone
                return
            unfinished = _unfinished(state, answer, sides)  # for what is left of the budget now
            why = _confirm_or_refute(state, answer, sides, unfinished, ahead)
        finally:
            end_restarts(state)
        if not why:
            return
        refute(state, answer.kept, why)


def _sides(state: State, answer: Answer) -> dict[str, Side]:
    sides = {"best": state.side([])}
    if state.plain and state.plain_is_another:
        sides["plain"] = state.side(state.plain.rungs)
    sides["candidate"] = state.side(answer.kept)
    return sides


def _unfinished(state: State, answer: Answer, sides: Mapping[str, Side]) -> Unfinished:
    """The confirmation that an earlier sitting began, or a new one."""
    against = " + ".join(sides["plain"].rungs) if "plain" in sides else ""
    unfinished = unfinished_of(state, "confirm", answer.kept, against)
    return unfinished or Unfinished("final", list(answer.kept), against, looks=_looks(state, answer, "plain" in sides))


def _confirm_or_refute(
    state: State, answer: Answer, sides: dict[str, Side], unfinished: Unfinished, ahead: Sequence[TaskGroup]
) -> str:
    """Why fresh restarts refute the answer, as a sentence without its end. Otherwise it is empty, and the answer is confirmed if there was time.
    The answer is verified on all shapes. ahead: restarts that were begun before."""
    state.say(Confirms(list(answer.kept), state.plain_is_another))
    try:
        try:
            found = _run_until_decided(state, sides, unfinished, ahead)
        except SideFailed as failure:
            # All sides have run before, so chance may have hit one: an out-of-memory killer, a full disk. What fails twice is not chance.
            state.say(Warned(f"{SIDES[failure.side]} failed ({failure}); it is started again"))
            found = _run_until_decided(state, sides, unfinished, [])
    except OutOfTime:
        done = len(unfinished.ab_run.restarts)
        ended = "half of the budget was over" if state.reserved else "the budget ended"
        state.say(Warned(f"not confirmed: {ended} after {done} fresh restart{'s' if done != 1 else ''} of the recipe"))
        return ""
    except SideFailed as failure:
        if failure.side == "candidate":
            return f"in the final comparison it failed: {failure}"
        state.say(Warned(f"not confirmed, because {SIDES[failure.side]} failed: {failure}"))
        return ""
    plain, busy = found.get("plain"), unfinished.ab_run.doubt(0, len(sides) - 1)
    answer = replace(answer, busy=busy)
    why = refutation(found["best"], plain, state.plain.title if state.plain else "")
    if why and found["best"].answer == "faster" and not _plain_is_verified(state):
        _update_figures(state, answer, found["best"], plain)
        state.say(Warned(f"not confirmed: {why}, which itself was not verified"))
        return ""
    if why:
        discard(state, "confirm")
        over = found["best"]
        doubt = doubt_by_cpu_time(
            over, unfinished.ab_run.by_cpu_time(0, len(sides) - 1), unfinished.ab_run.waited.values()
        )
        if not doubt or (plain is not None and plain.answer == "slower"):
            return f"{why}; {busy}" if busy else why
        lower_to_provisional(
            state,
            replace(answer, speedup=record_of(Ratio, over.speedup), confidence=over.confidence),
            f"{why}; {doubt}",
        )
        return ""
    _offer_confirmed(state, answer, unfinished.ab_run, found["best"], plain, _shape_results(state, unfinished))
    discard(state, "confirm")
    return ""


def _run_until_decided(
    state: State, sides: dict[str, Side], unfinished: Unfinished, ahead: Sequence[TaskGroup]
) -> dict[str, Comparison]:
    """Runs fresh restarts until the comparison of the answer with each other side is decided, and every shape was run. Raises SideFailed, and
    OutOfTime also where a worker was stopped because the budget was over."""
    names, ab_run = list(sides), unfinished.ab_run
    found: dict[str, Comparison] = {}
    try:
        while True:
            for k, name in enumerate(names[:-1]):
                seen = _judge(unfinished, k, len(names) - 1)
                if seen and not (name in found and found[name].final):  # what is decided is not judged again
                    found[name] = seen
            decided, lacking = _is_clear(found), _lacking(state, unfinished)
            if decided and not lacking:
                return found
            groups = _restarts(state, sides, unfinished, decided, ahead)
            ahead = []
            if not decided:
                for group in groups:
                    time_for_blocks(state, len(sides))
                    progress.info("confirming: restart %d", len(ab_run.restarts) + 1)
                    ab_run.restarts.append(with_solo_baseline(state, group.timed(ab_run)))
                save(state, "confirm", unfinished)
            _on_shapes(state, groups, unfinished, lacking)
            save(state, "confirm", unfinished)
            end_restarts(state)
    except SideFailed as failure:
        if state.left() <= 1:
            raise OutOfTime from failure
        raise
    finally:
        end_restarts(state)


def end_warm_workers(state: State) -> None:
    """Ends all warm workers. What chose a candidate must not confirm it."""
    warm = (state.best_worker, state.candidate_worker, state.baseline_worker, state.next_worker)
    end_all([*(task for task in warm if task is not None), *state.mode_workers.values()])
    end_checks(state)
    state.best_worker = state.candidate_worker = state.baseline_worker = state.next_worker = None
    state.candidate_checks, state.mode_checks, state.next_checks, state.mode_workers = [], [], [], {}


def _restarts(
    state: State, sides: Mapping[str, Side], unfinished: Unfinished, decided: bool, ahead: Sequence[TaskGroup]
) -> list[WorkerGroup]:
    """Fresh workers of all sides: those that were begun ahead, unless one failed, or as many restarts as fit side by side."""
    progress.info("confirming: loading")
    tasks = [task for group in ahead for task in group.tasks.values()]
    if tasks and not any(task.ended or task.error for task in tasks):
        if state.facts.gpu:
            state.pool.start_now(tasks)
        with contextlib.suppress(SideFailed):
            return wait_until_warm(state, ahead)
    end_restarts(state)
    return wait_until_warm(state, _begin(state, sides, unfinished, decided, at_once=state.facts.gpu))


def _begin(
    state: State, sides: Mapping[str, Side], unfinished: Unfinished, decided: bool = False, at_once: bool = False
) -> list[TaskGroup]:
    """decided: one is enough, for other shapes."""
    count = 1 if decided else until_next_look(len(unfinished.ab_run.restarts), unfinished.looks)
    names = []
    for _ in range(min(count, most_restarts(state, len(sides) - 1))):
        state.confirmed_restarts += 1
        names.append(f"final-{state.confirmed_restarts}")
    return begin_restarts(state, sides, dict.fromkeys(names, 0), at_once=at_once)


def _lacking(state: State, unfinished: Unfinished) -> list[int]:
    """Numbers of the other shapes that were not run often enough yet."""
    others = range(1, len(state.facts.shapes or [0]))
    return [n for n in others if n not in unfinished.failed and len(unfinished.shapes.get(n, ())) < CLIMB[0][0]]


def _on_shapes(state: State, groups: list[WorkerGroup], unfinished: Unfinished, shapes: list[int]) -> None:
    """Times the same workers on other shapes, without the plain mode."""
    for shape in shapes:
        progress.info("confirming: another shape")
        for group in groups:
            if "plain" in group.workers:
                group.drop("plain")
        if state.left() <= 0:
            raise OutOfTime
        for group in [group for group in groups if _goes_to_shape(group, shape)]:
            try:
                time_for_blocks(state, 2)
                group.at_shape(min(state.setup.limits.prepare, max(1.0, state.left())))
                unfinished.shapes.setdefault(shape, []).append(group.timed(ABRun()))
            except SideFailed as failure:
                if state.left() <= 1:
                    raise OutOfTime from failure
                unfinished.failed.setdefault(shape, (failure.side, str(failure)))


def _looks(state: State, answer: Answer, plain: bool) -> Looks:
    """The planned looks: many restarts where the claimed gain over the untouched model or the plain mode is small, few where it is large."""
    claimed = [answer.speedup.value, *([answer.over_plain.value] if plain and answer.over_plain else [])]
    return planned_looks(state) if min(claimed) < SMALL else CLIMB


def _goes_to_shape(group: WorkerGroup, shape: int) -> bool:
    """Sends its workers to another shape; False where one of them has ended."""
    try:
        group.go_to_shape(shape)
    except SideFailed:
        return False
    return True


def _update_figures(state: State, answer: Answer, over: Comparison, plain: Comparison | None) -> None:
    """Gives the answer the figures of the fresh restarts, without changing its status."""
    seen = replace(
        answer,
        speedup=record_of(Ratio, over.speedup),
        over_plain=record_of(Ratio, plain.speedup) if plain else answer.over_plain,
        confidence=over.confidence,
    )
    state.answer = seen
    write_result(state)


def _is_clear(found: Mapping[str, Comparison]) -> bool:
    """Whether the comparison with the untouched model is decided, and that with the plain mode, where it seems to be faster. The answer is not
    claimed to be faster than the plain mode, so being as fast is enough."""
    plain = found.get("plain")
    return "best" in found and found["best"].final and (plain is None or plain.final or plain.speedup.value >= AS_FAST)


def _plain_is_verified(state: State) -> bool:
    """Whether the best plain mode passed all checks. A mode that was timed later, or was no faster, was not verified."""
    return any(a.verdict == "kept" and state.plain and a.stack == list(state.plain.rungs) for a in state.attempts)


def _judge(unfinished: Unfinished, a: int, b: int) -> Comparison | None:
    """Side b against side a. What looks no faster is given up at a planned look; `refutation` says what follows from that."""
    return judge([r.log_ratio(a, b) for r in unfinished.ab_run.restarts], looks=unfinished.looks)


def _shape_results(state: State, unfinished: Unfinished) -> list[Shape]:
    """What the answer gives on the other shapes that were run, or why that is not known."""
    found = []
    for number, shape in enumerate(state.facts.shapes or []):
        if not number:
            continue
        if number in unfinished.failed:
            side, why = unfinished.failed[number]
            found.append(
                Shape(
                    shape=shape.shape,
                    elements=shape.elements,
                    answer="fails" if side == "candidate" else "unknown",
                    speedup=None,
                    why=why,
                )
            )
        elif number in unfinished.shapes:
            comparison = judge([r.log_ratio() for r in unfinished.shapes[number]], looks=CLIMB, last=True)
            assert comparison is not None
            found.append(
                Shape(
                    shape=shape.shape,
                    elements=shape.elements,
                    answer=comparison.answer,
                    speedup=record_of(Ratio, comparison.speedup),
                )
            )
    return found


def _offer_confirmed(
    state: State, answer: Answer, ab_run: ABRun, over: Comparison, plain: Comparison | None, shapes: list[Shape]
) -> None:
    """over, plain: the answer against the untouched model and the best plain mode."""
    seen = ab_run.record()
    names = {"best": "baseline", "plain": "plain", "candidate": "best"}
    measured = max(1, state.facts.shapes[0].elements if state.facts.shapes else 1)
    offer(
        state,
        replace(
            answer,
            status="confirmed" if all(shape.answer != "unknown" for shape in shapes) else "verified",
            speedup=record_of(Ratio, over.speedup),
            over_plain=record_of(Ratio, plain.speedup) if plain else Figure(value=1.0) if state.plain else None,
            confidence=over.confidence,
            times={names[side]: time for side, time in seen.times.items()},
            memory={names[side]: peaks for side, peaks in seen.memory.items()},
            first_run_seconds={names[side]: seconds for side, seconds in seen.first_run_seconds.items()},
            restarts=ab_run.samples,
            shapes=shapes,
            original=guard(shapes, measured),
        ),
    )  # fmt: skip


def refutation(over: Comparison, plain: Comparison | None, mode: str) -> str:
    """Why fresh restarts take an answer back, as a sentence without its end; empty where they confirm it. over: the untouched model;
    plain: the best plain mode, and its name. What they do not show is not claimed: of ten candidates that change nothing, one is
    kept by luck in every few climbs (benchmarks/climb/false_alarms.py)."""
    if over.answer != "faster":
        return f"{over.restarts} fresh restarts did not show it to be faster than the untouched model"
    if plain is not None and plain.speedup.value < AS_FAST:
        # Not with confidence, perhaps; but the plain mode is simpler, and at least as fast by all that was seen.
        return f"in {plain.restarts} fresh restarts it was {plain.speedup.value:.2f}× as fast as {mode}"
    return ""


def guard(shapes: list[Shape], measured: int) -> dict[str, int]:
    """Where the original runs instead: inputs of at most or at least so many elements, all tensors together.

    shapes: as they were found; measured: the elements of the shape that was climbed, which is never guarded: of two shapes on the
    same side, the one nearer to it decides.
    """
    lost = [shape.elements for shape in shapes if shape.answer in ("slower", "fails")]
    smaller, larger = [n for n in lost if n < measured], [n for n in lost if n > measured]
    return {**({"elements_at_most": max(smaller)} if smaller else {}),
            **({"elements_at_least": min(larger)} if larger else {})}  # fmt: skip
