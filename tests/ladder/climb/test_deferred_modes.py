"""Plain modes that are timed once the first rungs were tried."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from attempt_records import compared, mode
from made_up import MANIFEST, STEP, answered, leave, state, tried, warm

from rung.ladder.climb import deferred_modes
from rung.ladder.climb import race as racing
from rung.ladder.climb.answer import Answer, offer
from rung.ladder.climb.mode_timing import Race
from rung.ladder.climb.modes import the_best
from rung.ladder.climb.state import State
from rung.launch import WorkerFailed
from rung.measure import Restart
from rung.records.measured import Figure
from rung.timing.ab_run import ABRun
from rung.timing.tasks import Task

PLAIN = ["compile", "capture"]
BEST = [*PLAIN, "fused-qkv"]
MODE = "reduce-overhead"


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> State:
    """A plain mode is 5 times as fast as the untouched model, and what was kept on top of it 1.4 times as fast as that."""
    made = state(tmp_path)
    made.run.write("manifest.json", MANIFEST)
    best = mode(*PLAIN, name="compile-and-graph", speedup=5.0, step_ns=STEP / 5)
    made.plain = the_best(best, [best])
    times = {"candidate": {"value": STEP / 5}}
    tried(
        made,
        "plain",
        "kept",
        stack=PLAIN,
        modes=[best],
        plain=made.plain,
        times=times,
        comparison=compared("faster", 5.0),
    )
    tried(made, "fused-qkv", "kept", stack=BEST, times=times, comparison=compared("faster", 1.4))
    made.kept = BEST
    offer(made, Answer(tuple(BEST), "verified", Figure(value=7.0), Figure(value=1.4)))
    made.best_worker = answered("01-best", made.side(BEST))
    made.pool = type("Pool", (), {"wait": lambda self, until, left: until() or left() > 0})()  # type: ignore[assignment]
    return made


def ready(made: State) -> Task:
    return answered("01-plain-reduce-overhead", made.side(["compile", MODE]), warm=warm({"allocated": 1}))


def timed_as(monkeypatch: pytest.MonkeyPatch, ratio: float) -> None:
    """A restart in which the mode takes so many times less than the best so far."""

    class Started:
        @staticmethod
        def of(*_: object) -> "Started":
            return Started()

        def timed(self, ab_run: ABRun) -> Restart:
            ab_run.samples.append({"best": [STEP / 7], "candidate": [STEP / 7 / ratio]})
            block = STEP / 7, STEP / 7 / ratio
            return Restart(tuple((*block, *reversed(block)) for _ in range(8)))

    monkeypatch.setattr(deferred_modes, "WorkerGroup", Started)


def best_mode(made: State) -> list[str]:
    assert made.plain is not None
    return made.plain.rungs


def on_disk(made: State) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((made.run.directory / "attempts/01-plain.json").read_text())
    return found


def test_a_slower_mode_is_told_and_changes_nothing(made: State, monkeypatch: pytest.MonkeyPatch) -> None:
    timed_as(monkeypatch, 0.7)
    made.deferred_modes = {MODE: (task := ready(made))}
    deferred_modes.time_deferred_modes(made)
    (_, told) = on_disk(made)["modes"]
    assert told["speedup"] == pytest.approx(7.0 * 0.7)
    assert told["step_ns"] == pytest.approx(STEP / 4.9, rel=1e-6)
    assert best_mode(made) == PLAIN
    assert made.answer is not None
    assert made.answer.over_plain == Figure(value=1.4)
    assert task.ended
    assert not made.deferred_modes


def test_a_faster_one_is_what_the_answer_is_held_against(made: State, monkeypatch: pytest.MonkeyPatch) -> None:
    timed_as(monkeypatch, 0.9)
    made.deferred_modes = {MODE: ready(made)}
    deferred_modes.time_deferred_modes(made)
    assert best_mode(made) == on_disk(made)["plain"]["rungs"] == ["compile", MODE]
    assert made.answer is not None
    assert made.answer.status == "verified"
    assert made.answer.over_plain is not None
    assert made.answer.over_plain.value == pytest.approx(1 / 0.9)
    assert made.plain_is_another


@pytest.mark.parametrize("wait", [False, True])
def test_what_is_not_ready_is_given_up_at_the_end_alone(made: State, wait: bool) -> None:
    leave(made, 100.0)
    made.deferred_modes = {
        MODE: (task := Task("01-plain-reduce-overhead", made.side(["compile", MODE]), [("warm", {})]))
    }
    deferred_modes.time_deferred_modes(made, wait=wait)
    assert bool(made.deferred_modes) is not wait
    assert task.ended is wait
    told = [mode.get("error") for mode in on_disk(made)["modes"][1:]]
    assert told == (["it was not ready in time"] if wait else [])


@pytest.mark.parametrize(
    ("error", "says"), [(WorkerFailed("no", "raised"), "raised: no"), (None, "others needed its memory")]
)
def test_one_that_failed_or_was_given_up_says_so(made: State, error: WorkerFailed | None, says: str) -> None:
    task = ready(made)
    task.error, task.ended = error, True
    made.deferred_modes = {MODE: task}
    deferred_modes.time_deferred_modes(made)
    assert says in on_disk(made)["modes"][1]["error"]
    assert best_mode(made) == PLAIN


@pytest.mark.parametrize("wait", [False, True])
def test_where_the_time_for_confirming_is_all_that_is_left_a_mode_that_is_ready_is_told(
    made: State, wait: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best's worker has to be prepared first, and is not ready in time."""
    left = iter([] if wait else [100.0])  # enough when it is asked whether there is any
    made.request = replace(made.request, budget=100.0)
    monkeypatch.setattr(made, "left", lambda: next(left, deferred_modes.confirmation_seconds(made)))
    made.best_worker = None
    monkeypatch.setattr(deferred_modes, "worker_of_best", lambda *_: Task("01-best", made.side(BEST), []))
    made.deferred_modes = {MODE: (task := ready(made))}
    deferred_modes.time_deferred_modes(made, wait=wait)
    assert on_disk(made)["modes"][1]["error"] == deferred_modes.NO_TIME
    assert best_mode(made) == PLAIN
    assert task.ended
    assert not made.deferred_modes


def test_where_the_best_mode_computed_something_else_none_takes_its_place(made: State) -> None:
    made.plain = None
    made.deferred_modes = {MODE: ready(made)}
    deferred_modes.give_up_deferred_modes(made)
    assert made.plain is None


@pytest.mark.parametrize("open_", [[MODE], [MODE, "max-autotune-tf32"], [MODE, "default"], ["blocks-and-graph"], []])
@pytest.mark.parametrize("status", ["provisional", "verified"])
@pytest.mark.parametrize("next_ready", [False, True])
@pytest.mark.parametrize("compiling", [False, True])
@pytest.mark.parametrize("best", ["compile-and-graph", "cuda-graph"])
def test_modes_wait_for_a_candidate_that_is_ready_where_they_compile_for_long_or_add_nothing_to_the_best(
    made: State, open_: list[str], status: Any, next_ready: bool, compiling: bool, best: str
) -> None:
    assert made.answer is not None
    made.answer = replace(made.answer, status=status)
    made.next_worker = ready(made) if next_ready else Task("02", made.side([]), [("warm", {})])
    rungs = {"default": ["compile"], "blocks-and-graph": ["compile-regions", "capture"]}
    tasks = {name: Task(f"01-plain-{name}", made.side(rungs.get(name, [name])), []) for name in open_}
    if compiling:
        for task in tasks.values():
            task.worker = object()  # type: ignore[assignment]
    race = Race({best: mode(*(PLAIN if best == "compile-and-graph" else ["capture"]), name=best)}, best)
    adds = best != "compile-and-graph" and bool({"default", "blocks-and-graph"} & {*open_})
    assert racing._can_defer(made, race, tasks) is (bool(open_) and not adds and status == "verified" and next_ready)
