"""A command of Rung's as a job of SLURM: its script, and what SLURM says of it until it has ended.

The whole command runs on the job's first node. It starts its ranks by `srun`, with torchrun on each node. Nothing of the job depends on
the process that submitted it, which only looks: what the job writes lies in a folder, which all nodes have to see.
"""

from __future__ import annotations

import logging
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rung.errors import UsageError, WorkloadError
from rung.launch import hosts
from rung.launch.launchers import NAME, PORT
from rung.launch.rendezvous import REACHED_BY
from rung.launch.start import START

progress = logging.getLogger(__name__)

IN_JOB = "RUNG_IN_JOB"  # a variable of the job, with the options that asked for it: what would submit it runs it there
SCRIPT, ANSWER, LOG, RECORD, CODE = "job.sh", "answer", "log", "job.json", "exit-code"  # in the job's folder
LOOKING = 2.0  # seconds between two looks
JOINED_AT = (
    f"$(({hosts.FIRST} + SLURM_JOB_ID % 3000))"  # a port: two jobs, as tasks of an array, may have the same first host
)
ANSWERING = 60.0  # seconds that a program of SLURM's may take
SILENT = 300.0  # seconds that SLURM may say nothing of a job before its follower gives up
STOPPING = 30  # seconds before its time is over in which a job ends its measurement
ALIVE = ("PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "SIGNALING", "STAGE_OUT", "STOPPED", "RESIZING")  # fmt: skip


@dataclass(frozen=True)
class Container:
    """image: as the runtime takes it; runtime: `pyxis`, a plugin of srun, or the program `apptainer` or `singularity`; mounts: beside the
    folders of the job, each `HERE:THERE`."""

    image: str
    runtime: str
    mounts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Wanted:
    """What is asked of SLURM. nodes: how many; ranks: of each, 0 for one process on the first; gpus: of each node;
    partition, account, limit: as sbatch takes them, or empty; more: further options of sbatch, which go before all others; container: in
    which all of it runs, or None; name: of the job, as no other of the user's is called."""

    nodes: int
    ranks: int = 0
    gpus: int = 1
    partition: str = ""
    account: str = ""
    limit: str = ""
    more: tuple[str, ...] = ()
    container: Container | None = None
    name: str = "rung"

    @property
    def own_name(self) -> str:
        """The name by which `scancel --name` finds this job alone; empty where the user has named it."""
        return "" if any(re.match("--job-name|-J", option) for option in self.more) else self.name


@dataclass(frozen=True)
class State:
    """What SLURM says of a job. name: as in its documentation; exit_code: of the command; hosts: as SLURM writes them; reason: why it
    waits, or failed."""

    name: str
    exit_code: int = 0
    hosts: str = ""
    reason: str = ""
    restarts: int = 0

    @property
    def alive(self) -> bool:
        return self.name in ALIVE


LOST = State("RUNNING")  # of a job of which SLURM says nothing


def script(
    wanted: Wanted, words: Sequence[str], folder: Path, cwd: Path, run: Path | None = None, asked: str = "--slurm"
) -> str:
    """The script for sbatch. words: of the command, from its name on; folder: gets what it writes; run: the run directory of a climb that
    begins, and goes on after SLURM has started the job anew; asked: the options with which the job was asked for."""
    ranks = wanted.ranks or 1
    takes_gpus = any(re.match(r"--gpus|--gres|-G", option) for option in wanted.more)
    options = [
        f"--job-name={wanted.name}",
        f"--nodes={wanted.nodes}",
        f"--ntasks-per-node={ranks}",
        f"--output={str(folder / LOG).replace('%', '%%')}",
        "--open-mode=append",
        f"--signal=B:USR1@{STOPPING}",
        *([f"--gpus-per-node={wanted.gpus}"] if wanted.gpus and not takes_gpus else []),
        *(f"--{name}={value}" for name, value in _named(wanted) if value),
        *wanted.more,
    ]
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {shlex.quote(option)}" for option in options),
        f"cd {_quoted(cwd)} || exit 3",
        f"export {IN_JOB}={shlex.quote(asked)}",
    ]
    clear = run is not None and folder in run.parents  # what the user named is not ours to clear
    if wanted.container:
        inside = hosts.script(
            words, wanted.nodes, wanted.ranks, "SLURM_NODEID", str(run or ""), clear, str(folder / ANSWER), JOINED_AT
        )
        lines += [
            f"export {REACHED_BY}=$(hostname)",
            f"export {hosts.KEY}=$(od -An -tx1 -N16 /dev/urandom | tr -d ' \\n')",
        ]
        start = _contained(wanted, [cwd, folder, *([run.parent] if run else [])])
        return "\n".join(
            [*lines, f"{start} bash -c {shlex.quote(inside)} & child=$!", _WAIT.replace("CODE", _quoted(folder / CODE))]
        )
    command = [sys.executable, START, "rung.cli.main"]
    if wanted.ranks:
        lines.append(f'launcher="{_launcher(wanted)}"')
    given = "exec " + shlex.join([*command, *words]) + (' --launcher "$launcher"' if wanted.ranks else "")
    if run:
        again = shlex.join([*command, words[0], "--resume", str(run), *[word for word in words if word == "--json"]])
        again += ' --launcher "$launcher"' if wanted.ranks else ""  # ranks may meet at another host now
        # What was killed before it had a manifest left a folder that nothing goes on from.
        left = f"rm -rf {_quoted(run)}; " if clear else ""
        given = f"if [ -e {_quoted(run / 'manifest.json')} ]; then exec {again}; else {left}{given}; fi"
    # In the background, because a shell hears no signal while it waits for a command in the foreground.
    return "\n".join(
        [*lines, f"({given}) > {_quoted(folder / ANSWER)} & child=$!", _WAIT.replace("CODE", _quoted(folder / CODE))]
    )


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))


_WAIT = """\
trap 'kill -TERM $child' TERM
trap 'echo "rung: the job is about to reach its time limit, so it stops here; raise the limit with --walltime." >&2; kill -TERM $child' USR1
wait $child; code=$?
while kill -0 $child 2> /dev/null; do wait $child; code=$?; done
echo $code > CODE
exit $code
"""


def _named(wanted: Wanted) -> list[tuple[str, str]]:
    return [("partition", wanted.partition), ("account", wanted.account), ("time", wanted.limit)]


def _launcher(wanted: Wanted) -> str:
    """One torchrun on each node; its ranks meet at the first."""
    start = "srun --ntasks-per-node=1 --kill-on-bad-exit=1 --cpu-bind=none --overlap"
    meet = f"--rdzv-backend=c10d --rdzv-endpoint=$(hostname):{PORT} --rdzv-id=$SLURM_JOB_ID-{NAME}"
    agent = f"{shlex.quote(sys.executable)} -m torch.distributed.run --nnodes={wanted.nodes} --nproc-per-node={wanted.ranks}"
    return f"{start} --nodes={wanted.nodes} --ntasks={wanted.nodes} {agent} --max-restarts=0 {meet}"


def _contained(wanted: Wanted, folders: Sequence[Path]) -> str:
    """What starts one container on each node, each with these folders where they are here. Nothing else has to be shared."""
    assert wanted.container
    within, image = wanted.container, shlex.quote(wanted.container.image)
    start = (
        f"srun --nodes={wanted.nodes} --ntasks={wanted.nodes} --ntasks-per-node=1 --kill-on-bad-exit=1 --cpu-bind=none"
    )
    below = [folder for folder in folders if not any(other in folder.parents for other in folders)]
    mounts = [*dict.fromkeys(f"{folder}:{folder}" for folder in below), *within.mounts]
    here = _quoted(folders[0])
    if within.runtime == "pyxis":
        return f"{start} --container-image={image} --container-mounts={shlex.quote(','.join(mounts))} --container-workdir={here}"
    gpus = "$([ -e /dev/kfd ] && echo --rocm || echo --nv) " if wanted.gpus else ""
    return f"{start} {within.runtime} exec {gpus}--bind {shlex.quote(','.join(mounts))} --pwd {here} {image}"


def container_runtime() -> str:
    """How containers are started here: by pyxis where srun has it, else by apptainer or singularity. Raises UsageError where by none."""
    if shutil.which("srun"):
        options = subprocess.run(["srun", "--help"], capture_output=True, text=True, timeout=60, check=False)
        if "--container-image" in options.stdout:  # options of plugins are in the help
            return "pyxis"
    for name in ("apptainer", "singularity"):
        if shutil.which(name):
            return name
    raise UsageError(
        "--container needs pyxis (srun --container-image), apptainer or singularity, and this host has none of them: submit from a host that has one."
    )


# What `sbatch --parsable` prints, and what it prints without that.
_SUBMITTED = re.compile(r"([0-9]+)(?:;\S+)?|Submitted batch job ([0-9]+)(?: on cluster \S+)?")


class Unclear(WorkloadError):
    """It is not known whether SLURM has a job."""


class Submission:
    """A script that is handed to SLURM. sbatch has a session of its own: Ctrl-C in the terminal is not to end it before it has said which
    job it made."""

    def __init__(self, script: Path) -> None:
        self._script = script
        self._sbatch: subprocess.Popen[str] | None = None
        self._job: int | None = None

    def job(self) -> int:
        """Waits for the number of the job; asked again after a Ctrl-C, it waits on. Raises UsageError where there is no SLURM, WorkloadError
        where it refuses, Unclear where it names no job."""
        if self._job is None:
            words = ("sbatch", "--parsable", str(self._script))
            self._sbatch = self._sbatch or _started(words, start_new_session=True)
            said = _said(self._sbatch, words[0])
            # A site's plugin or wrapper may print lines of its own, before or after.
            numbers = [
                found[1] or found[2] for line in said.splitlines() if (found := _SUBMITTED.fullmatch(line.strip()))
            ]
            if not numbers:
                raise Unclear(f"sbatch took the script but named no job, and printed {said[-300:]!r}.")
            self._job = int(numbers[-1])
        return self._job

    def give_up(self) -> None:
        """Ends sbatch, whose job may be made all the same."""
        if self._sbatch:
            self._sbatch.kill()


def look(job: int) -> State | None:
    """What SLURM says now; None where it does not answer, or knows the job no longer.

    `scontrol` knows a job until some minutes after its end, and `sacct` for good, where a site keeps accounts.
    """
    try:
        return _shown(_asked("scontrol", "show", "job", "-o", str(job)))
    except (UsageError, WorkloadError, KeyError, ValueError):  # the last two of an answer that tells of no job
        pass
    try:
        lines = _asked("sacct", "-X", "-n", "-P", "-j", str(job), "-o", "State,ExitCode,NodeList").splitlines()
        name, code, hosts = next(line for line in lines if line.count("|") == 2).split("|")
        return State(name.split()[0], _code(code), hosts)
    except (UsageError, WorkloadError, StopIteration, IndexError, ValueError):
        return None


def cancel(job: int) -> None:
    """Ends a job. Raises WorkloadError where SLURM refuses."""
    _asked("scancel", "--full", str(job))


def cancel_named(name: str) -> None:
    """Ends the jobs of that name, of which there may be none. Raises WorkloadError where SLURM refuses."""
    _asked("scancel", "--full", f"--name={name}")


def follow(job: int, folder: Path, tell: Callable[[str], None]) -> State:
    """Waits until a job has ended, and hands on what it says meanwhile, line by line. Raises WorkloadError where SLURM knows it no more."""
    log, read, before = folder / LOG, 0, State("")
    heard, pause = time.monotonic(), 0.2
    while True:
        state = look(job)
        read = _told(log, read, tell)
        if state is None and (code := _left(folder)) is not None:  # SLURM forgets, some minutes after the end
            return State("FAILED" if code else "COMPLETED", code)
        if state is None:
            if time.monotonic() - heard > SILENT:
                raise WorkloadError(
                    f"SLURM has said nothing of job {job} for {SILENT:.0f} s; it may still run. What it wrote is in {folder}."
                )
        else:
            heard = time.monotonic()
            if state.restarts > before.restarts:
                tell(f"job {job} was started anew by SLURM")
            if (state.name, state.hosts) != (before.name, before.hosts):
                tell(_words(job, state))
            if not state.alive:
                _told(log, read, tell)
                return state
            progress.info("%s", _words(job, state))
            before = state
        time.sleep(pause)
        pause = min(LOOKING, 1.3 * pause)


_DOING = {
    "RUNNING": "runs", "COMPLETING": "is ending", "COMPLETED": "has ended", "FAILED": "has failed", "CANCELLED": "was cancelled",
    "TIMEOUT": "reached its time limit", "NODE_FAIL": "lost a node", "PREEMPTED": "was preempted", "OUT_OF_MEMORY": "ran out of memory",
}  # fmt: skip


def _left(folder: Path) -> int | None:
    """The exit code that a job's script wrote; None where it did not come to that."""
    try:
        return int((folder / CODE).read_text())
    except (OSError, ValueError):
        return None


def _words(job: int, state: State) -> str:
    """As in: job 12 runs on n[1-2]."""
    if state.name == "PENDING":
        return f"job {job} waits" + (f": {state.reason}" if state.reason not in ("", "None") else "")
    doing = _DOING.get(state.name, f"is {state.name.lower().replace('_', ' ')}")
    return f"job {job} {doing}" + (f" on {state.hosts}" if state.hosts else "")


def why(job: int, state: State, limit: str = "") -> str:
    """Why a job ended before its command did, as a sentence; empty where the command ended by itself."""
    where = f" on {state.hosts}" if state.hosts else ""
    sentences = {
        "TIMEOUT": f"job {job} reached its time limit{f' of {limit}' if limit else ''}; raise it with --walltime.",
        "CANCELLED": f"job {job} was cancelled.",
        "PREEMPTED": f"job {job} was preempted{where}; submit it again.",
        "NODE_FAIL": f"job {job} lost a node of {state.hosts or 'its nodes'}; submit it again.",
        "OUT_OF_MEMORY": f"job {job} was ended by SLURM{where}, because it used more memory than it requested; request more with --sbatch.",
        "BOOT_FAIL": f"job {job} could not be started{where}; submit it again.",
        "DEADLINE": f"job {job} was ended at its deadline.",
    }  # fmt: skip
    return sentences.get(state.name, "")


def _told(log: Path, read: int, tell: Callable[[str], None]) -> int:
    """Hands on the whole lines of a log that came since the last look; how many bytes were read by now."""
    try:
        with log.open("rb") as file:
            file.seek(read)
            data = file.read()
    except OSError:  # it has not begun, or the disk is away for a moment
        return read
    whole = data[: data.rfind(b"\n") + 1]
    for line in whole.decode(errors="replace").splitlines():
        tell(line)
    return read + len(whole)


def _shown(line: str) -> State:
    """Of a line of `scontrol show job -o`."""
    found = dict(re.findall(r"(\w[\w/:]*)=(\S*)", line))
    hosts = found.get("NodeList", "")
    return State(
        found["JobState"], _code(found.get("ExitCode", "0:0")), "" if hosts == "(null)" else hosts,
        found.get("Reason", ""), int(found.get("Restarts", 0)),
    )  # fmt: skip


def _code(text: str) -> int:
    """`3:0` is an exit code, `0:15` a signal."""
    code, _, signal = text.partition(":")
    return int(code) or (128 + int(signal) if int(signal or 0) else 0)


def _asked(*words: str) -> str:
    """What a program of SLURM's prints. Raises UsageError where it is not installed, WorkloadError with what it says where it fails, Unclear
    where it does not answer."""
    return _said(_started(words), words[0])


def _started(words: Sequence[str], start_new_session: bool = False) -> subprocess.Popen[str]:
    if shutil.which(words[0]) is None:
        raise UsageError(f"there is no {words[0]} here: --slurm submits from a host of a SLURM cluster.")
    return subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=start_new_session
    )


def _said(process: subprocess.Popen[str], name: str) -> str:
    try:
        out, err = process.communicate(timeout=ANSWERING)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise Unclear(f"{name} did not answer within {ANSWERING:.0f} s.") from None
    if process.returncode:
        said = err.strip().splitlines() or [f"exit code {process.returncode}"]
        raise WorkloadError(f"{name}: {said[-1][:300]}")
    return out.strip()
