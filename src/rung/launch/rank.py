"""One rank of a job: a worker process that a launcher starts, on any host, and that answers its coordinator over a socket.

    torchrun --nproc-per-node 4 start.py rung.launch.rank package.module:Class

The launcher tells it which rank it is; `RUNG_TEAM` tells where the coordinator listens, and a token that proves that it was asked to come.
It connects twice: once to serve calls as any worker does, once for its guard (`worker.guarded`). The guard ends the rank when the
coordinator is gone, and otherwise says how the rank ended and what it printed, from a host that may share no files with the coordinator's.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import tempfile
from collections.abc import Mapping
from typing import IO

from rung.errors import UsageError
from rung.hardware.ranks import Ranks
from rung.launch.worker import guarded, serve

TEAM = "RUNG_TEAM"  # host, port and token, by spaces
CONNECTING = 60.0  # seconds
KEPT = 64 * 1024  # bytes of a rank's output that are sent home
# What launchers call the rank, their number and the number on the host: torchrun, Open MPI, MPICH and Intel MPI, SLURM's srun.
NAMES = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
)


def main(arguments: list[str]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the coordinator's to answer
    with contextlib.suppress(PermissionError):  # of a session's leader, which is alone in its group
        os.setpgid(0, 0)  # its own process group, so that its guard ends no other rank with it
    if TEAM not in os.environ:
        raise UsageError(
            f"the launcher does not pass on {TEAM}, which tells a rank where to connect: pass it on, as with `mpirun -x {TEAM}`."
        )
    host, port, token = os.environ[TEAM].split(" ")
    ranks = placed(os.environ)
    output = _redirected()
    who = {"token": token, "rank": ranks.rank, "world": ranks.world, "host": socket.gethostname(), "pid": os.getpid()}
    calls = _connected(host, int(port))
    with _free_port(calls) as offered:
        address, offer = offered.getsockname()[:2]
        _say(calls, {**who, "serves": True, "address": address, "port": offer})
        guard = _connected(host, int(port))
        _say(guard, {**who, "serves": False})
        requests = calls.makefile("r")
        begin = json.loads(requests.readline() or "null")
    if begin is None:  # the coordinator gave up
        return
    # A launcher that tells of no meeting point leaves that to the coordinator, who knows all ranks.
    named = {"RANK": ranks.rank, "WORLD_SIZE": ranks.world, "LOCAL_RANK": ranks.local, **begin}
    for name, value in named.items():
        os.environ.setdefault(name, str(value))

    def tell(status: int | None) -> None:
        with contextlib.suppress(OSError):
            _say(guard, {"status": status, "output": _tail(output)})

    guarded(guard.fileno(), (calls.fileno(),), tell)
    Ranks.here = ranks
    serve(requests, calls.makefile("w"), arguments[0])


def _connected(host: str, port: int) -> socket.socket:
    connection = socket.create_connection((host, port), CONNECTING)
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # a host that lost its power closes nothing
    return connection


def placed(variables: Mapping[str, str]) -> Ranks:
    """What the launcher says of this process. Raises UsageError where it says nothing."""
    for rank, world, local in NAMES:
        if rank in variables and world in variables:
            return Ranks(int(variables[rank]), int(variables[world]), int(variables.get(local, 0)))
    raise UsageError(
        f"the launcher tells a process neither by {NAMES[0][0]} and {NAMES[0][1]} nor as MPI or SLURM do which rank it is; "
        "use torchrun, mpirun or srun."
    )


def _redirected() -> IO[bytes]:
    """A file of this host for all that the rank prints, from now on."""
    output = tempfile.TemporaryFile(mode="ab")  # noqa: SIM115 - as long as the process
    for fd in (1, 2):
        os.dup2(output.fileno(), fd)
    return output


def _tail(output: IO[bytes]) -> str:
    size = os.fstat(output.fileno()).st_size
    return os.pread(output.fileno(), KEPT, max(0, size - KEPT)).decode(errors="replace")


def _free_port(connection: socket.socket) -> socket.socket:
    """A port of the address by which this host reaches the coordinator, held while it is open."""
    family, (address, *_) = connection.family, connection.getsockname()
    offered = socket.socket(family)
    offered.bind((address, 0))
    return offered


def _say(connection: socket.socket, document: object) -> None:
    connection.sendall(json.dumps(document).encode() + b"\n")
