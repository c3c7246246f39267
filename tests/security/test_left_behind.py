"""What a run leaves behind, however it is ended: no process, and no temporary folder after the next run."""

import contextlib
import fcntl
import json
import os
import pty
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from climbing import MICRO
from replayed import command

from rung.runs import Run, keep, temporary_folder
from rung.runs.temporary import LOCK, remove_left_behind

COMMAND = [sys.executable, "-c", "from rung.cli.main import command; command()"]
# A function whose process starts another that leaves its group.
DAEMON = (
    "import subprocess\nfrom pathlib import Path\n"
    "pid = subprocess.Popen(['sleep', '600'], start_new_session=True).pid\nPath('daemon').write_text(str(pid))\n"
    "def nap():\n    pass\n"
)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for temporary files, of this process and of those it starts."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def ours(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("rung-*"))


def started(*words: str, cwd: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*COMMAND, *words], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def wait_until(condition: Callable[[], object], seconds: float = 60) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.05)
    return False


def of(folder: Path) -> list[psutil.Process]:
    """The processes whose TMPDIR this is."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("TMPDIR") == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


@pytest.mark.parametrize("seconds", [0.3, 1.0, random.uniform(1, 4), 5.0], ids=["first", "second", "at random", "late"])
@pytest.mark.parametrize("which", ["bench", "compare"])
def test_a_run_ended_by_sigkill_leaves_nothing(which: str, seconds: float, temporary: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(DAEMON)
    targets = ["mine.py:nap"] * (2 if which == "compare" else 1)
    run = started(which, *targets, "--call", "--device", "cpu", cwd=tmp_path)
    assert wait_until(lambda: ours(temporary) or run.poll() is not None)
    time.sleep(seconds)
    run.kill()
    run.communicate()
    assert wait_until(lambda: not of(temporary)), of(temporary)
    with temporary_folder("rung-bench-") as folder:
        assert ours(temporary) == [folder.name]


def test_a_query_ended_by_sigkill_leaves_nothing(temporary: Path, tmp_path: Path) -> None:
    events = ",".join(f'{{"ph":"X","name":"k","pid":0,"tid":0,"ts":{k},"dur":1}}' for k in range(100))
    (tmp_path / "t.json").write_text(f'{{"traceEvents":[{events}]}}')
    endless = "select sum(a.dur) as n from events a " + " ".join(
        f"join events {name} on a.dur = {name}.dur" for name in "bcdef"
    )
    run = started("query", "t.json", endless, cwd=tmp_path)
    assert wait_until(lambda: len(of(temporary)) == 2)
    time.sleep(1.0)
    assert run.poll() is None
    run.kill()
    run.communicate()
    assert wait_until(lambda: not of(temporary), 10), of(temporary)


def test_a_later_run_removes_what_a_killed_one_left(temporary: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def nap():\n    pass\n")
    killed = started("bench", "mine.py:nap", "--call", "--device", "cpu", cwd=tmp_path)
    assert wait_until(lambda: list(temporary.glob(f"rung-bench-*/{LOCK}")))
    time.sleep(1.0)
    killed.kill()
    killed.communicate()
    assert len(ours(temporary)) == 1
    later = started("bench", "mine.py:nap", "--call", "--preset", "sanity", "--device", "cpu", cwd=tmp_path)
    assert later.wait() == 0
    assert ours(temporary) == []


def test_folders_in_use_kept_or_of_others_are_not_removed(temporary: Path, tmp_path: Path) -> None:
    (temporary / "rung-of-an-older-version").mkdir()
    (temporary / "rung-of-another-machine").mkdir()
    (temporary / "rung-of-another-machine" / LOCK).write_text("elsewhere")
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / LOCK).write_text(os.uname().nodename)
    (temporary / "rung-link").symlink_to(tmp_path / "precious")
    (temporary / "rung-file").write_text("")
    (temporary / "rung-loop").mkdir()
    (temporary / "rung-loop" / LOCK).symlink_to(tmp_path / "precious" / LOCK)
    before = ours(temporary)
    with temporary_folder("rung-used-") as used:
        with temporary_folder("rung-kept-") as kept:
            keep(kept)
        assert remove_left_behind() == []
        assert ours(temporary) == sorted([*before, used.name, kept.name])
    assert ours(temporary) == sorted([*before, kept.name])
    assert (tmp_path / "precious" / LOCK).exists()


def test_a_folder_of_another_user_is_not_removed(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = temporary / "rung-left"
    left.mkdir()
    (left / LOCK).write_text(os.uname().nodename)
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: left.stat().st_uid + 1)
        assert remove_left_behind() == []
    (left / "deep").mkdir()
    (left / "deep" / "file").write_text("x")
    (left / "deep" / "link").symlink_to(temporary)
    assert remove_left_behind() == [left]
    assert temporary.exists()


def test_where_there_are_no_locks_a_folder_is_never_taken_for_left(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: object) -> None:
        raise OSError("no locks here")

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", flock)
        unlocked = temporary_folder("rung-bench-")
        folder = unlocked.__enter__()
    assert remove_left_behind() == []
    unlocked.__exit__(None, None, None)
    assert not folder.exists()


def test_git_forgets_the_checkout_of_a_comparison_that_was_killed(temporary: Path, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    repository.mkdir()
    (repository / "mine.py").write_text("def nap():\n    pass\n")
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.com"]

    def git(*words: str) -> str:
        done = subprocess.run(["git", *identity, *words], cwd=repository, check=True, capture_output=True, text=True)
        return done.stdout

    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        git(*words)
    git("worktree", "add", "--detach", str(tmp_path / "theirs"))
    (tmp_path / "theirs").rename(tmp_path / "moved")  # gone for now, as on a disk that is not there
    words = ["compare", "mine.py:nap", "--call", "--base", "HEAD", "--device", "cpu", "--budget", "1"]
    killed = started(*words, cwd=repository)
    assert wait_until(lambda: "rung-base-" in git("worktree", "list") and len(ours(temporary)) == 2)
    time.sleep(0.5)
    killed.kill()
    killed.communicate()
    later = started(*words, cwd=repository)
    said = later.communicate()
    assert later.returncode == 0, said
    assert ours(temporary) == []
    listed = git("worktree", "list")
    assert "rung-base-" not in listed
    assert "theirs" in listed


# A climb with workers that say again what was recorded, the last of which waits for an hour.
WAITS = command("climb", MICRO, "--fused", "hang", "--rungs", "fused-optimizer", "--device", "cpu", "--out", "run")


@pytest.fixture
def replayed(recorded: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in recorded.items():
        monkeypatch.setenv(name, value)


def begun(tmp_path: Path, *before: str) -> "subprocess.Popen[str]":
    """A climb that measures its baseline."""
    words = [*before, *WAITS]
    climb = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert climb.stderr is not None
    assert any(line.startswith("measuring the baseline") for line in climb.stderr)
    return climb


def status(tmp_path: Path) -> str:
    return str(Run.open_(tmp_path / "run").read("manifest.json")["status"])


@pytest.mark.usefixtures("replayed")
def test_a_climb_whose_terminal_is_closed_says_that_it_was_interrupted(temporary: Path, tmp_path: Path) -> None:
    climb = begun(tmp_path)
    for _ in range(20):  # the shell sends one, and the system another
        climb.send_signal(signal.SIGHUP)
        time.sleep(0.02)
    _, rest = climb.communicate()
    assert climb.returncode == 130
    assert "stopped; there is no recipe yet." in rest
    assert "rung climb --resume run\n" in rest
    assert "Traceback" not in rest
    assert status(tmp_path) == "interrupted"
    assert not of(temporary)


@pytest.mark.usefixtures("replayed")
def test_a_climb_loses_its_terminal(temporary: Path, tmp_path: Path) -> None:
    """What it still says then goes nowhere, and that is no error."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execv(WAITS[0], WAITS)
    said = b""
    while b"measuring the baseline" not in said:
        said += os.read(terminal, 4096)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    assert status(tmp_path) == "interrupted"
    assert wait_until(lambda: not of(temporary))


@pytest.mark.usefixtures("replayed")
def test_a_climb_under_nohup_goes_on(temporary: Path, tmp_path: Path) -> None:
    climb = begun(tmp_path, "nohup")
    climb.send_signal(signal.SIGHUP)
    time.sleep(1.5)
    assert climb.poll() is None
    assert status(tmp_path) == "running"
    climb.send_signal(signal.SIGTERM)
    climb.communicate()
    assert climb.returncode == 130
    assert status(tmp_path) == "interrupted"


def test_a_bench_that_is_hung_up_leaves_no_folder(temporary: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(DAEMON)
    run = started("bench", "mine.py:nap", "--call", "--device", "cpu", cwd=tmp_path)
    assert wait_until((tmp_path / "daemon").exists)
    run.send_signal(signal.SIGHUP)
    run.communicate()
    assert run.returncode == 130
    assert not of(temporary)
    assert ours(temporary) == []


def test_a_workload_that_writes_to_all_descriptors_is_one_sentence(temporary: Path, tmp_path: Path) -> None:
    (tmp_path / "garbled.py").write_text(
        "import os\ndef nap():\n    for fd in range(3, 256):\n        try:\n            os.write(fd, b'garbage\\n')\n"
        "        except OSError:\n            pass\n"
    )
    run = started("bench", "garbled.py:nap", "--call", "--device", "cpu", "--json", cwd=tmp_path)
    answer, said = run.communicate()
    assert run.returncode == 4, said
    assert "Traceback" not in said
    error = json.loads(answer)["error"]
    assert "no readable answer" in error
    log = Path(error.rpartition(": ")[2])
    assert log.parent.parent == temporary
    assert log.is_file()
