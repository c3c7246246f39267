"""Workers that are forked: they begin with what their server has imported, and share nothing else with it or with each other."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from ended import gone

from rung.launch import ForkServer, Worker, WorkerFailed
from rung.launch.fork_server import Forked

HERE = str(Path(__file__).parent)
PATH = {"PYTHONPATH": os.pathsep.join(filter(None, [HERE, os.environ.get("PYTHONPATH")]))}


@pytest.fixture
def forks(tmp_path: Path) -> Iterator[ForkServer]:
    with ForkServer(["numpy", "served"], tmp_path / "server.log") as server:
        yield server


def worker(forks: ForkServer, log: Path, env: dict[str, str] | None = None, cwd: Path | None = None) -> Worker:
    return Worker("served:Served", log, {**PATH, **(env or {})}, cwd, forks)


def forked(worker: Worker) -> bool:
    return isinstance(worker._process, Forked)


def test_a_fork_begins_with_what_was_imported_and_has_a_log_of_its_own(forks: ForkServer, tmp_path: Path) -> None:
    with worker(forks, tmp_path / "a") as a, worker(forks, tmp_path / "b") as b:
        assert forked(a)
        assert a.pid != b.pid
        assert "served" in a.call("imported", 100)
        assert b.call("echo", 100, value=1) == 1
    assert "noise on stdout" in (tmp_path / "b").read_text()
    assert (tmp_path / "a").read_text() == ""
    assert forks.imported_in > 0


def test_the_first_fork_waits_for_the_first_module_alone(tmp_path: Path) -> None:
    with ForkServer(["served", "colorsys"], tmp_path / "server.log") as forks:
        with worker(forks, tmp_path / "a") as a, worker(forks, tmp_path / "b") as b:
            assert ["colorsys" in one.call("imported", 100) for one in (a, b)] == [False, True]


def test_forks_draw_other_random_numbers(forks: ForkServer, tmp_path: Path) -> None:
    """As fresh processes do: a workload that sets no seed must not seem to be deterministic."""
    with worker(forks, tmp_path / "a") as a, worker(forks, tmp_path / "b") as b:
        assert not {*a.call("draws", 100)} & {*b.call("draws", 100)}


def test_while_it_imports_torch_starts_no_compilers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.6 would, and forks would share them. Afterwards a fork has the variable as the user has it."""
    for usual in (None, "1"):
        monkeypatch.delenv("TORCH_WARM_POOL", raising=False)
        if usual:
            monkeypatch.setenv("TORCH_WARM_POOL", usual)
        with ForkServer(["served"], tmp_path / "server.log") as forks, worker(forks, tmp_path / "a") as a:
            assert a.call("variable_then_and_now", 100, name="TORCH_WARM_POOL") == ["0", usual]


def test_another_folder_than_that_of_the_first_takes_a_fresh_process(
    forks: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with worker(forks, tmp_path / "a") as a:
        assert forked(a)
    monkeypatch.chdir(tmp_path)
    with worker(forks, tmp_path / "b") as b:
        assert not forked(b)


def test_where_there_is_no_process_a_fresh_one_is_tried_and_the_server_goes_on(
    forks: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with worker(forks, tmp_path / "a") as a:
        a.call("echo", 100, value=1)
    with monkeypatch.context() as patch:
        patch.setattr(forks, "_asked", lambda serves, fds: b"0")
        with worker(forks, tmp_path / "b") as b:
            assert not forked(b)
    with worker(forks, tmp_path / "c") as c:
        assert forked(c)


def test_other_variables_than_those_of_the_first_or_a_folder_take_a_fresh_process(
    forks: ForkServer, tmp_path: Path
) -> None:
    with worker(forks, tmp_path / "first") as first:
        assert forked(first)
    with worker(forks, tmp_path / "a", {"RUNG_OTHER": "1"}) as a, worker(forks, tmp_path / "b", cwd=tmp_path) as b:
        assert not forked(a)
        assert not forked(b)
        assert a.call("echo", 100, value=1) == 1


def test_a_server_that_was_killed_leaves_its_forks_and_is_done_without(forks: ForkServer, tmp_path: Path) -> None:
    with worker(forks, tmp_path / "a") as a:
        a.call("echo", 100, value=1)
        assert forks._process is not None
        forks._process.kill()
        forks._process.wait()
        assert a.call("echo", 100, value=2) == 2
        with worker(forks, tmp_path / "b") as b:
            assert not forked(b)
            assert b.call("echo", 100, value=3) == 3
        with pytest.raises(WorkerFailed, match="killed by SIGKILL"):
            a.call("die", 100)


def test_what_cannot_be_imported_is_said_by_workers_themselves(tmp_path: Path) -> None:
    with ForkServer(["no_such_module"], tmp_path / "server.log") as forks:
        with worker(forks, tmp_path / "a") as a:
            assert not forked(a)
            assert a.call("echo", 100, value=1) == 1
    assert "no_such_module" in (tmp_path / "server.log").read_text()


def test_who_is_interrupted_while_it_imports_leaves_no_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ForkServer(["served"], tmp_path / "server.log") as forks:
        with worker(forks, tmp_path / "a") as a:
            a.call("echo", 100, value=1)
        fork, begun = forks.fork, list[int]()

        def interrupted(*given: Any) -> None:
            made = fork(*given)
            assert made
            begun.append(made.pid)
            raise KeyboardInterrupt

        monkeypatch.setattr(forks, "fork", interrupted)
        before = {*os.listdir("/proc/self/fd")}
        with pytest.raises(KeyboardInterrupt):
            worker(forks, tmp_path / "b")
        assert gone(begun[0])
        assert len({*os.listdir("/proc/self/fd")} - before) <= 1  # that of `Forked`, which nobody has


def test_how_a_fork_ended_is_known(forks: ForkServer, tmp_path: Path) -> None:
    with worker(forks, tmp_path / "a") as a:
        with pytest.raises(WorkerFailed, match="ended with exit code 7 during"):
            a.call("exit_at_once", 100, code=7)
        assert not a.alive()


def test_a_server_is_started_when_it_is_needed_and_ends_with_its_owner(tmp_path: Path) -> None:
    with ForkServer(["served"], tmp_path / "server.log") as unused:
        assert unused._process is None
    with ForkServer(["served"], tmp_path / "server.log") as forks:
        with worker(forks, tmp_path / "a") as a:
            a.call("echo", 100, value=1)
        assert forks._process is not None
        server = forks._process.pid
    assert gone(server)
    with worker(forks, tmp_path / "b") as b:
        assert not forked(b)


def test_nothing_outlives_a_coordinator_killed_with_sigkill(tmp_path: Path) -> None:
    code = (
        "import os, time; from pathlib import Path; from rung.launch import ForkServer, Worker\n"
        f"forks = ForkServer(['served'], Path({str(tmp_path / 'server.log')!r}))\n"
        f"w = Worker('served:Served', Path({str(tmp_path / 'log')!r}), forks=forks)\n"
        "print(w.pid, w.call('child', 100), flush=True); w.send('sleep', seconds=600); time.sleep(600)\n"
    )
    env = {**os.environ, **PATH}
    coordinator = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=env)
    assert coordinator.stdout is not None
    pids = [int(p) for p in coordinator.stdout.readline().split()]
    theirs = [process.pid for process in psutil.Process(coordinator.pid).children(recursive=True)]
    assert {*pids} <= {*theirs}
    assert len(theirs) == 4  # the server, a guard, its worker, a child
    coordinator.send_signal(signal.SIGKILL)
    coordinator.wait()
    assert all(gone(pid) for pid in theirs)
