"""The job of SLURM that this process runs in, as a script of the user's started it: its task of an array, and whether it was started anew.

A job that Rung submitted is no task: it may have the variables of the task from which it was submitted.
"""

from __future__ import annotations

import os
from pathlib import Path

from rung.launch.slurm import IN_JOB


def task() -> int | None:
    """The number of the task of an array; None elsewhere."""
    told = os.environ.get("SLURM_ARRAY_TASK_ID", "")
    return int(told) if told.isdecimal() and IN_JOB not in os.environ else None


def of_task(folder: Path) -> Path:
    """A folder of this task's own in one that was named: all tasks of an array run the same command."""
    number = task()
    own = f"task{number}"
    return folder if number is None or folder.name == own else folder / own


def run_of_task(directory: Path) -> Path:
    """The run directory that is to go on: this task's own, where each task of an array has one in the directory that was named."""
    own = of_task(directory)
    return own if (own / "manifest.json").is_file() else directory


def job() -> str:
    """The number of the job, which is another for each task, and stays when SLURM starts it anew; empty outside of one."""
    return os.environ.get("SLURM_JOB_ID", "")


def started_anew() -> bool:
    """Whether SLURM ran this job before: it was preempted, lost a node, or was requeued by hand. Of a job that Rung submitted, it may have
    been the job from which that was done: what has this job's number is asked for besides (`requeued.earlier`)."""
    told = os.environ.get("SLURM_RESTART_COUNT", "")
    return bool(job()) and told.isdecimal() and int(told) > 0
