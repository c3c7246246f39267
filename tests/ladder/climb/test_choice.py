"""Which rung is next, and when the climb stops: decided from the profile, the pace and the budget alone."""

import re
from pathlib import Path
from typing import Any

import pytest
from made_up import STEP, rung, state, tried

from rung.ladder.climb import predictions
from rung.ladder.climb.choice import NEAR, Stop, next_rung, untold
from rung.ladder.plan import Plan
from rung.ladder.rungs import LADDER
from rung.ladder.rungs.inductor import never


def test_the_best_gain_per_second_comes_first(tmp_path: Path) -> None:
    made = state(tmp_path)
    little, much, slow = rung("little", 0.9), rung("much", 0.4), rung("slow", 0.3, prepares=2000)
    assert next_rung(made, [little, slow, much]) is much
    tried(made, "much", "kept")
    assert next_rung(made, [little, slow, much]) is little
    tried(made, "little", "reverted")
    assert next_rung(made, [little, slow, much]) is slow


def test_what_cannot_give_half_a_percent_is_left_out_but_not_the_core(tmp_path: Path) -> None:
    made = state(tmp_path)
    tiny, core = rung("tiny", 0.995), rung("core", 1.0, core=True)
    assert next_rung(made, [tiny, core]) is core
    tried(made, "core", "inconclusive")
    said = next_rung(made, [tiny, core])
    assert isinstance(said, Stop)
    assert said.rule == "rest"
    assert list(said.left) == ["tiny"]


def test_near_the_floor_only_the_core_is_still_tried(tmp_path: Path) -> None:
    near = state(tmp_path / "a", floor=STEP / 1e9 / (NEAR - 0.05))
    large, core = rung("large", 0.2), rung("core", 1.0, core=True)
    assert next_rung(near, [large, core]) is core
    tried(near, "core", "reverted")
    said = next_rung(near, [large, core])
    assert isinstance(said, Stop)
    assert said.rule == "floor"
    far = state(tmp_path / "b", floor=STEP / 1e9 / (NEAR + 0.05))
    assert next_rung(far, [large, core]) is large


def test_the_budget_is_kept_for_the_core(tmp_path: Path) -> None:
    large, core = rung("large", 0.2, alone=True), rung("core", 0.95, core=True)
    assert next_rung(state(tmp_path / "a", budget=1000), [large, core]) is large
    assert next_rung(state(tmp_path / "b", budget=120), [large, core]) is core
    said = next_rung(state(tmp_path / "c", budget=20), [large, core])
    assert isinstance(said, Stop)
    assert said.rule == "budget"
    assert set(said.left) == {"large", "core"}
    assert "too little time to decide large (up to 1.67×), core (up to 1.03×); " in said.why
    assert re.search(r"(large|core) alone takes some \d+ s$", said.why)


def test_what_a_budget_left_undecided_is_told_by_what_it_could_give(tmp_path: Path) -> None:
    rungs = [rung(f"rung{k}", 1 - 0.1 * k) for k in range(1, 6)]
    said = next_rung(state(tmp_path, budget=20), rungs)
    assert isinstance(said, Stop)
    assert "decide rung5 (up to 1.33×), rung4 (up to 1.25×), rung3 (up to 1.18×) and 2 more; rung" in said.why


def test_what_a_first_restart_takes_is_told_by_the_baseline(tmp_path: Path) -> None:
    short, long = rung("short", 0.9), rung("long", 0.5, prepares=20, alone=True)
    assert next_rung(state(tmp_path / "a", budget=90, loading=6.0), [short, long]) is long
    # A guess alone ends no climb: while there is room for a restart, the one that promises most in its time is begun.
    assert next_rung(state(tmp_path / "b", budget=90, loading=30.0), [short, long]) is long
    assert next_rung(state(tmp_path / "not for both", budget=50, loading=30.0), [short, long]) is short
    said = next_rung(state(tmp_path / "c", budget=30, loading=30.0), [short, long])
    assert isinstance(said, Stop)
    assert said.rule == "budget"


def test_what_gave_nothing_is_tried_once_more_when_the_best_has_changed(tmp_path: Path) -> None:
    made = state(tmp_path)
    a = rung("a", 0.5)
    tried(made, "a", "inconclusive")
    assert isinstance(next_rung(made, [a]), Stop)
    made.kept = ["compile"]
    assert next_rung(made, [a]) is a
    tried(made, "a", "inconclusive", "compile")
    made.kept = ["compile", "capture"]
    assert isinstance(next_rung(made, [a]), Stop)


@pytest.mark.parametrize("named", [False, True])
def test_an_attempt_that_the_budget_cut_is_open_again_once_there_is_more_time(tmp_path: Path, named: bool) -> None:
    """A second throw of the same dice in one sitting would tell no more, and may fall the other way."""
    made = state(tmp_path, named=named, budget=900)
    a, b = rung("a", 0.5), rung("b", 0.9)
    tried(made, "a", "inconclusive", cut=True)
    assert next_rung(made, [a, b]) is b
    said = next_rung(made, [a])
    assert isinstance(said, Stop)
    assert said.rule == "budget"
    assert "too little time to decide a (up to" in said.why
    made.cut.clear()  # as in another sitting
    assert next_rung(made, [a]) is a


def test_rungs_that_were_named_are_tried_in_that_order(tmp_path: Path) -> None:
    made = state(tmp_path, named=True)
    little, much, never = rung("little", 0.99), rung("much", 0.4), rung("never", 0.4, no="not here")
    assert next_rung(made, [little, never, much]) is little
    tried(made, "little", "reverted", verification={})
    assert next_rung(made, [little, never, much]) is never  # it says why, in its turn


def test_what_does_not_apply_says_so_once_at_the_end(tmp_path: Path) -> None:
    made = state(tmp_path)
    never = rung("never", 0.4, no="not here")
    assert isinstance(next_rung(made, [never]), Stop)
    assert untold(made, [never]) == [never]
    tried(made, "never", "inapplicable")
    assert untold(made, [never]) == []


def test_predictions_are_held_against_what_was_measured() -> None:
    def attempt(name: str, low: float, high: float, measured: float, **more: Any) -> dict[str, Any]:
        comparison = {"speedup": {"value": measured}}
        told = {"low": low, "high": high, "shares": {}}
        return {"rung": name, "prediction": told, "comparison": comparison, **more}

    found = predictions.summary(
        [
            attempt("a", 1.0, 1.0, 1.25),  # the step takes 80 % and not 100: 20 points
            attempt("a", 2.0, 2.0, 1.6),  # 62.5 % and not 50: 12.5
            attempt("b", 1.0, 2.0, 4 / 3, forecast="inside"),  # 75 %, the middle of 100 and 50: 0
            attempt("c", 1.0, 9.0, 1.0, cut=True),
            {"rung": "d", "prediction": None, "comparison": None},
        ]
    )
    assert found["median_error"] == pytest.approx(12.5)
    assert (found["decided"], found["inside"]) == (3, 1)
    assert found["by_rung"] == {"a": pytest.approx(16.25), "b": pytest.approx(0)}


def test_names_on_the_ladder_are_unique_and_every_rung_says_how_it_shows() -> None:
    assert len({r.name for r in LADDER}) == len(LADDER)
    for one in LADDER:
        assert one.effect
        assert callable(one.proof)
        assert one.contract in ("exact", "reassociated", "tf32", "bf16", "fp8")
        assert one.change(Plan()) != Plan() or one.replaces or never(one.name)
        assert {*one.replaces} <= {r.name for r in LADDER}
