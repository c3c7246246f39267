"""Some steps of a training run: recorded and analyzed, and never in the way of the training."""

import warnings
from pathlib import Path

import pytest
import torch

from rung.errors import UsageError
from rung.integrations.profiled import ProfiledSteps
from rung.profilers.torch_profiler import Recorder
from rung.trace import read

CPU = torch.device("cpu")
FILES = ["analysis.html", "analysis.txt", "trace.json.gz"]


def run(steps: ProfiledSteps, number: int, rank: int = 0, processes: int = 1) -> None:
    """A training of so many steps, each of which multiplies two matrices."""
    steps.begin()
    a = torch.ones(4, 4)
    for _ in range(number):
        steps.before(CPU, rank, processes)
        a @ a
        steps.after()
    steps.close()


def recorded(folder: Path) -> tuple[int, int]:
    events = read(folder / "trace.json.gz").events
    marks = events.filter(kind="annotation")["name"].str.starts_with("ProfilerStep#").sum()
    return int(marks), int((events["name"] == "aten::mm").sum())


def test_the_steps_that_were_asked_for_are_recorded_and_analyzed(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    steps = ProfiledSteps(3, 5, tmp_path / "out")
    run(steps, 8)
    assert steps.folder == tmp_path / "out"
    assert sorted(path.name for path in steps.folder.iterdir()) == FILES
    assert recorded(steps.folder) == (3, 3)
    assert "3 steps" in (steps.folder / "analysis.txt").read_text()
    assert "<html" in (steps.folder / "analysis.html").read_text()
    assert f"steps 3 to 5 are in {steps.folder}" in capsys.readouterr().err


def test_a_training_that_ends_earlier_keeps_what_was_recorded(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    steps = ProfiledSteps(3, 9, tmp_path / "out")
    run(steps, 4)
    assert sorted(path.name for path in steps.folder.iterdir()) == FILES
    assert recorded(steps.folder)[1] == 2
    assert "steps 3 to 4" in capsys.readouterr().err


@pytest.mark.parametrize("number", [1, 3])
def test_a_training_that_is_broken_off_does_not_keep_the_next_from_being_recorded(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = iter([tmp_path / "first", tmp_path / "second"])
    monkeypatch.setattr("rung.integrations.profiled.new_folder", lambda *_: next(folders))
    steps = ProfiledSteps(2, 4)
    for _ in range(number):
        steps.before(CPU, 0, 1)
        torch.ones(4, 4) @ torch.ones(4, 4)
        steps.after()
    steps.before(CPU, 0, 1)  # it fails within this step
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(steps, 6)
    assert not torch.autograd._profiler_enabled()
    assert steps.folder == tmp_path / "second"
    assert recorded(tmp_path / "second") == (3, 3)
    assert (tmp_path / "first" / "trace.json.gz").exists()


@pytest.mark.parametrize("number", [1, 2])
def test_a_training_that_ends_before_says_so(number: int, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=f"ended after step {number}, before step 3"):
        run(ProfiledSteps(3, 5, tmp_path / "out"), number)


def test_ranks_that_were_not_asked_for_record_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    run(ProfiledSteps(2, 2, tmp_path / "a"), 3, rank=1, processes=2)
    assert not (tmp_path / "a").exists()
    run(ProfiledSteps(2, 2, tmp_path / "b", ranks=(0, 1)), 3, rank=1, processes=2)
    assert sorted(path.name for path in (tmp_path / "b" / "rank1").iterdir()) == FILES


def test_a_failure_is_warned_of_once_and_the_training_goes_on(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("keep")
    with pytest.warns(UserWarning, match="goes on without its profile: .*out is there already") as seen:
        run(ProfiledSteps(2, 3, tmp_path / "out"), 5)
    assert len(seen) == 1
    assert (tmp_path / "out" / "mine.txt").read_text() == "keep"


def test_what_is_warned_of_ends_no_training_where_python_makes_errors_of_warnings(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("keep")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(ProfiledSteps(2, 3, tmp_path / "out"), 5)
        run(ProfiledSteps(3, 5, tmp_path / "other"), 1)
    assert "goes on without its profile" in caplog.text
    assert "ended after step 1, before step 3" in caplog.text


def test_a_warning_of_torch_loses_no_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start = Recorder.start

    def warns(self: Recorder) -> None:
        warnings.warn("this will be removed", FutureWarning, stacklevel=1)
        start(self)

    monkeypatch.setattr(Recorder, "start", warns)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(ProfiledSteps(2, 3, tmp_path / "out"), 5)
    assert recorded(tmp_path / "out") == (2, 2)
    assert "this will be removed" in caplog.text


def test_another_profiler_of_the_users_goes_on(tmp_path: Path) -> None:
    with torch.profiler.profile() as own, warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        run(ProfiledSteps(2, 3, tmp_path / "out"), 5)
    assert sum("the training goes on without its profile" in str(one.message) for one in seen) == 1
    assert sum(event.name == "aten::mm" for event in own.events()) == 5


@pytest.mark.parametrize(("first", "last"), [(1, 3), (5, 4), (0, 0)])
def test_steps_that_cannot_be_meant_are_refused(first: int, last: int) -> None:
    with pytest.raises(UsageError, match=f"steps {first} to {last} cannot be recorded"):
        ProfiledSteps(first, last)
