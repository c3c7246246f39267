"""What a climb would begin with, by the code that it decides with, and what it says at its end."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from made_up import MANIFEST, STEP, know, leave, rung, state

from rung.ladder.climb.answer import Answer
from rung.ladder.climb.bundles import NAME
from rung.ladder.climb.climb import Climb
from rung.ladder.climb.schedule import LATE, next_rung, trial_seconds
from rung.ladder.climb.state import State
from rung.recipes.recipe import Status
from rung.records.analyze import Breakdown
from rung.records.climb import Shape, Stopped
from rung.records.measured import Figure
from rung.records.progress import Event, Planned, Warned
from rung.rungs import BY_NAME, Rung

RUNGS = [BY_NAME[name] for name in ("compile", "sdpa", "fused-optimizer", "fused-qkv", "tf32")]


def climbing(tmp_path: Path) -> State:
    made = state(tmp_path)
    know(made, mode="train", matches={"sdpa": 8, "fused-qkv": 8}, skipped=[], graph_breaks=[], optimizer_is_fused=False)  # fmt: skip
    made.breakdown = Breakdown(parts=dict.fromkeys(("gemm", "pointwise", "attention", "optimizer"), 0.25 * STEP))
    return made


def one_by_one(made: State, rungs: Sequence[Rung]) -> float:
    """Seconds to decide all that apply, one at a time."""
    return sum(trial_seconds(made, r) for r in rungs if r.applies(made.context()) is None)


def told(event: Event) -> str:
    return f"Planned {event.attempt.rung}" if isinstance(event, Planned) else type(event).__name__


def plan(made: State, rungs: Sequence[Rung] = RUNGS) -> tuple[list[dict[str, Any]], Rung, list[str]]:
    """The records of plan.json, what a climb would try first, and what was said."""
    said: list[str] = []
    climb = Climb(made.run, made.request, lambda event: said.append(told(event)))
    made.say = climb.say
    climb.state = made
    first = next_rung(made, rungs)
    climb._write_plan(rungs)
    assert isinstance(first, Rung)
    return made.run.read("plan.json")["rungs"], first, said


def test_what_the_budget_has_tried_at_once_is_planned_as_one(tmp_path: Path) -> None:
    made = climbing(tmp_path)
    records, first, said = plan(leave(made, 0.9 * one_by_one(made, RUNGS)))
    assert [m.name for m in first.members] == records[0]["members"]
    assert len(records[0]["members"]) > 1
    assert [r["rung"] for r in records] == [NAME, "tf32"]
    assert said == ["Inapplicable", f"Planned {NAME}"]


def test_what_a_climb_begins_with_is_planned_first_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is time for the quick one alone; the others would compete as one."""
    rungs = [rung("quick", 0.05), rung("core", 0.9, core=True, prepares=20), rung("c", 0.85, prepares=20)]
    for one in rungs:
        monkeypatch.setitem(BY_NAME, one.name, one)
    made = climbing(tmp_path)
    records, first, _ = plan(leave(made, 1.05 * trial_seconds(made, rungs[0]) / LATE), rungs)
    assert first is rungs[0]
    assert records[0]["rung"] == "quick"
    assert sorted(name for r in records for name in r.get("members", [r["rung"]])) == ["c", "core", "quick"]


@pytest.mark.parametrize("times", [None, 1.5])
def test_where_the_budget_decides_them_all_they_are_planned_one_by_one(tmp_path: Path, times: float | None) -> None:
    made = climbing(tmp_path)
    if times:
        leave(made, times * one_by_one(made, RUNGS))
    records, first, said = plan(made)
    assert records[0]["rung"] == first.name
    assert {r["rung"] for r in records} == {r.name for r in RUNGS}
    assert said[1:] == [f"Planned {r['rung']}" for r in records if not r["verdict"]]


def test_a_plan_of_a_budget_for_nothing_says_why(tmp_path: Path) -> None:
    made = leave(climbing(tmp_path), 1.0)
    warned: list[str] = []
    climb = Climb(made.run, made.request, lambda event: warned.append(event.text if isinstance(event, Warned) else ""))
    made.say = climb.say
    climb.state = made
    climb._write_plan(RUNGS)
    assert any(text.startswith("a climb would try no rung: the budget of 1 s was too short") for text in warned)


@pytest.mark.parametrize(
    ("status", "kept", "shape", "why"),
    [
        ("provisional", [], "", "the recipe is not verified"),
        ("provisional", ["sdpa"], "", "the recipe is not confirmed by fresh restarts"),  # verified, with a small gain
        ("verified", ["sdpa"], "", "the recipe is not confirmed by fresh restarts"),
        ("verified", ["sdpa"], "unknown", "the recipe is not confirmed on all input shapes"),
        ("confirmed", ["sdpa"], "faster", ""),
    ],
)
def test_a_climb_that_has_tried_all_says_what_its_recipe_lacks(
    tmp_path: Path, status: Status, kept: list[str], shape: str, why: str
) -> None:
    made = climbing(tmp_path)
    made.run.write("manifest.json", MANIFEST)
    climb = Climb(made.run, made.request, lambda event: None)
    climb.state, made.kept = made, kept
    shapes = [Shape(shape="(1, 2)", elements=2, answer=shape, speedup=None)] if shape else []
    made.answer = Answer(("sdpa",), status, Figure(value=1.5), shapes=shapes)
    climb._finish(Stopped(rule="tried", why="every requested rung was tried or does not apply.", left={}))
    manifest = made.run.read("manifest.json")
    assert (manifest["status"], manifest["why"]) == ("complete", why)
