"""The plain modes where something goes wrong: a process dies, a result is wrong, or the time is short."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from attempt_records import attempt, compared, mode
from made_up import MANIFEST, PASSED, STEP, Added, answered, know, leave, on_a_gpu, rung, state, tried, warm
from msgspec import UNSET

from rung.ladder.climb import begin, mode_checks, mode_timing, plain, race
from rung.ladder.climb import state as states
from rung.ladder.climb.answer import Answer, offer, take_back
from rung.ladder.climb.checks import parts_of
from rung.ladder.climb.mode_timing import Race, time_modes
from rung.ladder.climb.modes import the_best
from rung.ladder.climb.prefetch import prefetched_rung
from rung.ladder.climb.state import OutOfTime, Profile, State
from rung.ladder.climb.unfinished import Unfinished
from rung.launch import WorkerFailed
from rung.measure import Restart
from rung.measure.core_time import CoreTime
from rung.recipes import store
from rung.records.climb import Attempt
from rung.records.measured import Figure, Witness
from rung.records.progress import Answered, Warned
from rung.records.record import record_of
from rung.timing.ab_run import ABRun
from rung.timing.tasks import Task
from rung.timing.timed import Warmed
from rung.timing.worker_group import SideFailed

WRONG = {**PASSED, "passed": False, "failures": ["output is off by 1.0"]}


@pytest.fixture
def made(tmp_path: Path) -> State:
    """A climb whose untouched model is warm."""
    made = state(tmp_path)
    made.run.write("manifest.json", MANIFEST)
    made.pool = Added()  # type: ignore[assignment]
    made.baseline_worker = answered("untouched", made.side([]), open={}, warm=warm({"allocated": 1}))
    return made


def ready(made: State, name: str, *rungs: str) -> Task:
    task = answered(f"01-plain-{name}", made.side(rungs), open={}, warm=warm({"allocated": 1}))
    made.mode_workers[name] = task
    return task


Timed = Callable[..., None]


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Timed:
    """speed: times as fast as the untouched model, by side; dies: while it is timed, as often as told; wrong: when it is looked at; differs:
    its results do; shortest: steps, by side, where threads waited for cores."""

    def is_timed(
        speed: Mapping[str, float],
        dies: Mapping[str, int] | None = None,
        wrong: tuple[str, ...] = (),
        differs: tuple[str, ...] = (),
        shortest: Mapping[str, float] | None = None,
    ) -> None:
        left = dict(dies or {})

        class Start:
            def __init__(self, sides: Mapping[str, Task]) -> None:
                self.sides = list(sides)

            @classmethod
            def of(cls, setup: Any, sides: Mapping[str, Task]) -> "Start":
                return cls(sides)

            def timed(self, ab_run: ABRun, *, briefly: bool = False) -> Restart:
                if dead := next((side for side in self.sides if left.get(side)), None):
                    left[dead] -= 1
                    raise SideFailed(dead, WorkerFailed("killed by SIGKILL", "killed"))
                took = [STEP / speed.get(side, 1.0) for side in self.sides]
                ab_run.warm.append({side: record_of(Warmed, warm({"allocated": 1})) for side in self.sides})
                ab_run.samples.append({side: [ns] * 8 for side, ns in zip(self.sides, took, strict=True)})
                for side, ns in zip(self.sides, took, strict=True):
                    ab_run.blocks[side], ab_run.outside[side], ab_run.compiled[side] = [(ns, ns)], 0.0, 0
                rounds = tuple((*took, *reversed(took)) for _ in range(4))
                if shortest is None:
                    return Restart(rounds)
                ab_run.cores = dict.fromkeys(self.sides, CoreTime(30, 70))
                return Restart(rounds, tuple(shortest[side] for side in self.sides))

            def witness(self, side: str) -> Witness:
                if side in wrong:
                    raise SideFailed(side, WorkerFailed("out of memory", "out of memory"))
                return Witness(failures=["output is off by 1.0"] if side in differs else [])

            def profile(self, trace: Path) -> None:
                pass

        monkeypatch.setattr(mode_timing, "WorkerGroup", Start)

    return is_timed


def test_where_the_fastest_cannot_be_looked_at_the_next_one_of_the_same_restart_is_the_best(
    made: State, timed: Timed
) -> None:
    timed({"reduce-overhead": 2.0, "default": 1.9}, wrong=("reduce-overhead",))
    found, default = Race(), ready(made, "default", "compile")
    both = {"default": default, "reduce-overhead": ready(made, "reduce-overhead", "compile", "reduce-overhead")}
    time_modes(made, found, both)
    assert found.best == "default"
    assert not default.ended
    assert made.answer
    assert made.answer.kept == ("compile",)
    assert "out of memory" in str(found.modes["reduce-overhead"].error)


def failed(made: State, name: str, *rungs: str, kind: str = "raised") -> Task:
    task = Task(f"01-plain-{name}", made.side(rungs), [])
    task.error = WorkerFailed("the step cannot be captured as a graph", kind)
    made.mode_workers[name] = task
    return task


@pytest.mark.parametrize(
    ("name", "rungs", "kind", "instead"),
    [
        ("cuda-graph", ("bf16", "fused-optimizer", "capture"), "raised", {"eager": ("bf16", "fused-optimizer")}),
        ("cuda-graph-tf32", ("tf32", "capture"), "raised", {"eager-tf32": ("tf32",)}),
        ("cuda-graph", ("capture",), "raised", {}),  # nothing is left to try
        ("cuda-graph", ("bf16", "capture"), "out of memory", {}),  # it is tried once more
        ("compile-and-graph", ("bf16", "compile", "capture"), "raised", {}),
    ],
)
def test_where_no_graph_can_be_captured_the_model_as_it_is_takes_its_place(
    made: State, name: str, rungs: tuple[str, ...], kind: str, instead: dict[str, tuple[str, ...]]
) -> None:
    done = {name: failed(made, name, *rungs, kind=kind)}
    tasks = race.without_graph(made, done)
    assert {name: tuple(task.side.rungs) for name, task in tasks.items()} == instead
    assert not race.without_graph(made, done)  # once


def test_a_mode_that_there_is_no_time_to_time_again_keeps_its_time_where_another_dies_beside_it(
    made: State, timed: Timed, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed({"default": 1.9, "cuda-graph": 1.5}, dies={"reduce-overhead": 1})
    found, graph = Race(), ("cuda-graph", "capture")
    time_modes(made, found, {"default": ready(made, "default", "compile"), "cuda-graph": ready(made, *graph)})
    too_long = iter([False, True])
    monkeypatch.setattr(mode_timing, "_too_long", lambda *_: next(too_long))
    both = {"cuda-graph": ready(made, *graph), "reduce-overhead": ready(made, "reduce-overhead", "compile")}
    time_modes(made, found, both)
    assert found.modes["cuda-graph"].speedup == pytest.approx(1.5)
    assert not found.modes["cuda-graph"].error
    assert "killed" in str(found.modes["reduce-overhead"].error)


def test_a_mode_whose_results_differ_while_it_is_timed_is_dropped_at_once(made: State, timed: Timed) -> None:
    """The race goes on with what is right, and says why."""
    timed({"channels-last": 3.4, "default": 1.9}, differs=("channels-last",))
    found, default = Race(), ready(made, "default", "compile")
    wrong = ready(made, "channels-last", "channels-last")
    time_modes(made, found, {"default": default, "channels-last": wrong})
    assert found.best == "default"
    assert wrong.ended
    assert "its results differed from the baseline's" in str(found.modes["channels-last"].error)
    assert made.answer
    assert made.answer.kept == ("compile",)


def test_where_all_modes_are_wrong_the_record_says_why_and_not_that_none_ran(made: State, timed: Timed) -> None:
    timed({"default": 1.9}, differs=("default",))
    found = Race()
    time_modes(made, found, {"default": ready(made, "default", "compile")})
    record = plain._first_record(made, found)
    assert record.verdict == "reverted"
    assert "its results differed from the baseline's: output is off" in record.why


@pytest.mark.parametrize(("fast", "claimed"), [(0.9, False), (1.9, True)])
def test_a_mode_beside_which_others_slowed_the_untouched_model_has_to_be_faster_than_that_alone(
    made: State, timed: Timed, fast: float, claimed: bool
) -> None:
    timed({"best": 0.1, "default": fast})
    found = Race()
    time_modes(made, found, {"default": ready(made, "default", "compile")})
    record = plain._first_record(made, found)
    assert (made.answer is not None) is claimed
    assert record.verdict == ("" if claimed else "inconclusive")
    said = r"it took \S+ .s a step, and the untouched model \S+ .s beside it, but \S+ .s alone: measure on a quieter machine\."
    assert bool(re.fullmatch(said, record.why)) is not claimed, record.why
    assert (made.plain is not None) is claimed  # against which later answers are held
    assert any("something disturbed one of the two" in said for said in record.warnings or ())


@pytest.mark.parametrize(("fast", "claimed"), [(1.3, True), (0.8, False)])
def test_a_mode_beside_which_the_threads_of_the_untouched_model_waited_claims_no_more_than_the_shortest_steps_show(
    made: State, timed: Timed, fast: float, claimed: bool
) -> None:
    """It was 84.5 times as fast by its usual steps: alone, the untouched model had waited as long."""
    said: list[Any] = []
    made.say = said.append
    timed({"default": 84.5}, shortest={"best": STEP / 200, "default": STEP / 200 / fast})
    found = Race()
    time_modes(made, found, {"default": ready(made, "default", "compile")})
    assert found.modes["default"].speedup == pytest.approx(fast if claimed else 1.0)
    record = plain._first_record(made, found)
    assert "waited for a CPU core 70% of the time, so the speedup is doubtful (usual steps make it 84.5×" in record.busy
    if not claimed:
        assert made.answer is None
        assert record.verdict == "inconclusive"
        assert record.busy in record.why
        return
    assert made.answer
    assert made.answer.speedup.value == pytest.approx(fast)
    assert made.answer.busy == record.busy
    assert made.run.read("result.json")["busy"] == record.busy
    assert any(isinstance(event, Answered) and event.busy for event in said)
    assert any(isinstance(event, Warned) and record.busy in event.text for event in said)


def test_an_untouched_model_that_waited_in_every_step_was_faster_alone(made: State, timed: Timed) -> None:
    made.baseline.samples = [2 * STEP, STEP / 80, 3 * STEP]
    timed({"best": 1 / 100, "default": 0.8}, shortest={"best": STEP, "default": STEP / 100})
    found = Race()
    time_modes(made, found, {"default": ready(made, "default", "compile")})
    assert found.modes["default"].speedup == pytest.approx(1.25)
    assert not plain._first_record(made, found).verdict  # others slowed the untouched model, which refuses nothing here
    assert made.answer
    assert "(usual steps make it 80.0×, the shortest ones 1.25×" in made.answer.busy


def test_the_recipe_of_a_mode_that_dies_when_it_is_timed_again_is_taken_back(made: State, timed: Timed) -> None:
    found = Race()
    timed({"default": 1.9})
    time_modes(made, found, {"default": ready(made, "default", "compile")})
    assert made.answer
    timed({"default": 1.9, "compile-and-graph": 0.9}, dies={"default": 1})
    time_modes(made, found, {"compile-and-graph": ready(made, "compile-and-graph", "compile", "capture")})
    assert made.answer is None
    assert not (made.run.directory / "recipe.toml").exists()
    assert found.best == "compile-and-graph"
    assert found.answers == []


def test_where_the_untouched_model_dies_it_is_started_again(
    made: State, timed: Timed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def again(made: State) -> None:
        made.baseline_worker = answered("again", made.side([]), open={}, warm=warm({"allocated": 1}))

    monkeypatch.setattr(mode_timing, "ensure_baseline_worker", again)
    timed({"default": 1.9}, dies={"best": 1})
    found = Race()
    time_modes(made, found, {"default": ready(made, "default", "compile")})
    assert found.best == "default"
    assert made.baseline_worker
    assert made.baseline_worker.name == "again"


def test_an_untouched_model_that_dies_again_ends_the_race(
    made: State, timed: Timed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mode_timing, "ensure_baseline_worker", lambda made: None)
    timed({"default": 1.9}, dies={"best": 99})
    with pytest.raises(WorkerFailed, match="SIGKILL"):
        time_modes(made, Race(), {"default": ready(made, "default", "compile")})


def test_the_budget_is_over_where_a_worker_was_ended_for_its_sake(made: State, timed: Timed) -> None:
    timed({}, dies={"best": 1})
    with pytest.raises(OutOfTime):
        time_modes(leave(made, 0.5), Race(), {"default": ready(made, "default", "compile")})


@pytest.mark.parametrize(("answered_before", "seconds"), [(False, 8.0), (True, 1.0)])
def test_what_would_be_the_first_answer_is_looked_at_beyond_the_budget(
    made: State, timed: Timed, monkeypatch: pytest.MonkeyPatch, answered_before: bool, seconds: float
) -> None:
    """Without one there is nothing to show."""
    timed({"default": 1.9})
    limits: list[float] = []
    of = mode_timing.WorkerGroup.of
    monkeypatch.setattr(
        mode_timing.WorkerGroup, "of", lambda setup, sides: limits.append(setup.limits.block) or of(setup, sides)
    )
    if answered_before:
        offer(made, Answer(("capture",), "provisional", Figure(value=1.2)))
    time_modes(leave(made, 0.5), Race(), {"default": ready(made, "default", "compile")})
    assert limits == [seconds]


def with_a_best(made: State, step: float, gain: float = 4.0) -> Race:
    made.baseline.time = Figure(value=step * gain)
    best = mode("compile", name="default", speedup=gain, step_ns=step)
    return Race({"default": best}, "default", task=ready(made, "default", "compile"))


@pytest.mark.parametrize(("left", "is_timed"), [(45.0, True), (12.0, False)])
def test_a_mode_for_which_there_is_no_time_costs_no_other(
    made: State, timed: Timed, left: float, is_timed: bool
) -> None:
    """A brief restart of three sides, of 2, 0.5 and 0.5 s a step, takes 30 s."""
    timed({"default": 4.0, "max-autotune": 4.0})
    found, more = with_a_best(leave(made, left), 0.5e9), ready(made, "max-autotune", "compile", "max-autotune")
    time_modes(made, found, {"max-autotune": more})
    assert bool(found.modes["max-autotune"].speedup) is is_timed
    assert found.best == "default"
    assert more.ended


def checked(made: State, rungs: tuple[str, ...], verdict: dict[str, Any]) -> None:
    made.audited = True
    for part in parts_of(made, rungs):
        made.mode_checks.append(answered(f"01-plain-x-verify-{part}", made.side(rungs), verify=verdict))


def test_a_mode_that_computes_something_else_is_withdrawn_while_others_compile(made: State) -> None:
    first = Answer(("compile", "capture"), "provisional", Figure(value=1.9))
    offer(made, first)
    modes = {"compile-and-graph": mode("compile", "capture", speedup=1.9), "default": mode("compile", speedup=1.8)}
    found = Race(
        modes, "compile-and-graph", task=ready(made, "compile-and-graph", "compile", "capture"), answers=[first]
    )
    checked(made, ("compile", "capture"), WRONG)
    assert mode_checks.withdraw_wrong(made, found)
    assert made.answer is None
    assert (found.best, found.task, found.answers, made.mode_checks) == ("", None, [], [])
    assert "does not compute what the baseline computes" in str(modes["compile-and-graph"].error)
    assert race._fastest_left(found) == "default"  # it is timed again, and verified then
    assert not mode_checks.withdraw_wrong(made, found)


def test_a_refused_mode_is_not_timed_again_and_no_mode_twice_at_a_time(made: State) -> None:
    modes = {"a": mode("compile", speedup=1.9), "b": mode("capture", speedup=1.8), "c": mode("tf32", speedup=1.2)}
    found = Race(modes, "a", task=ready(made, "a", "compile"))
    begun = made.unfinished["plain"] = Unfinished("a", ["compile"], "baseline")
    mode_timing.withdraw(made, found, "a", "it is wrong", wrong=True)
    assert begun not in made.unfinished.values()  # --resume does not begin with it
    modes["a"].speedup = UNSET
    assert (found.dropped, race._fastest_left(found)) == (True, "b")
    again = {"b": ready(made, "b", "capture")}
    mode_timing.withdraw(made, found, "b", "it is wrong, too", wrong=True)
    race._give_up_refused(found, again, {})
    assert again == {}
    assert made.mode_workers["b"].ended
    modes["b"].speedup, found.best = UNSET, "c"
    assert race._fastest_left(found) == ""


def test_a_mode_that_is_slower_than_one_timed_before_does_not_take_its_place(made: State) -> None:
    """The best died, and what is left of the restart is slower than what was the best before it."""
    modes = {"default": mode("compile", speedup=1.8), "max-autotune": mode("compile", "max-autotune", speedup=0.9)}
    assert race._fastest_left(Race(modes, "max-autotune", dropped=True)) == "default"


def test_a_mode_that_passes_is_not_withdrawn(made: State) -> None:
    first = Answer(("compile",), "provisional", Figure(value=1.9))
    offer(made, first)
    found = Race({"default": mode("compile", speedup=1.9)}, "default", answers=[first])
    checked(made, ("compile",), PASSED)
    assert not mode_checks.withdraw_wrong(made, found)
    assert found.best == "default"


@pytest.mark.parametrize(("gain", "status"), [(1.12, "verified"), (1.06, "provisional")])
def test_what_is_verified_has_the_gain_that_was_seen_last(made: State, gain: float, status: str) -> None:
    first = Answer(("compile",), "provisional", Figure(value=1.12))
    offer(made, first)
    found = Race({"default": mode("compile", speedup=gain)}, "default", answers=[first])
    checked(made, ("compile",), PASSED)
    mode_checks._offer_verified(made, found)
    assert made.answer
    assert made.answer.status == status


def waited(made: State, best: Race) -> float:
    """Seconds for which further modes are waited for."""
    seconds: list[float] = []

    class Waits(Added):
        def wait(self, until: Callable[[], bool], left: Callable[[], float]) -> bool:
            seconds.append(left())
            return False

    made.pool = Waits()  # type: ignore[assignment]
    race._wait_for_news(made, best, [Task("01-plain-reduce-overhead", made.side(["compile"]), [])])
    return seconds[0]


def test_time_is_kept_for_the_verification_of_the_best_mode_where_it_could_not_begin(
    made: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states, "usable_cores", lambda: 4)
    monkeypatch.setattr(race, "prefetch_after", lambda state, result: None)
    leave(on_a_gpu(made), 40.0)
    offer(made, Answer(("compile",), "provisional", Figure(value=1.9)))
    best = Race({"default": mode("compile", speedup=1.9, prepared_seconds=20.0)}, "default")
    assert waited(made, best) == pytest.approx(40.0 - 1.1 * 20.0, abs=1)
    best.modes["default"].prepared_seconds = 60.0  # its verification would be in vain
    assert waited(made, best) == pytest.approx(40.0, abs=1)
    best.modes["default"].prepared_seconds = 20.0
    made.mode_checks = [answered("01-plain-default-verify-exact", made.side(["compile"]))]
    assert waited(made, best) == pytest.approx(40.0, abs=1)


def test_modes_that_are_not_ready_are_timed_later_once_the_best_is_verified_and_was_waited_for(
    made: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave(on_a_gpu(made), 100.0)
    offer(made, Answer(("compile",), "verified", Figure(value=1.9)))
    best = Race({"default": mode("compile", speedup=1.9, prepared_seconds=20.0)}, "default")
    assert race._patience_is_over(made, best)
    best.until = 0.0  # of modes that take minutes, which were waited for
    assert not race._patience_is_over(made, best)
    best.until = float("inf")
    know(made, gpu=False)  # where late ones would keep others from their places
    assert not race._patience_is_over(made, best)
    on_a_gpu(made)
    assert not race._patience_is_over(leave(made, 0.0), best)
    opened, later = {"max-autotune": Task("a", made.side([]), [])}, {"reduce-overhead": Task("b", made.side([]), [])}
    race._defer(made, opened, later)
    assert {*made.deferred_modes} == {"max-autotune", "reduce-overhead"}
    assert opened == {}


def test_after_a_resume_it_is_known_that_the_workload_can_be_verified(made: State) -> None:
    made.survey_task = None
    begin.wait_for_audit(made)
    assert made.audited


@pytest.mark.parametrize(("left", "took", "is_tried"), [(60.0, 20.0, True), (9.0, 20.0, False), (-5.0, 120.0, False)])
def test_a_candidate_that_was_prepared_is_tried_where_it_can_be_decided(
    made: State, monkeypatch: pytest.MonkeyPatch, left: float, took: float, is_tried: bool
) -> None:
    """Timing and verifying what took 20 s to compile takes 25 s."""
    monkeypatch.setattr(states, "usable_cores", lambda: 16)
    best = mode("compile", speedup=2.0, prepared_seconds=20.0)
    made.plain, made.kept = the_best(best, [best]), ["compile"]
    times = {side: {"value": STEP / 2} for side in ("best", "candidate")}
    tried(made, "plain", "kept", stack=["compile"], modes=[best], plain=made.plain, times=times,
          comparison=compared("faster", 2.0), prepared_seconds=20.0)  # fmt: skip
    leave(on_a_gpu(made), left)
    made.next_worker, made.next_rung = ready(made, "next", "compile", "x"), rung("x", 0.5)
    made.next_worker.took["warm"] = took
    assert bool(prefetched_rung(made)) is is_tried


def test_where_no_time_is_left_for_the_next_mode_nothing_stands_on_the_refuted_one(
    made: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave(made, 50.0)
    modes = [
        mode("compile", "capture", name="compile-and-graph", speedup=2.0),
        mode("compile", name="default", speedup=1.8),
    ]
    record = attempt(
        rung="plain", verdict="", against="baseline", number=1, log="x", stack=["compile", "capture"], modes=modes,
        plain=the_best(modes[0], modes),
    )  # fmt: skip

    def refused(made: State, record: Attempt) -> Profile:
        record.verdict, record.why, made.plain = (
            "reverted",
            "it does not compute what the baseline computes.",
            record.plain or None,
        )
        return Profile()

    def too_late(*_: object) -> Attempt:
        raise OutOfTime

    monkeypatch.setattr(plain, "race", lambda made: Race())
    monkeypatch.setattr(plain, "_first_record", lambda made, found: record)
    monkeypatch.setattr(plain, "_verify", refused)
    monkeypatch.setattr(plain, "_timed_instead", too_late)
    plain.attempt_plain(made)
    (written,) = made.run.attempts()
    assert (written.cut, written.stack) == (True, [])  # --resume times the next one
    assert made.plain is None
    assert written.modes
    assert "does not compute" in str(written.modes[0].error)


# The user's store


@pytest.fixture
def stored(made: State) -> Callable[[], int]:
    """How many recipes are in it."""
    known = {**MANIFEST, "workload": {**MANIFEST["workload"], "structure": "abc"}}
    made.run.write("manifest.json", known)
    for path in store.directory().glob("*"):
        path.unlink()
    return lambda: len(list(store.directory().glob("*")))


def test_the_recipe_before_a_refuted_one_is_in_the_store_again(made: State, stored: Callable[[], int]) -> None:
    offer(made, Answer(("compile",), "verified", Figure(value=1.8)))
    offer(made, Answer(("compile", "sdpa"), "verified", Figure(value=2.2)))
    take_back(made, ["compile", "sdpa"], "it is slower")
    assert made.answer
    assert made.answer.kept == ("compile",)
    assert stored() == 1


@pytest.mark.parametrize(("wrong", "left"), [(False, 1), (True, 0)])
def test_what_an_earlier_climb_confirmed_stays_unless_it_computes_something_else(
    made: State, stored: Callable[[], int], wrong: bool, left: int
) -> None:
    offer(made, Answer(("compile",), "confirmed", Figure(value=1.8)))
    made.answer = None  # another climb
    offer(made, Answer(("compile",), "provisional", Figure(value=1.06)))
    take_back(made, ["compile"], "the interval includes 1", wrong=wrong)
    assert stored() == left
