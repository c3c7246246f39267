"""Where it runs: worker processes that a coordinator starts, calls and ends."""

from rung.launch.process import Worker, WorkerFailed, first_answer, kill_all, log_folder, quiet

__all__ = ["Worker", "WorkerFailed", "first_answer", "kill_all", "log_folder", "quiet"]
