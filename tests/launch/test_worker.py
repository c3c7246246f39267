"""Workers: what they answer, how they fail, and that nothing outlives them or their coordinator."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from ended import gone

from rung.errors import WorkloadError
from rung.launch import ForkServer, Worker, WorkerFailed, first_answer, kill_all, quiet
from rung.launch.fork_server import Forked
from rung.launch.worker import describe

HERE = str(Path(__file__).parent)
PATH = {"PYTHONPATH": os.pathsep.join(filter(None, [HERE, os.environ.get("PYTHONPATH")]))}


@pytest.fixture(params=[False, True], ids=["fresh", "forked"])
def worker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Worker]:
    """A process of its own, and one that a fork server has forked: whoever calls them sees no difference."""
    with ForkServer(["served"], tmp_path / "server.log") as forks:
        with Worker("served:Served", tmp_path / "log", PATH, forks=forks if request.param else None) as w:
            assert isinstance(w._process, Forked) is request.param
            yield w


def test_what_the_workload_prints_does_not_disturb_the_answer(worker: Worker) -> None:
    assert worker.call("echo", 100, value={"a": [1, 2.5, "x\n"]}) == {"a": [1, 2.5, "x\n"]}
    assert worker.call("echo", 100, value="é" * 100_000) == "é" * 100_000


def test_garbage_is_collected_as_ever_once_a_worker_has_loaded(worker: Worker) -> None:
    with pytest.raises(WorkerFailed):
        worker.call("fail", 100)
    while_loading, since = worker.call("thresholds", 100)
    assert 0 < since < 100_000 < while_loading
    assert worker.call("collects", 100)


def test_how_garbage_is_collected_is_the_workloads_to_say(worker: Worker) -> None:
    worker.call("collect_no_more", 100)  # while it loads, as a file does that is imported
    worker.call("collect_after", 100, threshold=123)
    assert worker.call("collects", 100) is False
    assert worker.call("thresholds", 100)[1] == 123


def test_what_a_worker_of_an_older_version_says_is_an_answer(worker: Worker) -> None:
    with pytest.raises(WorkerFailed, match=r"^ValueError: no good$"):
        worker.call("fail_as_an_older_version", 100)


def test_an_exception_is_an_answer_and_the_worker_goes_on(worker: Worker) -> None:
    with pytest.raises(WorkerFailed, match=r"ValueError: no good \(.*served\.py:\d+, in fail\)$"):
        worker.call("fail", 100)
    with pytest.raises(WorkerFailed, match="SystemExit"):
        worker.call("leave", 100)
    with pytest.raises(WorkerFailed, match=r"ValueError: no good \(/.*served\.py:\d+, in fail_in"):
        worker.call("fail_in_a_folder_that_is_gone", 100)
    assert worker.call("echo", 100, value=1) == 1


def test_of_a_long_error_the_first_line_is_said_up_to_a_word() -> None:
    with pytest.raises(RuntimeError) as raised:
        raise RuntimeError("\n" + "words " * 100 + "\nIf you are an employee, see another page")
    said = describe(raised.value)
    assert said["message"].startswith("words words")
    assert said["message"].endswith("words ...")
    assert len(said["message"]) <= 304
    assert "see another page" in said["traceback"]
    assert describe(ValueError("x" * 400))["message"] == "x" * 300 + " ..."
    assert describe(ValueError(""))["message"] == ""
    assert len(describe(WorkloadError("x" * 400))["message"]) == 400  # it is a sentence already


def test_a_hung_call_is_stopped_at_its_deadline(worker: Worker) -> None:
    worker.call("echo", 100, value=1)
    with pytest.raises(WorkerFailed) as failed:
        worker.call("sleep", 0.5, seconds=60)
    assert failed.value.kind == "hung"
    assert gone(worker.pid)


def test_a_killed_worker_is_named_and_its_children_go_with_it(worker: Worker) -> None:
    child = worker.call("child", 100)
    with pytest.raises(WorkerFailed, match="SIGKILL") as failed:
        worker.call("die", 100)
    assert failed.value.kind == "killed"
    assert gone(child)


def test_nothing_outlives_a_coordinator_killed_with_sigkill(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from rung.launch import Worker\n"
        f"w = Worker('served:Served', Path({str(tmp_path / 'log')!r}))\n"
        "print(w.pid, w.call('child', 100), flush=True); w.send('sleep', seconds=600); time.sleep(600)\n"
    )
    env = {**os.environ, **PATH}
    coordinator = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=env)
    assert coordinator.stdout is not None
    pids = [int(p) for p in coordinator.stdout.readline().split()]
    coordinator.send_signal(signal.SIGKILL)
    coordinator.wait()
    assert all(gone(pid) for pid in pids)


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("how", ["kill", "kill all", "its death", "its end"])
def test_what_left_the_group_of_a_worker_ends_with_it(worker: Worker, how: str, stopped: bool) -> None:
    daemon = worker.call("daemon", 100, stopped=stopped)
    guard, behind = processes(worker)
    assert psutil.Process(daemon) in behind
    assert os.getsid(daemon) == daemon
    if how == "kill":
        worker.kill()
    elif how == "kill all":
        kill_all([worker])
    elif how == "its end":
        os.close(worker._channel._requests)
        worker._channel._requests = -1
    else:
        with pytest.raises(WorkerFailed, match="SIGKILL"):
            worker.call("die", 100)
    assert gone(daemon)
    assert gone(guard.pid)


@pytest.mark.parametrize("stopped", [False, True])
def test_what_left_the_group_does_not_outlive_a_coordinator_killed_with_sigkill(stopped: bool, tmp_path: Path) -> None:
    code = (
        "import time; from pathlib import Path; from rung.launch import Worker\n"
        f"w = Worker('served:Served', Path({str(tmp_path / 'log')!r}))\n"
        f"print(w.pid, w.call('daemon', 100, stopped={stopped}), flush=True); time.sleep(600)\n"
    )
    env = {**os.environ, **PATH}
    coordinator = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=env)
    assert coordinator.stdout is not None
    pids = [int(p) for p in coordinator.stdout.readline().split()]
    coordinator.send_signal(signal.SIGKILL)
    coordinator.wait()
    assert all(gone(pid) for pid in pids)


def test_a_child_of_a_worker_that_ends_does_not_end_it(worker: Worker) -> None:
    worker.call("forked_end", 100)
    daemon = worker.call("daemon", 100)
    os.kill(daemon, signal.SIGKILL)  # its parent is the guard
    assert gone(daemon)
    worker.call("sleep", 100, seconds=0.5)


def test_a_guard_that_is_stopped_is_ended_all_the_same(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    child = worker.call("child", 100)
    os.kill(worker.pid, signal.SIGSTOP)
    wait = worker._process.wait
    monkeypatch.setattr(worker._process, "wait", lambda timeout: wait(timeout=min(timeout, 0.5)))
    worker.kill()
    assert gone(worker.pid)
    assert gone(child)


@pytest.mark.parametrize(
    "text",
    [
        "garbage\n",
        "5\n",
        "null\n",
        "[]\n",
        '{"error": 3}\n',
        '{"error": {}}\n',
        "{}\n",
        "[" * 9000 + "\n",
        "\udcff\0\n",
    ],
)
def test_a_worker_whose_answers_are_garbage_fails_in_one_sentence(worker: Worker, text: str) -> None:
    with pytest.raises(WorkerFailed) as failed:
        worker.call("write_to_all_descriptors", 100, text=text.encode("utf-8", "replace").decode())
    assert "no readable answer" in str(failed.value)
    assert str(worker.log) in str(failed.value)
    assert gone(worker.pid)


def test_an_answer_without_an_end_is_not_collected_for_ever(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rung.launch.channel.MOST", 1 << 20)
    worker.call("echo", 100, value=1)
    worker.send("write_to_all_descriptors", text="x" * 65536, times=1000)
    while not worker.answered():
        first_answer([worker], 100)
    assert len(worker._channel._pending) < 4 << 20
    with pytest.raises(WorkerFailed, match="no readable answer"):
        worker.receive("write_to_all_descriptors", 100)


def test_a_line_that_only_leads_to_the_next_is_followed_by_it() -> None:
    """As torch.compile's own errors are written."""
    from rung.errors import first_line

    error = RuntimeError("backend='inductor' raised:\nAssertionError: no such layout\n\nSet TORCHDYNAMO_VERBOSE=1 ...")
    assert first_line(error) == "backend='inductor' raised: AssertionError: no such layout"
    assert first_line(RuntimeError("what follows:\n")) == "what follows:"
    assert first_line(RuntimeError()) == ""
    odd = AssertionError("expected size 8==8, stride 4==1\nError in op: torch.ops.aten.relu.default\nSee this page")
    assert first_line(odd) == "expected size 8==8, stride 4==1 (error in op: torch.ops.aten.relu.default)"


def processes(worker: Worker) -> tuple[psutil.Process, list[psutil.Process]]:
    """A worker's guard, and the processes behind it, which it has once it has answered."""
    guard = psutil.Process(worker.pid)
    return guard, guard.children(recursive=True)


def is_stopped(process: psutil.Process, seconds: float = 30) -> bool:
    """Whether it is stopped, or is a moment later."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if process.status() == psutil.STATUS_STOPPED:
            return True
        time.sleep(0.02)
    return False


def goes_on(process: psutil.Process, seconds: float = 30) -> bool:
    """Whether it is not stopped, or is no more a moment later."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if process.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE):
            return True
        time.sleep(0.02)
    return False


def test_while_one_is_timed_the_others_are_stopped_with_their_children_and_their_guards_are_not(
    worker: Worker, tmp_path: Path
) -> None:
    with Worker("served:Served", tmp_path / "other", PATH) as other:
        child = psutil.Process(other.call("child", 100))
        worker.call("echo", 100, value=1)
        guard, behind = processes(other)
        timed, theirs = processes(worker)
        assert child in behind
        assert len(behind) == 2
        with quiet([worker]):
            assert all(is_stopped(process) for process in behind)
            assert all(goes_on(process) for process in (guard, timed, *theirs))
            assert worker.call("echo", 100, value=2) == 2
            other.send("echo", value=3)
            assert first_answer([other], 0.5) == []
        assert all(goes_on(process) for process in behind)
        assert other.receive("echo", 100) == 3


def test_one_that_was_started_a_moment_ago_is_stopped_too(worker: Worker, tmp_path: Path) -> None:
    worker.call("echo", 100, value=1)
    with Worker("served:Served", tmp_path / "other", PATH) as other:
        with quiet([worker]):
            time.sleep(0.5)  # the time to start, for one that runs
            guard, behind = processes(other)
            assert goes_on(guard)
            assert [is_stopped(process) for process in behind] == [True]
        assert other.call("echo", 100, value=3) == 3


def test_the_others_go_on_though_what_was_timed_failed(worker: Worker) -> None:
    worker.call("echo", 100, value=1)
    _, behind = processes(worker)

    def timed() -> None:
        with quiet([]):
            assert all(is_stopped(process) for process in behind)
            raise RuntimeError("while it was timed")

    with pytest.raises(RuntimeError, match="while it was timed"):
        timed()
    assert all(goes_on(process) for process in behind)
    assert worker.call("echo", 100, value=1) == 1


def test_a_worker_that_was_ended_is_not_looked_for(worker: Worker, tmp_path: Path) -> None:
    worker.call("echo", 100, value=1)
    with Worker("served:Served", tmp_path / "other", PATH) as other:
        assert {worker, other} <= Worker.running
    assert other not in Worker.running
    with quiet([worker]):
        assert worker.call("echo", 100, value=2) == 2


def test_a_worker_that_is_stopped_is_ended_by_a_kill(worker: Worker) -> None:
    child = worker.call("child", 100)
    _, behind = processes(worker)
    with quiet([]):
        assert all(is_stopped(process) for process in behind)
        worker.kill()
    assert gone(worker.pid)
    assert gone(child)


def test_what_is_stopped_does_not_outlive_a_coordinator_killed_with_sigkill(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from rung.launch import Worker, quiet\n"
        f"timed, other = (Worker('served:Served', Path({str(tmp_path)!r}, name)) for name in ('timed', 'other'))\n"
        "pids = [timed.pid, other.pid, timed.call('child', 100), other.call('child', 100)]\n"
        "with quiet([timed]):\n"
        "    print(*pids, flush=True); time.sleep(600)\n"
    )
    env = {**os.environ, **PATH}
    coordinator = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=env)
    assert coordinator.stdout is not None
    pids = [int(p) for p in coordinator.stdout.readline().split()]
    assert is_stopped(psutil.Process(pids[-1]))
    theirs = [process.pid for process in psutil.Process(coordinator.pid).children(recursive=True)]
    assert {*pids} <= {*theirs}
    assert len(theirs) == 6  # two guards, two workers, two children
    coordinator.send_signal(signal.SIGKILL)
    coordinator.wait()
    assert all(gone(pid) for pid in theirs)


def test_the_first_of_several_to_answer_is_told_as_soon_as_it_has(worker: Worker, tmp_path: Path) -> None:
    with Worker("served:Served", tmp_path / "other", PATH) as other:
        worker.call("echo", 100, value=1)
        other.call("echo", 100, value=1)
        assert first_answer([], 60) == []
        assert first_answer([worker, other], 0.05) == []  # nothing was asked
        worker.send("sleep", seconds=60)
        other.send("echo", value=2)
        began = time.monotonic()
        assert first_answer([worker, other], 50) == [other]
        assert time.monotonic() - began < 40
        assert other.answered()
        assert first_answer([worker, other], 50) == [other]  # until it is taken
        assert other.receive("echo", 100) == 2
        assert not other.answered()


def test_a_worker_that_dies_has_answered(worker: Worker) -> None:
    worker.call("echo", 100, value=1)
    worker.send("die")
    assert first_answer([worker], 100) == [worker]
    with pytest.raises(WorkerFailed, match="SIGKILL"):
        worker.receive("die", 100)


def test_answers_that_came_at_once_are_taken_one_by_one(worker: Worker) -> None:
    for value in (1, 2):
        worker.send("echo", value=value)
    assert first_answer([worker], 100) == [worker]
    assert [worker.receive("echo", 100) for _ in range(2)] == [1, 2]
    assert not worker.answered()


def test_a_worker_that_was_ended_says_so_when_it_is_asked(worker: Worker) -> None:
    worker.kill()
    with pytest.raises(WorkerFailed, match="was ended before") as failure:
        worker.send("echo")
    assert failure.value.kind == "killed"
    assert not failure.value.lacked_memory
    with pytest.raises(WorkerFailed, match="was ended before"):
        worker.receive("echo", 1.0)
    worker.kill()


@pytest.mark.parametrize(
    ("kind", "text", "lacked"),
    [
        ("out of memory", "CUDA out of memory", True),
        ("killed", "the worker was killed by SIGKILL during the timing", True),
        ("killed", "the worker was killed by SIGSEGV during the timing", False),
        ("raised", "ValueError: SIGKILL", False),
    ],
)
def test_a_failure_may_be_for_lack_of_memory(kind: str, text: str, lacked: bool) -> None:
    assert WorkerFailed(text, kind).lacked_memory == lacked
