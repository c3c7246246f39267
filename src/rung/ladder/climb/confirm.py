"""The answer once more, in fresh restarts that chose nothing: against the untouched model and the best plain mode, on other shapes too."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from rung.ladder.climb.answer import Answer, lower, offer, take_back
from rung.ladder.climb.begun import Begun, forget, keep, same
from rung.ladder.climb.cpu_time import by_cpu_time
from rung.ladder.climb.schedule import pairs_at_once
from rung.ladder.climb.state import UNSEEN, WARM, OutOfTime, State
from rung.ladder.timing.duel import Duel, SideFailed, Start
from rung.ladder.timing.tasks import Task
from rung.measure import CLIMB, Comparison, Restart, judge, until_next_look

progress = logging.getLogger(__name__)

SIDES = {"best": "untouched model", "plain": "best plain mode"}
AS_FAST = 0.99  # times the best plain mode: what is slower by less counts as as fast


def confirm(state: State) -> None:
    """Raises the answer's status to `confirmed`, or takes it back. Where the budget ends before, it stays what it is."""
    answer = state.answer
    if answer is None or answer.status == "confirmed" or list(answer.kept) != state.kept:  # what was kept was verified
        return
    state.say("final", {"kept": list(answer.kept), "plain": state.plain_is_another})
    end_all_but_the_pool(state)
    sides = {"best": state.side([])}
    if state.plain_is_another:
        sides["plain"] = state.side(state.plain["rungs"])
    sides["candidate"] = state.side(answer.kept)
    against = " + ".join(state.plain["rungs"]) if "plain" in sides else ""
    begun = same(state, "confirm", answer.kept, against) or Begun("final", list(answer.kept), against)
    names, duel = list(sides), begun.duel
    try:
        while True:
            found = {n: _judged(duel.restarts, names.index(n), len(names) - 1) for n in names[:-1]}
            decided = all(c is not None and c.final for c in found.values())
            lacking = _lacking(state, begun)
            if decided and not lacking:
                break
            starts = _restarts(state, sides, 1 if decided else until_next_look(len(duel.restarts)))
            if not decided:
                for start in starts:
                    progress.info("confirming: restart %d", len(duel.restarts) + 1)
                    duel.restarts.append(start.timed(duel))
                keep(state, "confirm", begun)
            _on_shapes(state, starts, begun, lacking)
            keep(state, "confirm", begun)
            for task in state.confirming:
                task.end()
    except OutOfTime:
        return
    except SideFailed as failure:
        if state.left() > 1 and failure.side == "candidate":
            take_back(state, answer.kept, f"in the final comparison it failed: {failure}")
        elif state.left() > 1:
            state.say("warning", {"text": f"not confirmed, because the {SIDES[failure.side]} failed: {failure}"})
        return
    finally:
        for task in state.confirming:
            task.end()
    _concluded(state, answer, duel, {n: c for n, c in found.items() if c}, _told_of_shapes(state, begun))
    forget(state, "confirm")


def end_all_but_the_pool(state: State) -> None:
    """Gives up the workers that are warm: what chose a candidate is not to confirm it."""
    for task in (
        state.champion,
        state.challenger,
        state.untouched,
        state.next,
        *state.verifying,
        *state.racing.values(),
    ):
        if task is not None:
            task.end()
    state.champion = state.challenger = state.untouched = state.next = None
    state.verifying, state.ahead, state.next_ahead, state.racing = [], [], [], {}


def _restarts(state: State, sides: dict[str, Any], count: int) -> list[Start]:
    """Fresh workers of all sides, for as many restarts as fit side by side."""
    peaks = [UNSEEN * state.peak] * len(sides)
    memory = state.step_bytes()
    groups = []
    for _ in range(min(count, pairs_at_once(state, peaks, alone=True).together)):
        number = state.confirmed_restarts = state.confirmed_restarts + 1
        progress.info("confirming: loading")
        groups.append({n: state.pool.add(Task(f"final-{number}-{n}", s, WARM, memory)) for n, s in sides.items()})
    state.confirming = [task for group in groups for task in group.values()]
    state.wait(*state.confirming)
    for group in groups:
        for name, task in group.items():
            if task.error:
                raise SideFailed(name, task.error)
    return [Start.of(state.setup_within(state.left()), group) for group in groups]


def _lacking(state: State, begun: Begun) -> list[int]:
    """The workload's other shapes that were not run often enough yet."""
    others = range(1, len(state.facts.get("shapes") or [0]))
    return [n for n in others if n not in begun.failed and len(begun.shapes.get(n, ())) < CLIMB[0][0]]


def _on_shapes(state: State, starts: list[Start], begun: Begun, shapes: list[int]) -> None:
    """The same workers on other shapes; the plain mode is left out of it."""
    for shape in shapes:
        progress.info("confirming: another shape")
        for start in starts:
            if "plain" in start.workers:
                start.drop("plain")
        if state.left() <= 0:
            raise OutOfTime
        for start in starts:
            start.go_to_shape(shape)
        for start in starts:
            try:
                start.at_shape(min(state.setup.limits.prepare, max(1.0, state.left())))
                begun.shapes.setdefault(shape, []).append(start.timed(Duel()))
            except SideFailed as failure:
                if state.left() <= 1:
                    raise OutOfTime from failure
                begun.failed.setdefault(shape, (failure.side, str(failure)))


def _judged(restarts: list[Restart], a: int, b: int) -> Comparison | None:
    """Side b against side a. Against the plain mode, what is no faster need not be refuted: it is decided by the interval."""
    return judge([r.log_ratio(a, b) for r in restarts], looks=CLIMB)


def _told_of_shapes(state: State, begun: Begun) -> list[dict[str, Any]]:
    """One record a shape: `shape` in words, `elements` of its tensors, and the `speedup` over the untouched model there with its
    `answer`, or `why` there is none."""
    found = []
    for number, shape in enumerate(state.facts.get("shapes") or []):
        if not number:
            continue
        if number in begun.failed:
            side, why = begun.failed[number]
            found.append(
                {**shape, "answer": "fails" if side == "candidate" else "unknown", "speedup": None, "why": why}
            )
        elif number in begun.shapes:
            comparison = judge([r.log_ratio() for r in begun.shapes[number]], looks=CLIMB, last=True)
            assert comparison is not None
            found.append({**shape, "answer": comparison.answer, "speedup": comparison.speedup.as_dict()})
    return found


def _concluded(
    state: State, answer: Answer, duel: Duel, found: dict[str, Comparison], shapes: list[dict[str, Any]]
) -> None:
    over, plain = found["best"], found.get("plain")
    if why := refuted(over, plain, state.plain.get("title", "")):
        sides = 3 if plain else 2
        doubt = by_cpu_time(over, duel.by_cpu_time(0, sides - 1), duel.waited.values())
        if doubt and (plain is None or plain.answer != "slower"):
            lower(state, replace(answer, speedup=over.speedup.as_dict(), confidence=over.confidence), f"{why}; {doubt}")
        else:
            take_back(state, answer.kept, why)
        return
    seen = duel.as_dict()
    names = {"best": "baseline", "plain": "plain", "candidate": "best"}
    measured = max(1, (state.facts.get("shapes") or [{"elements": 1}])[0]["elements"])
    renamed = {of: {names[k]: v for k, v in seen[of].items()} for of in ("times", "memory", "first_run_seconds")}
    offer(
        state,
        replace(
            answer,
            status="confirmed" if all(s["answer"] != "unknown" for s in shapes) else "verified",
            speedup=over.speedup.as_dict(),
            over_plain=plain.speedup.as_dict() if plain else {"value": 1.0} if state.plain else None,
            confidence=over.confidence,
            times=renamed["times"], memory=renamed["memory"], first_run_seconds=renamed["first_run_seconds"],
            restarts=duel.samples,
            shapes=shapes,
            original=guard(shapes, measured),
        ),
    )  # fmt: skip


def refuted(over: Comparison, plain: Comparison | None, mode: str) -> str:
    """Why fresh restarts take an answer back, as a sentence without its end; empty where they confirm it. over: the untouched model;
    plain: the best plain mode, and its name. What they do not show is not claimed: of ten candidates that change nothing, one is
    kept by luck in every few climbs (benchmarks/climb/false_alarms.py)."""
    if over.answer != "faster":
        return f"{over.restarts} fresh restarts did not show it to be faster than the untouched model"
    if plain is not None and plain.answer == "slower" and plain.speedup.value < AS_FAST:
        return f"in {plain.restarts} fresh restarts it was slower than {mode}"
    return ""


def guard(shapes: list[dict[str, Any]], measured: int) -> dict[str, int]:
    """Where the original runs instead: inputs of at most or at least so many elements, all tensors together.

    shapes: as they were found; measured: the elements of the shape that was climbed, which is never guarded: of two shapes on the
    same side, the one nearer to it decides.
    """
    lost = [s["elements"] for s in shapes if s["answer"] in ("slower", "fails")]
    smaller, larger = [n for n in lost if n < measured], [n for n in lost if n > measured]
    return {**({"elements_at_most": max(smaller)} if smaller else {}),
            **({"elements_at_least": min(larger)} if larger else {})}  # fmt: skip
