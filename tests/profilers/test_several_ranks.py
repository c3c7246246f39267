"""A workload recorded over several ranks: a trace a rank, and which of them are recorded."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rung.cli.main import main
from rung.errors import UsageError
from rung.launch import launcher, torchrun
from rung.profilers.presets import Preset
from rung.profilers.profile import Target, new_folder, planned
from rung.profilers.steps import Recorded
from rung.trace.clocks import Clocks

TARGET = f"{Path(__file__).parents[1] / 'timing' / 'ranked_workload.py'}:make"


def profile(*words: str) -> int:
    return main(["profile", TARGET, "--device", "cpu", *words])


def test_each_rank_writes_a_trace_and_they_are_read_together(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert profile("--nproc-per-node", "2", "--out", str(tmp_path / "out"), "--json") == 0
    document: dict[str, Any] = json.loads(capfd.readouterr().out)
    assert sorted(path.name for path in (tmp_path / "out" / "recording").iterdir()) == [
        "clocks.json",
        "trace.rank0.json.gz",
        "trace.rank1.json.gz",
    ]
    assert "c10d::allreduce_" in json.dumps(document["analysis"])
    _, other = msgspec.json.decode((tmp_path / "out" / "recording" / "clocks.json").read_bytes(), type=Clocks).ranks
    assert other.rank == 1
    assert all(abs(seen.offset_ns) <= seen.error_ns for seen in other.seen)  # both have the clock of this host
    assert main(["analyze", str(tmp_path / "out")]) == 0
    said = capfd.readouterr().out
    assert "2 ranks" in said
    assert "waiting for other ranks" in said


def test_some_ranks_are_recorded_and_all_take_the_steps(tmp_path: Path) -> None:
    assert profile("--nproc-per-node", "2", "--ranks", "1", "--out", str(tmp_path / "out")) == 0
    names = sorted(path.name for path in (tmp_path / "out" / "recording").iterdir())
    assert names == ["clocks.json", "trace.rank1.json.gz"]


def test_a_job_of_slurm_is_no_rank_and_its_launcher_names_a_port(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "SLURM_STEP_ID", "RUNG_IN_JOB", "OMPI_COMM_WORLD_RANK", "PMI_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLURM_PROCID", "3")
    assert new_folder(Path("x"), "y", Path("z")).name == "z"
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    assert new_folder(Path("x"), "y", Path("z")).name == "rank3"
    start = launcher("srun torchrun --rdzv-endpoint=host:{port} --rdzv-id={team}")
    argv = " ".join(Target("t", launcher=start).argv())
    assert re.search(r"--rdzv-endpoint=host:\d+ --rdzv-id=[0-9a-f]{8} ", argv)


def test_ranks_are_chosen_by_number_or_by_every_so_many() -> None:
    assert [rank for rank in range(10) if Recorded(every=4).has(rank)] == [0, 4, 8]
    assert [rank for rank in range(10) if Recorded(ranks=[3, 7]).has(rank)] == [3, 7]
    assert all(Recorded().has(rank) for rank in range(10))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--ranks", "1"], "choose among several ranks"),
        (["--nproc-per-node", "2", "--ranks", "2"], "there is no rank 2: 2 ranks are counted from 0"),
        (["--nproc-per-node", "2", "--ranks", "1", "--every", "2"], "--ranks or --every, not both"),
        (["--nproc-per-node", "2", "--power"], "sensors are read beside one process"),
        (["--nproc-per-node", "1,2"], "give one number"),
        (["--launcher", "mpirun -np 2"], "have to be started by torchrun"),
    ],
)
def test_what_several_ranks_cannot_do_is_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert profile(*words) == 2
    assert said in capsys.readouterr().err


def test_another_profiler_is_told_to_record_the_command_that_starts_the_ranks(tmp_path: Path) -> None:
    target = Target(TARGET, launcher=torchrun(2))
    with pytest.raises(UsageError, match=r"for rocprofv3 give the command that starts them"):
        planned(target, Preset("", tool="rocprofv3"), tmp_path)
