"""Jobs of SLURM as a list on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rung.records.slurm_job import ListedJob
from rung.report import units

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
    wide = [max(len(row[k]) for row in rows) for k in range(len(HEADS) - 1)]
    return ["  ".join([*(cell.ljust(w) for cell, w in zip(row, wide, strict=False)), row[-1]]) for row in rows]
