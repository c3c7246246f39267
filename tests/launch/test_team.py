"""Several ranks as one worker: what they answer, whose failure is told, and that nothing outlives them."""

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ended import gone

from rung.errors import UsageError
from rung.launch import Team, WorkerFailed, launcher
from rung.launch.rank import placed
from rung.launch.team import _how
from rung.side import Launcher

HERE = Path(__file__).parent
PATH = {"PYTHONPATH": os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))}
Make = Callable[..., Team]


def listed(method: str, answers: list[Any]) -> list[Any]:
    return [method, *answers]


def ranks(count: int, world: int | None = None) -> Launcher:
    return launcher(f"{sys.executable} {HERE / 'start_ranks.py'} {count} {world or count}")


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Team] = []

    def of(count: int, world: int | None = None, joining: float = 60.0) -> Team:
        made.append(Team("served_ranks:Member", tmp_path / "log", ranks(count, world), listed, PATH, joining=joining))
        return made[-1]

    yield of
    for team in made:
        team.kill()


def test_every_rank_answers_in_its_place_and_one_answer_is_made_of_them(make: Make) -> None:
    team = make(3)
    method, *answers = team.call("who", 60)
    assert method == "who"
    assert answers == [[rank, 3, rank, str(rank), True] for rank in range(3)]
    assert team.answers == answers
    assert len(team.hosts) == 3
    assert team.spent[0] > 0
    pids = [pid for of_one in team.call("pids", 60)[1:] for pid in of_one]
    team.kill()
    assert all(gone(pid) for pid in pids)
    with pytest.raises(WorkerFailed, match="were ended before who"):
        team.call("who", 60)


def test_calls_may_be_sent_before_the_first_is_answered(make: Make) -> None:
    team = make(2)
    team.send("who")
    team.send("fail", at=[])
    assert team.receive("who", 60)[0] == "who"
    assert team.receive("fail", 60) == ["fail", 0, 1]


def test_what_one_rank_raises_is_told_with_its_number_and_host(make: Make) -> None:
    with pytest.raises(
        WorkerFailed, match=rf"^rank 1 of 2 on {socket.gethostname()}: ValueError: no good \(.*in fail\)$"
    ):
        make(2).call("fail", 60, at=[1])


def test_what_all_ranks_raise_is_told_once(make: Make) -> None:
    with pytest.raises(WorkerFailed, match=r"^ValueError: no good \(.*in fail\)$"):
        make(2).call("fail", 60, at=[0, 1])


def test_a_cause_is_told_before_the_connections_that_were_lost_by_it(make: Make) -> None:
    with pytest.raises(WorkerFailed, match=r"rank 1 of 2 .*no good"):
        make(2).call("fail", 60, at=[1], others="Connection reset by peer")


def test_a_rank_that_was_killed_is_named_although_the_others_complain(make: Make, tmp_path: Path) -> None:
    with pytest.raises(
        WorkerFailed, match=r"^rank 1 on \S+ was killed by SIGKILL during die\. Its last line: the last words"
    ) as failed:
        make(3).call("die", 60, at=1)
    assert failed.value.kind == "killed"
    assert failed.value.lacked_memory
    assert f"--- rank 1 on {socket.gethostname()}\nthe last words\n" in (tmp_path / "log").read_text()


def test_a_rank_that_aborts_for_another_is_not_the_one_that_is_named(make: Make) -> None:
    with pytest.raises(WorkerFailed, match=r"^rank 1 on \S+ was killed by SIGKILL during abort"):
        make(2).call("abort", 60, at=1)


@pytest.mark.parametrize("aborts", [0, 1])
def test_an_error_is_told_although_a_rank_is_aborted_after_it(make: Make, tmp_path: Path, aborts: int) -> None:
    message = "HIP error: an illegal memory access was encountered"
    with pytest.raises(
        WorkerFailed, match=rf"^rank 1 of 2 on \S+: RuntimeError: {message} \(.*in fail_and_abort\)$"
    ) as failed:
        make(2).call("fail_and_abort", 60, raises=1, aborts=aborts, message=message)
    assert failed.value.kind == "raised"
    log = (tmp_path / "log").read_text()
    assert f"--- rank 1 on {socket.gethostname()}, raised\n{failed.value.traceback.rstrip()}\n" in log


def test_a_rank_that_was_aborted_is_told_before_the_connection_that_another_lost_by_it(make: Make) -> None:
    with pytest.raises(WorkerFailed, match=r"^rank 0 on \S+ was killed by SIGABRT during fail_and_abort"):
        make(2).call("fail_and_abort", 60, raises=1, aborts=0, message="Connection closed by peer")


def test_a_signal_without_a_name_is_told_by_its_number() -> None:
    assert _how(signal.SIGKILL) == "was killed by SIGKILL"
    assert _how(signal.SIGRTMIN + 1) == f"was killed by signal {signal.SIGRTMIN + 1}"


def few_files(world: int, soft: int, hard: int, log: Path) -> "subprocess.CompletedProcess[str]":
    """A coordinator that may open so many files, with a job of so many ranks."""
    code = (
        "import resource, sys\nfrom pathlib import Path\nfrom rung.launch import Team\nfrom rung.side import Launcher\n"
        f"start = Launcher((sys.executable, {str(HERE / 'start_many.py')!r}, '{world}'), here=True)\n"
        f"with Team('a:B', Path({str(log)!r}), start, lambda method, answers: answers, joining=60.0) as team:\n"
        f"    resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))\n"
        f"    print(team.call('who', 60) == list(range({world})))\n"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


def test_a_job_may_have_more_connections_than_the_soft_limit_and_select_allow(tmp_path: Path) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 1500:
        pytest.skip("a process may not open enough files here")
    done = few_files(520, 100, hard, tmp_path / "log")
    assert done.stdout == "True\n", done.stderr


def test_a_limit_of_files_that_is_too_low_is_told_at_once(tmp_path: Path) -> None:
    began = time.monotonic()
    done = few_files(100, 40, 100, tmp_path / "log")
    assert time.monotonic() - began < 120
    assert done.stderr.splitlines()[-1] == (
        f"rung.launch.channel.WorkerFailed: {socket.gethostname()} allows too few open files (at most 100) for the two connections of each "
        "rank: raise the limit (`ulimit -Hn`, or nofile in /etc/security/limits.conf) or start fewer ranks. The launcher's output: "
        f"{tmp_path / 'log'}"
    )


def test_ranks_that_somebody_else_ends_are_told_at_once(make: Make) -> None:
    team = make(2)
    guards = [pids[1] for pids in team.call("pids", 60)[1:]]
    team.send("sleep", at=0)
    for guard in guards:
        os.kill(guard, signal.SIGTERM)
    began = time.monotonic()
    with pytest.raises(
        WorkerFailed, match="the launcher, or the process that started it, ended the ranks during sleep"
    ):
        team.receive("sleep", 600)
    assert time.monotonic() - began < 120


def test_two_teams_at_once_have_meeting_points_of_their_own(tmp_path: Path) -> None:
    """As the two sides of a comparison have, which one launcher starts."""
    start = launcher(f"{sys.executable} {HERE / 'start_ranks.py'} 1 1 env MEET={{team}} AT={{port}}")
    with (
        Team("served_ranks:Member", tmp_path / "a", start, listed, PATH) as one,
        Team("served_ranks:Member", tmp_path / "b", start, listed, PATH) as other,
    ):
        for name in ("MEET", "AT"):
            assert one.call("variable", 60, name=name) != other.call("variable", 60, name=name)
        assert one.call("variable", 60, name="AT")[1].isdecimal()


def test_the_place_that_somebody_elses_job_gave_this_process_is_not_its_ranks_place(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "nowhere"), ("MASTER_PORT", "1")):
        monkeypatch.setenv(name, value)
    team = make(2)
    assert [answer[:2] for answer in team.call("who", 60)[1:]] == [[0, 2], [1, 2]]
    assert "nowhere" not in team.call("variable", 60, name="MASTER_ADDR")


def test_a_rank_that_left_is_named_while_the_others_wait_for_it(make: Make) -> None:
    began = time.monotonic()
    with pytest.raises(
        WorkerFailed, match=r"rank 0 on \S+ ended with exit code 3 during leave\. Its last line: goodbye"
    ):
        make(2).call("leave", 60, at=0)
    assert time.monotonic() - began < 120


def test_at_the_deadline_the_ranks_that_did_not_answer_are_named(make: Make) -> None:
    team = make(2)
    team.call("who", 60)
    with pytest.raises(WorkerFailed, match=r"sleep did not end within its deadline of 1 s on rank 1 \(") as failed:
        team.call("sleep", 1.0, at=1)
    assert failed.value.kind == "hung"


def test_what_ranks_print_is_in_the_log_once_they_end(make: Make, tmp_path: Path) -> None:
    team = make(2)
    team.call("scream", 60)
    team.kill()
    assert [f"rank {rank} was here" in (tmp_path / "log").read_text() for rank in range(2)] == [True, True]


@pytest.mark.parametrize(("count", "missing"), [(2, "rank 2 of 3"), (0, "any rank")])
def test_a_launcher_that_ends_early_is_told_with_the_ranks_that_lack(make: Make, count: int, missing: str) -> None:
    with pytest.raises(
        WorkerFailed, match=f"the launcher (ended with exit code|was stopped after).* before {missing} connected"
    ):
        make(count, 3, joining=5.0).call("who", 60)


def test_a_launcher_that_cannot_be_started_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the launcher '/no/mpirun' cannot be started: No such file"):
        Team("served_ranks:Member", tmp_path / "log", launcher("/no/mpirun -np 2"), listed)
    for text in ("", "mpirun 'a"):
        with pytest.raises(UsageError, match="--launcher"):
            launcher(text)


def test_only_torchrun_starts_python_itself() -> None:
    assert launcher("mpirun -np 2").words[:4] == ("mpirun", "-np", "2", sys.executable)
    for text in ("srun torchrun --nnodes 2", "python -m torch.distributed.run"):
        assert sys.executable not in launcher(text).words


def test_whoever_does_not_know_the_token_is_no_rank(make: Make) -> None:
    team = make(2)
    port = int(team._rendezvous.address.split()[1])
    for said in (
        b"",
        b"hello\n",
        b"[" * 4000 + b"\n",
        b'{"token": "guess", "rank": 0, "world": 1, "serves": true}\n',
        b"x" * 9000,
    ):
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(said)
    with socket.create_connection(("127.0.0.1", port)) as slow:  # says nothing, and is not waited for
        slow.sendall(b"{")
        assert len(team.call("who", 60)) == 3


def test_nothing_outlives_a_coordinator_that_was_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from rung.launch import Team, launcher\n"
        f"team = Team('served_ranks:Member', Path({str(tmp_path / 'log')!r}), launcher({' '.join(ranks(2).words[:4])!r}), lambda m, a: a)\n"
        "print(*sum(team.call('pids', 60), []), flush=True); team.send('sleep', at=0); time.sleep(600)\n"
    )
    env = {**os.environ, **PATH}
    coordinator = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=env)
    assert coordinator.stdout is not None
    pids = [int(pid) for pid in coordinator.stdout.readline().split()]
    assert len(pids) == 6
    coordinator.send_signal(signal.SIGKILL)
    coordinator.wait()
    assert all(gone(pid) for pid in pids)


@pytest.mark.parametrize(
    "variables",
    [
        {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"},
        {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "1"},
        {"PMI_RANK": "3", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1"},
        {"SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1"},
        # torchrun under srun: srun's own task is the host
        {
            "RANK": "3",
            "WORLD_SIZE": "8",
            "LOCAL_RANK": "1",
            "SLURM_PROCID": "0",
            "SLURM_NTASKS": "2",
            "SLURM_LOCALID": "0",
        },
    ],
)
def test_a_rank_is_told_by_any_launcher(variables: dict[str, str]) -> None:
    found = placed(variables)
    assert (found.rank, found.world, found.local) == (3, 8, 1)


def test_a_process_that_is_told_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="use torchrun, mpirun or srun"):
        placed({"SLURM_JOB_ID": "1"})
