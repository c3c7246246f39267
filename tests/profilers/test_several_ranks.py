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
from rung.profilers import profile as planning
from rung.profilers.collect import read_kept
from rung.profilers.presets import Preset
from rung.profilers.profile import Target, new_folder, planned
from rung.profilers.rank_sensors import gathered, silent
from rung.profilers.steps import Recorded
from rung.records.profile import Profile, SampledGpu, SampledRank
from rung.report.profile import rank_sensor_lines
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


def test_some_ranks_are_recorded_and_all_take_the_steps_and_read_their_gpus(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "SAMPLED", 0.4)
    out, powered = tmp_path / "out", f"{TARGET.removesuffix(':make')}:powered"
    words = ["--nproc-per-node", "2", "--ranks", "1", "--power", "--rate", "100", "--out", str(out)]
    assert main(["profile", powered, "--device", "cpu", *words]) == 0
    names = sorted(path.name for path in (out / "recording").iterdir())
    assert names == ["clocks.json", "trace.rank1.json.gz"]
    answer = msgspec.json.decode((out / "profile.json").read_bytes(), type=Profile)
    assert answer.overhead is None  # rank 0, which says it, was not recorded
    assert answer.ranks
    seen = [(one.rank, one.gpu.most_bytes, one.step.mean_w) for one in answer.ranks if one.gpu and one.step]
    assert seen == [(0, 1 << 30, pytest.approx(100)), (1, 2 << 30, pytest.approx(200))]
    for one in answer.ranks:
        assert one.step
        assert one.step.energy_j == pytest.approx(100 * (one.rank + 1) * one.step.seconds / one.step.steps)
        assert (out / "samples" / f"rank{one.rank}" / "samples.csv").is_file()
    said = capfd.readouterr().out
    assert re.search(r"   1  \S+ +0  200 W +200 W .* 2.0 GiB", said)
    assert "over all ranks" in said
    assert "clocks held down in 100% of the samples (power cap)" in said
    power = read_kept(out).curves.filter(name="power")
    assert power["value"].unique().to_list() == [200.0]  # of the rank that has a trace


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


def test_ranks_whose_sensors_do_not_answer_are_named() -> None:
    ranks = [SampledRank(rank=0, host="a"), SampledRank(rank=3, host="b")]
    (said,) = silent(ranks)
    assert "read by ranks 0 (a), 3 (b)" in said
    assert not rank_sensor_lines(ranks)
    gpu = SampledGpu(gpu=0, bus=None, seconds=1.0, samples=9, energy_j=None, most_w=700.0, most_bytes=None, most_celsius=None,
                     core_mhz=None, low_mhz=None, busy_share=None, throttled_share=0.0, throttled="", mean_w=None)  # fmt: skip
    many = [SampledRank(rank=k, host="a", gpu=gpu if k else None) for k in range(20)]
    assert (
        len(rank_sensor_lines(many)) == 12
    )  # an empty line, a heading, eight ranks, those left out, what the columns are
    assert "rank 0 (a)" in silent(many)[0]
    assert "1 (c), 2 (c), 3 (c) and 5 more: " in silent([SampledRank(rank=k, host="c") for k in range(9)])[0]


def test_what_a_rank_said_is_read_even_where_that_of_another_was_cut_off(tmp_path: Path) -> None:
    for rank in (0, 10, 2):
        folder = tmp_path / f"rank{rank}"
        folder.mkdir()
        (folder / "answer.json").write_bytes(msgspec.json.encode(SampledRank(rank=rank, host="a")))
    (tmp_path / "rank2" / "answer.json").write_text('{"rank": 2')
    assert [one.rank for one in gathered(tmp_path)] == [0, 10]
