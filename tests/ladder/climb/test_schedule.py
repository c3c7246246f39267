"""Which candidate is next, and when the climb ends: the rules of `rung.ladder.climb.schedule`, in their order."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from attempt_records import mode
from made_up import GIB, PASSED, STEP, leave, on_a_gpu, rung, state, tried
from msgspec.structs import replace as with_fields

from rung.ladder.climb import schedule
from rung.ladder.climb import state as states
from rung.ladder.climb.answer import Answer
from rung.ladder.climb.bundles import NAME
from rung.ladder.climb.schedule import (
    LATE,
    NEAR,
    SEARCH,
    confirmation_seconds,
    deserves_retry,
    finished_attempts,
    gain_per_second,
    next_bundle,
    next_rung,
    parallel_groups,
    planned_looks,
    trial_budget,
    trial_seconds,
    unreported,
)
from rung.ladder.climb.state import State
from rung.ladder.climb.unfinished import Unfinished
from rung.measure import CLIMB, PATIENT
from rung.records.climb import Moment, Plain, Stopped, TakenBack
from rung.records.measured import Figure
from rung.rungs import BY_NAME, Rung
from rung.timing.ab_run import ABRun

THREE = [rung("a", 0.9), rung("b", 0.5), rung("c", 0.8)]
Cores = Callable[[int], None]


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> Cores:
    """Sets how many cores there are."""

    def there_are(count: int) -> None:
        for module in (schedule, states):
            monkeypatch.setattr(module, "usable_cores", lambda: count)

    return there_are


def members(found: Rung | Stopped | None) -> list[str]:
    return [member.name for member in found.members] if isinstance(found, Rung) else []


def one_by_one(made: State, rungs: Sequence[Rung]) -> float:
    """Seconds to decide them all, one at a time."""
    return sum(trial_seconds(made, r) for r in rungs)


def stopped(made: State, rungs: Sequence[Rung]) -> Stopped:
    said = next_rung(made, rungs)
    assert isinstance(said, Stopped)
    return said


# 1. Rungs that the user named


def test_rungs_that_were_named_are_tried_in_that_order(tmp_path: Path) -> None:
    made = state(tmp_path, named=True)
    little, much, never = rung("little", 0.99), rung("much", 0.4), rung("never", 0.4, no="not here")
    assert next_rung(made, [little, never, much]) is little
    tried(made, "little", "reverted", verification=PASSED)
    assert next_rung(made, [little, never, much]) is never  # it says why, in its turn
    tried(made, "never", "inapplicable")
    assert next_rung(made, [little, never, much]) is much
    tried(made, "much", "kept")
    assert stopped(made, [little, never, much]).rule == "tried"


def test_rungs_that_were_named_are_tried_one_at_a_time_however_short_the_budget_is(tmp_path: Path) -> None:
    made = state(tmp_path, named=True)
    leave(made, 0.5 * one_by_one(made, THREE))
    assert next_bundle(made, THREE) is None
    assert next_rung(made, THREE) is THREE[0]
    assert stopped(leave(made, 0.0), THREE).rule == "budget"


# 2. What is worth a try


def test_what_cannot_give_half_a_percent_is_left_out_but_not_the_core(tmp_path: Path) -> None:
    made = state(tmp_path)
    tiny, core = rung("tiny", 0.995), rung("core", 1.0, core=True)
    assert next_rung(made, [tiny, core]) is core
    tried(made, "core", "inconclusive")
    said = stopped(made, [tiny, core])
    assert said.rule == "rest"
    assert list(said.left or ()) == ["tiny"]
    assert isinstance(next_rung(made, [rung("enough", 0.98)]), Rung)


@pytest.mark.parametrize("improves", ["memory", "first run", "graphs"])
def test_what_saves_memory_or_compile_time_is_tried_though_it_makes_no_step_faster(
    tmp_path: Path, improves: str
) -> None:
    sparing = replace(rung("sparing", 1.0), improves=improves)
    assert next_rung(state(tmp_path), [sparing]) is sparing


def test_what_does_not_apply_says_so_once_at_the_end(tmp_path: Path) -> None:
    made = state(tmp_path)
    never = rung("never", 0.4, no="not here")
    assert isinstance(next_rung(made, [never]), Stopped)
    assert unreported(made, [never]) == [never]
    tried(made, "never", "inapplicable")
    assert unreported(made, [never]) == []


# 3. Near the roofline bound


def test_near_the_floor_only_the_core_is_still_tried(tmp_path: Path) -> None:
    near = state(tmp_path / "a", floor=STEP / 1e9 / (NEAR - 0.05))
    large, core = rung("large", 0.2), rung("core", 1.0, core=True)
    assert next_rung(near, [large, core]) is core
    tried(near, "core", "reverted")
    assert stopped(near, [large, core]).rule == "floor"
    far = state(tmp_path / "b", floor=STEP / 1e9 / (NEAR + 0.05))
    assert next_rung(far, [large, core]) is large


# 4. Bundles


def test_several_are_tried_as_one_where_the_budget_is_too_short_for_one_at_a_time(tmp_path: Path) -> None:
    made = state(tmp_path)
    assert next_bundle(made, THREE) is None  # without a budget
    assert next_rung(made, THREE) is THREE[1]
    each = one_by_one(made, THREE)
    assert next_bundle(leave(made, each), THREE) is None
    assert next_rung(made, THREE) is THREE[1]
    assert sorted(members(next_bundle(leave(made, 0.99 * each), THREE))) == ["a", "b", "c"]
    said = next_rung(made, THREE)
    assert members(said) == ["b", "c", "a"]  # the most promising first
    assert isinstance(said, Rung)
    assert said.predict(made.context()).middle == pytest.approx(1 / (0.5 + 0.5 * 0.9 * 0.5 * 0.8))
    assert trial_seconds(made, said) < one_by_one(made, THREE)


def test_what_confirming_takes_is_not_there_for_one_at_a_time(tmp_path: Path) -> None:
    made = state(tmp_path)
    made.kept = ["compile"]
    each = one_by_one(leave(made, 1.0), THREE)
    assert confirmation_seconds(made) > 1
    assert next_bundle(leave(made, each + confirmation_seconds(made)), THREE) is None
    assert members(next_bundle(leave(made, each + 0.9 * confirmation_seconds(made)), THREE)) == ["b", "c", "a"]


def test_a_bundle_is_tried_once_for_each_best(tmp_path: Path) -> None:
    made = state(tmp_path)
    leave(made, 0.9 * one_by_one(made, THREE))
    tried(made, NAME, "kept")
    assert next_bundle(made, THREE) is None
    made.kept = ["compile"]
    leave(made, 0.9 * one_by_one(made, THREE) + confirmation_seconds(made))
    assert members(next_bundle(made, THREE)) == ["b", "c", "a"]


def test_after_a_bundle_that_was_not_kept_its_members_are_tried_one_at_a_time(tmp_path: Path) -> None:
    made = state(tmp_path)
    leave(made, 0.9 * one_by_one(made, THREE))
    tried(made, NAME, "reverted")
    assert next_rung(made, THREE) is THREE[1]
    made.kept = ["compile"]  # nor against another best
    assert next_bundle(leave(made, 0.9 * one_by_one(made, THREE)), THREE) is None


def test_what_can_only_be_tried_alone_makes_no_bundle(tmp_path: Path) -> None:
    made = state(tmp_path)
    two = [rung("alone", 0.2, alone=True), rung("b", 0.5)]
    leave(made, 0.9 * one_by_one(made, two))
    assert next_bundle(made, two) is None
    assert next_rung(made, two) is max(two, key=lambda r: gain_per_second(made, r))


def test_where_the_bundle_would_take_too_long_one_that_fits_is_tried(tmp_path: Path) -> None:
    quick, two = rung("quick", 0.9), [rung("b", 0.5, prepares=60), rung("c", 0.5, prepares=60)]
    made = state(tmp_path)
    leave(made, 1.1 * trial_seconds(made, quick) / LATE)
    assert members(next_bundle(made, [quick, *two])) == ["b", "c", "quick"]
    assert next_rung(made, [quick, *two]) is quick


# 5. The order


def test_the_best_gain_per_second_comes_first(tmp_path: Path) -> None:
    made = state(tmp_path)
    little, much, slow = rung("little", 0.9), rung("much", 0.4), rung("slow", 0.3, prepares=2000)
    assert next_rung(made, [little, slow, much]) is much
    tried(made, "much", "kept")
    assert next_rung(made, [little, slow, much]) is little
    tried(made, "little", "reverted")
    assert next_rung(made, [little, slow, much]) is slow


def test_a_gain_counts_by_its_logarithm_over_the_seconds_that_deciding_it_takes(tmp_path: Path) -> None:
    made, half = state(tmp_path), rung("half", 0.5, prepares=20)
    expected = half.predict(made.context()).middle
    assert gain_per_second(made, half) == pytest.approx(math.log(expected) / trial_seconds(made, half))


def test_a_search_that_later_candidates_repeat_comes_after_them(tmp_path: Path) -> None:
    made, search = state(tmp_path), rung("search", 0.5, prepares=SEARCH)
    others = [rung(name, 0.9) for name in "abc"]
    assert gain_per_second(made, search) > gain_per_second(made, others[0])
    assert next_rung(made, [search, *others]) is others[0]
    assert next_rung(made, [search, *others[:1]]) is search  # which takes longer then, alone
    assert next_rung(made, [replace(search, always_tried=True), *others]).name == "search"


# 6. The end of the budget


def test_a_candidate_is_begun_only_if_it_should_end_in_time(tmp_path: Path) -> None:
    made, one = state(tmp_path), rung("one", 0.5)
    needs = trial_seconds(made, one)
    assert next_rung(leave(made, 1.01 * needs / LATE), [one]) is one
    said = stopped(leave(made, 0.99 * needs / LATE), [one])
    assert said.rule == "budget"
    assert said.why.endswith(f"one alone needs about {needs:.0f} s")


def test_confirming_the_answer_is_not_given_up_for_a_better_one(tmp_path: Path) -> None:
    made, one = state(tmp_path), rung("one", 0.5)
    leave(made, 1.01 * trial_seconds(made, one) / LATE)
    assert trial_budget(made) == made.left()
    assert next_rung(made, [one]) is one
    made.kept = ["compile"]
    assert confirmation_seconds(made) > 1
    assert trial_budget(made) == pytest.approx(made.left() - confirmation_seconds(made))
    assert stopped(made, [one]).rule == "budget"
    enough = made.left() + confirmation_seconds(made)
    assert next_rung(leave(made, enough), [one]) is one


def test_a_plain_mode_is_not_confirmed_at_the_cost_of_a_candidate_that_fits(tmp_path: Path) -> None:
    made, one = state(tmp_path), rung("one", 0.5)
    made.kept, made.plain = ["compile"], Plain(rungs=["compile"], step_ns=STEP)
    needs = trial_seconds(made, one)
    leave(made, 1.01 * needs)
    assert (confirmation_seconds(made), trial_budget(made)) == (0, made.left())
    assert next_rung(made, [one]) is one
    assert (
        stopped(leave(made, 0.99 * needs), [one]).rule == "budget"
    )  # what is late would leave it unconfirmed for nothing
    made.plain.rungs = ["capture"]
    assert confirmation_seconds(made) > 0
    assert stopped(leave(made, 1.01 * needs), [one]).rule == "budget"


def test_confirming_takes_longer_where_the_best_plain_mode_is_another_side(tmp_path: Path) -> None:
    made = leave(state(tmp_path), 100)
    made.baseline.time = Figure(value=1e9)  # of a short step, a restart has more rounds
    made.kept = ["compile", "sdpa"]
    two_sides = confirmation_seconds(made)
    made.plain = Plain(rungs=["compile"], step_ns=STEP)
    assert confirmation_seconds(made) > two_sides > 0
    made.kept = []  # there is nothing to confirm
    assert confirmation_seconds(made) == 0
    made.kept, made.request = ["compile"], replace(made.request, budget=None)
    assert confirmation_seconds(made) == 0


def test_what_is_quickly_prepared_is_begun_where_the_rest_does_not_fit(tmp_path: Path) -> None:
    made = state(tmp_path)
    large, core = rung("large", 0.2, alone=True, prepares=60), rung("core", 0.95, core=True)
    assert next_rung(leave(made, one_by_one(made, [large, core])), [large, core]) is large
    assert next_rung(leave(made, 1.01 * trial_seconds(made, core) / LATE), [large, core]) is core
    said = stopped(leave(made, 0.5 * trial_seconds(made, core) / LATE), [large, core])
    assert said.rule == "budget"
    assert set(said.left or ()) == {"large", "core"}
    assert "too short to test large (up to 1.67×), core (up to 1.03×); " in said.why
    assert re.search(r"(large|core) alone needs about \d+ s$", said.why)


def test_what_a_budget_left_undecided_is_told_by_what_it_could_give(tmp_path: Path) -> None:
    rungs = [rung(f"rung{k}", 1 - 0.1 * k) for k in range(1, 6)]
    said = stopped(leave(state(tmp_path), 1.0), rungs)
    assert "test rung5 (up to 1.33×), rung4 (up to 1.25×), rung3 (up to 1.18×) and 2 more; rung" in said.why


def test_a_small_gain_that_was_verified_lacks_its_confirmation_at_the_end(tmp_path: Path) -> None:
    made = leave(state(tmp_path), 1.0)
    made.answer = Answer(("compile",), "provisional", Figure(value=1.06))
    assert stopped(made, [rung("a", 0.5)]).why.endswith("ended before the recipe was verified")
    tried(made, "plain", "kept", stack=["compile"])
    assert stopped(made, [rung("a", 0.5)]).why.endswith("ended before fresh restarts confirmed the recipe")


# 7. Once more


def test_a_precision_at_which_a_plain_mode_was_slower_is_not_tried_again(tmp_path: Path) -> None:
    made = state(tmp_path)
    timed = [{"rungs": ["bf16", "compile"], "speedup": 0.6}, {"rungs": ["tf32", "compile"], "speedup": 1.8}]
    tried(made, "plain", "kept", stack=["tf32", "compile"], modes=timed)
    assert finished_attempts(made, BY_NAME["bf16"])
    assert not finished_attempts(made, BY_NAME["tf32"])
    assert not finished_attempts(made, BY_NAME["sdpa"])


def test_a_precision_at_which_no_plain_mode_ran_is_not_tried_again(tmp_path: Path) -> None:
    made = state(tmp_path)
    modes = [
        {"rungs": ["bf16", "compile"], "error": "it raised", "failed": True},
        {"rungs": ["compile"], "speedup": 1.8},
    ]
    tried(made, "plain", "kept", stack=["compile"], modes=modes)
    assert finished_attempts(made, BY_NAME["bf16"])
    assert not finished_attempts(made, BY_NAME["tf32"])
    del modes[0]["failed"]  # it lacked memory
    made.attempts.clear()
    tried(made, "plain", "kept", stack=["compile"], modes=modes)
    assert not finished_attempts(made, BY_NAME["bf16"])


def test_nor_is_it_while_the_plain_modes_are_still_timed(tmp_path: Path) -> None:
    made = state(tmp_path)
    timed = {"a": mode("bf16", "compile", speedup=0.6), "b": mode("tf32", "compile", speedup=1.8)}
    made.unfinished["plain"] = Unfinished("b", ["tf32", "compile"], "baseline", modes=timed)
    assert finished_attempts(made, BY_NAME["bf16"])
    assert not deserves_retry(made, BY_NAME["bf16"])
    assert not finished_attempts(made, BY_NAME["sdpa"])


def test_a_plain_mode_that_adds_a_rung_to_the_best_is_a_try_of_it(tmp_path: Path) -> None:
    made = state(tmp_path)
    timed = [
        mode("tf32", "capture", speedup=1.0),
        mode("tf32", "compile", speedup=1.8),
        mode("tf32", "compile", "capture", speedup=1.7),
    ]
    tried(made, "plain", "kept", stack=["tf32", "compile"], modes=timed)
    assert [bool(finished_attempts(made, BY_NAME[name])) for name in ("capture", "compile", "sdpa")] == [
        True,
        False,
        False,
    ]
    made.kept = ["tf32", "compile"]
    assert [bool(finished_attempts(made, BY_NAME[name])) for name in ("capture", "sdpa")] == [True, False]
    made.kept = ["tf32", "compile", "sdpa"]
    assert not finished_attempts(made, BY_NAME["capture"])
    made.attempts[0].modes = [*timed, mode("tf32", speedup=1.9)]
    made.kept = ["tf32"]
    assert finished_attempts(made, BY_NAME["compile"])


def test_compiling_that_gave_nothing_gives_nothing_beside_a_fused_optimizer(tmp_path: Path) -> None:
    made = state(tmp_path)
    tried(made, "plain", "inconclusive", stack=[], modes=[mode("fused-optimizer", "compile", speedup=1.0)])
    made.kept = ["fused-optimizer"]
    assert finished_attempts(made, BY_NAME["compile"])
    made.attempts[0].modes = [mode("fused-optimizer", "compile", speedup=1.2)]
    assert not finished_attempts(made, BY_NAME["compile"])


def test_what_raised_in_the_plain_modes_is_not_tried_again(tmp_path: Path) -> None:
    made = state(tmp_path)
    raised = [
        mode("bf16", "capture", speedup=1.9),
        mode("bf16", "compile", "capture", failed=True),
        mode("bf16", "compile", failed=True),
    ]
    tried(made, "plain", "kept", stack=["bf16", "capture"], modes=raised)
    assert finished_attempts(made, BY_NAME["compile"]), "nothing is kept yet"
    made.kept = ["bf16", "capture"]
    assert finished_attempts(made, BY_NAME["compile"])
    made.kept = ["bf16", "capture", "sdpa"]
    assert finished_attempts(made, BY_NAME["compile"]), "a rewrite changes nothing of that"
    assert not finished_attempts(made, BY_NAME["channels-last"])
    made.attempts[0].modes = [*raised, mode("tf32", "compile", "capture", speedup=1.5)]
    assert not finished_attempts(made, BY_NAME["compile"]), "in another precision it runs"
    made.attempts[0].modes = [mode("compile", "capture", error="it was not ready in time")]
    assert not finished_attempts(made, BY_NAME["compile"])


@pytest.mark.parametrize(("speedup", "together"), [(0.4, True), (0.95, False)])
def test_what_compiling_made_much_slower_is_compiled_once_more_with_all_rewrites(
    tmp_path: Path, speedup: float, together: bool
) -> None:
    made, core, rewrite = leave(state(tmp_path), 1e6), replace(rung("compile", 0.8), always_tried=True), rung("a", 0.9)
    modes = [{"rungs": ["compile"], "speedup": speedup, "prepared_seconds": 10.0}]
    tried(made, "plain", "inconclusive", stack=[], modes=modes)
    found = next_rung(made, [core, rewrite])
    assert members(found) == (["a", "compile"] if together else [])
    if together:
        tried(made, NAME, "reverted")
        found = next_rung(made, [core, rewrite])
    assert found is rewrite


def test_what_gave_nothing_is_tried_once_more_when_the_best_has_changed(tmp_path: Path) -> None:
    made = state(tmp_path)
    a = rung("a", 0.5)
    tried(made, "a", "inconclusive")
    assert isinstance(next_rung(made, [a]), Stopped)
    made.kept = ["compile"]
    assert next_rung(made, [a]) is a
    tried(made, "a", "inconclusive", "compile")
    made.kept = ["compile", "capture"]
    assert isinstance(next_rung(made, [a]), Stopped)


@pytest.mark.parametrize(
    ("verdict", "more", "again"),
    [
        ("inconclusive", {}, True),
        ("reverted", {}, True),  # it was slower
        ("reverted", {"verification": {**PASSED, "passed": False}}, False),  # it was wrong
        ("failed", {}, False),
        ("kept", {}, False),
    ],
)
def test_what_was_wrong_or_failed_is_not_tried_again(
    tmp_path: Path, verdict: str, more: dict[str, Any], again: bool
) -> None:
    made = state(tmp_path)
    tried(made, "a", verdict, **more)
    made.kept = ["compile"]
    assert deserves_retry(made, rung("a", 0.5)) is again


# 8. What the budget cut short


@pytest.mark.parametrize("named", [False, True])
def test_an_attempt_that_the_budget_cut_is_open_again_once_there_is_more_time(tmp_path: Path, named: bool) -> None:
    """A second throw of the same dice in one sitting would tell no more, and may fall the other way."""
    made = leave(state(tmp_path, named=named), 900)
    a, b = rung("a", 0.5), rung("b", 0.9)
    tried(made, "a", "inconclusive", cut=True)
    assert next_rung(made, [a, b]) is b
    said = stopped(made, [a])
    assert said.rule == "budget"
    assert "too short to test a (up to" in said.why
    made.cut.clear()  # as in another sitting
    assert next_rung(made, [a]) is a


@pytest.mark.parametrize(("speedup", "named"), [(3.0, True), (2.05, False)])
@pytest.mark.parametrize("kept", ["verified", "fastest", "nothing", "verified, and the fastest before"])
def test_a_faster_mode_that_was_not_verified_is_named(tmp_path: Path, speedup: float, named: bool, kept: str) -> None:
    made = state(tmp_path)
    fastest = with_fields(mode("compile", "capture", name="compile-and-graph"), speedup=speedup, title="the whole step")
    made.unfinished["plain"] = Unfinished(
        "compile-and-graph", ["compile", "capture"], "baseline", ABRun(), modes={"compile-and-graph": fastest}
    )
    if kept != "nothing":
        stack = fastest.rungs if kept == "fastest" else ["compile-regions"]
        made.answer = Answer(tuple(stack), "verified", Figure(value=2.0))
    if "before" in kept:
        made.history.append(Moment(status="verified", kept=fastest.rungs, speedup=speedup, seconds=1.0))
    said = stopped(leave(made, 0.0), [rung("a", 0.5)])
    assert (f"ended before a faster recipe was verified: the whole step, {speedup:.3g}×" in said.why) is (
        named and kept == "verified"
    )


def test_a_mode_that_was_verified_hides_no_other_that_was_not(tmp_path: Path) -> None:
    made = state(tmp_path)
    fastest = with_fields(mode("compile", "capture", name="compile-and-graph"), speedup=3.0, title="the whole step")
    second = with_fields(mode("compile", name="default"), speedup=2.9, title="torch.compile")
    modes = {each.name: each for each in (fastest, second)}
    made.unfinished["plain"] = Unfinished("compile-and-graph", fastest.rungs, "baseline", ABRun(), modes=modes)
    made.answer = Answer(("compile-regions",), "verified", Figure(value=2.0))
    made.history.append(Moment(status="verified", kept=fastest.rungs, speedup=3.0, seconds=1.0))
    assert "verified: torch.compile, 2.9×" in stopped(leave(made, 0.0), [rung("a", 0.5)]).why
    made.taken_back.append(TakenBack(kept=fastest.rungs, why="it was slower", seconds=2.0))
    assert "verified: the whole step, 3×" in stopped(leave(made, 0.0), [rung("a", 0.5)]).why


def test_a_bundle_that_the_budget_cut_is_not_begun_again_in_the_same_sitting(tmp_path: Path) -> None:
    made = state(tmp_path)
    leave(made, 0.9 * one_by_one(made, THREE))
    tried(made, NAME, "inconclusive", cut=True)
    assert members(next_rung(made, THREE)) == []


def test_a_bundle_that_the_budget_cut_is_open_again_once_there_is_more_time(tmp_path: Path) -> None:
    made = state(tmp_path)
    leave(made, 0.9 * one_by_one(made, THREE))
    tried(made, NAME, "inconclusive", cut=True)
    made.cut.clear()  # as in another sitting
    assert members(next_rung(made, THREE)) == ["b", "c", "a"]


# 9. Pairs of workers side by side


def test_as_many_pairs_load_side_by_side_as_the_memory_allows_and_three_at_most(tmp_path: Path, cores: Cores) -> None:
    cores(16)
    made = on_a_gpu(state(tmp_path))
    assert parallel_groups(made, [GIB] * 2) == 3
    assert parallel_groups(made, [17 * GIB] * 2) == 2  # with 2 for each context, into 76
    assert parallel_groups(made, [17 * GIB] * 3) == 1
    assert parallel_groups(made, [70 * GIB] * 2) == 1  # then it runs out of memory, and says so


def test_what_workers_in_the_background_hold_is_not_there_for_pairs(tmp_path: Path, cores: Cores) -> None:
    cores(16)
    made = on_a_gpu(state(tmp_path))
    made.pool = SimpleNamespace(held=lambda: 40.0 * GIB)  # type: ignore[assignment]
    assert parallel_groups(made, [13 * GIB] * 2) == 1
    made.pool = SimpleNamespace(held=lambda: 0.0)  # type: ignore[assignment]
    assert parallel_groups(made, [13 * GIB] * 2) == 2


def test_it_is_one_pair_at_a_time_where_cores_are_few_or_the_device_compiles(tmp_path: Path, cores: Cores) -> None:
    made = on_a_gpu(state(tmp_path))
    for count, together in ((1, 1), (4, 1), (8, 2), (64, 3)):
        cores(count)
        assert parallel_groups(made, [GIB] * 2) == together
    made.facts.gpu = False
    assert parallel_groups(made, [GIB] * 2) == 1


def test_what_is_loaded_side_by_side_is_waited_for_once(tmp_path: Path, cores: Cores) -> None:
    made, one = on_a_gpu(state(tmp_path)), rung("one", 0.5)
    cores(16)
    side_by_side = trial_seconds(made, one)
    cores(2)
    assert trial_seconds(made, one) > side_by_side


# What deciding takes


def test_a_small_step_is_guessed_to_be_prepared_soon(tmp_path: Path) -> None:
    """A rung's guess is for a step of 2000 kernels; on a CPU matrix products are counted."""
    made, long, short = state(tmp_path), rung("long", 0.5, prepares=80), rung("short", 0.5)
    assert made.breakdown is not None
    parts = made.breakdown

    def guessed(**seen: float) -> float:
        made.breakdown = with_fields(parts, **seen)
        return trial_seconds(made, long) - trial_seconds(made, short)

    unknown = guessed()
    assert unknown >= 80
    assert guessed(kernels=2000) == guessed(kernels=9000) == pytest.approx(unknown)
    assert 0 < guessed(kernels=10) < guessed(kernels=1000) < unknown
    assert guessed(kernels=0, gemms=200) == guessed(kernels=1000)
    assert guessed(kernels=1) == guessed(kernels=10)


def test_what_compiling_took_here_says_more_than_the_number_of_kernels(tmp_path: Path, cores: Cores) -> None:
    cores(2)
    made, long, short = state(tmp_path), rung("long", 0.5, prepares=80), rung("short", 0.5)

    def guessed() -> float:
        return trial_seconds(made, long) - trial_seconds(made, short)

    before = guessed()
    tried(made, "plain", "inconclusive", modes=[{"rungs": ["compile"], "prepared_seconds": 4.0, "speedup": 1.0}, {"rungs": ["capture"], "prepared_seconds": 90.0, "speedup": 1.0}, {"rungs": ["compile", "max-autotune"], "prepared_seconds": 300.0, "speedup": 1.0}])  # fmt: skip
    assert guessed() == pytest.approx(before * 4.0 / BY_NAME["compile"].prepare_seconds)
    tried(made, "plain", "inconclusive", modes=[{"rungs": ["compile"], "prepared_seconds": 400.0, "speedup": 1.0}])
    assert guessed() == pytest.approx(before)


def test_what_the_best_took_to_prepare_is_what_the_next_takes(tmp_path: Path) -> None:
    one = rung("one", 0.5)
    assert trial_seconds(state(tmp_path / "a", loading=30.0), one) > trial_seconds(
        state(tmp_path / "b", loading=10.0), one
    )
    made = state(tmp_path / "c", loading=10.0)
    guess = trial_seconds(made, one)
    tried(made, "compile", "reverted", prepared_seconds=90.0)
    assert trial_seconds(made, one) == guess
    tried(made, "compile", "kept", prepared_seconds=90.0)
    assert trial_seconds(made, one) >= guess + 80


def test_two_precisions_are_verified_side_by_side_on_a_gpu_alone(tmp_path: Path, cores: Cores) -> None:
    cores(2)
    exact = rung("exact", 0.5)
    loose = replace(exact, change=lambda plan: replace(plan, bf16=True))
    made = state(tmp_path)
    assert trial_seconds(made, loose) > trial_seconds(made, exact)
    on_a_gpu(made)
    assert trial_seconds(made, loose) == trial_seconds(made, exact)


def test_a_longer_step_takes_longer_to_time(tmp_path: Path) -> None:
    made, one = state(tmp_path), rung("one", 0.5)
    short = trial_seconds(made, one)
    made.baseline.time = Figure(value=5e9)
    assert trial_seconds(made, one) > short + 3 * 2 * 5  # three restarts of two sides, at the least


# 10. More restarts where they are cheap


def test_small_gains_get_more_restarts_where_these_are_cheap(tmp_path: Path) -> None:
    cheap = state(tmp_path / "a", loading=2.0)
    assert planned_looks(cheap) == PATIENT
    assert planned_looks(state(tmp_path / "b", loading=40.0)) == CLIMB
    assert planned_looks(leave(cheap, 2000.0)) == PATIENT
    assert planned_looks(leave(cheap, 200.0)) == CLIMB  # they would take most of the budget


def test_a_long_step_makes_restarts_dear(tmp_path: Path) -> None:
    made = state(tmp_path, loading=2.0)
    made.baseline.time = Figure(value=5e9)
    assert planned_looks(made) == CLIMB


def test_confirming_an_earlier_answer_leaves_half_of_the_budget_to_rungs_that_fit(tmp_path: Path) -> None:
    made = state(tmp_path, loading=5.0)
    assert schedule.reserve_for_rungs(made, THREE) == 0.0  # without a budget there is time for all
    needed = min(trial_seconds(made, one) for one in THREE)
    assert schedule.reserve_for_rungs(leave(made, 2.2 * needed), THREE) == pytest.approx(1.1 * needed)
    assert made.reserved == 0.0
    assert schedule.reserve_for_rungs(leave(made, 1.2 * needed), THREE) == 0.0  # none fits into half of it
    assert schedule.reserve_for_rungs(leave(made, -1.0), THREE) == 0.0
    assert schedule.reserve_for_rungs(leave(made, 2.2 * needed), []) == 0.0
