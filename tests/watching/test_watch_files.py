"""The files that ranks write: read while they are written, cut off, damaged or full."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rung.errors import InputError
from rung.records.watch import Sample
from rung.watching import files
from rung.watching.files import RankFile, find, folder_for, samples


def line(step: int = 0, began: float = 1.0, rank: int = 3) -> Sample:
    return Sample(
        at=2.0, began=began, every=5.0, rank=rank, world=4, local=3, host="node", step=step, steps=1, idle=0.0
    )


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    file = RankFile(tmp_path / "new" / "folder", 3)
    for step in range(3):
        file.append(line(step))
    assert samples(tmp_path / "new" / "folder") == [[line(0), line(1), line(2)]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("watch")


@given(cut=st.integers(0, 10_000), noise=st.binary(max_size=40), where=st.integers(0, 10_000))
def test_a_file_that_is_cut_off_or_damaged_keeps_its_other_lines(
    folder: Path, cut: int, noise: bytes, where: int
) -> None:
    path = folder / "rank-00003.jsonl"
    path.unlink(missing_ok=True)
    file = RankFile(folder, 3)
    for step in range(5):
        file.append(line(step))
    whole = path.read_bytes()
    path.write_bytes(whole[: cut % (len(whole) + 1)])
    kept = path.read_bytes().count(b"\n")
    found = [one.step for lines in samples(folder) for one in lines]
    assert found[:kept] == list(range(kept))
    RankFile(folder, 3).append(line(9))  # a process that was started anew goes on after half a line
    assert [one.step for lines in samples(folder) for one in lines][-1] == 9
    damaged = whole[: where % len(whole)] + b"\n" + noise + b"\n" + whole[where % len(whole) :]
    path.write_bytes(damaged)
    assert all(one.step in range(5) for lines in samples(folder) for one in lines)
    assert len([one for lines in samples(folder) for one in lines]) >= 4


def test_lines_of_a_process_before_are_left_out(tmp_path: Path) -> None:
    for began in (1.0, 7.0):
        RankFile(tmp_path, 3).append(line(began=began))
    assert samples(tmp_path) == [[line(began=7.0)]]


def test_a_file_does_not_grow_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LARGEST", 4000)
    file = RankFile(tmp_path, 3)
    for step in range(200):
        file.append(line(step))
        assert file.path.stat().st_size < 4200
    steps = [one.step for one in samples(tmp_path)[0]]
    assert steps == list(range(steps[0], 200))
    assert len(steps) > 10
    assert [path.name for path in tmp_path.iterdir()] == ["rank-00003.jsonl"]


def test_a_pipe_in_the_place_of_a_file_is_passed_over(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "rank-00000.jsonl")
    RankFile(tmp_path, 3).append(line())
    assert samples(tmp_path) == [[line()]]


@pytest.mark.parametrize(
    ("variables", "script", "expected"),
    [
        ({}, "some/train.py", ".rung/watch/train"),
        ({}, "-c", ".rung/watch/python"),
        ({"SLURM_JOB_ID": "12", "TORCHELASTIC_RUN_ID": "x"}, "train.py", ".rung/watch/train-12"),
        (
            {"SLURM_JOB_ID": "15", "SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "3"},
            "train.py",
            ".rung/watch/train-12_3-15",
        ),
        ({"TORCHELASTIC_RUN_ID": "none"}, "train.py", ".rung/watch/train"),
        ({"TORCHELASTIC_RUN_ID": "../../etc"}, "train.py", ".rung/watch/train-.._.._etc"),
        ({"RUNG_WATCH": "/shared/w", "SLURM_JOB_ID": "12"}, "train.py", "/shared/w"),
    ],
)
def test_all_ranks_of_a_job_find_the_same_folder(variables: dict[str, str], script: str, expected: str) -> None:
    assert folder_for(variables, script) == Path(expected)


def test_a_job_is_found_by_path_name_number_or_as_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="nothing was written"):
        find(None)
    for name in ("train", "train-12"):
        RankFile(files.ROOT / name, 3).append(line())
    import os

    os.utime(files.ROOT / "train" / "rank-00003.jsonl", (1, 1))
    newest = files.ROOT / "train-12"
    assert [find(named) for named in (None, "12", "train-12", str(newest))] == [newest] * 4
    assert find("train") == files.ROOT / "train"
    with pytest.raises(InputError, match=r"no rank of a job '13' .*\.rung/watch has train, train-12"):
        find("13")
    task = files.ROOT / "train-12_3-15"
    RankFile(task, 3).append(line())
    assert [find(named) for named in ("12_3", "15", "12")] == [task, task, newest]
    RankFile(files.ROOT / "bench-13-layers-777", 3).append(line())
    with pytest.raises(InputError, match="no rank of a job '13'"):  # another job's folder has a 13 in its name
        find("13")
    with pytest.raises(InputError, match="no rank of a job '12_4'"):
        find("12_4")
