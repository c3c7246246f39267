"""Several rungs as one: which of them, what shows that they are in effect, and what is kept of it."""

from dataclasses import replace
from functools import reduce
from pathlib import Path
from types import SimpleNamespace

import pytest
from attempt_records import restarts
from known_facts import facts_of
from made_up import MANIFEST, PASSED, STEP, answered, know, leave, rung, state, tried

from rung.hardware.peaks import named
from rung.ladder.climb import attempt as attempts
from rung.ladder.climb.attempt import new_record
from rung.ladder.climb.bundles import NAME, best_bundle, bundle_of, ineffective_members, stack_with
from rung.ladder.climb.schedule import confirmation_seconds, next_bundle, next_rung, trial_seconds, unreported
from rung.ladder.climb.state import State
from rung.ladder.climb.verdict import restore_best
from rung.measure import Comparison, Interval
from rung.plan import Plan
from rung.records.analyze import Breakdown
from rung.records.climb import Stopped
from rung.rungs import BY_NAME, Context, Counters, Evidence, Rung, plan_of
from rung.rungs.proofs import reported
from rung.rungs.requirements import COMPILED
from rung.timing.tasks import Task
from rung.timing.work import rates

THREE = [rung("a", 0.9), rung("b", 0.5), rung("c", 0.8)]


def context() -> Context:
    return Context(Plan(), "exact", facts_of({"gpu": False, "mode": "infer"}), {"gemm": 50.0, "pointwise": 50.0}, {})


def members(found: Rung | Stopped | None) -> list[str]:
    return [member.name for member in found.members] if isinstance(found, Rung) else []


def short_of(made: State, rungs: list[Rung]) -> State:
    """The same climb with too short to test all of these one at a time, and enough to decide them at once."""
    open_ = [r for r in rungs if r.name not in made.kept and r.applies(made.context()) is None]
    each = sum(trial_seconds(made, r) for r in open_)
    leave(made, 1.0)
    return leave(made, 0.9 * each + confirmation_seconds(made))


# Who is a member


def test_who_takes_long_to_prepare_for_little_stays_out() -> None:
    quick, little, long = rung("quick", 0.5), rung("little", 0.99), rung("long", 0.9, prepares=500)
    found = best_bundle(context(), [], [quick, long, little], lambda prepares: 30 + prepares)
    assert members(found) == ["quick", "little"]


def test_who_needs_another_one_comes_in_with_it_and_who_replaces_one_stays_out() -> None:
    after = replace(rung("after", 0.5), requires=(COMPILED,))
    first = replace(rung("first", 0.9), change=lambda p: replace(p, compile=True))
    instead = replace(rung("instead", 0.2), replaces=("first",))
    variables = replace(rung("variables", 0.2), change=lambda p: replace(p, env=(("A", "1"),)))
    memory = replace(rung("memory", 0.2), improves="memory")
    setting = replace(rung("setting", 0.2), change=lambda p: replace(p, inductor=(("a", 1),)))
    found = best_bundle(context(), [], [after, first, instead, variables, memory, setting], lambda prepares: 30.0)
    assert members(found) == ["first", "after"]
    assert found is not None
    assert found.change(Plan()).compile
    assert best_bundle(context(), [], [after, memory], lambda prepares: 30.0) is None


def test_who_applies_only_beside_the_others_is_among_them(tmp_path: Path) -> None:
    first = replace(rung("first", 0.9), change=lambda p: replace(p, compile=True))
    other = rung("other", 0.8)
    after = replace(rung("after", 0.5), requires=(COMPILED,))
    made = short_of(state(tmp_path), [first, other])
    assert sorted(members(next_bundle(made, [first, other, after]))) == ["after", "first", "other"]


def test_it_has_the_loosest_contract_and_the_longest_preparation_of_its_members() -> None:
    loose = replace(rung("loose", 0.5, prepares=20), contract="bf16", level=4)
    found = best_bundle(context(), [], [rung("a", 0.5), loose, rung("b", 0.5)], lambda prepares: 30.0)
    assert found is not None
    assert (found.contract, found.prepare_seconds, found.level, found.improves) == ("bf16", 20, 4, "step")


def test_who_leaves_another_one_nothing_to_do_takes_its_place() -> None:
    """Its casts are dear until the step is compiled: bf16 comes in late, after TF32 and what is for TF32 alone."""
    facts = {
        "gpu": True, "mode": "train", "arch": "sm90", "dtype": "torch.float32", "amp": None, "matmul_precision": "highest",
        "matches": {}, "optimizer_is_fused": True,
    }  # fmt: skip
    parts = {"gemm": 40.0, "pointwise": 30.0, "copy": 30.0}
    at = Context(Plan(), "bf16", facts_of(facts), parts, rates(named("H100")))
    found = best_bundle(at, [], [BY_NAME[n] for n in ("tf32", "compile", "bf16", "k-major-wgrad")], lambda _: 30.0)
    assert members(found) == ["compile", "bf16"]
    assert found is not None
    for member in found.members:
        others = [other for other in found.members if other is not member]
        assert member.applies(replace(at, plan=reduce(lambda plan, r: r.change(plan), others, Plan()))) is None


def test_the_core_is_among_them_however_little_it_promises(tmp_path: Path) -> None:
    core, little = (rung("last", 0.99, core=core, prepares=60) for core in (True, False))
    for last, expected in ((core, ["b", "c", "a", "last"]), (little, ["b", "c", "a"])):
        made = short_of(state(tmp_path / str(last.always_tried)), [*THREE, last])
        assert members(next_bundle(made, [*THREE, last])) == expected


def test_near_the_floor_nothing_comes_in_beside_the_core(tmp_path: Path) -> None:
    core = [rung("one", 0.9, core=True), rung("two", 0.9, core=True)]
    near = short_of(state(tmp_path, floor=STEP / 1e9), core)
    assert members(next_rung(near, [*core, rung("much", 0.2)])) == ["one", "two"]


def test_who_did_nothing_is_not_tried_again(tmp_path: Path) -> None:
    made = state(tmp_path)
    tried(made, NAME, "kept", without=["a"])
    made.kept = ["compile"]
    assert members(next_rung(short_of(made, THREE[1:]), THREE)) == ["b", "c"]


def test_who_was_kept_with_others_has_said_so(tmp_path: Path) -> None:
    made = state(tmp_path)
    tried(made, NAME, "kept")
    made.kept = ["compile", "sdpa"]
    assert unreported(made, [BY_NAME["compile"], rung("never", 0.4, no="not here")])[0].name == "never"


def test_what_was_kept_with_others_is_not_in_the_next_attempt_again(tmp_path: Path) -> None:
    """Nor once the climb is resumed: the stack, the plan and the words have each rung once."""
    rungs = [BY_NAME[name] for name in ("compile", "fused-optimizer", "sdpa", "fused-qkv", "hoisted-constants")]
    made = state(tmp_path)
    know(made, mode="train", matches={"sdpa": 8, "fused-qkv": 8, "hoisted-constants": 32}, skipped=[], graph_breaks=[], optimizer_is_fused=False)  # fmt: skip
    made.breakdown = Breakdown(
        parts=dict.fromkeys(("gemm", "pointwise", "attention", "optimizer", "launch_gap"), 0.2 * STEP)
    )
    kept = ["sdpa", "fused-optimizer"]
    tried(made, NAME, "kept", stack=kept)
    restore_best(made)
    assert made.kept == kept
    found = next_rung(short_of(made, rungs), rungs)
    assert isinstance(found, Rung)
    assert sorted(members(found)) == ["compile", "fused-qkv", "hoisted-constants"]
    # What is kept is in the profile already, and is not predicted once more.
    assert "optimizer" not in found.remaining(made.context())
    record = new_record(made, found)
    assert record.stack == [*kept, *members(found)]
    assert record.title.startswith("a bundle of 3 more rungs, ")
    assert record.changes == ", ".join(members(found))
    assert sorted(plan_of(record.stack).passes) == ["fused-qkv", "hoisted-constants", "sdpa"]


# What shows that it is in effect


def test_members_that_did_nothing_are_told_by_the_worker_and_by_the_names_of_kernels() -> None:
    names = ("fused-dgrad", "k-major-wgrad", "sdpa", "triton-rope")
    found = replace(rung(NAME, 0.5), members=tuple(BY_NAME[name] for name in names))
    passes = {f"pass {name}": True for name in names}
    worker = {**passes, "matches": {"sdpa": 0, "triton-rope": 4}}
    before, after = Counters(99, 99, 9), Counters(50, 50, 9, {"rope_rotate": 4.0})
    # Whether there are fewer joins than before, all of them together decide.
    assert ineffective_members(found, Evidence(before, after, worker)) == ["k-major-wgrad", "sdpa"]
    assert ineffective_members(found, Evidence(None, None, worker)) == ["sdpa"]


def test_what_is_more_than_a_pass_and_did_nothing_spoils_the_attempt() -> None:
    made = replace(rung("a", 0.5), proof=reported("a", True, "a"))
    found = bundle_of(context(), [BY_NAME["compile"], BY_NAME["bf16-stream"], made])
    worker = {"compiled_graphs": 1, "matches": {"bf16-stream": 0}, "a": True}
    assert found.proof(Evidence(None, None, worker)).says == "2 of 3 are, not bf16-stream"
    assert found.proof(Evidence(None, None, worker)).shown is True
    assert found.proof(Evidence(None, None, {**worker, "compiled_graphs": 0})).shown is False
    assert found.proof(Evidence(None, None, {**worker, "a": False})).shown is False


# What is kept of it


def test_what_is_not_in_effect_leaves_the_stack_before_it_is_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fused optimizer is in effect; there is no attention for SDPA to take."""
    made = state(tmp_path, budget=600)
    made.run.write("manifest.json", MANIFEST)
    made.pool = SimpleNamespace(wait=lambda until, left: until(), idle=lambda: 0)  # type: ignore[assignment]
    found = bundle_of(context(), [BY_NAME["fused-optimizer"], BY_NAME["sdpa"]])
    assert stack_with(["compile"], found) == ["compile", "fused-optimizer", "sdpa"]
    assert new_record(made, found).members == ["fused-optimizer", "sdpa"]
    record = restarts(applied={"optimizer_fused": True, "matches": {"sdpa": 0}})
    comparison = Comparison("faster", Interval(2.0, 1.9, 2.1), 3, 0.98, None, 0.01, True)
    ab_run = SimpleNamespace(comparison=comparison, record=lambda: record)
    monkeypatch.setattr(attempts, "_compare", lambda *_: ab_run)
    verified: list[list[str]] = []

    def verifying(state: State, stack: list[str], name: str, ahead: list[Task]) -> list[Task]:
        verified.append(list(stack))
        return [answered(f"{name}-verify-exact", made.side(stack), verify=PASSED)]

    monkeypatch.setattr(attempts, "checks_of", verifying)
    attempts.attempt(made, found)
    kept = made.attempts[-1]
    assert kept.verdict == "kept"
    assert verified == [["fused-optimizer"]]
    assert kept.without == ["sdpa"]
    assert made.kept == kept.stack == ["fused-optimizer"]
    assert made.answer is not None
    assert (made.answer.kept, made.answer.status) == (("fused-optimizer",), "verified")
    assert kept.why.startswith("fused-optimizer: verified, and faster")
    assert kept.effect
    assert kept.effect.says == "1 of 2 are, not sdpa"
    again = state(tmp_path / "again", budget=600)
    again.run.write("manifest.json", MANIFEST)
    again.add(kept)
    restore_best(again)
    assert again.kept == ["fused-optimizer"]
