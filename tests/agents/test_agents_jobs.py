"""Commands that an agent starts: what they say, what is left of one that crashes or is ended, and what may run beside it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from rung.agents.jobs import KEPT, Jobs, of_the_target, options
from rung.cli.mcp import COMMAND, flags
from rung.errors import UsageError
from rung.runs import temporary_folder

ENDLESS = """
import os, time

def endless():
    open("worker", "w").write(str(os.getpid()))
    time.sleep(600)

def killed():
    os.kill(os.getppid(), 9)
    os.kill(os.getpid(), 9)
"""


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    (tmp_path / "work.py").write_text(ENDLESS)
    with temporary_folder("rung-test-") as folder:
        found = Jobs(COMMAND, tmp_path, folder)
        yield found
        found.end()


def until(condition: Callable[[], bool], seconds: float = 90.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def worker_of(tmp_path: Path) -> int:
    until(lambda: (tmp_path / "worker").exists() and bool((tmp_path / "worker").read_text()))
    return int((tmp_path / "worker").read_text())


def test_an_answer_is_the_document_of_the_command_and_a_refusal_too(jobs: Jobs) -> None:
    good = jobs.start(["estimate", *options(hidden=64, layers=2, heads=2)], alone=False)
    bad = jobs.start(["estimate", *options(hf="nothing")], alone=False)
    until(lambda: not good.running and not bad.running)
    assert (good.status(), good.document()["kind"]) == ("done", "estimate")
    assert (bad.status(), bad.document()["kind"]) == ("failed", "error")
    assert good.record()["command"] == "rung estimate --hidden=64 --layers=2 --heads=2"
    assert good.record()["next"] == 'job_result(job="1")'


def test_a_job_that_is_ended_leaves_no_worker_and_says_that_it_was_cancelled(jobs: Jobs, tmp_path: Path) -> None:
    job = jobs.start(["bench", "work.py:endless", "--call"], alone=True)
    worker = worker_of(tmp_path)
    with pytest.raises(UsageError, match=r"job 1 .* is running"):
        jobs.start(["bench", "work.py:endless", "--call"], alone=True)
    jobs.start(["estimate"], alone=False)  # which times nothing
    job.end()
    until(lambda: gone(worker))
    assert job.status() == "cancelled"
    assert job.document()["kind"] == "error"
    assert jobs.start(["estimate"], alone=True).name == "3"


def test_all_jobs_end_with_the_server_however_that_ends(tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text(ENDLESS)
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom rung.agents.jobs import Jobs\n"
        f"jobs = Jobs({COMMAND!r}, Path(), Path())\njobs.start(['bench', 'work.py:endless', '--call'], alone=True)\ntime.sleep(600)"
    )
    server = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, start_new_session=True)
    worker = worker_of(tmp_path)
    os.kill(server.pid, signal.SIGKILL)
    server.wait()
    until(lambda: gone(worker))


def test_a_command_that_is_killed_is_a_failed_job(jobs: Jobs) -> None:
    job = jobs.start(["estimate", "--hidden=64"], alone=False)
    os.kill(job._command._process.pid, signal.SIGKILL)
    until(lambda: not job.running)
    assert job.status() == "failed"
    assert "ended with exit code -9" in job.document()["error"]


def test_old_answers_are_forgotten_and_an_unknown_job_is_refused_with_those_there_are(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rung.agents.jobs.KEPT", 1)
    for _ in range(3):
        job = jobs.start(["estimate"], alone=False)
        until(lambda job=job: not job.running)  # type: ignore[misc]
    with pytest.raises(UsageError, match="no job '1'; there are: 2, 3"):
        jobs.get("1")
    assert KEPT > 10


def test_values_are_one_word_with_their_option_and_nothing_else() -> None:
    assert options(recipe="-x", rungs=["a", "b"], call=True, verify=False, time=2.5, device=None, show=[]) == [
        "--recipe=-x", "--rungs=a,b", "--call", "--time=2.5",
    ]  # fmt: skip
    assert of_the_target({"new_tokens": 3, "random_weights": True, "dtype": "--out"}, flags("bench")) == [
        "--new-tokens=3", "--random-weights=true", "--dtype=--out",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["csv", "html", "recipe", "call", "help", "json", "a b", "", "-x", "x=1 --csv"])
def test_an_option_of_the_command_itself_is_none_of_the_target(name: str) -> None:
    with pytest.raises(UsageError, match="is not an option of a target"):
        of_the_target({name: "x"}, flags("bench"))


@pytest.mark.parametrize("name", ["write-workload", "write_workload", "out", "resume", "base", "env", "a_env"])
def test_no_command_writes_or_reads_by_an_option_of_the_target(name: str) -> None:
    owner = "climb" if name.startswith(("write", "out", "resume")) else "compare"
    with pytest.raises(UsageError):
        of_the_target({name: "x"}, flags(owner))
