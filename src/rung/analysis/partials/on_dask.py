"""Traces reduced by the workers of a Dask cluster, which must see them under the same paths: one that runs, or jobs of SLURM."""

from __future__ import annotations

import logging
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from rung.analysis.partials.reduce import Engine, memory_for, program, reduced
from rung.errors import InputError, UsageError

log = logging.getLogger(__name__)

SCHEME, SLURM = "dask://", "slurm://"
MARGIN, LEAST_MEMORY = 1.5, 600e6  # times what a trace is expected to take, for Python and Dask beside it; bytes
AHEAD = 4  # traces that wait for each thread: the scheduler knows of few at a time
PATIENCE = 20  # seconds for the scheduler to answer, and for the first worker to be there


def on_dask(address: str) -> Engine:
    """The engine of a running scheduler. address: `dask://HOST:PORT`. Raises UsageError where Dask is not installed, or the address is none."""
    host, colon, port = address.removeprefix(SCHEME).rstrip("/").rpartition(":")
    if not address.startswith(SCHEME) or not (host and colon and port.isdigit()):
        raise UsageError(
            f"--engine {address}: give the address of a Dask scheduler, such as dask://node7:8786, or slurm://WORKERS."
        )
    try:
        import distributed
    except ImportError:
        raise UsageError(
            f"--engine {address} needs Dask: pip install 'rung[dask]', here and for its workers."
        ) from None

    def run(files: Sequence[Path], how: dict[str, Any]) -> Iterator[tuple[Path, Any]]:
        if not files:
            return
        try:
            client = distributed.Client(f"tcp://{host}:{port}", timeout=PATIENCE)
        except (OSError, TimeoutError):
            raise InputError(f"no Dask scheduler answers at {host}:{port}: start `dask scheduler` there.") from None
        with client:
            try:
                client.wait_for_workers(1, timeout=PATIENCE)
            except TimeoutError:
                raise InputError(f"{address} has no worker: start some with `dask worker`.") from None
            yield from _reduced(client, address, files, how)

    return run


@dataclass(frozen=True)
class Jobs:
    """Jobs of SLURM with a worker each. partition, account, limit, more: as sbatch takes them, or empty; alive: whether SLURM
    still knows one of these jobs as waiting or running."""

    partition: str
    account: str
    limit: str
    more: tuple[str, ...]
    alive: Callable[[Sequence[int]], bool]


def on_slurm(address: str, jobs: Jobs) -> Engine:
    """The engine of workers that dask-jobqueue has SLURM start for this, and that end with it. address: `slurm://WORKERS`. Raises
    UsageError where it is not installed, or the address is none."""
    count = address.removeprefix(SLURM)
    if not (count.isdecimal() and int(count)):
        raise UsageError(f"--engine {address}: say how many workers SLURM should start, as in slurm://8.")
    try:
        import distributed
        from dask_jobqueue import SLURMCluster
    except ImportError:
        raise UsageError(f"--engine {address} needs dask-jobqueue: pip install 'rung[dask]'.") from None

    def run(files: Sequence[Path], how: dict[str, Any]) -> Iterator[tuple[Path, Any]]:
        if not files:
            return
        with tempfile.TemporaryDirectory(prefix=".rung-dask-", dir=Path.cwd(), ignore_cleanup_errors=True) as folder, SLURMCluster(
            queue=jobs.partition or None,
            account=jobs.account or None,
            walltime=jobs.limit or None,
            cores=1,
            processes=1,
            memory=f"{max(LEAST_MEMORY, MARGIN * memory_for(files)):.0f}B",
            python=sys.executable,
            job_name="rung-analyze",
            job_extra_directives=list(jobs.more),
            log_directory=str(folder),
            local_directory=tempfile.gettempdir(),
            scheduler_options={"dashboard_address": None},
            worker_extra_args=["--no-dashboard"],
        ) as cluster, distributed.Client(cluster, timeout=PATIENCE) as client:  # fmt: skip
            _would_be_taken(cluster.job_script())
            cluster.scale(jobs=min(int(count), len(files)))
            _await_a_worker(client, cluster, jobs, Path(folder))
            yield from _reduced(client, address, files, how)

    return run


def _would_be_taken(script: str) -> None:
    """Raises InputError, with what SLURM says, where it refuses such a job."""
    with tempfile.NamedTemporaryFile("w", suffix=".sh") as file:
        file.write(script)
        file.flush()
        try:
            done = subprocess.run(
                ["sbatch", "--test-only", file.name], capture_output=True, text=True, timeout=60, check=False
            )
        except OSError:
            raise UsageError("sbatch was not found: run --engine slurm:// on a host of a SLURM cluster.") from None
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise InputError(f"SLURM refuses a job with a worker: {said[0].removeprefix('sbatch: ')[:300]}")


def _await_a_worker(client: Any, cluster: Any, jobs: Jobs, logs: Path) -> None:
    """Jobs may wait in the queue for as long as it takes. Raises InputError where they have ended before a worker was there."""
    while True:
        try:
            client.wait_for_workers(1, timeout=PATIENCE)
            return
        except TimeoutError:
            numbers = [int(job.job_id) for job in cluster.workers.values() if getattr(job, "job_id", None)]
            log.info(
                "waiting for SLURM to start workers: jobs %s", ", ".join(map(str, numbers)) or "are being submitted"
            )
            if numbers and jobs.alive(numbers):
                continue
            said = [
                line for file in sorted(logs.glob("*")) for line in file.read_text(errors="replace").splitlines()[-1:]
            ]
            why = (
                f" The last line of one: {said[0][:300]}"
                if said
                else " See what `sbatch` says with the same --partition and --account."
            )
            raise InputError(f"SLURM started no worker: its jobs ended, or were refused.{why}") from None


def _reduced(client: Any, address: str, files: Sequence[Path], how: dict[str, Any]) -> Iterator[tuple[Path, Any]]:
    """Has the workers of a client reduce these, a few at a time."""
    import distributed

    threads = _threads(client, address)
    waiting = iter(files)
    files_of = {client.submit(reduced, file, pure=False, **how): file for file in islice(waiting, AHEAD * threads)}
    done = distributed.as_completed(list(files_of))
    for future in done:
        yield files_of.pop(future), future.exception() or future.result()
        for file in islice(waiting, 1):
            following = client.submit(reduced, file, pure=False, **how)
            files_of[following] = file
            done.add(following)


def _threads(client: Any, address: str) -> int:
    """How many the workers have. Raises InputError where one has another version of rung, or none."""
    try:
        versions = set(client.run(program).values())
    except Exception as error:  # whatever they raise where rung is missing
        raise InputError(f"the workers of {address} cannot run rung ({error}): install it where they run.") from None
    if versions != {program()}:
        raise InputError(f"the workers of {address} have another version of rung: install the same one.")
    return sum(client.nthreads().values())
