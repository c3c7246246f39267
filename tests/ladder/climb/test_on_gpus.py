"""Restarts of an attempt on several GPUs at once: each on one, how the GPUs differ in no ratio, and what fails elsewhere on the first."""

import math
import os
import random
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
from climbing import MICRO
from hypothesis import given
from hypothesis import strategies as st
from made_up import know, state
from msgspec import UNSET
from served_steps import GIB, STEP

from rung.ladder.climb import confirm, on_gpus, schedule
from rung.ladder.climb.on_gpus import further_restarts, report_gpu_differences, spread
from rung.ladder.climb.restarts import wait_until_warm
from rung.ladder.climb.state import OutOfTime, State
from rung.ladder.climb.unfinished import Unfinished, read_unfinished
from rung.launch import Worker
from rung.measure import CLIMB, PATIENT, Looks, Restart, decide, interleaved, until_next_look
from rung.records.climb import Attempt
from rung.records.progress import Warned
from rung.records.record import take
from rung.report.attempt_words import other_gpus
from rung.side import Limits, Setup, Side
from rung.timing import tasks
from rung.timing.ab_run import ABRun
from rung.timing.tasks import Place, Pool, Task
from rung.timing.timed import Warmed
from rung.timing.worker_group import SideFailed

HERE = str(Path(__file__).parent)
PLENTY = 100.0
SIDES = {"best": Side("x"), "candidate": Side("x", rungs=("sdpa",), env={"FACTOR": "0.9"})}
GAIN = -math.log(0.9)


@dataclass
class Made:
    """A climb after the first restart of an attempt. said: what was warned of; opened: by log, on which GPU."""

    state: State
    pool: Pool
    unfinished: Unfinished
    blocks: Path
    said: list[str]
    opened: dict[str, str]

    def gpus(self, *factors: float, **variables: str) -> None:
        """As many GPUs beside the first, so many times as slow."""
        self.pool.elsewhere = tuple(
            Place("cuda", {"GPU": str(k), "GPU_FACTOR": str(factor), **variables}, f"GPU {k}")
            for k, factor in enumerate(factors, 1)
        )

    def restart(self) -> None:
        further_restarts(self.state, SIDES, self.unfinished, "02-sdpa")

    @property
    def ratios(self) -> list[float]:
        return [restart.log_ratio() for restart in self.unfinished.ab_run.restarts]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    blocks, said, opened = tmp_path / "blocks", list[str](), dict[str, str]()
    path = os.pathsep.join(filter(None, [HERE, os.environ.get("PYTHONPATH")]))

    def open_worker(stack: ExitStack, setup: Setup, side: Side, log: str, **how: object) -> Worker:
        env = {"PYTHONPATH": path, "BLOCKS": str(blocks), **setup.variables, **side.env}
        opened[log] = setup.variables.get("GPU", "0")
        worker = stack.enter_context(Worker("served_steps:Steps", setup.logs / f"{log}.log", env))
        worker.send("open", target=side.target)
        return worker

    monkeypatch.setattr(tasks, "open_worker", open_worker)
    monkeypatch.setattr(schedule, "usable_cores", lambda: 32)
    made = state(tmp_path)
    know(made, gpu=False)
    made.say = lambda event: said.append(event.text) if isinstance(event, Warned) else None
    row = (STEP, 0.9 * STEP, 0.9 * STEP, STEP)
    unfinished = Unfinished("02-sdpa", ["sdpa"], "baseline", ABRun(restarts=[Restart((row,) * 4)]), "sdpa", CLIMB)
    unfinished.ab_run.samples = [{"best": [STEP], "candidate": [0.9 * STEP]}]
    unfinished.ab_run.warm = [
        {side: Warmed(first_run_seconds=1.0, runs=3, steady=True, memory={"allocated": 1}) for side in SIDES}
    ]
    with Pool(Setup(None, tmp_path / "workers", Limits(prepare=PLENTY, block=PLENTY)), most=2) as pool:
        made.pool = pool
        yield Made(made, pool, unfinished, blocks, said, opened)


def spans(blocks: Path) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """When blocks ran, by GPU and worker."""
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for line in blocks.read_text().splitlines():
        gpu, pid, began, ended = line.split()
        found.setdefault(gpu, {}).setdefault(pid, []).append((float(began), float(ended)))
    return found


def test_restarts_are_timed_at_the_same_time_each_on_one_gpu(made: Made) -> None:
    made.gpus(1.0, 1.0)
    made.restart()
    assert len(made.unfinished.ab_run.restarts) == 3  # to the next planned look, and no more
    assert made.unfinished.ab_run.elsewhere == {2: "GPU 1"}
    ran = spans(made.blocks)
    assert {gpu: len(workers) for gpu, workers in ran.items()} == {"0": 2, "1": 2}  # both sides on each
    first, second = ([span for spans in workers.values() for span in spans] for workers in ran.values())
    beside = [any(a < d and c < b for c, d in second) for a, b in first]
    assert sum(beside) > len(beside) / 2
    for on_one in (first, second):  # on one GPU the sides take turns
        on_one.sort()
        assert all(b <= c for (_, b), (c, _) in pairwise(on_one))


def test_a_slower_gpu_leaves_the_ratio_and_the_times_as_they_are(made: Made) -> None:
    made.unfinished.looks = ((5, 0.02), (8, 0.015))
    made.gpus(1.3, 0.8)
    made.restart()
    assert sorted(made.unfinished.ab_run.elsewhere.values()) == ["GPU 1", "GPU 2"]
    assert made.ratios == pytest.approx([GAIN] * len(made.ratios))
    found = made.unfinished.ab_run.record()
    assert (found.times["best"].low, found.times["best"].high) == pytest.approx((STEP, STEP))  # of the first GPU alone
    assert {gpu.gpu: pytest.approx(gpu.step) for gpu in found.other_gpus} == {"GPU 1": 1.3, "GPU 2": 0.8}  # type: ignore[union-attr]


def test_that_gpus_differ_is_in_each_record_and_said_once(made: Made) -> None:
    made.gpus(1.3)
    made.restart()
    for _ in range(2):
        record = Attempt(number=2, rung="sdpa", against="baseline", verdict="kept")
        take(record, made.unfinished.ab_run.record())
        report_gpu_differences(made.state, record)
        assert other_gpus(record) == "restart 3 on GPU 1, where a step takes 1.30× as long"
    assert made.said == [
        "a step of the best so far takes 1.30× as long on GPU 1 as on the first GPU; this is in no comparison"
    ]


def test_on_one_gpu_there_is_nothing_to_tell(made: Made) -> None:
    made.restart()
    made.restart()
    assert made.unfinished.ab_run.elsewhere == {}
    assert {*made.opened.values()} == {"0"}
    assert made.unfinished.ab_run.record().other_gpus is UNSET
    assert not made.said
    assert len(made.unfinished.ab_run.restarts) == 3


def test_what_is_begun_is_read_back_with_where_it_ran(made: Made) -> None:
    made.gpus(1.1)
    made.restart()
    (found,) = read_unfinished(made.state.run).values()
    assert found.ab_run.elsewhere == {2: "GPU 1"}
    made.unfinished.ab_run.elsewhere = {0: "GPU 1"}  # damaged: the first restart is on the first GPU
    on_gpus.save(made.state, "attempt", made.unfinished)
    assert read_unfinished(made.state.run) == {}


@pytest.mark.parametrize("method", ["open", "warm", "block"])
def test_what_fails_elsewhere_is_repeated_on_the_first_gpu(made: Made, method: str) -> None:
    made.gpus(1.0, FAILS=f"1 {method}")
    made.restart()
    assert len(made.unfinished.ab_run.restarts) == 3
    assert made.unfinished.ab_run.elsewhere == {}
    assert made.ratios == pytest.approx([GAIN] * 3)
    assert [text.partition(": ")[0] for text in made.said] == ["a restart on GPU 1 is repeated on the first GPU"]
    assert {log: gpu for log, gpu in made.opened.items() if "again" in log} == {
        "02-sdpa-again-3-best": "0",
        "02-sdpa-again-3-candidate": "0",
    }
    assert made.pool.reserve(1) == []  # nothing is timed there again


def test_where_another_process_came_it_is_repeated_on_the_first_gpu(made: Made) -> None:
    made.gpus(1.0, OTHERS="1")
    made.restart()
    assert len(made.unfinished.ab_run.restarts) == 3
    assert made.unfinished.ab_run.elsewhere == {}
    assert made.said == ["a restart on GPU 1 is repeated on the first GPU: another process came or went"]


def test_where_others_are_there_it_is_repeated_on_the_first_gpu(made: Made) -> None:
    made.gpus(1.0, THERE=str(3 * GIB))
    made.restart()
    assert made.unfinished.ab_run.elsewhere == {}
    assert made.said == ["a restart on GPU 1 is repeated on the first GPU: other processes hold 3.0 GiB of it"]


def test_several_on_one_gpu_are_timed_one_after_the_other(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that stand still beside what is timed are no other processes."""
    made.gpus(1.0)
    monkeypatch.setattr(on_gpus, "parallel_groups", lambda *_: 2)
    made.unfinished.looks = ((5, 0.05),)
    made.restart()
    assert made.unfinished.ab_run.elsewhere == {2: "GPU 1", 4: "GPU 1"}
    assert not made.said
    for workers in spans(made.blocks).values():
        first, _, third, _ = sorted((min(spans)[0], max(spans)[1]) for spans in workers.values())
        assert first[1] < third[0]


def test_what_fails_on_the_first_gpu_fails(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    made.gpus(1.0)
    monkeypatch.setenv("FAILS", "0 block")
    with pytest.raises(SideFailed):
        made.restart()
    assert made.pool.reserve(1) == [1]  # it was given back
    (found,) = read_unfinished(made.state.run).values()
    assert found.ab_run.elsewhere == {1: "GPU 1"}  # which ended well


def test_one_that_hangs_elsewhere_leaves_the_others(made: Made) -> None:
    made.gpus(1.0, FAILS="1 hang")
    made.state.setup = replace(made.state.setup, limits=Limits(prepare=PLENTY, block=3.0))
    made.restart()
    assert made.ratios == pytest.approx([GAIN] * 3)
    (said,) = made.said
    assert said.startswith(
        "a restart on GPU 1 is repeated on the first GPU: the timing did not end within its deadline"
    )


def test_where_the_time_is_over_nothing_is_said_of_a_gpu(made: Made) -> None:
    made.gpus(1.0, FAILS="1 warm")
    made.state.request = replace(made.state.request, budget=1e6)
    left = iter([1e6, 1e6])
    made.state.left = lambda: next(left, 0.5)  # type: ignore[method-assign]
    with pytest.raises(OutOfTime):
        made.restart()
    assert not made.said


def test_what_verifies_keeps_its_gpu_and_none_begins_beside_what_is_timed(made: Made, tmp_path: Path) -> None:
    """A check that comes while a restart is timed waits, though its GPU has room."""
    made.gpus(1.0, 1.0)
    made.pool.most, made.unfinished.looks = 8, ((4, 0.05),)
    checks = [Task(name, SIDES["best"], [("until", {"path": str(tmp_path / "go")})]) for name in ("a", "b", "c")]
    for check in checks:
        check.untimed, check.memory = True, 1.0
    made.pool.memory = 1.0  # two have no room on one GPU
    made.pool.add(checks[0])
    seen: list[tuple[bool, bool]] = []

    def save(state: State, what: str, unfinished: Unfinished) -> None:
        """While restarts are timed."""
        for check in checks[1:]:
            if check not in made.pool._tasks:
                made.pool.add(check)
        made.pool.pump()
        seen.append((checks[1].worker is None, checks[2].worker is None))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(on_gpus, "save", save)
        made.restart()
    assert checks[0].place == 1
    assert {*made.unfinished.ab_run.elsewhere.values()} == {"GPU 2"}
    assert seen == [(True, True)]
    assert not made.said
    made.pool.pump()
    assert checks[1].place == 2
    (tmp_path / "go").touch()


@pytest.mark.long
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two groups of cores")
def test_two_groups_of_cores_stand_in_for_two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With real workers."""
    monkeypatch.setattr(schedule, "usable_cores", lambda: 32)
    one, two = sorted(os.sched_getaffinity(0))[:2]
    made, seen = state(tmp_path), dict[int, set[int]]()
    know(made, gpu=False)
    sides = {"best": Side(MICRO), "candidate": Side(MICRO, rungs=("fused-optimizer",))}
    first = ABRun(restarts=[Restart(((STEP,) * 4,))], samples=[{side: [STEP] for side in sides}])
    unfinished = Unfinished("02-x", ["fused-optimizer"], "baseline", first, "fused-optimizer", CLIMB)

    def save(state: State, what: str, unfinished: Unfinished) -> None:
        for task in state.restart_workers:
            assert isinstance(task.worker, Worker)
            for process in psutil.Process(task.worker.pid).children():
                seen.setdefault(task.place, set()).update(process.cpu_affinity())

    monkeypatch.setattr(on_gpus, "save", save)
    setup = Setup("cpu", tmp_path / "workers", Limits(prepare=PLENTY, block=PLENTY))
    with Pool(replace(setup, variables={"GOMP_CPU_AFFINITY": str(one)}), most=2) as made.pool:
        made.pool.elsewhere = (Place("cpu", {"GOMP_CPU_AFFINITY": str(two)}, "the second group"),)
        further_restarts(made, sides, unfinished, "02-x")
    assert unfinished.ab_run.elsewhere == {2: "the second group"}
    assert seen == {0: {one}, 1: {two}}


def test_confirming_runs_on_the_first_gpu(made: Made) -> None:
    made.gpus(1.0, 1.0)
    wait_until_warm(made.state, confirm._begin(made.state, SIDES, Unfinished("final", [], "", looks=CLIMB)))
    assert {*made.opened.values()} == {"0"}
    assert {*made.opened} == {"final-1-best", "final-1-candidate"}


@given(st.integers(1, 30), st.integers(1, 3), st.integers(0, 7), st.sampled_from([CLIMB, PATIENT]), st.integers(1, 64))
def test_restarts_end_at_the_same_looks_wherever_they_run(
    unfinished: int, here: int, others: int, looks: Looks, cores: int
) -> None:
    """A batch never goes past a look, leaves no GPU for another, and has no more on one than it has room for."""
    wanted = until_next_look(unfinished, looks)
    most = min(wanted, max(here, cores // 4))
    places = spread(most, here, range(1, 1 + min(others, max(0, most - 1))))
    assert 1 <= len(places) <= wanted
    assert places[0] == 0
    counts = [places.count(place) for place in {*places}]
    assert max(counts) <= here
    assert max(counts) - min(counts) <= 1


def test_what_disturbs_all_gpus_at_once_is_no_gain() -> None:
    """Restarts that run at the same time share what disturbs the host. Which side it hits is drawn by lot in each. With one order for all of
    them, half of these equal candidates would be faster."""
    answers = [_of_equal_sides(random.Random(seed)) for seed in range(300)]
    assert answers.count("faster") <= 0.05 * len(answers)


def _of_equal_sides(lots: random.Random) -> str:
    """The answer of restarts of which those up to the next look run at the same time."""
    restarts: list[Restart] = []
    while not (found := decide(restarts, looks=CLIMB) if restarts else None) or not found.final:
        disturbed = _disturbances(lots)
        restarts += [_restart(disturbed, lots) for _ in range(until_next_look(len(restarts), CLIMB))]
    return found.answer


def _disturbances(lots: random.Random) -> list[float]:
    """How many times as long each block takes: it drifts, and now and then half a dozen take 1.4 times as long."""
    level, burst, found = 0.0, 0, list[float]()
    for _ in range(60):
        level = 0.8 * level + lots.gauss(0, 0.03)
        burst = max(0, burst - 1) or (6 if lots.random() < 0.05 else 0)
        found.append(math.exp(level) * (1.4 if burst else 1.0))
    return found


def _restart(disturbed: list[float], lots: random.Random) -> Restart:
    blocks = iter(disturbed)
    return interleaved([lambda: [next(blocks)]] * 2, 6, lots=random.Random(lots.random()))[0]
