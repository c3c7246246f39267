"""One workload over several ranks: they train one model, and what is said of their step is what its samples show."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_ranks import ranks
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace
from ranked_workload import make

from rung.errors import WorkloadError
from rung.hardware.ranks import Ranks
from rung.launch import Team
from rung.measure import median_interval
from rung.records.bench import Bench
from rung.records.record import plain
from rung.report.bench import bench_lines
from rung.report.over_ranks import over_ranks_lines, scaling_lines
from rung.report.samples_page import bench_page
from rung.runs.entries import Call, entry_of
from rung.timing.merge_answers import merge_answers
from rung.timing.over_ranks import RanksSeen
from rung.workload import of_rank, seeded_model

HERE = Path(__file__).parent
TARGET = f"{HERE / 'ranked_workload.py'}:powered"


def bench(*words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "rung", "bench", TARGET, "--device", "cpu", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def measured() -> Bench:
    """Of two ranks, on the CPU."""
    import msgspec

    done = bench("--nproc-per-node", "2", "--time", "3.2", "--json")
    assert done.returncode == 0, done.stderr
    return msgspec.json.decode(done.stdout, type=Bench)


def test_two_ranks_are_measured_as_one_step_and_each_for_itself(measured: Bench) -> None:
    seen = measured.over_ranks
    assert seen
    assert [rank.rank for rank in seen.ranks] == [0, 1]
    assert [rank.power for rank in seen.ranks] == [pytest.approx(100), pytest.approx(200)]
    assert [rank.clock for rank in seen.ranks] == [1900, 1700]
    assert seen.parallel == "ddp"
    assert measured.samples_per_step == 16
    # A step ends with the slowest rank, so none of its own medians lies above the job's.
    assert all(rank.time.value <= measured.time.value for rank in seen.ranks)
    assert sum(rank.last for rank in seen.ranks) == pytest.approx(1)
    assert all(rank.alone for rank in seen.ranks)
    assert seen.exposed
    assert seen.exposed.value == pytest.approx(
        measured.time.value - max(rank.alone.value for rank in seen.ranks if rank.alone)
    )


def test_a_job_is_another_measurement_than_one_process(measured: Bench) -> None:
    """In the history, where trends are drawn: with the ranks said once, as one of several numbers or not."""
    alone = plain(replace(measured, over_ranks=UNSET))
    job, of_a_list = plain(measured), plain(replace(measured, point={"ranks": "2"}))
    kept = [entry_of("bench", document, Call()).measured[0] for document in (alone, job, of_a_list)]
    same = [(one.name, one.target, one.options, one.variant) for one in kept]
    assert same[0] != same[1]
    assert same[1] == same[2]


def test_the_lines_name_ranks_and_the_exchange(measured: Bench) -> None:
    assert measured.over_ranks
    text = "\n".join(over_ranks_lines(measured.over_ranks))
    assert "rank  host" in text
    assert "exposed exchange" in text
    assert re.search(r"   1  .*  200 W  1700 MHz\n", text)
    assert "power 300 W over all ranks" in text
    assert "<td" in (page := bench_page([measured]))
    assert "200 W" in page
    table = scaling_lines([measured])
    assert len(table) == 3
    assert "100%" in table[2]
    assert "samples/s" in table[0]
    uncounted = scaling_lines([replace(measured, samples_per_step=None)])
    assert "samples/s" not in uncounted[0]
    assert len({line.count("|") for line in uncounted}) == 1


def test_on_a_cpu_the_threads_of_a_rank_are_said(measured: Bench) -> None:
    def threads(result: Bench) -> list[str]:
        return [line for line in bench_lines(result) if line.startswith("threads")]

    (line,) = threads(replace(measured, environment=replace(measured.environment, threads=1)))
    assert re.match(r"threads +1 in each rank \(.*OMP_NUM_THREADS", line)
    on_a_gpu = replace(measured.environment, device=replace(measured.environment.device, kind="cuda"))
    assert threads(replace(measured, environment=on_a_gpu)) == []
    assert threads(replace(measured, over_ranks=UNSET)) == []


def test_ranks_take_the_step_of_one_process_on_all_their_batches(tmp_path: Path) -> None:
    """The weights of both are those that the mean of their gradients gives, which neither's own gradient does."""
    path = {"PYTHONPATH": os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))}
    with Team("ranked_workload:Trained", tmp_path / "log", ranks(2), lambda _, answers: answers, path) as team:
        (one, alone_one, batch_one), (other, alone_other, batch_other) = team.call("step", 120)
    assert one == other
    assert batch_one != batch_other
    assert alone_one != alone_other
    mean = (torch.tensor(alone_one, dtype=torch.float64) + torch.tensor(alone_other, dtype=torch.float64)) / 2
    assert torch.allclose(torch.tensor(one, dtype=torch.float64), mean, atol=1e-7)  # SGD is linear in the gradient
    assert torch.equal(torch.tensor(alone_one), _after_a_step(torch.tensor(batch_one).reshape(8, 16)))


def _after_a_step(batch: torch.Tensor) -> torch.Tensor:
    workload = make()
    model = seeded_model(workload)
    assert workload.loss
    assert workload.optimizer
    optimizer = workload.optimizer(model.parameters())
    workload.loss(model(batch), batch).backward()
    optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_every_rank_has_batches_of_its_own() -> None:
    batches = [of_rank(make(), rank, 3).inputs(seed) for rank in range(3) for seed in range(4)]
    assert len({tuple(batch.flatten().tolist()) for batch in batches}) == 12


def test_inputs_that_ask_for_their_rank_are_told() -> None:
    from dataclasses import replace

    told = replace(make(), inputs=lambda seed, rank=0, world=1: torch.tensor([seed, rank, world]))
    assert of_rank(told, 2, 3).inputs(5).tolist() == [5, 2, 3]
    assert of_rank(told, 2, 3).samples == 24


def test_a_way_to_train_that_there_is_not_is_refused() -> None:
    with pytest.raises(WorkloadError, match="parallel is 'zero'; it must be 'ddp', 'fsdp2' or 'own'"):
        make("zero")


@pytest.mark.parametrize(
    ("rank", "wanted", "gpus", "device"),
    [
        (Ranks(), None, 8, None),
        (Ranks(5, 8, 1), None, 4, "cuda:1"),
        (Ranks(5, 8, 1), "cuda", 4, "cuda:1"),
        (Ranks(5, 8, 1), None, 1, "cuda:0"),  # each is shown its own GPU alone
        (Ranks(5, 8, 1), None, 0, None),
        (Ranks(5, 8, 1), "cpu", 4, "cpu"),
    ],
)
def test_each_rank_has_the_gpu_of_its_number_on_the_host(rank: Ranks, wanted: str, gpus: int, device: str) -> None:
    assert rank.device(wanted, gpus) == device


def test_more_ranks_than_gpus_are_refused() -> None:
    with pytest.raises(
        WorkloadError, match=r"rank 5 has no GPU of its own: it is number 4 on its host, which has 2 GPUs"
    ):
        Ranks(5, 8, 3).device(None, 2)


@given(st.lists(st.lists(st.floats(1, 1e9), min_size=3, max_size=3), min_size=1, max_size=5))
def test_a_step_of_a_job_takes_as_long_as_that_of_its_slowest_rank(samples: list[list[float]]) -> None:
    answers = [{"samples": s, "outside": 0.0, "calls": 3, "compiled": 0, "cores": None} for s in samples]
    joined = merge_answers("block", answers)
    assert joined["samples"] == [max(s[k] for s in samples) for k in range(3)]
    assert all(joined["samples"][k] >= s[k] for s in samples for k in range(3))


def test_memory_is_that_of_the_rank_that_takes_most_and_doubts_are_told_once() -> None:
    assert merge_answers("memory", [{"allocated": 1, "reserved": 5}, {"allocated": 3, "reserved": 4}]) == {
        "allocated": 3,
        "reserved": 5,
    }
    assert merge_answers("doubts", [["a"], ["b", "a"]]) == ["a", "b"]
    assert merge_answers("open", ["first", "second"]) == "first"


class Answers:
    """A team of two ranks, the second of which is slower by itself."""

    hosts = ("a", "b")

    def __init__(self, alone: list[Any]) -> None:
        self._alone, self.answers = alone, [{"samples": [10.0] * 20}, {"samples": [10.0, 12.0] * 10}]

    def ask(self, method: str, **_: Any) -> None:
        self.answers = {"memory": [{"reserved": 1}, {"reserved": 2}], "alone": self._alone}[method]


def test_the_exchange_that_shows_is_what_a_step_takes_longer_than_the_slowest_rank_alone() -> None:
    team = Answers([[6.0] * 20, [8.0] * 20])
    seen = RanksSeen(team, "ddp")  # type: ignore[arg-type]
    seen.block()
    found = seen.summary(team.ask, 20, median_interval([11.0] * 20), 0)
    assert found.exposed
    assert found.exposed.value == 3.0
    assert found.imbalance == pytest.approx(8 / 7 - 1)
    assert [rank.last for rank in found.ranks] == [0.5, 0.5]
    assert [rank.memory["reserved"] for rank in found.ranks] == [1, 2]


def test_where_exchange_cannot_be_left_out_nothing_is_said_of_it() -> None:
    team = Answers([None, None])
    seen = RanksSeen(team, "fsdp2")  # type: ignore[arg-type]
    seen.block()
    found = seen.summary(team.ask, 20, median_interval([11.0] * 20), 0)
    assert found.exposed is None
    assert "exposed" not in "\n".join(over_ranks_lines(found))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--nproc-per-node", "2", "--launcher", "mpirun"], "not both"),
        (["--nproc-per-node", "2", "--call"], "several ranks run a workload"),
        (["--nproc-per-node", "1,2", "--sweep", "parallel=ddp"], "give one number"),
        (["--nproc-per-node", "2", "--timer", "graph"], "timed as launched"),
        (["--nproc-per-node", "2,2"], "names a number twice"),
        (["--nproc-per-node", "1,2", "--preset", "quick"], "does not show how a workload scales"),
    ],
)
def test_what_several_ranks_cannot_do_is_refused_at_once(words: list[str], said: str) -> None:
    done = bench(*words)
    assert done.returncode == 2
    assert said in done.stderr
