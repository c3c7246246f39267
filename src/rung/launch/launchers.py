"""Commands that start the ranks of a job: torchrun on this host, or what a user types for several."""

from __future__ import annotations

import secrets
import shlex
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from rung.errors import UsageError
from rung.launch.start import START
from rung.side import Launcher

PORT, NAME = "{port}", "{team}"  # in a launcher's words: a free port of this host, and a name that no other team has


def torchrun(processes: int) -> Launcher:
    """So many ranks on this host, by torch's elastic agent."""
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts", "0"]
    return Launcher((*run, "--nproc-per-node", str(processes), START), here=True)


def launcher(text: str) -> Launcher:
    """What a user types: `mpirun -np 8`, `srun --ntasks 8`, `srun torchrun --nnodes 2 --nproc-per-node 8`. Raises UsageError."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--launcher {text}: {error}.") from None
    if not words:
        raise UsageError("--launcher needs the command that starts the ranks, as in --launcher 'mpirun -np 8'.")
    # torchrun is given a script, and starts Python itself.
    agent = any(Path(word).name == "torchrun" or word == "torch.distributed.run" for word in words)
    return Launcher((*words, *([] if agent else [sys.executable]), START), here=False, meets=agent)


def filled(words: Sequence[str]) -> list[str]:
    """A launcher's words with a port and a name of this team in the places of PORT and NAME."""
    port, name = str(_free_port()), secrets.token_hex(4)
    return [word.replace(PORT, port).replace(NAME, name) for word in words]


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("", 0))
        return int(free.getsockname()[1])
