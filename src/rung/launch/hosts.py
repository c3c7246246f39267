"""One command on each of several hosts, where nothing else starts processes on them: pods of Kubernetes, or containers of a job.

    python start.py rung.launch.hosts join FIRST:PORT            on each host but the first, as long as the job lasts
    python start.py rung.launch.hosts run HOSTS PORT COMMAND...   on the first: a launcher (`--launcher`), as often as ranks are started
    python start.py rung.launch.hosts end HOSTS PORT              on the first, at last

`run` starts the command on all hosts, with `{host}` in its words for the number of each, and its own environment. It ends when all have
ended; where one fails, or `run` is ended, all others are ended, too. Whoever joins proves by `$RUNG_HOSTS_KEY`, which all hosts have, that
it belongs to the job, and so does whoever gives it a command.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from rung.errors import UsageError, WorkloadError
from rung.launch.launchers import NAME, PORT
from rung.launch.rendezvous import JOINING, REACHED_BY

KEY = "RUNG_HOSTS_KEY"
HOST = "{host}"
FIRST = 29400  # the port at which the first host awaits the others, where it has an address of its own
RETRY = 0.5  # seconds
GRACE = 5.0  # seconds for a command to end by itself
LONGEST = 1 << 20  # bytes of a line
SHOWN = 64 * 1024  # bytes of what a command printed that failed
# What says where a process runs: each host has its own.
OWN = {
    "HOSTNAME", "JOB_COMPLETION_INDEX", "PWD", "OLDPWD", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "SLURM_NODEID", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_TASK_PID", "SLURMD_NODENAME",
}  # fmt: skip


def script(
    words: Sequence[str],
    hosts: int,
    ranks: int,
    index: str,
    run: str = "",
    clear: bool = False,
    answer: str = "",
    port: str = str(FIRST),
) -> str:
    """What each host runs in bash, with Rung and Python on its path. words: of the command, from its name on; ranks: of each host, 0 for one
    process; index: the variable with the number of the host; run: the run directory of a climb that begins, which goes on where the host
    is started anew; clear: what is left there by one that did not begin is removed; answer: a file for what the command prints;
    port: at which the first host awaits the others, in words of bash."""
    lines = ['start=$(cd / && python3 -c "import rung.launch; print(rung.launch.START)") || exit 3']
    more = f" --nproc-per-node {ranks}" if ranks else ""
    if hosts > 1:
        lines.append(
            f'if [ "${index}" != 0 ]; then exec python3 "$start" rung.launch.hosts join "${REACHED_BY}:{port}"; fi'
        )
        agent = (
            f"python3 -m torch.distributed.run --nnodes={hosts} --node-rank={HOST} --nproc-per-node={ranks} --max-restarts=0 "
            f"--rdzv-backend=static --rdzv-endpoint=${REACHED_BY}:{PORT} --rdzv-id={NAME}"
        )
        lines.append(f'launcher="python3 $start rung.launch.hosts run {hosts} {port} {agent}"')
        more = ' --launcher "$launcher"'
    given = "exec " + shlex.join(["rung", *words]) + more
    if run:
        again = shlex.join(["rung", words[0], "--resume", run, *[word for word in words if word == "--json"]])
        again = "exec " + again + (more if hosts > 1 else "")
        begun = shlex.quote(str(PurePosixPath(run) / "manifest.json"))
        left = f"rm -rf {shlex.quote(run)}; " if clear else ""
        given = f"if [ -e {begun} ]; then {again}; else {left}{given}; fi"
    to = f" > {shlex.quote(answer)}" if answer else ""
    # In the background, because a shell hears no signal while it waits for a command in the foreground.
    lines += [f"({given}){to} & child=$!", "trap 'asked=1; kill -TERM $child' TERM", "wait $child; code=$?"]
    lines.append("while kill -0 $child 2> /dev/null; do wait $child; code=$?; done")
    if hosts > 1:
        # A first host that was asked to end may be started anew, and then needs the others.
        lines.append(f'[ -n "$asked" ] || python3 "$start" rung.launch.hosts end {hosts} {port}')
    return "\n".join([*lines, "exit $code", ""])


def main(arguments: list[str]) -> int:
    what, *rest = arguments
    if what == "join":
        host, _, port = rest[0].rpartition(":")
        return join(host, int(port))
    if what == "end":
        for guest in _gathered(int(rest[0]) - 1, int(rest[1])):
            guest.say({"end": True})
        return 0
    return run(int(rest[0]), int(rest[1]), rest[2:])


def run(hosts: int, port: int, words: Sequence[str]) -> int:
    """Runs a command on all hosts, this one among them; its exit code, of the first that failed. Raises WorkloadError where not all come."""
    _end_when_asked(143)
    guests = _gathered(hosts - 1, port)
    sent = {name: value for name, value in os.environ.items() if name not in OWN}
    child: subprocess.Popen[bytes] | None = None
    try:
        for number, guest in enumerate(guests, 1):
            guest.say({"words": _of_host(words, number), "env": sent, "cwd": os.getcwd()})
        child = subprocess.Popen(_of_host(words, 0))
        codes: dict[int, int] = {}
        while len(codes) < hosts and not any(codes.values()):
            for number, guest in enumerate(guests, 1):
                if number not in codes and guest.ready():
                    said = guest.hear()
                    codes[number] = int(said["code"]) if said else _lost(number)
            if (code := child.poll()) is not None:
                codes[0] = code
            time.sleep(0.05)
        failed = next((code for code in codes.values() if code), 0)
        return failed if failed >= 0 else 128 - failed
    finally:
        for guest in guests:
            guest.close()  # it ends what it runs
        if child:
            _end(child)


def _end_when_asked(code: int) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(code))


def _lost(number: int) -> int:
    print(
        f"rung: host {number} of this job was lost: its pod ended or its connection broke.", file=sys.stderr, flush=True
    )
    return 1


def _of_host(words: Sequence[str], number: int) -> list[str]:
    return [word.replace(HOST, str(number)) for word in words]


def join(host: str, port: int) -> int:
    """Runs what the first host says, one command after the other, until that says that there are no more."""
    _end_when_asked(130)  # as the first host does: the exit code of a job is the highest of all
    while True:
        try:
            peer = _Peer(socket.create_connection((host, port), RETRY * 4))
        except OSError:  # between two commands nobody listens
            time.sleep(RETRY)
            continue
        with contextlib.suppress(OSError, ValueError, KeyError), contextlib.closing(peer):
            if not peer.prove() or (asked := peer.hear()) is None:
                time.sleep(RETRY)
                continue
            if asked.get("end"):
                return 0
            _follow(peer, asked)


def _follow(peer: _Peer, asked: Mapping[str, Any]) -> None:
    """Runs a command until it ends, or until nobody wants it any more. What it printed is shown where it failed by itself: torchrun, asked to
    end, prints a traceback."""
    own = {name: value for name, value in os.environ.items() if name in OWN}
    with tempfile.TemporaryFile() as output:
        try:
            child = subprocess.Popen(
                asked["words"], env={**asked["env"], **own}, cwd=asked["cwd"], stdout=output, stderr=output
            )
        except OSError as error:
            print(f"rung: {asked['words'][0]} cannot be started in {asked['cwd']}: {error.strerror}.", file=sys.stderr)
            peer.say({"code": 127})
            return
        try:
            while child.poll() is None and not peer.ready():  # it says nothing more: it can only be gone
                time.sleep(0.05)
            if (code := child.poll()) is not None:
                if code:
                    size = os.fstat(output.fileno()).st_size
                    said = os.pread(output.fileno(), SHOWN, max(0, size - SHOWN))
                    print(said.decode(errors="replace"), file=sys.stderr, flush=True)
                peer.say({"code": code})
                peer.hear()  # until all have ended
        finally:
            _end(child)


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=GRACE)
    with contextlib.suppress(ProcessLookupError):
        child.kill()
    child.wait()


def _gathered(count: int, port: int) -> list[_Peer]:
    """Connections of all other hosts. Raises WorkloadError where they do not come in time."""
    if not count:
        return []
    found: list[_Peer] = []
    until = time.monotonic() + JOINING
    with socket.create_server(("", port), backlog=count) as door:
        door.settimeout(RETRY)
        while len(found) < count:
            if time.monotonic() > until:
                raise WorkloadError(
                    f"{count - len(found)} of {count} other hosts did not join within {JOINING:.0f} s: check that their pods run."
                )
            with contextlib.suppress(OSError):  # TimeoutError is one
                peer = _Peer(door.accept()[0])
                if peer.proven():
                    found.append(peer)
                else:
                    peer.close()
    return found


class _Peer:
    """A connection between the first host and another: a JSON document a line."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(RETRY * 20)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._socket, self._pending = connection, b""

    def say(self, document: object) -> None:
        self._socket.sendall(json.dumps(document).encode() + b"\n")

    def hear(self) -> dict[str, Any] | None:
        """The next document; None where the other end is gone."""
        while b"\n" not in self._pending:
            try:
                chunk = self._socket.recv(1 << 16)
            except OSError:
                return None
            self._pending += chunk
            if not chunk or len(self._pending) > LONGEST:
                return None
        line, _, self._pending = self._pending.partition(b"\n")
        document = json.loads(line)
        return document if isinstance(document, dict) else None

    def ready(self) -> bool:
        """Whether `hear` would return at once."""
        return b"\n" in self._pending or bool(select.select([self._socket], [], [], 0)[0])

    def prove(self) -> bool:
        """Of who joins: shows that it has the key, and sees whether the other has it. Afterwards it waits as long as it takes."""
        challenge = secrets.token_hex(16)
        self.say({"challenge": challenge})
        answer = self.hear() or {}
        if not hmac.compare_digest(str(answer.get("proof")), _proof("first", challenge)):
            return False
        self.say({"proof": _proof("other", str(answer.get("challenge")))})
        self._socket.settimeout(None)
        return True

    def proven(self) -> bool:
        """Of who is joined."""
        challenge = secrets.token_hex(16)
        try:
            theirs = self.hear() or {}
            self.say({"proof": _proof("first", str(theirs.get("challenge"))), "challenge": challenge})
            return hmac.compare_digest(str((self.hear() or {}).get("proof")), _proof("other", challenge))
        except (OSError, ValueError):
            return False

    def close(self) -> None:
        self._socket.close()


def _proof(who: str, challenge: str) -> str:
    key = os.environ.get(KEY, "")
    if not key:
        raise UsageError(f"{KEY} is not set: all hosts of a job need the same.")
    return hmac.new(key.encode(), f"{who} {challenge}".encode(), hashlib.sha256).hexdigest()
