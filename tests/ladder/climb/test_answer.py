"""The best answer so far: what takes its place, what takes it back, and what is on the disk at every moment."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from attempt_records import attempt, compared
from made_up import MANIFEST, PASSED, state, tried

from rung.ladder.climb.answer import Answer, offer, restore_answer, take_back, write_result
from rung.ladder.climb.climb import _unconfirmed
from rung.ladder.climb.state import Profile, Request, State
from rung.ladder.climb.verdict import record_verdict
from rung.recipes.recipe import Recipe, Status
from rung.records.analyze import Breakdown
from rung.records.climb import Shape, Stopped
from rung.records.measured import Figure
from rung.records.progress import Answered, Event
from rung.records.record import record_of
from rung.records.workload import Batch
from rung.runs import Run

PARTS: dict[str, Any] = {
    "clock": "gpu", "steps": 3, "step_ns": 1e6, "parts": {"gemm": 1e6}, "kernels": 1.0, "launches": 1.0, "gemms": 1.0,
    "softmax_dims": [], "bottleneck": "gemm", "share": 1.0, "notes": [],
}  # fmt: skip
Events = list[Event]


@pytest.fixture
def events() -> Events:
    return []


@pytest.fixture
def made(tmp_path: Path, events: Events) -> State:
    """A climb that has no answer yet, of a workload whose inputs have 1000 elements."""
    made = state(tmp_path)
    made.run.write("manifest.json", MANIFEST)
    made.facts.shapes = record_of(list[Batch], [{"elements": 1000}])
    made.say = events.append
    return made


def answer(status: Status, speedup: float, *kept: str, **more: Any) -> Answer:
    return Answer(kept or ("compile",), status, Figure(value=speedup), **more)


def on_disk(made: State) -> dict[str, Any]:
    """result.json, which agrees with recipe.toml: read as a user's program would."""
    result: dict[str, Any] = json.loads((made.run.directory / "result.json").read_text())
    path = made.run.directory / "recipe.toml"
    if not result["kept"]:
        assert not path.exists()
        assert (result["recipe"], result["recipe_text"], result["status"], result["speedup"]) == (None, "", None, None)
        return result
    text = path.read_text()
    recipe = Recipe.parse(text)
    assert (result["recipe"], result["recipe_text"]) == ("recipe.toml", text)
    assert (list(recipe.rungs), recipe.status) == (result["kept"], result["status"])
    assert recipe.measured["speedup"] == pytest.approx(result["speedup"]["value"], abs=1e-4)
    assert [path.name for path in made.run.directory.glob(".*.partial")] == []
    return result


def on_another_day(made: State) -> State:
    """The same climb in another process."""
    again = State(Run(made.run.directory), Request("x"), lambda event: None)
    again.known, again.measured, again.breakdown = made.known, made.measured, made.breakdown
    restore_answer(again)
    return again


# What takes its place


def test_the_first_answer_is_on_the_disk_at_once(made: State, events: Events) -> None:
    assert offer(made, answer("provisional", 1.5))
    result = on_disk(made)
    assert (result["kept"], result["status"], result["speedup"]["value"]) == (["compile"], "provisional", 1.5)
    assert [step["status"] for step in result["history"]] == ["provisional"]
    assert events == [Answered("provisional", ["compile"], Figure(value=1.5))]


def test_where_the_time_of_the_answer_goes_is_said_of_its_own_trace_alone(made: State) -> None:
    """The untouched model's parts, in the answer's time, would be figures that nobody measured."""
    made.breakdown = record_of(Breakdown, PARTS)
    write_result(made)
    assert on_disk(made)["breakdown"]["gemms"] == 1.0
    offer(made, answer("provisional", 1.5))
    assert on_disk(made)["breakdown"] is None
    tried(made, "plain", "kept", stack=["compile"], breakdown={**PARTS, "gemms": 2.0})
    offer(made, answer("verified", 1.5))
    assert on_disk(made)["breakdown"]["gemms"] == 2.0


def test_of_provisional_recipes_the_faster_one_is_the_answer(made: State) -> None:
    assert offer(made, answer("provisional", 1.5))
    assert not offer(made, answer("provisional", 1.4, "capture"))
    assert on_disk(made)["kept"] == ["compile"]
    assert offer(made, answer("provisional", 1.6, "capture"))
    assert on_disk(made)["kept"] == ["capture"]


def test_one_that_beat_the_answer_in_turns_with_it_takes_its_place_though_its_speedup_is_less(made: State) -> None:
    """The untouched model, of which both are multiples, may be another half as fast a minute later."""
    assert offer(made, answer("provisional", 1.5))
    assert offer(made, answer("provisional", 1.4, "capture"), beat=True)
    assert on_disk(made)["kept"] == ["capture"]
    assert offer(made, answer("verified", 1.4, "capture"))
    assert not offer(made, answer("provisional", 1.6), beat=True)


@pytest.mark.parametrize("status", ["verified", "confirmed"])
def test_what_is_verified_is_never_replaced_by_what_is_provisional(made: State, status: Status) -> None:
    assert offer(made, answer(status, 1.5))
    assert not offer(made, answer("provisional", 9.0, "capture"))
    assert not offer(made, answer("provisional", 9.0))  # nor does its own status fall
    assert on_disk(made)["status"] == status
    assert len(made.history) == 1


def test_what_is_verified_takes_the_place_of_what_is_provisional_though_that_seemed_faster(made: State) -> None:
    offer(made, answer("provisional", 1.8, "capture"))
    assert offer(made, answer("verified", 1.5))
    assert (on_disk(made)["kept"], on_disk(made)["status"]) == (["compile"], "verified")


def test_a_status_rises_and_the_figures_are_those_of_the_last_check(made: State) -> None:
    statuses: tuple[Status, ...] = ("provisional", "verified", "confirmed")
    for status, speedup in zip(statuses, (1.5, 1.5, 1.4), strict=True):
        assert offer(made, answer(status, speedup))
        assert (on_disk(made)["status"], on_disk(made)["speedup"]["value"]) == (status, speedup)
    assert [step["status"] for step in on_disk(made)["history"]] == list(statuses)
    seconds = [step["seconds"] for step in on_disk(made)["history"]]
    assert seconds == sorted(seconds)


# What takes it back


def test_what_is_refuted_is_taken_back_and_the_earlier_answer_returns(made: State, events: Events) -> None:
    offer(made, answer("verified", 1.5))
    offer(made, answer("verified", 2.0, "compile", "capture"))
    take_back(made, ["compile", "capture"], "it was slower in fresh restarts")
    result = on_disk(made)
    assert (result["kept"], result["status"], result["speedup"]["value"]) == (["compile"], "verified", 1.5)
    assert [(t["kept"], t["why"]) for t in result["taken_back"]] == [
        (["compile", "capture"], "it was slower in fresh restarts")
    ]
    assert events[-1] == made.taken_back[-1]


def test_where_the_only_answer_is_refuted_there_is_none(made: State) -> None:
    offer(made, answer("provisional", 1.5))
    take_back(made, ["compile"], "it does not compute what the baseline computes")
    result = on_disk(made)
    assert result["kept"] == []
    assert made.answer is None
    assert len(result["taken_back"]) == 1


def test_what_is_not_the_answer_takes_nothing_back(made: State, events: Events) -> None:
    offer(made, answer("verified", 1.5))
    events.clear()
    take_back(made, ["capture"], "it is wrong")
    assert (on_disk(made)["kept"], on_disk(made)["taken_back"]) == (["compile"], [])
    assert events == []


def test_what_was_refuted_before_does_not_return(made: State) -> None:
    offer(made, answer("provisional", 1.5))
    offer(made, answer("provisional", 2.0, "capture"))
    take_back(made, ["compile"], "it is wrong")  # while another one is the answer
    assert on_disk(made)["kept"] == ["capture"]
    take_back(made, ["capture"], "it is wrong, too")
    assert on_disk(made)["kept"] == []


def test_a_provisional_recipe_that_gave_way_returns_with_its_own_figures(made: State) -> None:
    offer(made, answer("provisional", 1.5))
    offer(made, answer("provisional", 2.0, "capture"))
    take_back(made, ["capture"], "it is wrong")
    assert (on_disk(made)["kept"], on_disk(made)["speedup"]["value"]) == (["compile"], 1.5)
    assert offer(made, answer("provisional", 1.6, "bf16"))


# What is on the disk


def test_without_an_answer_there_is_a_result_that_says_so(made: State) -> None:
    write_result(made, Stopped(rule="budget", why="the budget ended", left={}))
    result = on_disk(made)
    assert result["kept"] == []
    assert result["stopped"]["rule"] == "budget"


def test_what_was_measured_is_in_the_recipe(made: State) -> None:
    interval = Figure(value=2.0, low=1.9, high=2.1)
    offer(made, Answer(("compile", "capture"), "confirmed", interval, Figure(value=1.1), 0.95))
    recipe = Recipe.read(made.run.directory / "recipe.toml")
    assert recipe.measured == {"speedup": 2.0, "low": 1.9, "high": 2.1, "over_plain": 1.1, "confidence": 0.95}
    assert recipe.made_on["device"] == "a chip"
    assert (recipe.workload, recipe.mode, recipe.numerics) == ("x", "infer", "exact")


def test_a_recipe_leaves_other_shapes_to_the_original_until_it_is_verified_on_them(made: State) -> None:
    def taken(elements: int) -> bool:
        return Recipe.read(made.run.directory / "recipe.toml").plan.original.takes(elements)

    for status in ("provisional", "verified"):
        offer(made, answer(status, 1.5))
        assert [taken(elements) for elements in (999, 1000, 1001)] == [True, False, True]
    made.verified_on_all_shapes.add(made.answer.kept)
    write_result(made)
    assert [taken(elements) for elements in (1, 1000, 9000)] == [False, False, False]


def test_what_is_offered_again_is_written_and_told_once(made: State) -> None:
    told: list[Any] = []
    made.say = told.append  # type: ignore[assignment]
    offer(made, answer("verified", 1.5))
    assert offer(made, replace(answer("verified", 1.5), over_plain=Figure(value=1.1)))
    assert len(told) == len(made.history) == 1
    written = made.run.result()
    assert written
    assert written.over_plain == Figure(value=1.1)


def test_a_recipe_of_a_workload_with_one_shape_is_for_that_one_whatever_its_status(made: State) -> None:
    made.facts.one_shape = "on another number of rows it raised ValueError"
    offer(made, answer("confirmed", 1.5))
    original = Recipe.read(made.run.directory / "recipe.toml").plan.original
    assert [original.takes(elements) for elements in (999, 1000, 1001)] == [True, False, True]


def test_inputs_on_which_it_was_seen_to_lose_are_left_to_the_original(made: State) -> None:
    offer(made, answer("confirmed", 1.5, original={"elements_at_most": 20}))
    original = Recipe.read(made.run.directory / "recipe.toml").plan.original
    assert [original.takes(elements) for elements in (20, 21, 9000)] == [True, False, False]


# In another sitting


def test_an_earlier_sittings_answer_is_gone_on_with(made: State) -> None:
    offer(made, answer("provisional", 1.2, "capture"))
    interval = Figure(value=2.0, low=1.9, high=2.1)
    last = Answer(
        ("compile",), "confirmed", interval, Figure(value=1.1), 0.95,
        times={"baseline": Figure(value=2e6), "best": Figure(value=1e6)}, memory={"baseline": {"resident": 2}},
        shapes=[Shape(shape="float32 2 x 5", elements=10, answer="slower", speedup=None)], original={"elements_at_most": 10},
        restarts=[{"best": [1.0]}], first_run_seconds={"baseline": 1.0, "best": 9.0},
    )  # fmt: skip
    offer(made, last)
    before = on_disk(made)
    again = on_another_day(made)
    assert again.answer == last
    write_result(again)
    after = on_disk(again)
    assert {**after, "seconds": 0} == {**before, "seconds": 0}


def test_what_was_taken_back_and_the_history_outlive_a_sitting(made: State) -> None:
    offer(made, answer("provisional", 1.5))
    take_back(made, ["compile"], "it is wrong")
    again = on_another_day(made)
    assert again.answer is None
    assert offer(again, answer("provisional", 1.2, "capture"))
    result = on_disk(again)
    assert [step["kept"] for step in result["history"]] == [["compile"], ["capture"]]
    assert [taken["why"] for taken in result["taken_back"]] == ["it is wrong"]


def test_a_provisional_recipe_is_for_the_measured_shape_alone_in_the_next_sitting_too(made: State) -> None:
    offer(made, answer("provisional", 1.5))
    again = on_another_day(made)
    write_result(again)
    assert Recipe.read(made.run.directory / "recipe.toml").plan.original.takes(1001)


def test_a_climb_that_was_never_answered_goes_on_without_one(made: State) -> None:
    assert on_another_day(made).answer is None
    write_result(made)
    assert on_another_day(made).answer is None


# What is kept is the answer


@pytest.mark.parametrize(
    ("before", "speedup", "total"),
    [
        ("provisional", 1.06, 1.055),  # a rung that spares memory at a slightly slower step
        ("verified", 1.084, 1.075),
        ("provisional", 1.07, 1.06),  # the first was never verified: only CPU time spoke for it
    ],
)
def test_what_an_attempt_kept_is_the_answer_however_little_it_gives_in_all(
    made: State, monkeypatch: pytest.MonkeyPatch, before: Status, speedup: float, total: float
) -> None:
    monkeypatch.setattr(State, "gain_over_baseline", lambda self: total)
    offer(made, answer(before, speedup))
    figure = {"value": 1e7, "low": 1e7, "high": 1e7}
    record = attempt(
        number=2, rung="recompute", stack=["compile", "recompute"], verdict="kept", log="x", verification=PASSED,
        comparison=compared("undecided", total), times={"best": figure, "candidate": figure},
        memory={"best": {"allocated": 100}, "candidate": {"allocated": 60}}, first_run_seconds={"best": 1.0, "candidate": 1.0},
    )  # fmt: skip
    record_verdict(made, record, Profile())
    assert made.kept == ["compile", "recompute"]
    assert on_disk(made)["kept"] == made.kept
    assert _unconfirmed(made) == "the recipe is not confirmed by fresh restarts"
    take_back(made, made.kept, "fresh restarts did not show it")  # then it is the one before, where that was verified
    assert (made.answer is not None) == (before == "verified")


def test_what_a_verified_recipe_lacks_is_its_confirmation(made: State) -> None:
    offer(made, answer("provisional", 1.07))
    assert _unconfirmed(made) == "the recipe is not verified"
    offer(made, answer("verified", 1.2))
    assert _unconfirmed(made) == "the recipe is not confirmed by fresh restarts"
