"""Jobs of SLURM as a list on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rung.records.slurm_job import ListedJob
from rung.report import units
from rung.report.benchmarks import columns

HEADS = ("job", "state", "hosts", "submitted", "command")


def job_lines(jobs: Sequence[ListedJob]) -> list[str]:
    """A line each, the earliest first."""
    rows = [
        HEADS,
        *(
            (
                str(job.job),
                job.state or "unknown",
                job.hosts or units.NONE,
                job.submitted,
                units.clean(" ".join(job.words)),
            )
            for job in jobs
        ),
    ]
    return columns(rows)
