"""Where it runs: worker processes that a coordinator starts, calls and ends."""

from rung.launch.process import (
    START,
    Worker,
    WorkerFailed,
    first_answer,
    in_process_of_ours,
    kill_all,
    log_folder,
    not_in_a_worker,
    quiet,
)

__all__ = [
    "START",
    "Worker",
    "WorkerFailed",
    "first_answer",
    "in_process_of_ours",
    "kill_all",
    "log_folder",
    "not_in_a_worker",
    "quiet",
]
