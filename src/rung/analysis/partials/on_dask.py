"""Traces reduced by the workers of a Dask cluster, which must see them under the same paths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from rung.analysis.partials.reduce import Engine, program, reduced
from rung.errors import InputError, UsageError

SCHEME = "dask://"
AHEAD = 4  # traces that wait for each thread: the scheduler knows of few at a time
PATIENCE = 20  # seconds for the scheduler to answer, and for the first worker to be there


def on_dask(address: str) -> Engine:
    """The engine of a running scheduler. address: `dask://HOST:PORT`. Raises UsageError where Dask is not installed, or the address is none."""
    host, colon, port = address.removeprefix(SCHEME).rstrip("/").rpartition(":")
    if not address.startswith(SCHEME) or not (host and colon and port.isdigit()):
        raise UsageError(f"--engine {address}: give the address of a Dask scheduler, as dask://node7:8786.")
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
            threads = _ready(client, address)
            waiting = iter(files)
            files_of = {
                client.submit(reduced, file, pure=False, **how): file for file in islice(waiting, AHEAD * threads)
            }
            done = distributed.as_completed(list(files_of))
            for future in done:
                yield files_of.pop(future), future.exception() or future.result()
                for file in islice(waiting, 1):
                    following = client.submit(reduced, file, pure=False, **how)
                    files_of[following] = file
                    done.add(following)

    return run


def _ready(client: Any, address: str) -> int:
    """How many threads the workers have. Raises InputError where there is no worker, or one without this version of rung."""
    try:
        client.wait_for_workers(1, timeout=PATIENCE)
    except TimeoutError:
        raise InputError(f"{address} has no worker: start some with `dask worker`.") from None
    try:
        versions = set(client.run(program).values())
    except Exception as error:  # whatever they raise where rung is missing
        raise InputError(f"the workers of {address} cannot run rung ({error}): install it where they run.") from None
    if versions != {program()}:
        raise InputError(f"the workers of {address} have another version of rung: install the same one.")
    return sum(client.nthreads().values())
