"""A job that a command handed to SLURM, as it is kept beside what the job writes."""

from __future__ import annotations

from rung.records.record import SCHEMA, Part


class SlurmJob(Part, kw_only=True, tag_field="kind", tag="slurm-job"):
    """job: SLURM's number; words: of the command that runs in it; cwd: where; nodes, ranks_per_node: how many, 0 for a single process;
    submitted: when, by the clock of the host that submitted it; run: the run directory of a climb."""

    schema: int = SCHEMA
    job: int
    words: list[str]
    cwd: str
    nodes: int
    ranks_per_node: int
    submitted: str
    run: str | None = None


class ListedJob(SlurmJob, kw_only=True, tag_field="kind", tag="slurm-job-state"):
    """folder: of what the job writes; state: as SLURM names it, in lower case, null where SLURM knows it no longer; hosts: as SLURM writes
    them."""

    folder: str
    state: str | None
    hosts: str


class InJob(Part, kw_only=True):
    """A climb or a recording that a job of the user's own runs. job: SLURM's number, which every task of an array has for itself; task: of
    an array; command: as it was typed, or the program that called `rung.climb`."""

    schema: int = SCHEMA
    job: str
    task: int | None
    command: str
