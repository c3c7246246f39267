"""A stand-in for sbatch, scontrol, scancel and sacct: one job after the other on this host. It is called by those names, by links, and
keeps a job in a folder below `STANDIN_JOBS`. `STANDIN_STATE` has scontrol say another state of a job that has ended. While the file that
`STANDIN_WAITS` names is there, sbatch has made its job and does not say so; `STANDIN_SAYS` is what it says in the place of its number."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(os.environ["STANDIN_JOBS"])
RUN = """
import os, subprocess, sys
from pathlib import Path
folder, script, output, cwd = Path(sys.argv[1]), *sys.argv[2:5]
with open(output, "ab") as log:
    job = subprocess.Popen(["bash", script], stdout=log, stderr=log, cwd=cwd, env={**os.environ, "SLURM_JOB_ID": folder.name})
(folder / "pid").write_text(str(job.pid))
(folder / "code").write_text(str(job.wait()))
"""


def sbatch(path: str) -> int:
    text = Path(path).read_text()
    if "--partition=none" in text:
        print("sbatch: error: invalid partition specified: none", file=sys.stderr)
        return 1
    number = str(len(list(ROOT.iterdir())) + 1)
    folder = ROOT / number
    folder.mkdir()
    (folder / "name").write_text(re.search(r"--job-name=(\S+)", text)[1])  # type: ignore[index]
    (folder / "limit").write_text((re.search(r"--time=(\S+)", text) or ["", ""])[1])
    output = re.search(r"--output=(\S+)", text)
    assert output
    subprocess.Popen(
        [sys.executable, "-c", RUN, str(folder), path, output[1], os.getcwd()], start_new_session=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    while os.path.exists(os.environ.get("STANDIN_WAITS", "")):
        time.sleep(0.05)
    print(os.environ.get("STANDIN_SAYS", number))
    return 0


def scontrol(*words: str) -> int:
    folder = ROOT / words[-1]
    if not folder.exists() or (folder / "forgotten").exists():
        print("slurm_load_jobs error: Invalid job id specified", file=sys.stderr)
        return 1
    code = (folder / "code").read_text() if (folder / "code").exists() else ""
    cancelled = (folder / "cancelled").exists()
    state = "RUNNING" if not code else "CANCELLED" if cancelled else "COMPLETED" if code == "0" else "FAILED"
    if code and "STANDIN_STATE" in os.environ:
        state = os.environ["STANDIN_STATE"]
    print(
        f"JobId={folder.name} JobName=x JobState={state} Reason=None Restarts=0 ExitCode={code or 0}:0 NodeList=n1 Command=a b"
    )
    return 0


def scancel(*words: str) -> int:
    _, by_name, name = words[-1].partition("--name=")
    if by_name:
        named = [folder for folder in ROOT.iterdir() if (folder / "name").read_text() == name]
        return max((scancel(folder.name) for folder in named), default=0)
    folder = ROOT / words[-1]
    (folder / "cancelled").touch()
    while not (folder / "pid").exists():
        time.sleep(0.05)
    os.kill(int((folder / "pid").read_text()), signal.SIGTERM)
    return 0


def sacct(*words: str) -> int:
    print("COMPLETED|0:0|n1")
    return 0


sys.exit(
    {"sbatch": lambda *w: sbatch(w[-1]), "scontrol": scontrol, "scancel": scancel, "sacct": sacct}[
        Path(sys.argv[0]).name
    ](*sys.argv[1:])
)
