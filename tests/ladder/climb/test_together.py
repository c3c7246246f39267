"""Several rungs as one: when, which of them, and what is kept of it."""

from dataclasses import replace
from functools import reduce
from pathlib import Path
from types import SimpleNamespace

import pytest
from made_up import STEP, rung, state, tried

from rung.hardware.peaks import named
from rung.ladder.climb import attempt as attempts
from rung.ladder.climb.attempt import opened
from rung.ladder.climb.choice import Stop, next_rung, untold
from rung.ladder.climb.together import NAME, _as_one, idle, stacked, together
from rung.ladder.plan import Plan
from rung.ladder.rungs import BY_NAME, Context, Counters, Evidence, Rung, plan_of
from rung.ladder.rungs.proofs import told
from rung.ladder.rungs.rung import Inapplicable
from rung.ladder.timing.work import rates

HALF = {"gemm": 50.0, "pointwise": 50.0}


def context() -> Context:
    return Context(Plan(), "exact", {"gpu": False, "mode": "infer"}, HALF, {})


def members(found: Rung | Stop | None) -> list[str]:
    return [member.name for member in found.members] if isinstance(found, Rung) else []


def test_several_are_tried_at_once_where_the_budget_does_not_decide_them_one_by_one(tmp_path: Path) -> None:
    three = [rung("a", 0.9), rung("b", 0.5), rung("c", 0.8)]  # 99 s each, by the guess
    assert members(next_rung(state(tmp_path / "enough", budget=300), three)) == []
    assert members(next_rung(state(tmp_path / "no budget"), three)) == []
    said = next_rung(state(tmp_path / "little", budget=200), three)
    assert members(said) == ["b", "c", "a"]
    assert isinstance(said, Rung)
    assert said.predict(context()).value == pytest.approx(1 / (0.5 + 0.5 * 0.9 * 0.5 * 0.8))


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


def test_who_leaves_another_one_nothing_to_do_takes_its_place() -> None:
    """Its casts are dear until the step is compiled: bf16 comes in late, after TF32 and what is for TF32 alone."""
    facts = {
        "gpu": True, "mode": "train", "arch": "sm90", "dtype": "torch.float32", "amp": None, "matmul_precision": "highest",
        "matches": {}, "optimizer_is_fused": True,
    }  # fmt: skip
    parts = {"gemm": 40.0, "pointwise": 30.0, "copy": 30.0}
    at = Context(Plan(), "bf16", facts, parts, rates(named("H100")))
    found = together(at, [], [BY_NAME[n] for n in ("tf32", "compile", "bf16", "k-major-gradients")], lambda _: 30.0)
    assert members(found) == ["compile", "bf16"]
    assert found is not None
    for member in found.members:
        others = [other for other in found.members if other is not member]
        assert member.applies(replace(at, plan=reduce(lambda plan, r: r.change(plan), others, Plan()))) is None


def test_members_that_did_nothing_are_told_by_the_worker_and_by_the_names_of_kernels() -> None:
    names = ("joined-gradients", "k-major-gradients", "sdpa", "triton-rope")
    found = replace(rung(NAME, 0.5), members=tuple(BY_NAME[name] for name in names))
    passes = {f"pass {name}": True for name in names}
    worker = {**passes, "matches": {"sdpa": 0, "triton-rope": 4}}
    before, after = Counters(99, 99, 9), Counters(50, 50, 9, {"rope_rotate": 4.0})
    # Whether there are fewer joins than before, all of them together decide.
    assert idle(found, Evidence(before, after, worker)) == ["k-major-gradients", "sdpa"]
    assert idle(found, Evidence(None, None, worker)) == ["sdpa"]


def test_what_is_more_than_a_pass_and_did_nothing_spoils_the_attempt() -> None:
    made = replace(rung("a", 0.5), proof=told("a", True, "a"))
    found = _as_one(context(), [BY_NAME["compile"], BY_NAME["bf16-stream"], made])
    worker = {"compiled_graphs": 1, "matches": {"bf16-stream": 0}, "a": True}
    assert found.proof(Evidence(None, None, worker)).says == "2 of 3 are, not bf16-stream"
    assert found.proof(Evidence(None, None, worker)).shown is True
    assert found.proof(Evidence(None, None, {**worker, "compiled_graphs": 0})).shown is False
    assert found.proof(Evidence(None, None, {**worker, "a": False})).shown is False


def test_the_core_is_among_them_or_keeps_its_share_of_the_budget(tmp_path: Path) -> None:
    """97 s for the three, 283 s for the core, of which the budget cuts off 186."""
    three, core = [rung("a", 0.9), rung("b", 0.5), rung("c", 0.8)], rung("core", 0.99, core=True, prepares=60)
    assert members(next_rung(state(tmp_path / "for the three", budget=150), [*three, core])) == ["b", "c", "a"]
    for budget in (300, 540):  # for one of both; for both, but the core is tried anyway, and takes longer afterwards
        made = state(tmp_path / str(budget), budget=budget)
        assert members(next_rung(made, [*three, core])) == ["core", "b", "c", "a"]
    seen = state(tmp_path / "as was seen", budget=400)
    tried(seen, "z", "inconclusive", restarts=[1, 2, 3], seconds=99.0)
    assert members(next_rung(seen, [*three, core])) == ["core", "b", "c", "a"]


def test_a_core_that_cannot_be_one_of_several_has_its_share_of_the_budget(tmp_path: Path) -> None:
    """As long as it is guessed, there must be half as much again for it afterwards."""
    three = [rung("a", 0.9), rung("b", 0.5), rung("c", 0.8)]
    core = rung("core", 0.99, core=True, prepares=60, alone=True)
    assert next_rung(state(tmp_path / "for one of both", budget=300), [*three, core]) is core
    assert members(next_rung(state(tmp_path / "for both", budget=540), [*three, core])) == ["b", "c", "a"]
    seen = state(tmp_path / "for both, as was seen", budget=390)
    tried(seen, "z", "inconclusive", restarts=[1, 2, 3], seconds=99.0)
    assert members(next_rung(seen, [*three, core])) == ["b", "c", "a"]


def test_the_core_is_among_two_where_one_alone_is_not_several(tmp_path: Path) -> None:
    one, core = rung("b", 0.5), rung("core", 0.99, core=True, prepares=60)
    assert members(next_rung(state(tmp_path, budget=300), [one, core])) == ["core", "b"]


def test_verification_may_end_after_the_budget_and_timing_may_not(tmp_path: Path) -> None:
    """Of the core's 283 s, 97 are verification."""
    one, core = rung("b", 0.5), rung("core", 0.99, core=True, prepares=60)
    assert members(next_rung(state(tmp_path / "most of it", budget=230), [one, core])) == ["core", "b"]
    assert next_rung(state(tmp_path / "not the timing", budget=180), [one, core]) is one


def test_where_no_guess_fits_what_promises_most_is_begun_several_at_once_among_it(tmp_path: Path) -> None:
    three = [rung("a", 0.9), rung("b", 0.5), rung("c", 0.8)]
    assert members(next_rung(state(tmp_path / "a look", budget=40), three)) == ["b", "c", "a"]
    assert isinstance(next_rung(state(tmp_path / "none", budget=20), three), Stop)


def test_what_a_rung_took_to_prepare_is_not_taken_by_the_next(tmp_path: Path) -> None:
    made = state(tmp_path, budget=1000)
    tried(made, "compile", "kept", restarts=[1, 2, 3], seconds=120.0, pay_back={"seconds": 60.0, "steps": 9})
    assert made.pace == pytest.approx(20.0)
    tried(made, "quick", "kept", restarts=[1, 2, 3], seconds=60.0, pay_back={"seconds": -5.0, "steps": 0})
    assert made.pace == pytest.approx(20.0)


def test_near_the_floor_nothing_comes_in_beside_the_core(tmp_path: Path) -> None:
    core = [rung("one", 0.9, core=True), rung("two", 0.9, core=True)]
    near = state(tmp_path, budget=100, floor=STEP / 1e9)
    assert members(next_rung(near, [*core, rung("much", 0.2)])) == ["one", "two"]


def test_who_did_nothing_is_not_tried_again(tmp_path: Path) -> None:
    three = [rung("a", 0.9), rung("b", 0.5), rung("c", 0.8)]
    made = state(tmp_path, budget=130)
    tried(made, NAME, "kept", without=["a"])
    made.kept = ["compile"]
    assert members(next_rung(made, three)) == ["b", "c"]


def test_who_was_kept_with_others_has_said_so(tmp_path: Path) -> None:
    made = state(tmp_path)
    tried(made, NAME, "kept")
    made.kept = ["compile", "sdpa"]
    assert untold(made, [BY_NAME["compile"], rung("never", 0.4, no="not here")])[0].name == "never"


def test_it_is_tried_no_more_once_it_was_not_kept(tmp_path: Path) -> None:
    three = [rung("a", 0.9), rung("b", 0.5), rung("c", 0.8)]
    made = state(tmp_path / "cut short", budget=200)
    tried(made, NAME, "inconclusive", cut=True)
    assert members(next_rung(made, three)) == []
    made.cut.clear()  # as in another sitting
    assert members(next_rung(made, three)) == ["b", "c", "a"]
    made = state(tmp_path / "spoiled", budget=200)
    tried(made, NAME, "reverted")
    assert members(next_rung(made, three)) == []
    kept = state(tmp_path / "kept", budget=200)
    tried(kept, NAME, "kept")
    kept.kept = ["compile"]
    assert members(next_rung(kept, three)) == ["b", "c", "a"]
    kept.kept = []
    assert members(next_rung(kept, three)) == []


def test_what_was_kept_with_others_is_not_in_the_next_attempt_again(tmp_path: Path) -> None:
    """Nor once the climb is resumed: the stack, the plan and the words have each rung once."""
    rungs = [BY_NAME[name] for name in ("compile", "fused-optimizer", "sdpa", "fused-qkv", "hoisted-constants")]
    made = state(tmp_path, budget=250)
    made.facts |= {
        "mode": "train", "matches": {"sdpa": 8, "fused-qkv": 8, "hoisted-constants": 32}, "skipped": [], "graph_breaks": [],
        "optimizer_is_fused": False,
    }  # fmt: skip
    made.breakdown = {"parts": dict.fromkeys(("gemm", "pointwise", "attention", "optimizer", "launch_gap"), 0.2 * STEP)}
    kept = ["sdpa", "fused-optimizer"]
    tried(made, NAME, "kept", stack=kept)
    attempts.taken_up(made)
    found = next_rung(made, rungs)
    assert isinstance(found, Rung)
    assert members(found) == ["compile", "hoisted-constants", "fused-qkv"]
    # What is kept is in the profile already, and is not predicted once more.
    assert "optimizer" not in found.shrinks(made.context())
    record = opened(made, found)
    assert record["stack"] == [*kept, "compile", "hoisted-constants", "fused-qkv"]
    assert record["title"].startswith("3 more rungs at once, ")
    assert record["changes"] == "compile, hoisted-constants, fused-qkv"
    assert plan_of(record["stack"]).passes == ("sdpa", "hoisted-constants", "fused-qkv")


def test_what_is_not_in_effect_leaves_the_stack_before_it_is_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fused optimizer is in effect; there is no attention for SDPA to take."""
    made = state(tmp_path, budget=600)
    both = [BY_NAME["fused-optimizer"], BY_NAME["sdpa"]]
    found = _as_one(context(), both)
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
    assert kept["without"] == ["sdpa"]
    assert made.kept == kept["stack"] == ["fused-optimizer"]
    assert kept["why"] == "fused-optimizer: verified, and faster with confidence."
    assert kept["effect"]["says"] == "1 of 2 are, not sdpa"
    again = state(tmp_path / "again", budget=600)
    again.add(kept)
    attempts.taken_up(again)
    assert again.kept == ["fused-optimizer"]
