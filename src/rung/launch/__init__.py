"""Where it runs: worker processes that a coordinator starts, calls and ends."""

from rung.launch.channel import WorkerFailed
from rung.launch.fork_server import ForkServer
from rung.launch.launchers import filled, launcher, torchrun
from rung.launch.process import (
    Caller,
    Worker,
    first_answer,
    in_process_of_ours,
    kill_all,
    log_folder,
    not_in_a_worker,
    quiet,
)
from rung.launch.rendezvous import joining
from rung.launch.start import START
from rung.launch.team import Team

__all__ = [
    "START",
    "Caller",
    "ForkServer",
    "Team",
    "Worker",
    "WorkerFailed",
    "filled",
    "first_answer",
    "in_process_of_ours",
    "joining",
    "kill_all",
    "launcher",
    "log_folder",
    "not_in_a_worker",
    "quiet",
    "torchrun",
]
