"""A dry run: what a climb with this budget would begin with, by the code that the climb itself decides with."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from made_up import STEP, rung, state

from rung.ladder.climb.choice import next_rung
from rung.ladder.climb.climb import Climb
from rung.ladder.rungs import BY_NAME, Rung

RUNGS = [BY_NAME[name] for name in ("compile", "sdpa", "fused-optimizer", "fused-qkv", "tf32")]


def plan(
    tmp_path: Path, budget: float | None, rungs: Sequence[Rung] = RUNGS
) -> tuple[list[dict[str, Any]], Rung, list[str]]:
    """The records of plan.json, what a climb would try first, and what was said."""
    made, said = state(tmp_path, budget=budget), []
    made.facts |= {
        "mode": "train", "matches": {"sdpa": 8, "fused-qkv": 8}, "skipped": [], "graph_breaks": [], "optimizer_is_fused": False,
    }  # fmt: skip
    made.breakdown = {"parts": dict.fromkeys(("gemm", "pointwise", "attention", "optimizer"), 0.25 * STEP)}
    climb = Climb(made.run, made.request, lambda event, data: said.append(f"{event} {data.get('rung', '')}".strip()))
    made.say = climb.say
    climb.state = made
    first = next_rung(made, rungs)
    climb._planned(rungs)
    assert isinstance(first, Rung)
    return made.run.read("plan.json")["rungs"], first, said


def test_what_the_budget_has_tried_at_once_is_planned_as_one(tmp_path: Path) -> None:
    records, first, said = plan(tmp_path, 250)
    assert [m.name for m in first.members] == records[0]["members"]
    assert len(records[0]["members"]) > 1
    assert [r["rung"] for r in records] == ["together", "tf32"]
    assert said == ["inapplicable", "plan together"]


@pytest.mark.parametrize("budget", [60, 340])
def test_what_a_climb_begins_with_is_planned_first_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: float
) -> None:
    """It gives much and is quickly decided; the others may compete as one."""
    rungs = [rung("quick", 0.05), rung("core", 0.9, core=True, prepares=20), rung("c", 0.85, prepares=20)]
    for made in rungs:
        monkeypatch.setitem(BY_NAME, made.name, made)
    records, first, _ = plan(tmp_path, budget, rungs)
    assert first is rungs[0]
    assert records[0]["rung"] == "quick"
    assert sorted(name for r in records for name in r.get("members", [r["rung"]])) == ["c", "core", "quick"]


@pytest.mark.parametrize("budget", [None, 5000])
def test_where_the_budget_decides_them_all_they_are_planned_one_by_one(tmp_path: Path, budget: float | None) -> None:
    records, first, said = plan(tmp_path, budget)
    assert records[0]["rung"] == first.name
    assert {r["rung"] for r in records} == {r.name for r in RUNGS}
    assert said[1:] == [f"plan {r['rung']}" for r in records if not r["verdict"]]
