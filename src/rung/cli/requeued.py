"""A climb in a user's own job of SLURM: which run directory it began in, found again after SLURM has started the job anew."""

from __future__ import annotations

import contextlib
import shlex
import sys
from pathlib import Path

import msgspec

from rung.cli.common import ROOT
from rung.launch.slurm_task import job, started_anew, task
from rung.records.slurm_job import InJob
from rung.runs import Run

MARK = "slurm-job.json"  # in the run directory


def mark(run: Run) -> None:
    """Notes the job that a new climb runs in, where it runs in one."""
    if job():
        run.write(MARK, _here())


def earlier(out: Path | None) -> Path | None:
    """The run directory in which this command began before SLURM started its job anew; None where it begins now. What had not got as far as
    to go on from is removed. out: the run directory that was asked for, or None."""
    if not started_anew():
        return None
    for directory in [out] if out else sorted(ROOT.glob("*/")):
        found = None
        with contextlib.suppress(OSError, msgspec.DecodeError):
            found = msgspec.json.decode((directory / MARK).read_bytes(), type=InJob)
        if found == _here():
            if (directory / "manifest.json").is_file():
                return directory
            Run(directory).drop_if_empty()
    return None


def _here() -> InJob:
    return InJob(job=job(), task=task(), command=shlex.join(["rung", *sys.argv[1:]]))
