"""A SLURM of a few virtual nodes on this machine, for tests: it needs Debian's slurm-wlm and munge and root, and no systemd.

apt-get install slurm-wlm munge
python tools/slurm_here.py start /tmp/slurm     prints the SLURM_CONF to export
python tools/slurm_here.py stop /tmp/slurm      ends every job and every daemon
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

NODES = 2
NEEDED = ("slurmctld", "slurmd", "sbatch", "munged")
STARTING = 30.0  # seconds

CONF = """\
ClusterName=here
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
SlurmdTimeout=10
MinJobAge=600
KillWait=3
NodeName=n[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=2 RealMemory=1000
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=all Nodes=n[1-{nodes}] Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4 PriorityTier=1
PartitionName=urgent Nodes=n[1-{nodes}] MaxTime=INFINITE State=UP PriorityTier=9
"""


def lacks() -> str:
    """Why there can be none here; empty where there can."""
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} are not installed (apt-get install slurm-wlm munge)"
    return "" if os.geteuid() == 0 else "SLURM's daemons are started by root"


def start(folder: Path) -> Path:
    """Starts all daemons; the configuration, for SLURM_CONF. Raises RuntimeError where the nodes do not come up."""
    for name in ("state", "munge", *(f"spool-n{k}" for k in range(1, NODES + 1))):
        (folder / name).mkdir(parents=True, exist_ok=True)
    key = folder / "munge" / "key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    for path in (folder / "munge", key):
        shutil.chown(path, "munge", "munge")
    ports = _free_ports(1 + NODES)
    conf = folder / "slurm.conf"
    conf.write_text(
        CONF.format(
            folder=folder, host=socket.gethostname(), nodes=NODES, port=ports[0], first=ports[1], last=ports[-1]
        )
    )
    where = folder / "munge"
    as_munge = ["setpriv", "--reuid=munge", "--regid=munge", "--clear-groups"]
    options = [f"--{name}={where / value}" for name, value in MUNGED.items()]
    subprocess.run([*as_munge, "munged", "--force", *options], check=True)
    env = {**os.environ, "SLURM_CONF": str(conf)}
    subprocess.run(["slurmctld", "-c"], env=env, check=True)
    for k in range(1, NODES + 1):
        subprocess.run(["slurmd", "-N", f"n{k}"], env=env, check=True)
    until = time.monotonic() + STARTING
    while time.monotonic() < until:
        said = subprocess.run(["sinfo", "-h", "-o", "%T"], env=env, capture_output=True, text=True).stdout.split()
        if said == ["idle"]:
            return conf
        time.sleep(0.2)
    stop(folder)
    raise RuntimeError(f"the nodes did not come up within {STARTING:.0f} s; {folder} has the logs of the daemons")


MUNGED = {"socket": "socket", "key-file": "key", "log-file": "log", "pid-file": "pid", "seed-file": "seed"}


def stop(folder: Path) -> None:
    """Ends every job and every daemon."""
    env = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    subprocess.run(["scancel", "--user=root"], env=env, capture_output=True, timeout=30, check=False)
    pids = [*folder.glob("slurm*.pid"), folder / "munge" / "pid"]
    until = time.monotonic() + 10
    while time.monotonic() < until:
        left = subprocess.run(["squeue", "-h"], env=env, capture_output=True, text=True, check=False).stdout.strip()
        if not left:
            break
        time.sleep(0.2)
    asked = []
    for path in pids:
        with contextlib.suppress(OSError, ValueError):
            asked.append(int(path.read_text()))
            os.kill(asked[-1], signal.SIGTERM)
    until = time.monotonic() + 10
    while any(map(_runs, asked)) and time.monotonic() < until:  # they write into the folder until they have ended
        time.sleep(0.1)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _free_ports(count: int) -> list[int]:
    """Neighbours that are free now."""
    for first in range(17000, 30000, 10):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return list(range(first, first + count))
    raise RuntimeError("no free ports")


if __name__ == "__main__":
    what, where = sys.argv[1], Path(sys.argv[2]).resolve()
    if why := lacks():
        sys.exit(why)
    if what == "start":
        print(f"export SLURM_CONF={start(where)}")
    else:
        stop(where)
