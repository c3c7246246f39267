"""What becomes of a candidate that one restart showed to be faster, by what is found of it afterwards."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from attempt_records import attempt, compared, restarts
from made_up import MANIFEST, PASSED, answered, know, leave, state

from rung.ladder.climb import attempt as attempts
from rung.ladder.climb import verdict
from rung.ladder.climb.answer import Answer, offer
from rung.ladder.climb.bundles import bundle_of
from rung.ladder.climb.checks import numerics_of, part_of, parts_of
from rung.ladder.climb.state import OutOfTime, Profile, State
from rung.ladder.climb.unfinished import Unfinished
from rung.launch import WorkerFailed
from rung.measure import CLIMB, Comparison, Interval, Restart, judge
from rung.measure.compare import Answer as Compared
from rung.records.climb import Attempt
from rung.records.measured import Figure
from rung.rungs import BY_NAME, Proof, Rung
from rung.timing.ab_run import ABRun
from rung.timing.tasks import Task

STEP = 0.25e9  # nanoseconds
FUSED, SDPA, BF16 = BY_NAME["fused-optimizer"], BY_NAME["sdpa"], BY_NAME["bf16"]
WRONG = {**PASSED, "passed": False, "failures": ["exact: gradients: fc.weight differs"]}


@pytest.fixture
def made(tmp_path: Path) -> State:
    """A climb that has no answer yet."""
    made = state(tmp_path)
    made.run.write("manifest.json", MANIFEST)
    know(made, mode="train", optimizer_is_fused=False, matches={"sdpa": 8}, graph_breaks=[], dtype="torch.float32", amp=None, own_precision="exact")  # fmt: skip
    made.numerics = "bf16"
    made.pool = SimpleNamespace(wait=lambda until, left: until(), idle=lambda: 0)  # type: ignore[assignment]
    return made


class Tried:
    """Tries rungs of which one restart, and what follows it, were seen already. `verified` holds the stacks whose verification
    was asked for, in their order, `workers` the candidates' own."""

    def __init__(self, made: State, patch: pytest.MonkeyPatch) -> None:
        self.made, self.patch = made, patch
        self.verified: list[list[str]] = []
        self.workers: list[Task] = []
        self.verification: dict[str, Any] | WorkerFailed = PASSED
        patch.setattr(attempts, "checks_of", self._verifying)

    def _verifying(self, state: State, stack: Sequence[str], name: str, ahead: Sequence[Task] = ()) -> list[Task]:
        self.verified.append(list(stack))
        task = answered(f"{name}-verify-exact", state.side(stack), verify=self.verification)
        if isinstance(self.verification, WorkerFailed):
            task.answers, task.error = {}, self.verification
        return [task]

    def __call__(
        self,
        rung: Rung,
        gain: float,
        then: Compared = "faster",
        applied: dict[str, Any] | None = None,
        seen: dict[str, Any] | None = None,
    ) -> Attempt:
        """The record of an attempt; gain: of the first restart; then: what all restarts say together; seen: more of
        what is told of the comparison."""

        def compared(state: State, rung: Rung, record: Attempt, name: str) -> Any:
            did = {"optimizer_fused": True, "autocast": "torch.bfloat16", "matches": {"sdpa": 8}, **(applied or {})}
            speedup = Interval(gain, gain - 0.01, gain + 0.01)
            ab_run: Any = SimpleNamespace(
                comparison=Comparison(then, speedup, 3, 0.98, None, 0.01, True),
                record=lambda: restarts(then, gain, applied=did, **(seen or {})),
            )
            self.workers.append(answered(f"{name}-1-candidate", state.side(record.stack)))
            state.candidate_worker = self.workers[-1]
            if gain >= attempts.PROVISIONAL_GAIN:
                attempts._offer_provisional(state, record.stack, ab_run)
                state.candidate_checks = attempts.checks_of(state, record.stack, name)
            return ab_run

        self.patch.setattr(attempts, "_compare", compared)
        attempts.attempt(self.made, rung)
        return self.made.attempts[-1]


@pytest.fixture
def tries(made: State, monkeypatch: pytest.MonkeyPatch) -> Tried:
    return Tried(made, monkeypatch)


def test_a_verification_that_was_begun_for_what_is_slower_ends(tries: Tried) -> None:
    begun = Task("01-fused-optimizer-verify-exact", tries.made.side(["fused-optimizer"]), [])
    tries.made.next_checks = tries.made.all_checks = [begun]
    assert tries(FUSED, 0.9, "slower").verdict == "reverted"
    assert begun.ended
    assert tries.made.next_checks == []


@pytest.mark.parametrize(
    ("best", "answer"),
    [
        ([20, 21, 20, 22, 20, 21, 23, 20], "faster"),
        ([180, 8, 190, 9, 185, 190, 9, 180], "undecided"),  # between two paces, as threads do that wait for cores
        ([9, 10, 9, 10, 9, 10, 9, 10], "slower"),
    ],
)
def test_one_restart_decides_nothing_where_its_rounds_disagree(best: list[float], answer: str) -> None:
    restart = Restart(tuple((time, 10.0, 10.0, time) for time in best))
    assert attempts.judge_one_restart(restart, gpu=False).answer == answer


@pytest.mark.parametrize(("before", "answer"), [(2.0, "faster"), (1.05, "undecided"), (3.0, "faster")])
def test_one_restart_decides_nothing_where_the_best_was_as_fast_in_another_process(
    made: State, before: float, answer: str
) -> None:
    """Before, it took so many times the candidate's step; in this restart, it takes twice as long."""
    made.facts.gpu = True
    made.baseline.time = Figure(value=before * STEP)
    ab_run = ABRun(restarts=[Restart(((2 * STEP, STEP, STEP, 2 * STEP),) * 8)])
    assert attempts.judge_first_restart(made, ab_run).answer == answer


@pytest.mark.parametrize(("beside", "answer"), [(2.5, "faster"), (200.0, "undecided")])
def test_one_restart_decides_nothing_where_the_best_was_held_up_in_it(
    made: State, monkeypatch: pytest.MonkeyPatch, beside: float, answer: str
) -> None:
    """Alone it took twice the candidate's step. Nothing is offered of a gain that comes of another program."""
    offered: list[float] = []
    made.baseline.time = Figure(value=2 * STEP)
    ab_run = ABRun(restarts=[Restart(((beside * STEP, STEP, STEP, beside * STEP),) * 8)])
    assert attempts.judge_first_restart(made, ab_run).answer == answer
    monkeypatch.setattr(
        attempts, "_first_restart", lambda *_: Unfinished("attempt", ["fused-optimizer"], "baseline", ab_run)
    )
    monkeypatch.setattr(attempts, "_offer_provisional", lambda state, stack, ab_run: offered.append(beside))
    monkeypatch.setattr(ABRun, "record", lambda ab_run: restarts("faster", beside))
    for name, result in {"slowed_by_others": "", "_evidence": None, "effective_stack": [], "_checks": []}.items():
        monkeypatch.setattr(attempts, name, lambda *_, result=result: result)
    monkeypatch.setattr(attempts, "_more_restarts", lambda *_: judge([0.0], looks=CLIMB, last=True))
    attempts._compare(made, FUSED, attempts.new_record(made, FUSED), "01-fused-optimizer")
    assert bool(offered) is (answer == "faster")


def kept(made: State) -> tuple[str, tuple[str, ...]] | None:
    return (made.answer.status, made.answer.kept) if made.answer else None


@pytest.mark.parametrize(
    ("gain", "budget", "asked"),
    [(0.5, 600.0, []), (0.5, None, ["witness", "profile"]), (2.0, 600.0, ["witness", "profile"])],
)
def test_what_is_slower_is_looked_at_no_more_where_the_time_is_limited(
    made: State, monkeypatch: pytest.MonkeyPatch, gain: float, budget: float | None, asked: list[str]
) -> None:
    made.request = replace(made.request, budget=budget)
    seen: list[str] = []

    def timed(ab_run: ABRun) -> Restart:
        return Restart(((STEP, STEP / gain, STEP / gain, STEP),) * 4)

    start = SimpleNamespace(
        timed=timed, witness=lambda: seen.append("witness"), profile=lambda trace: seen.append("profile")
    )
    warm = {"memory": {"resident": 1}, "first_run_seconds": 1.0, "runs": 5, "steady": True, "applied": {}}
    ready = lambda name, stack: answered(name, made.side(stack), open={}, warm=warm)  # noqa: E731
    made.best_worker = ready("best", [])
    monkeypatch.setattr(made, "take_next_worker", lambda stack: ready("candidate", stack))
    monkeypatch.setattr(made, "wait", lambda *tasks, keep: None)
    monkeypatch.setattr(attempts, "WorkerGroup", SimpleNamespace(of=lambda setup, tasks: start))
    attempts._first_restart(made, FUSED, attempts.new_record(made, FUSED), "01-fused-optimizer")
    assert seen == asked

    # Where its clocks disagree, further restarts decide, and what was seen of this one counts.
    monkeypatch.setattr(attempts, "clocks_disagree", lambda ab_run: ab_run.comparison.answer == "slower")
    made.best_worker, seen[:] = ready("best", []), []
    attempts._first_restart(made, FUSED, attempts.new_record(made, FUSED), "01-fused-optimizer")
    assert seen == ["witness", "profile"]


def test_a_restart_that_cannot_end_is_not_begun(made: State, monkeypatch: pytest.MonkeyPatch) -> None:
    warm = {"memory": {"resident": 1}, "first_run_seconds": 1.0, "runs": 5, "steady": True, "applied": {}}
    made.best_worker = answered("best", made.side([]), open={}, warm=warm)
    monkeypatch.setattr(
        made, "take_next_worker", lambda stack: answered("candidate", made.side(stack), open={}, warm=warm)
    )
    monkeypatch.setattr(made, "wait", lambda *tasks, keep: None)
    made.baseline.time = Figure(value=2e9)  # two seconds a step
    leave(made, 20.0)
    with pytest.raises(OutOfTime):
        attempts._first_restart(made, FUSED, attempts.new_record(made, FUSED), "01-fused-optimizer")


@pytest.mark.parametrize(("begun", "kept", "waits"), [(True, 0.0, 12.0), (False, 0.0, 0.0), (True, 30.0, -30.0)])
def test_a_verification_that_runs_when_the_budget_ends_may_take_a_tenth_more(
    made: State, monkeypatch: pytest.MonkeyPatch, begun: bool, kept: float, waits: float
) -> None:
    """Not one that still waits for room, and not where that time is kept for confirming what is verified already."""
    left: list[float] = []
    made.pool = SimpleNamespace(wait=lambda until, seconds: left.append(seconds()))  # type: ignore[assignment]
    leave(made, 120.0).left = lambda: 0.0  # type: ignore[method-assign]
    monkeypatch.setattr(verdict, "confirmation_seconds", lambda state: kept)
    check = answered("01-plain-verify-exact", made.side(["compile"])) if begun else Task("x", made.side([]), [])
    record = attempt(rung="plain", stack=["compile"])
    with pytest.raises(OutOfTime):
        verdict.verify_and_judge(made, record, [check], 2.0, Profile())
    assert left == [waits]


def test_what_is_verified_is_kept_and_its_status_rises(made: State, tries: Tried) -> None:
    assert tries(FUSED, 2.0).verdict == "kept"
    assert [step.status for step in made.history] == ["provisional", "verified"]
    assert kept(made) == ("verified", ("fused-optimizer",))
    assert tries.verified == [["fused-optimizer"]]  # which went on beside the timing, and is not done twice


def test_a_small_gain_is_not_claimed_before_fresh_restarts_have_shown_it(made: State, tries: Tried) -> None:
    assert tries(FUSED, 1.03).verdict == "kept"
    assert kept(made) == ("provisional", ("fused-optimizer",))
    assert tries(SDPA, 1.06).verdict == "kept"
    assert kept(made) == ("verified", ("fused-optimizer", "sdpa"))


def test_what_computes_something_else_is_taken_back(made: State, tries: Tried) -> None:
    tries.verification = WRONG
    record = tries(FUSED, 2.0)
    assert (record.verdict, made.kept) == ("reverted", [])
    assert kept(made) is None
    assert "fc.weight differs" in made.taken_back[0].why
    assert not (made.run.directory / "recipe.toml").exists()


def test_what_cannot_be_verified_is_taken_back(made: State, tries: Tried) -> None:
    tries.verification = WorkerFailed("no such kernel", "raised")
    assert tries(FUSED, 2.0).verdict == "failed"
    assert kept(made) is None
    assert made.taken_back[0].why == "raised: no such kernel"


def test_a_gain_that_multiplies_is_told_over_the_untouched_model(made: State, tries: Tried) -> None:
    tries(FUSED, 2.0)
    tries(SDPA, 1.5)
    assert kept(made) == ("verified", ("fused-optimizer", "sdpa"))
    assert made.answer is not None
    assert made.answer.speedup.value == pytest.approx(3.0)


def test_what_is_wrong_leaves_what_was_verified_before(made: State, tries: Tried) -> None:
    tries(FUSED, 2.0)
    tries.verification = WRONG
    assert tries(SDPA, 1.5).verdict == "reverted"
    assert kept(made) == ("verified", ("fused-optimizer",))
    assert made.taken_back == []  # it was never the answer


@pytest.mark.parametrize("then", ["undecided", "slower"])
def test_what_further_restarts_do_not_show_to_be_faster_is_taken_back(
    made: State, tries: Tried, then: Compared
) -> None:
    assert tries(FUSED, 1.06, then).verdict in ("inconclusive", "reverted")
    assert kept(made) is None


def test_what_is_not_in_effect_is_taken_back(made: State, tries: Tried) -> None:
    assert tries(FUSED, 1.3, applied={"optimizer_fused": False}).verdict == "no-op"
    assert kept(made) is None


def test_a_bundle_that_is_wrong_is_taken_back_with_who_did_nothing_in_it(made: State, tries: Tried) -> None:
    both = bundle_of(made.context(), [FUSED, SDPA])
    tries.verification = WRONG
    record = tries(both, 2.0, applied={"matches": {"sdpa": 0}})
    assert (record.verdict, record.without) == ("reverted", ["sdpa"])
    assert kept(made) is None


def test_a_bundle_is_verified_without_those_of_which_its_kernels_show_nothing(
    made: State, tries: Tried, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen_by_kernels = replace(SDPA, proof=lambda e: Proof(None if e.after is None else False, "no such kernel"))
    both = bundle_of(made.context(), [FUSED, seen_by_kernels])
    record, applied = attempts.new_record(made, both), {"optimizer_fused": True}
    ab_run = ABRun(restarts=[Restart([[1.5, 1.0, 1.0, 1.5]])], warm=[{"candidate": SimpleNamespace(applied=applied)}])  # type: ignore[dict-item]
    begun = Unfinished("02-x", record.stack, record.against, ab_run, both.name, CLIMB)
    monkeypatch.setattr(attempts, "unfinished_of", lambda *_: begun)
    monkeypatch.setattr(attempts, "_carry_over", lambda *_: None)
    monkeypatch.setattr(ABRun, "record", lambda _: restarts("faster", 1.5, applied=applied))
    monkeypatch.setattr(made, "read_profile", lambda *_: Profile(None, SimpleNamespace(names={"FusedAdam": 1.0})))
    made.trace("02-x").touch()
    attempts._compare(made, both, record, "02-x")
    assert tries.verified == [["fused-optimizer"]]


def test_a_verification_that_was_begun_for_one_is_never_taken_for_that_of_another(made: State, tries: Tried) -> None:
    """The first is faster in one restart and in no more; the second is too little faster to be verified ahead, and is wrong."""
    assert tries(FUSED, 1.06, "undecided").verdict == "inconclusive"
    tries.verification = WRONG
    assert tries(SDPA, 1.03).verdict == "reverted"
    assert tries.verified == [["fused-optimizer"], ["sdpa"]]


def test_the_worker_of_what_is_kept_is_that_of_the_best_from_then_on(made: State, tries: Tried) -> None:
    before = made.best_worker = answered("baseline", made.side([]))
    before.reclaimable = True  # while its candidate was verified
    tries(SDPA, 0.5, "slower")
    assert made.best_worker is before
    assert not before.reclaimable  # the next one is timed beside it
    tries(FUSED, 2.0)
    assert made.best_worker is tries.workers[1]
    assert tries.workers[1].ready
    assert before.ended


def test_the_worker_of_what_is_not_kept_is_given_up(made: State, tries: Tried) -> None:
    for rung in (FUSED, SDPA):
        assert tries(rung, 1.01, "undecided").verdict == "inconclusive"
    assert tries.workers[0].ended


def test_a_provisional_recipe_that_the_budget_leaves_open_stays_provisional(
    made: State, tries: Tried, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(made, "pool", SimpleNamespace(wait=lambda until, left: False, idle=lambda: 0))
    record = tries(FUSED, 2.0)
    assert (record.verdict, record.cut) == ("inconclusive", True)
    assert kept(made) == ("provisional", ("fused-optimizer",))
    assert made.taken_back == []


@pytest.mark.parametrize(("gain", "verdict"), [(1.05, "kept"), (1.01, "inconclusive")])
def test_a_large_gain_is_verified_in_the_time_that_was_left_for_confirming(
    made: State, tries: Tried, monkeypatch: pytest.MonkeyPatch, gain: float, verdict: str
) -> None:
    monkeypatch.setattr("rung.ladder.climb.verdict.confirmation_seconds", lambda state: 200.0)
    made.left = lambda: 100.0  # type: ignore[method-assign]
    made.pool = SimpleNamespace(wait=lambda until, left: left() > 0 and until(), idle=lambda: 0)  # type: ignore[assignment]
    assert tries(FUSED, gain).verdict == verdict


@pytest.mark.parametrize(
    ("modes", "why"),
    [
        ({"modes": []}, "verified, and faster in one restart so far; the confirmation takes more."),
        ({}, "verified, and faster in the one restart that the budget allowed."),
    ],
)
def test_it_says_why_there_was_one_restart(made: State, modes: dict[str, Any], why: str) -> None:
    comparison = {**compared("undecided", 1.5), "cut": True}
    record = attempt(stack=["compile"], comparison=comparison, restarts=[{}], **modes)
    verdict.verify_and_judge(
        made, record, [answered("x-verify-exact", made.side(["compile"]), verify=PASSED)], 1.5, Profile()
    )
    assert (record.verdict, record.why) == ("kept", why)


def test_a_provisional_plain_mode_gives_way_to_what_was_verified(made: State, tries: Tried) -> None:
    offer(made, Answer(("compile",), "provisional", Figure(value=3.0)))
    assert tries(FUSED, 2.0).verdict == "kept"
    assert kept(made) == ("verified", ("fused-optimizer",))


def test_what_only_noise_hides_stays_provisional(made: State, tries: Tried) -> None:
    cpu = compared("faster", 1.5, apart=0.1)
    busy = {"cpu_time": cpu, "waited": {"best": 0.4}}
    record = tries(FUSED, 1.4, "undecided", seen=busy)
    assert record.verdict == "inconclusive"
    assert "in CPU time it is 1.50× (1.40 to 1.60) as fast" in record.why
    assert kept(made) == ("provisional", ("fused-optimizer",))
    assert made.taken_back == []
    assert made.kept == []


@pytest.mark.parametrize(
    ("gain", "then", "ends"),
    [
        (1.09, 1.0, "faster"),
        (1.06, 1.0, "cut"),
        (1.118, 1.048, "cut"),
        (1.10, 1.09, "faster"),
        (1.10, 1.1005, "faster"),
    ],
)
@pytest.mark.parametrize("gpu", [True, False])
@pytest.mark.parametrize("within_restarts", [True, False])
def test_a_candidate_that_the_budget_cuts_off_is_faster_where_all_restarts_so_far_say_so(
    made: State, monkeypatch: pytest.MonkeyPatch, gain: float, then: float, ends: str, within_restarts: bool, gpu: bool
) -> None:
    """Its verification may have passed by then: without a verdict a slower recipe would be the answer. On a CPU one restart is too few."""
    know(made, mode="train", gpu=gpu)
    ends = "cut" if not gpu and then == 1.0 else ends
    record = attempts.new_record(made, FUSED)
    gains = [gain, *([then] if then > 1 else [])]
    ab_run = ABRun(restarts=[Restart([[g, 1.0, 1.0, g]]) for g in gains[:1]])
    begun = Unfinished("02-x", record.stack, record.against, ab_run, FUSED.name, CLIMB)
    monkeypatch.setattr(attempts, "unfinished_of", lambda *_: begun)
    monkeypatch.setattr(ABRun, "record", lambda _: None)  # so that nothing is offered here

    def restarted(*_: object) -> Comparison:
        ab_run.restarts += [Restart([[g, 1.0, 1.0, g]]) for g in gains[1:]]
        if not within_restarts:
            raise OutOfTime
        found = judge([r.log_ratio() for r in ab_run.restarts], looks=CLIMB, last=True)
        assert found
        return found

    monkeypatch.setattr(attempts, "_more_restarts", restarted)
    if ends == "cut" and not within_restarts:
        with pytest.raises(OutOfTime):
            attempts._compare(made, FUSED, record, "02-x")
        return
    comparison = attempts._compare(made, FUSED, record, "02-x").comparison
    assert comparison
    assert comparison.answer == ("undecided" if ends == "cut" else "faster")


def test_parts_of_the_verification(tmp_path: Path) -> None:
    """One process is asked where something of it is another, and the ranks always."""
    made = state(tmp_path)
    assert parts_of(made, ["bf16"]) == ["exact", "bf16"]
    made.request = replace(made.request, ranks=2)
    assert parts_of(made, ["bf16"]) == ["exact", "bf16", "exact-over-ranks", "bf16-over-ranks"]
    assert parts_of(made, ["ddp-buckets-8"]) == ["exact-over-ranks"]
    made.kept = ["bf16"]
    assert parts_of(made, ["bf16", "ddp-buckets-8"]) == ["exact-over-ranks", "bf16-over-ranks"]
    names = [Task(f"03-x-verify-{part}-again", made.side([]), []) for part in ("exact", "bf16-over-ranks")]
    assert [part_of(task) for task in names] == ["exact", "bf16-over-ranks"]
    assert numerics_of("bf16-over-ranks") == "bf16"
