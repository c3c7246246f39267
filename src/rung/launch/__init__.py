"""Where it runs: worker processes that a coordinator starts, calls and ends."""

from rung.launch.process import Worker, WorkerFailed, log_folder

__all__ = ["Worker", "WorkerFailed", "log_folder"]
