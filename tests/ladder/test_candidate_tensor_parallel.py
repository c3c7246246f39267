"""What a climb asks of a candidate whose ranks compute one tensor-parallel model together."""

from pathlib import Path
from typing import Any

import pytest
import torch
from forked_ranks import ranks

from rung.errors import WorkloadError
from rung.ladder.answers import Loaded, Verified
from rung.launch import Team, WorkerFailed
from rung.records.record import record_of
from rung.side import Side
from rung.timing.bench import bench
from rung.timing.merge_answers import merge_answers
from rung.timing.workers import WORKLOAD
from rung.trace import read

WIDTH, ROWS = 64, 32
# Of a step: four layers, three products each, less the first one's gradient of its input.
PRODUCTS = 11 * 2 * ROWS * WIDTH * 4 * WIDTH

TARGET = f"{Path(__file__).parents[2] / 'benchmarks/ladder/split.py'}:make"
OPTIONS = {"width": str(WIDTH), "rows": str(ROWS), "dtype": "float32"}


def opened(folder: Path, device: str | None, *rungs: str) -> Team:
    team = Team(WORKLOAD, folder / "log", ranks(2), merge_answers)
    team.call("open", 120, target=TARGET, options=OPTIONS, rungs=list(rungs), device=device)
    return team


def verified(team: Team) -> Verified:
    return record_of(Verified, team.call("verify", 300, numerics="exact", alone=False, backwards=False))


def test_it_is_timed_and_its_parts_are_verified(tmp_path: Path) -> None:
    with opened(tmp_path, "cpu", "fused-optimizer") as team:
        facts = record_of(Loaded, team.call("facts", 60, save="")).facts
        assert (facts.ranks, facts.parallel) == (2, "tensor")
        warm: Any = team.call("warm", 60, seconds=0.2)
        assert warm["applied"]["optimizer_fused"]
        assert not warm["doubts"]
        found = verified(team)
        work: Any = team.call("work", 60)
        assert work["flops"] == PRODUCTS / 2
    assert found.passed, found.failures
    assert found.precisions == ["exact over 2 ranks"]


def test_a_batch_that_all_ranks_take_counts_once() -> None:
    side = Side(TARGET, OPTIONS)
    assert bench(side, preset="sanity", device="cpu", launcher=ranks(2)).samples_per_step == ROWS


def test_products_are_fused_with_their_exchange_on_gpus_alone(tmp_path: Path) -> None:
    said = "the ranks cannot share memory: it is GPUs that do, and the model is on a CPU"
    with opened(tmp_path, "cpu", "compile", "async-tensor-parallel") as team:
        with pytest.raises((WorkerFailed, WorkloadError), match=said):
            team.call("warm", 60, seconds=0.2)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_gpus_overlap_products_with_their_exchange(tmp_path: Path) -> None:
    with opened(tmp_path, None, "compile", "async-tensor-parallel") as team:
        warm: Any = team.call("warm", 200, seconds=0.5)
        assert warm["applied"]["inductor _micro_pipeline_tp"] is True
        trace = tmp_path / "trace.json.gz"
        team.call("profile", 120, path=str(trace), steps=2)
        assert any("symm_mem::fused_" in name for name in read(trace).events["name"].unique())
        found = verified(team)
    assert found.passed, found.failures
