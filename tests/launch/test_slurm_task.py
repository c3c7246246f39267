"""Tasks of an array job, and jobs that SLURM started anew: each has folders of its own, and finds them again."""

import json
import shlex
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rung
from rung.cli.main import main
from rung.cli.slurm import _with_out
from rung.errors import InputError, UsageError
from rung.launch.requeued import in_job, mark
from rung.launch.slurm_task import of_task, started_anew
from rung.profilers.profile import new_folder
from rung.runs import Run

RUN = Path(__file__).parents[1] / "data" / "run_directory"
TARGET = f"{Path(__file__).parents[1] / 'timing' / 'ranked_workload.py'}:make"


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """Task 3 of an array, as job 12, from an empty folder."""
    for name in ("RUNG_IN_JOB", "SLURM_STEP_ID", "SLURM_RESTART_COUNT", "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.chdir(tmp_path)
    return monkeypatch


def test_tasks_that_are_given_one_folder_have_one_each(slurm: pytest.MonkeyPatch) -> None:
    assert of_task(Path("runs/x")) == of_task(of_task(Path("runs/x"))) == Path("runs/x/task3")
    assert new_folder(Path("root"), "x", Path("traces")) == Path("traces/task3").resolve()
    assert new_folder(Path("root"), "x", None).name.endswith("-task3")
    slurm.setenv("RUNG_IN_JOB", "--slurm 1")  # a job that was submitted from a task has its variables
    assert of_task(Path("runs/x")) == Path("runs/x")
    slurm.delenv("RUNG_IN_JOB")
    slurm.delenv("SLURM_ARRAY_TASK_ID")
    assert of_task(Path("runs/x")) == Path("runs/x")


def test_climbs_that_begin_in_one_second_have_directories_of_their_own(tmp_path: Path) -> None:
    made: list[Path] = []
    threads = [
        threading.Thread(target=lambda: made.append(Run.create(tmp_path / "root", "x").directory)) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 8


def test_a_job_that_is_submitted_in_a_task_is_named_by_it(
    slurm: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["climb", TARGET, "--device", "cpu", "--slurm", "1", "--dry-run"]
    assert main([*words, "--out", "x"]) == 0
    said = capsys.readouterr().out
    assert "--job-name=rung-climb-task3" in said
    assert "--out x/task3" in said
    assert "x/task3/manifest.json" in said
    assert main(words) == 0
    assert "-climb-task3/run" in capsys.readouterr().out
    assert main([*words, "--sbatch=--array=0-3"]) == 2
    assert "submit it by `sbatch --array=0-3`" in capsys.readouterr().err


@given(st.lists(st.sampled_from(["climb", "m.py:f", "--seed", "--json"])), st.booleans())
def test_another_out_is_all_that_changes(words: list[str], glued: bool) -> None:
    typed = [*words, *(["--out=a"] if glued else ["--out", "a"]), "--budget", "9"]
    new = [*words, *(["--out=b"] if glued else ["--out", "b"]), "--budget", "9"]
    assert _with_out(typed, Path("b")) == new
    assert _with_out(words, Path("b")) == words


@pytest.fixture
def climbs(slurm: pytest.MonkeyPatch) -> list[Any]:
    """What a climb was about to do: ("new", where) or ("resume", which). It ends there."""
    import rung.ladder.climb as ladder

    seen: list[Any] = []

    def start(request: object, root: Path, out: Path | None, say: object) -> Any:
        run = Run.create(root, "x", out)
        seen.append(("new", run.directory))
        raise UsageError("it ends here")

    def resume(directory: Path, *_: object) -> Any:
        seen.append(("resume", directory))
        raise UsageError("it ends here")

    slurm.setattr(ladder, "start", start)
    slurm.setattr(ladder, "resume", resume)
    return seen


def _climb(*words: str) -> int:
    return main(["climb", TARGET, "--device", "cpu", *words])


def _copied(directory: Path, status: str) -> None:
    shutil.copytree(RUN, directory)
    manifest = json.loads((directory / "manifest.json").read_text())
    (directory / "manifest.json").write_text(json.dumps({**manifest, "status": status}))
    if not status:
        (directory / "manifest.json").unlink()


def _began(directory: Path, monkeypatch: pytest.MonkeyPatch, status: str, *words: str) -> None:
    """A climb of that command that got so far; without a status, not as far as to a manifest."""

    _copied(directory, status)
    monkeypatch.setattr("sys.argv", ["rung", "climb", TARGET, *words])
    mark(directory, in_job(shlex.join(["rung", "climb", TARGET, *words])))


def test_a_task_that_slurm_started_anew_goes_on_with_its_own_climb(
    slurm: pytest.MonkeyPatch, climbs: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    own = Path("runs/x/task3")
    _began(own, slurm, "interrupted", "--out", "runs/x")
    assert _climb("--out", "runs/x") == 2  # not started anew: the directory is somebody's
    assert "runs/x/task3 is not empty" in capsys.readouterr().err
    slurm.setenv("SLURM_RESTART_COUNT", "1")
    assert started_anew()
    _climb("--out", "runs/x")
    assert climbs == [("resume", own)]
    assert "SLURM started this job anew; going on with runs/x/task3" in capsys.readouterr().err
    slurm.setenv("SLURM_JOB_ID", "13")  # another job, into the same directory
    assert _climb("--out", "runs/x") == 2
    assert "runs/x/task3 is not empty" in capsys.readouterr().err


def test_without_out_it_is_found_by_job_and_command(slurm: pytest.MonkeyPatch, climbs: list[Any]) -> None:
    _began(Path(".rung/1-other"), slurm, "interrupted", "--budget", "9")
    _began(Path(".rung/2-own"), slurm, "interrupted")
    slurm.setenv("SLURM_RESTART_COUNT", "2")
    _climb()
    assert climbs == [("resume", Path(".rung/2-own"))]


def test_what_had_not_begun_is_begun_again_and_what_had_ended_is_told(
    slurm: pytest.MonkeyPatch, climbs: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    _began(Path("early/task3"), slurm, "", "--out", "early")
    slurm.setenv("SLURM_RESTART_COUNT", "1")
    _climb("--out", "early")
    assert climbs == [("new", Path("early/task3"))]
    _began(Path("over/task3"), slurm, "complete", "--out", "over")
    assert _climb("--out", "over", "--json") == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["manifest"]["status"] == "complete"
    assert "over/task3 had ended" in told.err
    assert len(climbs) == 1


def test_resume_finds_the_run_of_the_task_and_elsewhere_names_one(slurm: pytest.MonkeyPatch, climbs: list[Any]) -> None:
    _began(Path("x/task3"), slurm, "interrupted")
    main(["climb", "--resume", "x"])
    assert climbs == [("resume", Path("x/task3"))]
    with pytest.raises(InputError, match="x has a run of each task of an array: name one, as x/task3"):
        Run.open_(Path("x"))


def test_calls_in_python_have_the_runs_that_their_task_began(
    slurm: pytest.MonkeyPatch, climbs: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """A program that calls rung.climb twice: its first climb had ended, and its second was cut off. Without a folder it begins anew."""
    slurm.setattr("sys.argv", ["train.py", "--fast"])
    for name, status in (
        ("runs/first/task3", "complete"),
        ("runs/second/task3", "interrupted"),
        (".rung/1-x", "complete"),
    ):
        _copied(Path(name), status)
        mark(Path(name), in_job("train.py --fast"))
    slurm.setenv("SLURM_RESTART_COUNT", "1")
    assert rung.climb(TARGET, "runs/first", device="cpu").directory == Path("runs/first/task3")
    with pytest.raises(UsageError, match="ends here"):
        rung.climb(TARGET, "runs/second", device="cpu")
    assert climbs == [("resume", Path("runs/second/task3"))]
    assert "going on with runs/second/task3" in capsys.readouterr().err
    with pytest.raises(UsageError, match="ends here"):
        rung.climb(TARGET, device="cpu")
    assert climbs.pop()[0] == "new"
    with pytest.raises(UsageError, match="ends here"):
        rung.climb(resume="runs/second")
    assert climbs[1:] == [("resume", Path("runs/second/task3"))]


@pytest.mark.parametrize("live", [False, True], ids=["by its name", "a module"])
def test_a_new_call_in_python_notes_its_job_before_all_else(slurm: pytest.MonkeyPatch, live: bool) -> None:
    import torch

    from rung.ladder.climb import Climb

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    slurm.setattr("sys.argv", ["train.py"])
    slurm.setattr(Run, "drop_if_empty", lambda self: None)
    slurm.setattr(Climb, "climb", killed)
    slurm.setattr("rung.workload.live.write", killed)
    how = {"inputs": lambda seed: torch.full((1, 2), 1.0 + seed)} if live else {}
    with pytest.raises(KeyboardInterrupt):
        rung.climb(torch.nn.Linear(2, 2) if live else TARGET, "x", device="cpu", progress=False, **how)
    kept = json.loads(Path("x/task3/slurm-job.json").read_text())
    assert (kept["job"], kept["task"], kept["command"]) == ("12", 3, "train.py")
