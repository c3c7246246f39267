"""Several rungs as one: when, which of them, and what is kept of it."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from made_up import STEP, rung, state, tried

from rung.ladder.climb import attempt as attempts
from rung.ladder.climb.attempt import opened
from rung.ladder.climb.choice import Stop, next_rung, untold
from rung.ladder.climb.together import NAME, idle, stacked, together
from rung.ladder.plan import Plan
from rung.ladder.rungs import BY_NAME, Context, Evidence, Proof, Rung
from rung.ladder.rungs.rung import Inapplicable

HALF = {"gemm": 50.0, "pointwise": 50.0}


def context() -> Context:
    return Context(Plan(), "exact", {"gpu": False, "mode": "infer"}, HALF, {})


def members(found: Rung | Stop | None) -> list[str]:
    return [member.name for member in found.members] if isinstance(found, Rung) else []


def test_several_are_tried_at_once_where_the_budget_does_not_decide_them_one_by_one(tmp_path: Path) -> None:
    three = [rung("a", 0.9), rung("b", 0.5), rung("c", 0.8)]  # 78 s each, by the guess
    assert members(next_rung(state(tmp_path / "enough", budget=300), three)) == []
    assert members(next_rung(state(tmp_path / "no budget"), three)) == []
    said = next_rung(state(tmp_path / "little", budget=200), three)
    assert members(said) == ["b", "c", "a"]
    assert isinstance(said, Rung)
    told = said.predict(context())
    assert told.value == pytest.approx(1 / (0.5 + 0.5 * 0.9 * 0.5 * 0.8))


def test_what_is_quickly_decided_and_gives_most_is_not_put_off(tmp_path: Path) -> None:
    made = state(tmp_path, budget=100, loading=2.0)  # 30 s a look
    quick, slow, slower = rung("quick", 0.1), rung("slow", 0.9, prepares=60), rung("slower", 0.8, prepares=60)
    assert next_rung(made, [quick, slow, slower]) is quick


def test_who_takes_long_to_prepare_for_little_stays_out() -> None:
    quick, little, long = rung("quick", 0.5), rung("little", 0.99), rung("long", 0.9, prepares=500)
    assert members(together(context(), [], [quick, long, little], lambda prepares: 30 + prepares)) == [
        "quick",
        "little",
    ]


def test_who_needs_another_one_comes_in_with_it_and_who_replaces_one_stays_out() -> None:
    def needs(c: Context) -> Inapplicable | None:
        return None if c.plan.compile else Inapplicable("not compiled")

    after = replace(rung("after", 0.5), applies=needs)
    first = replace(rung("first", 0.9), change=lambda p: replace(p, compile=True))
    instead = replace(rung("instead", 0.2), replaces=("first",))
    variables = replace(rung("variables", 0.2), change=lambda p: replace(p, env=(("A", "1"),)))
    memory = replace(rung("memory", 0.2), spares="memory")
    setting = replace(rung("setting", 0.2), change=lambda p: replace(p, inductor=(("a", 1),)))
    found = together(context(), [], [after, first, instead, variables, memory, setting], lambda prepares: 30.0)
    assert members(found) == ["first", "after"]
    assert found is not None
    assert found.change(Plan()).compile
    assert together(context(), [], [after, memory], lambda prepares: 30.0) is None


def test_it_has_the_loosest_contract_and_the_longest_preparation_of_its_members() -> None:
    loose = replace(rung("loose", 0.5, prepares=20), contract="bf16", level=4)
    found = together(context(), [], [rung("a", 0.5), loose, rung("b", 0.5)], lambda prepares: 30.0)
    assert found is not None
    assert (found.contract, found.prepares, found.level, found.spares) == ("bf16", 20, 4, "step")


def test_members_that_are_not_in_effect_are_named_and_one_that_is_is_enough() -> None:
    found = together(context(), [], [rung("a", 0.5), rung("b", 0.6)], lambda prepares: 30.0)
    assert found is not None
    worker = {"a": True, "b": False}
    assert idle(found, worker) == ["b"]
    proof = found.proof(Evidence(None, None, worker))
    assert proof.shown is True
    assert proof.says == "1 of 2 are, not b"
    assert found.proof(Evidence(None, None, {"a": False, "b": False})).shown is False


def test_who_was_kept_with_others_has_said_so(tmp_path: Path) -> None:
    made = state(tmp_path)
    tried(made, NAME, "kept")
    made.kept = ["compile", "sdpa"]
    assert untold(made, [BY_NAME["compile"], rung("never", 0.4, no="not here")])[0].name == "never"


def test_it_is_tried_no_more_once_it_was_not_kept(tmp_path: Path) -> None:
    three = [rung("a", 0.9), rung("b", 0.5), rung("c", 0.8)]
    made = state(tmp_path / "cut short", budget=200)
    tried(made, NAME, "inconclusive", cut=True)
    assert members(next_rung(made, three)) == ["b", "c", "a"]
    made = state(tmp_path / "spoiled", budget=200)
    tried(made, NAME, "reverted")
    assert members(next_rung(made, three)) == []
    kept = state(tmp_path / "kept", budget=200)
    tried(kept, NAME, "kept")
    kept.kept = ["compile"]
    assert members(next_rung(kept, three)) == ["b", "c", "a"]
    kept.breakdown = {"parts": {"gemm": 0.5 * STEP, "pointwise": 0.5 * STEP}}
    kept.kept = []
    assert members(next_rung(kept, three)) == []


def test_what_is_not_in_effect_leaves_the_stack_before_it_is_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fused optimizer is in effect; there is no attention for SDPA to take."""
    made = state(tmp_path, budget=600)
    both = [BY_NAME["fused-optimizer"], BY_NAME["sdpa"]]
    found = replace(rung(NAME, 0.5), members=tuple(both))
    found = replace(found, proof=lambda e: Proof(True, "1 of 2 are, not sdpa"))
    assert stacked(["compile"], found) == ["compile", "fused-optimizer", "sdpa"]
    assert opened(made, found)["members"] == ["fused-optimizer", "sdpa"]
    speedup = SimpleNamespace(value=2.0, low=1.9, high=2.1)
    sides = {"best": {"value": 2e6}, "candidate": {"value": 1e6}}
    record = {
        "applied": {"optimizer_fused": True, "matches": {"sdpa": 0}}, "times": sides, "memory": {},
        "comparison": {"speedup": {"value": 2.0}}, "hidden": {"best": 0.0, "candidate": 0.0},
        "first_run_seconds": {"best": 1.0, "candidate": 1.0}, "restarts": [{}],
    }  # fmt: skip
    comparison = SimpleNamespace(answer="faster", cut=False, speedup=speedup)
    monkeypatch.setattr(attempts, "_fight", lambda *_: SimpleNamespace(comparison=comparison, as_dict=lambda: record))
    verified: list[list[str]] = []
    monkeypatch.setattr(attempts, "_verified", lambda state, stack, name: verified.append(stack) or {"passed": True})
    attempts.attempt(made, found)
    kept = made.attempts[-1]
    assert kept["verdict"] == "kept"
    assert verified == [["fused-optimizer"]]
    assert made.kept == kept["stack"] == ["fused-optimizer"]
    assert kept["why"] == "fused-optimizer: verified, and faster with confidence."
    assert kept["effect"]["says"] == "1 of 2 are, not sdpa"
    again = state(tmp_path / "again", budget=600)
    again.add(kept)
    attempts.taken_up(again)
    assert again.kept == ["fused-optimizer"]
