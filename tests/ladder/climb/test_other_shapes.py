"""The answer on the workload's other input shapes: verified after the measured one, and before it is confirmed."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from attempt_records import attempt, mode
from made_up import MANIFEST, PASSED, Added, answered, state

from rung.ladder.climb import other_shapes
from rung.ladder.climb import state as states
from rung.ladder.climb.answer import Answer, offer, restore_answer, write_result
from rung.ladder.climb.checks import verifying
from rung.ladder.climb.confirm import confirm
from rung.ladder.climb.modes import the_best
from rung.ladder.climb.schedule import confirmation_seconds
from rung.ladder.climb.state import State
from rung.ladder.climb.verdict import restore_best
from rung.launch import WorkerFailed
from rung.recipes.recipe import Recipe
from rung.records.measured import Figure
from rung.records.progress import OnAllShapes, Warned
from rung.records.record import record_of
from rung.records.workload import Batch
from rung.runs import Run

KEPT = ["bf16", "compile"]
WRONG = {**PASSED, "passed": False, "failures": ["output is off by 1.0"]}
ELEMENTS = 64


class Verifying(Added):
    """A pool whose workers answer, once they are waited for: each task as `says` tells, the last one for all that follow."""

    def __init__(self, *says: dict[str, Any] | WorkerFailed | None) -> None:
        super().__init__()
        self.says = list(says)

    def answer(self) -> None:
        for task in self.tasks:
            if not (task.ended or task.error or task.answers) and (said := self.says[0]):
                self.says = self.says[1:] or self.says
                if isinstance(said, WorkerFailed):
                    task.error = said
                else:
                    task.worker, task.answers = answered(task.name, task.side).worker, {"verify": said}

    def wait(self, until: Callable[[], bool], left: Callable[[], float]) -> bool:
        self.answer()
        return until()


@pytest.fixture
def climb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[State, Verifying]]:
    monkeypatch.setattr(states, "usable_cores", lambda: 64)

    def make(*says: dict[str, Any] | WorkerFailed | None) -> tuple[State, Verifying]:
        made, pool = state(tmp_path), Verifying(*says)
        made.run.write("manifest.json", MANIFEST)
        made.facts.shapes = record_of(
            list[Batch], [{"shape": "8 x 8", "elements": ELEMENTS}, {"shape": "4 x 8", "elements": 32}]
        )
        made.numerics, made.pool, made.said = "bf16", pool, []  # type: ignore[assignment, attr-defined]
        made.say = made.said.append  # type: ignore[attr-defined, assignment]
        made.add(
            attempt(rung="plain", stack=KEPT, verdict="kept", number=1, log="x", verification=PASSED, comparison=None)
        )
        made.kept = KEPT
        offer(made, Answer(tuple(KEPT), "verified", Figure(value=2.0)))
        return made, pool

    return make


def original(made: State) -> dict[str, int]:
    """The inputs that the recipe on disk leaves to the untouched model."""
    return Recipe.parse((made.run.directory / "recipe.toml").read_text()).original


ONLY_MEASURED = {"elements_at_most": ELEMENTS - 1, "elements_at_least": ELEMENTS + 1}


def test_other_shapes_are_left_to_the_untouched_model_until_they_are_verified(
    climb: Callable[..., tuple[State, Verifying]],
) -> None:
    made, pool = climb(PASSED)
    assert original(made) == ONLY_MEASURED
    other_shapes.advance(made)
    assert [task.name.rpartition("-")[2] for task in pool.tasks] == ["exact", "bf16"]
    assert all(task.side.rungs == tuple(KEPT) and not task.side.one_shape and task.low_priority for task in pool.tasks)
    other_shapes.advance(made)
    assert (original(made), len(pool.tasks)) == (ONLY_MEASURED, 2)
    pool.answer()
    other_shapes.advance(made)
    assert original(made) == {}
    assert made.said[-1] == OnAllShapes(KEPT)  # type: ignore[attr-defined]
    seen = made.attempts[-1].verification
    assert seen
    assert seen.cases == 3
    other_shapes.advance(made)
    assert len(pool.tasks) == 2


def test_a_climb_that_is_gone_on_with_knows_on_which_shapes_its_answer_is_verified(
    climb: Callable[..., tuple[State, Verifying]],
) -> None:
    made, _ = climb(PASSED)

    def again() -> State:
        resumed = State(Run.open_(made.run.directory), made.request, lambda event: None)
        resumed.known = made.known
        restore_answer(resumed)
        return resumed

    assert again().verified_on_all_shapes == set()
    assert other_shapes.wait_until_verified(made)
    assert again().verified_on_all_shapes == {tuple(KEPT)}


def test_what_computes_something_else_on_another_shape_is_taken_back(
    climb: Callable[..., tuple[State, Verifying]],
) -> None:
    made, pool = climb(PASSED, WRONG)
    assert not other_shapes.wait_until_verified(made)
    assert (made.answer, made.kept) == (None, [])
    assert not (made.run.directory / "recipe.toml").exists()
    assert "output is off by 1.0" in made.taken_back[-1].why
    assert made.attempts[-1].verdict == "reverted"
    assert all(task.ended for task in pool.tasks)


def test_a_worker_that_dies_refutes_nothing_and_is_started_once_more(
    climb: Callable[..., tuple[State, Verifying]],
) -> None:
    died = WorkerFailed("killed by SIGSEGV", "died")
    made, pool = climb(died)
    assert not other_shapes.wait_until_verified(made)
    assert original(made) == ONLY_MEASURED
    assert isinstance(made.said[-1], Warned)  # type: ignore[attr-defined]
    assert "SIGSEGV" in made.said[-1].text  # type: ignore[attr-defined]
    assert [task.name.endswith("again") for task in pool.tasks] == [False, False, True, True]
    pool.says = [died, PASSED]
    assert other_shapes.wait_until_verified(made)
    assert original(made) == {}


def test_what_fails_beside_others_is_not_tried_for_ever(climb: Callable[..., tuple[State, Verifying]]) -> None:
    made, pool = climb(WorkerFailed("CUDA out of memory", "out of memory"))
    for _ in range(3):
        other_shapes.advance(made)
        pool.answer()
    assert len(pool.tasks) == 2
    assert original(made) == ONLY_MEASURED
    pool.says = [PASSED]
    assert other_shapes.wait_until_verified(made)
    assert original(made) == {}


def test_what_an_earlier_sitting_left_to_the_untouched_model_is_not_for_good(
    climb: Callable[..., tuple[State, Verifying]],
) -> None:
    made, _ = climb(PASSED)
    made.answer = None
    restore_answer(made)
    assert other_shapes.wait_until_verified(made)
    assert original(made) == {}


def test_a_workload_with_two_shapes_of_one_size_is_verified_on_all_of_them_at_once(
    climb: Callable[..., tuple[State, Verifying]],
) -> None:
    made, pool = climb(PASSED)
    made.facts.named_shapes, made.facts.same_size_shapes = 2, 1
    offer(made, Answer(tuple(KEPT), "verified", Figure(value=2.1)))
    assert original(made) == {}
    assert other_shapes.wait_until_verified(made)
    assert pool.tasks == []
    exact, bf16 = verifying(made, KEPT, ["exact", "bf16"], "02-compile")
    assert [exact.side.one_shape, bf16.side.one_shape] == [False, False]
    assert [task._calls[0][1]["backwards"] for task in (exact, bf16)] == [False, True]


def test_where_a_plain_mode_is_taken_back_answers_are_held_against_the_next_fastest(
    climb: Callable[..., tuple[State, Verifying]],
) -> None:
    made, _ = climb(WRONG)
    record = made.attempts[-1]
    record.modes = [mode(*KEPT, name="default", speedup=2.0), mode("capture", name="cuda-graph", speedup=1.5)]
    made.plain = the_best(record.modes[0], record.modes)
    assert not other_shapes.wait_until_verified(made)
    assert made.plain
    assert made.plain.name == "cuda-graph"
    again = State(Run.open_(made.run.directory), made.request, lambda event: None)
    again.known, again.measured = made.known, made.measured
    restore_best(again)
    assert again.plain
    assert again.plain.name == "cuda-graph"


def test_a_model_that_is_not_called_with_the_labels_has_the_recipe_on_the_measured_shape(
    climb: Callable[..., tuple[State, Verifying]],
) -> None:
    made, _ = climb(PASSED)
    made.facts.called = ELEMENTS // 4
    write_result(made)
    left = Recipe.parse((made.run.directory / "recipe.toml").read_text()).plan.original
    assert [left.takes_call(n) for n in (8, 16, 32)] == [True, False, True]
    assert [left.takes(n) for n in (32, 64, 128)] == [True, False, True]


def test_where_the_time_is_over_it_stays_what_it_is(climb: Callable[..., tuple[State, Verifying]]) -> None:
    made, _ = climb(None)
    assert not other_shapes.wait_until_verified(made)
    assert made.answer is not None
    assert (made.answer.status, original(made)) == ("verified", ONLY_MEASURED)


def test_it_does_not_begin_while_others_need_the_cores(
    climb: Callable[..., tuple[State, Verifying]], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, pool = climb(PASSED)
    monkeypatch.setattr(pool, "waiting", lambda: ["03-sdpa-verify-exact"])
    other_shapes.advance(made)
    monkeypatch.undo()
    monkeypatch.setattr(states, "usable_cores", lambda: 2)
    other_shapes.advance(made)
    assert pool.tasks == []


def test_of_an_answer_that_was_replaced_it_is_given_up(climb: Callable[..., tuple[State, Verifying]]) -> None:
    made, pool = climb(PASSED)
    other_shapes.advance(made)
    made.kept = [*KEPT, "sdpa"]
    offer(made, Answer(tuple(made.kept), "verified", Figure(value=2.2)))
    before = list(pool.tasks)
    other_shapes.advance(made)
    assert all(task.ended for task in before)
    assert {task.side.rungs for task in made.shape_checks} == {tuple(made.kept)}


def test_a_workload_of_one_shape_needs_none(climb: Callable[..., tuple[State, Verifying]]) -> None:
    made, pool = climb(PASSED)
    made.facts.one_shape = "its batch norm needs eight rows"
    other_shapes.advance(made)
    assert other_shapes.wait_until_verified(made)
    assert (pool.tasks, original(made)) == ([], ONLY_MEASURED)


def test_confirming_looks_at_the_answer_before_one_that_other_shapes_refute(
    climb: Callable[..., tuple[State, Verifying]], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = climb(WRONG, PASSED)
    made.kept = [*KEPT, "sdpa"]
    made.add(
        attempt(rung="sdpa", stack=made.kept, verdict="kept", number=2, log="x", verification=PASSED, comparison=None)
    )
    offer(made, Answer(tuple(made.kept), "verified", Figure(value=2.2)))
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(
        "rung.ladder.climb.confirm._confirm_or_refute", lambda state, answer, *_: asked.append(answer.kept) or ""
    )
    confirm(made)
    assert asked == [tuple(KEPT)]
    assert made.taken_back[-1].kept == [*KEPT, "sdpa"]


def test_the_time_that_it_takes_is_kept_of_the_budget(climb: Callable[..., tuple[State, Verifying]]) -> None:
    made, _ = climb(PASSED)
    made.request = replace(made.request, budget=300.0)
    before = confirmation_seconds(made)
    other_shapes.advance(made)
    for task in made.shape_checks:  # what was done of it is behind
        task.worker, task._began = SimpleNamespace(kill=lambda: None), time.monotonic() - 5  # type: ignore[assignment]
    under_way = confirmation_seconds(made)
    made.verified_on_all_shapes.add(tuple(KEPT))
    assert confirmation_seconds(made) < under_way < before
