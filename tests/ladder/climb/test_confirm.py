"""The answer in fresh restarts that chose nothing: confirmed, left as it was, or taken back."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from attempt_records import compared, mode
from made_up import MANIFEST, PASSED, STEP, answered, state, tried

from rung.ladder.climb import confirm as confirming
from rung.ladder.climb import restarts
from rung.ladder.climb import state as states
from rung.ladder.climb.answer import Answer, offer, restore_answer, take_back, write_result
from rung.ladder.climb.confirm import confirm
from rung.ladder.climb.modes import the_best
from rung.ladder.climb.state import State
from rung.ladder.climb.unfinished import Unfinished, save
from rung.ladder.climb.verdict import restore_best
from rung.launch import WorkerFailed
from rung.measure import Restart
from rung.measure.core_time import CoreTime
from rung.recipes.recipe import Status
from rung.records.measured import Figure
from rung.records.progress import Warned
from rung.records.record import record_of
from rung.records.workload import Batch
from rung.runs import Run
from rung.timing.ab_run import ABRun
from rung.timing.tasks import Task
from rung.timing.timed import Warmed
from rung.timing.worker_group import SideFailed

WARM = {"memory": {"resident": 1}, "first_run_seconds": 1.0, "runs": 5, "steady": True, "applied": {}}
Steps = dict[tuple[str, int], float]  # times STEP, by side and shape; what is not in it takes 1; 0 fails


class Pool:
    """Of tasks whose workers are warm at once."""

    def __init__(self, in_time: bool = True) -> None:
        self.tasks: list[Task] = []
        self.in_time = in_time

    def add(self, task: Task, *, at_once: bool = False, first: bool = False) -> Task:
        done = answered(task.name, task.side, open={}, warm=WARM)
        task.worker, task.answers, task.took = done.worker, done.answers, done.took
        task._waiting = []
        self.tasks.append(task)
        return task

    def wait(self, until: Callable[[], bool], left: Callable[[], float]) -> bool:
        return self.in_time and until()

    def held(self) -> float:
        return 0.0


def starts(steps: Steps) -> type:
    class Start:
        """One restart, in which steps take what was given."""

        def __init__(self, tasks: Mapping[str, Task]) -> None:
            self.workers = {name: task.worker for name, task in tasks.items()}
            self.shape = 0

        @classmethod
        def of(cls, setup: Any, tasks: Mapping[str, Task]) -> "Start":
            assert all(task.ready for task in tasks.values())
            return cls(tasks)

        def drop(self, side: str) -> None:
            del self.workers[side]

        def go_to_shape(self, shape: int) -> None:
            self.shape = shape

        def at_shape(self, deadline: float) -> None:
            pass

        def timed(self, ab_run: ABRun) -> Restart:
            took = {side: STEP * steps.get((side, self.shape), 1.0) for side in self.workers}
            if failed := next((side for side, ns in took.items() if not ns), None):
                raise SideFailed(failed, WorkerFailed("no such kernel", "raised"))
            ab_run.samples.append({side: [ns] * 8 for side, ns in took.items()})
            ab_run.warm.append(dict.fromkeys(took, Warmed(**WARM)))
            # Restarts differ a little, as processes do.
            off = [ns * (1 + 0.001 * (len(ab_run.samples) % 3) * k) for k, ns in enumerate(took.values())]
            return Restart(tuple((*off, *reversed(off)) for _ in range(8)))

    return Start


@pytest.fixture
def made(tmp_path: Path) -> State:
    """A climb whose verified answer is a mode of torch.compile and one more rung."""
    made = state(tmp_path)
    made.run.write("manifest.json", MANIFEST)
    made.facts.shapes = record_of(list[Batch], [{"shape": "8 x 8", "elements": 64}])
    made.pool = Pool()  # type: ignore[assignment]
    made.kept = ["compile", "sdpa"]
    made.verified_on_all_shapes = {("compile",), BOTH}
    made.plain = the_best(mode("compile", title="torch.compile", speedup=1.8), [])
    offer(made, Answer(("compile",), "verified", Figure(value=1.8)))
    offer(made, Answer(("compile", "sdpa"), "verified", Figure(value=2.2)))
    return made


def confirmed(made: State, patch: pytest.MonkeyPatch, steps: Steps) -> tuple[Status, tuple[str, ...]] | None:
    patch.setattr(restarts, "WorkerGroup", starts(steps))
    confirm(made)
    return (made.answer.status, made.answer.kept) if made.answer else None


BOTH: tuple[str, ...] = ("compile", "sdpa")
FASTER: Steps = {("plain", 0): 0.55, ("candidate", 0): 0.5}


def test_what_is_faster_than_the_untouched_model_and_the_best_plain_mode_is_confirmed(
    made: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert confirmed(made, monkeypatch, FASTER) == ("confirmed", BOTH)
    assert made.answer is not None
    assert made.answer.speedup.value == pytest.approx(2.0, rel=0.01)
    assert made.answer.over_plain is not None
    assert made.answer.over_plain.value == pytest.approx(1.1, rel=0.01)
    assert (made.answer.speedup.low or 0.0) > 1
    assert {*made.answer.times} == {"baseline", "plain", "best"}
    assert len(made.answer.restarts) >= 3


def test_the_restarts_are_fresh_ones(made: State, monkeypatch: pytest.MonkeyPatch) -> None:
    before = [answered(name, made.side([])) for name in ("champion", "untouched", "next")]
    made.best_worker, made.baseline_worker, made.next_worker = before
    confirmed(made, monkeypatch, FASTER)
    assert all(task.ended for task in before)
    tasks = made.pool.tasks  # type: ignore[attr-defined]
    assert [task.side.rungs for task in tasks[:3]] == [BOTH, ("compile",), ()]
    assert len({task.name for task in tasks}) == len(tasks) >= 9
    assert all(task.fresh for task in tasks)  # and no forks of one process, which are alike


class WhileVerifying(Pool):
    """The verification on other shapes ends once something waits for it. loaded: the names of the restarts' workers by then."""

    def __init__(self, says: dict[str, Any] = PASSED, fails: str = "", breaks: bool = False) -> None:
        """fails: a worker that does, by its name; breaks: the verification fails beside the restarts, and passes alone."""
        super().__init__()
        self.says, self.fails, self.breaks, self.loaded = says, fails, breaks, list[str]()

    def add(self, task: Task, *, at_once: bool = False, first: bool = False) -> Task:
        super().add(task)
        if task.name.startswith("shapes"):
            task._waiting = ["verify"]
        elif task.name == self.fails:
            task.error = WorkerFailed("out of memory", "raised")
        return task

    def waiting(self) -> list[str]:
        return []

    def wait(self, until: Callable[[], bool], left: Callable[[], float]) -> bool:
        verifying = [task for task in self.tasks if task.name.startswith("shapes") and not task.done]
        if not until() and verifying:
            self.loaded = [task.name for task in self.tasks if task.name.startswith("final")]
            for task in verifying:
                if self.breaks and not task.name.endswith("again"):
                    task.error = WorkerFailed("out of memory", "raised")
                else:
                    task.answers, task._waiting = {"verify": self.says}, []
        return until()


def with_other_shapes(made: State, patch: pytest.MonkeyPatch, pool: WhileVerifying) -> None:
    """The same climb, on many cores, whose answer is not verified on its other shape yet."""
    patch.setattr(states, "usable_cores", lambda: 64)
    shapes = [{"shape": "8 x 8", "elements": 64}, {"shape": "4 x 8", "elements": 32}]
    made.facts.shapes, made.verified_on_all_shapes = record_of(list[Batch], shapes), {("compile",)}
    made.pool = pool  # type: ignore[assignment]


BOTH_SHAPES: Steps = {
    **dict.fromkeys([("plain", 0), ("plain", 1)], 0.55),
    **dict.fromkeys([("candidate", 0), ("candidate", 1)], 0.5),
}


def test_restarts_load_while_the_answer_is_verified_on_other_shapes(
    made: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_other_shapes(made, monkeypatch, pool := WhileVerifying())
    assert confirmed(made, monkeypatch, BOTH_SHAPES) == ("confirmed", BOTH)
    assert pool.loaded
    assert pool.loaded[:3] == [f"final-1-{side}" for side in ("candidate", "plain", "best")]
    assert [task.name for task in pool.tasks if task.name.startswith("final")][: len(pool.loaded)] == pool.loaded
    assert all(task.ended for task in pool.tasks if task.name.startswith("final"))


def test_a_restart_that_fails_beside_that_verification_is_begun_anew(
    made: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[Any] = []
    made.say = lambda event: said.append(event) if isinstance(event, Warned) else None
    with_other_shapes(made, monkeypatch, pool := WhileVerifying(fails="final-1-candidate"))
    assert confirmed(made, monkeypatch, BOTH_SHAPES) == ("confirmed", BOTH)
    assert [name for name in pool.loaded if name.endswith("candidate")] == ["final-1-candidate"]
    assert "final-2-candidate" in [task.name for task in pool.tasks]
    assert not said


def test_where_that_verification_fails_beside_them_restarts_are_begun_anew(
    made: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_other_shapes(made, monkeypatch, pool := WhileVerifying(breaks=True))
    assert confirmed(made, monkeypatch, BOTH_SHAPES) == ("confirmed", BOTH)
    names = [task.name for task in pool.tasks]
    assert [name for name in names if name.endswith("candidate")][:2] == ["final-1-candidate", "final-2-candidate"]
    assert names.index("final-1-best") < min(k for k, name in enumerate(names) if name.endswith("again"))
    assert max(k for k, name in enumerate(names) if name.endswith("again")) < names.index("final-2-best")


def test_on_few_cores_restarts_load_after_that_verification(made: State, monkeypatch: pytest.MonkeyPatch) -> None:
    with_other_shapes(made, monkeypatch, pool := WhileVerifying())
    monkeypatch.setattr(states, "usable_cores", lambda: 2)
    assert confirmed(made, monkeypatch, BOTH_SHAPES) == ("confirmed", BOTH)
    assert pool.loaded == []


def test_restarts_end_where_that_verification_takes_the_answer_back(
    made: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = {**PASSED, "passed": False, "failures": ["output is off by 1.0"]}
    with_other_shapes(made, monkeypatch, pool := WhileVerifying(wrong))
    found = confirmed(made, monkeypatch, BOTH_SHAPES)
    assert found is None or found[1] != BOTH
    ahead = [task for task in pool.tasks if task.name in pool.loaded]
    assert ahead
    assert all(task.ended for task in ahead)


def test_a_plain_mode_that_is_the_answer_is_no_side_of_its_own(made: State, monkeypatch: pytest.MonkeyPatch) -> None:
    made.kept, made.answer = ["compile"], made.replaced_answers.pop()
    assert confirmed(made, monkeypatch, {("candidate", 0): 0.5}) == ("confirmed", ("compile",))
    assert made.answer is not None
    assert made.answer.over_plain == Figure(value=1.0)


@pytest.mark.parametrize("untouched_is", ["as fast", "faster"])
def test_what_is_not_faster_than_the_untouched_model_is_taken_back(
    made: State, monkeypatch: pytest.MonkeyPatch, untouched_is: str
) -> None:
    took = {"as fast": 1.0, "faster": 1.2}[untouched_is]
    found = confirmed(made, monkeypatch, {("plain", 0): 2.0, ("candidate", 0): took})
    assert found == ("verified", ("compile",))  # the one before it
    assert "did not show it to be faster than the untouched model" in made.taken_back[0].why


def test_what_is_slower_than_the_best_plain_mode_is_taken_back(made: State, monkeypatch: pytest.MonkeyPatch) -> None:
    with_attempts(made)
    found = confirmed(made, monkeypatch, {("plain", 0): 0.5, ("candidate", 0): 0.55})
    assert found == ("confirmed", ("compile",))  # the plain mode itself
    assert "it was 0.91× as fast as torch.compile" in made.taken_back[0].why


def test_a_plain_mode_that_was_not_verified_takes_back_nothing(made: State, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was timed last may be wrong, and would leave the climb without any recipe."""
    with_attempts(made)
    said: list[str] = []
    made.say = lambda event: said.append(event.text) if isinstance(event, Warned) else None
    made.plain = the_best(mode("compile", "reduce-overhead", title="reduce-overhead", speedup=2.3), [])
    found = confirmed(made, monkeypatch, {("plain", 0): 0.45, ("candidate", 0): 0.5})
    assert found == ("verified", BOTH)
    assert made.answer
    assert made.answer.speedup.value == pytest.approx(2.0, rel=0.05)  # what the fresh restarts showed
    assert made.answer.over_plain
    assert made.answer.over_plain.value == pytest.approx(0.9, rel=0.05)
    assert made.taken_back == []
    assert said == [
        "not confirmed: in 3 fresh restarts it was 0.90× as fast as reduce-overhead, which itself was not verified"
    ]


def test_as_fast_as_the_best_plain_mode_suffices(made: State, monkeypatch: pytest.MonkeyPatch) -> None:
    """That it is faster than that is not claimed, so that no restarts are spent on which of the two is."""
    assert confirmed(made, monkeypatch, {("plain", 0): 0.501, ("candidate", 0): 0.5}) == ("confirmed", BOTH)
    assert made.answer
    assert len(made.answer.restarts) == 3


def test_what_fails_in_the_end_is_taken_back(made: State, monkeypatch: pytest.MonkeyPatch) -> None:
    assert confirmed(made, monkeypatch, {("candidate", 0): 0.0}) == ("verified", ("compile",))
    assert "no such kernel" in made.taken_back[0].why


@pytest.mark.parametrize("side", ["best", "plain", "candidate"])
def test_what_fails_once_is_started_again(made: State, monkeypatch: pytest.MonkeyPatch, side: str) -> None:
    """An out-of-memory killer may hit any process."""
    Timed, count = starts(FASTER), 0
    timed = Timed.timed

    def killed_once(start: Any, ab_run: ABRun) -> Restart:
        nonlocal count
        count += 1
        if count == 2:
            raise SideFailed(side, WorkerFailed("SIGKILL", "killed"))
        restart: Restart = timed(start, ab_run)
        return restart

    monkeypatch.setattr(Timed, "timed", killed_once)
    monkeypatch.setattr(restarts, "WorkerGroup", Timed)
    confirm(made)
    assert made.answer is not None
    assert (made.answer.status, made.answer.kept) == ("confirmed", BOTH)
    assert made.taken_back == []


def with_attempts(made: State) -> State:
    """The same climb with the records of what it kept."""
    for rung, stack, gain in (("plain", BOTH[:1], 1.8), ("sdpa", BOTH, 1.2)):
        figures = {side: {"value": STEP / (gain if side == "candidate" else 1)} for side in ("best", "candidate")}
        tried(
            made, rung, "kept", "x", stack=list(stack), why="verified.", comparison=compared("faster", gain), times=figures,
            memory={side: {"allocated": 1} for side in figures}, first_run_seconds={"best": 1.0, "candidate": 2.0},
        )  # fmt: skip
    made.baseline.memory = {"allocated": 1}
    return made


def test_the_answer_before_a_refuted_one_is_confirmed_in_its_place(
    made: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_attempts(made)
    slower = starts({("plain", 0): 0.5, ("candidate", 0): 0.55})
    alone = starts({("candidate", 0): 0.5})
    both = type("Both", (), {"of": lambda setup, tasks: (slower if "plain" in tasks else alone).of(setup, tasks)})
    monkeypatch.setattr(restarts, "WorkerGroup", both)
    confirm(made)
    assert made.answer is not None
    assert (made.answer.status, made.answer.kept) == ("confirmed", ("compile",))
    assert made.kept == ["compile"]
    on_disk = {a.rung: a for a in made.run.attempts()}
    assert on_disk["plain"].verdict == "kept"
    assert on_disk["sdpa"].verdict == "reverted"
    assert "0.91× as fast as torch.compile" in on_disk["sdpa"].why
    assert made.step_ns == STEP / 1.8  # what comes next is held against what stands


def on_another_day(made: State) -> State:
    """The same climb in another process, as a resumed one begins."""
    again = State(Run(made.run.directory), made.request, made.say)
    again.known, again.measured, again.plain = made.known, made.measured, made.plain
    restore_answer(again)
    restore_best(again)
    return again


def test_a_kill_between_the_record_and_the_answer_loses_nothing(made: State) -> None:
    with_attempts(made)
    made.answer = made.replaced_answers[-1]
    write_result(made)  # the answer of before
    again = on_another_day(made)
    assert again.answer is not None
    assert (again.answer.kept, again.answer.status) == (BOTH, "verified")
    assert again.answer.speedup.value == pytest.approx(1.8 * 1.2)
    assert Run(made.run.directory).read("result.json")["kept"] == [*BOTH]


def test_a_kill_between_a_refutation_and_its_records_loses_nothing(made: State) -> None:
    with_attempts(made)
    take_back(made, BOTH, "it was slower")
    again = on_another_day(made)
    assert again.answer is not None
    assert again.answer.kept == ("compile",)
    assert again.kept == ["compile"]
    assert [a.verdict for a in again.run.attempts()] == ["kept", "reverted"]


def test_what_is_gone_on_with_stays_the_provisional_answer(made: State) -> None:
    with_attempts(made)
    more = (*BOTH, "fused-qkv")
    made.answer = Answer(more, "provisional", Figure(value=3.0))
    save(made, "attempt", Unfinished("03-fused-qkv", [*more], " + ".join(BOTH), rung="fused-qkv", ab_run=one_restart()))
    write_result(made)
    again = on_another_day(made)
    assert again.answer is not None
    assert (again.answer.kept, again.answer.status) == (more, "provisional")
    take_back(again, more, "it was slower in the end")
    assert again.answer is not None
    assert (again.answer.kept, again.answer.status) == (
        BOTH,
        "verified",
    )  # of the attempts: this sitting saw no answer of theirs


def one_restart() -> ABRun:
    return ABRun(restarts=[Restart(((STEP, STEP, STEP, STEP),))])


@pytest.mark.parametrize("side", ["best", "plain"])
def test_a_failure_of_another_side_refutes_nothing(made: State, monkeypatch: pytest.MonkeyPatch, side: str) -> None:
    assert confirmed(made, monkeypatch, {**FASTER, (side, 0): 0.0}) == ("verified", BOTH)
    assert made.taken_back == []


def test_where_the_budget_ends_before_it_stays_what_it_is_and_that_is_said(
    made: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    made.say = lambda event: said.append(event.text) if isinstance(event, Warned) else None
    made.pool = Pool(in_time=False)  # type: ignore[assignment]
    assert confirmed(made, monkeypatch, FASTER) == ("verified", BOTH)
    assert said == ["not confirmed: the budget ended after 0 fresh restarts of the recipe"]
    with made.reserving(100.0):  # the rest is for rungs
        assert confirmed(made, monkeypatch, FASTER) == ("verified", BOTH)
    assert said[1:] == ["not confirmed: half of the budget was over after 0 fresh restarts of the recipe"]


@pytest.mark.parametrize("status", ["provisional", "confirmed"])
def test_only_what_was_kept_is_confirmed_and_once(made: State, monkeypatch: pytest.MonkeyPatch, status: Status) -> None:
    made.answer, made.kept = Answer(BOTH, status, Figure(value=2.2)), [*BOTH] if status == "confirmed" else ["compile"]
    assert confirmed(made, monkeypatch, FASTER) == (status, BOTH)
    assert made.pool.tasks == []  # type: ignore[attr-defined]


def test_shapes_on_which_it_loses_or_fails_are_left_to_the_original(
    made: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.facts.shapes = [
        *(made.facts.shapes or ()),
        *record_of(list[Batch], [{"shape": "3 x 8", "elements": 24}, {"shape": "99 x 8", "elements": 792}]),
    ]
    steps = {**FASTER, ("candidate", 1): 1.5, ("candidate", 2): 0.5}
    assert confirmed(made, monkeypatch, steps) == ("confirmed", BOTH)
    assert made.answer is not None
    assert [shape.answer for shape in made.answer.shapes] == ["slower", "faster"]
    assert made.answer.original == {"elements_at_most": 24}


def test_a_shape_on_which_it_fails_costs_that_shape_alone(made: State, monkeypatch: pytest.MonkeyPatch) -> None:
    made.facts.shapes = [*(made.facts.shapes or ()), *record_of(list[Batch], [{"shape": "3 x 8", "elements": 24}])]
    assert confirmed(made, monkeypatch, {**FASTER, ("candidate", 1): 0.0}) == ("confirmed", BOTH)
    assert made.answer is not None
    assert [(shape.answer, shape.speedup) for shape in made.answer.shapes] == [("fails", None)]
    assert made.answer.original == {"elements_at_most": 24}


@pytest.mark.parametrize(
    "together",
    [
        1,
        3,
    ],
)
def test_a_shape_on_which_it_fails_leaves_the_other_shapes_to_be_seen(
    made: State, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    monkeypatch.setattr(confirming, "most_restarts", lambda *_: together)
    made.facts.shapes = [
        *(made.facts.shapes or ()),
        *record_of(list[Batch], [{"shape": "3 x 8", "elements": 24}, {"shape": "99 x 8", "elements": 792}]),
    ]
    assert confirmed(made, monkeypatch, {**FASTER, ("candidate", 1): 0.0, ("candidate", 2): 1.5}) is not None
    assert made.answer is not None
    assert made.answer.original == {"elements_at_most": 24, "elements_at_least": 792}


def test_restarts_that_are_over_hold_no_memory_any_more(made: State, monkeypatch: pytest.MonkeyPatch) -> None:
    confirmed(made, monkeypatch, FASTER)
    assert all(task.ended for task in made.pool.tasks)  # type: ignore[attr-defined]


# Going on after a kill


class Killed(BaseException):
    """Ends the climb as a kill does: nothing that comes after it is done."""


def test_restarts_of_a_climb_that_was_killed_count(made: State, monkeypatch: pytest.MonkeyPatch) -> None:
    Timed = starts(FASTER)
    timed, so_far = Timed.timed, 0

    def killing(start: Any, ab_run: ABRun) -> Restart:
        nonlocal so_far
        so_far += 1
        if so_far == 3:
            raise Killed
        restart: Restart = timed(start, ab_run)
        return restart

    monkeypatch.setattr(Timed, "timed", killing)
    monkeypatch.setattr(restarts, "WorkerGroup", Timed)
    with pytest.raises(Killed):
        confirm(made)
    again = State(made.run, made.request, made.say)
    again.known, again.measured, again.kept, again.plain = made.known, made.measured, made.kept, made.plain
    again.verified_on_all_shapes = made.verified_on_all_shapes
    again.answer, again.pool = made.answer, Pool()  # type: ignore[assignment]
    assert len(again.unfinished["confirm"].ab_run.restarts) == 2
    assert confirmed(again, monkeypatch, FASTER) == ("confirmed", BOTH)
    assert len(again.pool.tasks) == 3  # type: ignore[attr-defined]
    assert again.answer is not None
    assert len(again.answer.restarts) == 3
    assert not again.unfinished
    assert not (again.run.directory / "begun.json").exists()


def test_what_fresh_restarts_do_not_show_is_not_claimed(made: State, monkeypatch: pytest.MonkeyPatch) -> None:
    """1 % faster, where processes differ by more."""
    made.plain = None
    Timed, luck = starts({}), iter(range(100))

    def timed(start: Any, ab_run: ABRun) -> Restart:
        ns = STEP * (0.99 + 0.03 * (next(luck) % 3 - 1))
        ab_run.samples.append({"best": [STEP] * 8, "candidate": [ns] * 8})
        ab_run.warm.append({"best": Warmed(**WARM), "candidate": Warmed(**WARM)})
        return Restart(((STEP, ns, ns, STEP),) * 8)

    monkeypatch.setattr(Timed, "timed", timed)
    monkeypatch.setattr(restarts, "WorkerGroup", Timed)
    confirm(made)
    assert "did not show it to be faster" in made.taken_back[0].why


@pytest.mark.parametrize(("cores", "status"), [(CoreTime(1, 1), "provisional"), (CoreTime(1, 0), None)])
def test_what_only_noise_hides_is_provisional_again(
    made: State, monkeypatch: pytest.MonkeyPatch, cores: CoreTime, status: str | None
) -> None:
    """Steps waited for cores, and restarts scatter; in CPU time it is clearly faster."""
    made.plain, made.replaced_answers = None, []
    Timed, luck = starts({}), iter([0.4, 1.1, 0.6] * 3)

    def timed(start: Any, ab_run: ABRun) -> Restart:
        ns = STEP * next(luck)
        ab_run.samples.append({"best": [STEP] * 8, "candidate": [ns] * 8})
        ab_run.warm.append({"best": Warmed(**WARM), "candidate": Warmed(**WARM)})
        ab_run.cores = {"best": cores}
        ab_run.cpu_restarts.append(Restart(((STEP, STEP / 1.5, STEP / 1.5, STEP * (1 + 0.01 * (ns > STEP))),) * 8))
        return Restart(((STEP, ns, ns, STEP),) * 8)

    monkeypatch.setattr(Timed, "timed", timed)
    monkeypatch.setattr(restarts, "WorkerGroup", Timed)
    confirm(made)
    assert (made.answer.status if made.answer else None) == status
    if made.answer:
        speedup = made.answer.speedup
        assert speedup.low
        assert speedup.high
        assert speedup.low < 1 < speedup.high
        assert "in CPU time it is 1.50" in made.answer.doubt
        assert made.run.read("result.json")["doubt"] == made.answer.doubt
        assert not made.taken_back
