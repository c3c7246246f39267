"""What a job of SLURM began before SLURM started it anew: a climb or a recording notes its job, and is found again by that."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from rung.launch.slurm_task import job, started_anew, task
from rung.records.record import plain
from rung.records.slurm_job import InJob
from rung.runs import Run, to_json, write_whole

MARK = "slurm-job.json"  # in the folder of what was begun


def in_job(command: str) -> InJob:
    """What is begun here. command: as it was typed."""
    return InJob(job=job(), task=task(), command=command)


def mark(folder: Path, here: InJob) -> None:
    """Notes the job in a folder of what is begun, where it is begun in one."""
    if here.job:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / MARK, to_json(plain(here)))


def earlier(folders: Iterable[Path], here: InJob) -> Path | None:
    """The folder in which this began before SLURM started its job anew; None where it begins now."""
    if not started_anew():
        return None
    for folder in folders:
        with contextlib.suppress(OSError, msgspec.DecodeError):
            if msgspec.json.decode((folder / MARK).read_bytes(), type=InJob) == here:
                return folder
    return None


def earlier_climb(root: Path, out: Path | None, here: InJob, say: Callable[[str], object]) -> Run | None:
    """As `earlier`, of a climb in a folder below root, or in `out`; `say` is told. What had not got as far as to go on from is removed."""
    found = earlier([out] if out else sorted(root.glob("*/")), here)
    if found and not (found / "manifest.json").is_file():
        Run(found).drop_if_empty()
        return None
    if not found:
        return None
    run = Run.open_(found)
    say(f"SLURM started this job anew; {f'{found} had ended' if run.ended else f'going on with {found}'}")
    return run
