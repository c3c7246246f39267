"""A command in a job of SLURM: its options, what runs in the job, and following it to its end."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import re
import secrets
import shlex
import shutil
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from rung.cli.common import IN_JOB, ROOT, at_least, check_early, say, stop_when_asked
from rung.cli.live import live
from rung.cli.ranks import check_ranks
from rung.errors import RungError, UsageError, WorkloadError
from rung.program import program

if TYPE_CHECKING:
    from rung.launch.slurm import Submission, Wanted
    from rung.records.slurm_job import SlurmJob

JOBS = ROOT / "jobs"
OURS = (
    "--slurm", "--partition", "--account", "--walltime", "--sbatch", "--nproc-per-node", "--container", "--container-mounts",
)  # each with a value  # fmt: skip


# As man sbatch has it: minutes, minutes:seconds, hours:minutes:seconds, and after days- hours, with minutes and seconds behind it.
LIMIT = re.compile(r"(\d+-)?\d+(:\d+){0,2}|unlimited|infinite", re.IGNORECASE)


def _limit(text: str) -> str:
    if text and not LIMIT.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no time limit; write minutes, 30:00, 2:00:00 or 1-12")
    return text


def add_options(parser: argparse.ArgumentParser, dry_run: bool = True) -> None:
    """dry_run: whether the command has no --dry-run of its own."""
    group = parser.add_argument_group("in a SLURM job")
    group.add_argument(
        "--slurm",
        type=at_least(1),
        metavar="NODES",
        help="run this command in a SLURM job on this many nodes, and follow it",
    )
    group.add_argument("--partition", default="", metavar="NAME", help="the partition (default: the cluster's)")
    group.add_argument("--account", default="", metavar="NAME", help="the account to charge")
    group.add_argument(
        "--walltime", type=_limit, default="", metavar="TIME", help="the time limit, as in 30:00 or 2:00:00"
    )
    group.add_argument(
        "--sbatch",
        default="",
        metavar="OPTIONS",
        help="more options for sbatch, as in --sbatch='--constraint=mi300 --exclusive'",
    )
    group.add_argument(
        "--container", default="", metavar="IMAGE",
        help="run the job in containers of this image, by pyxis or apptainer; it must contain Rung, torch and bash",
    )  # fmt: skip
    group.add_argument(
        "--container-mounts",
        default="",
        metavar="HERE:THERE,...",
        help="folders to mount in the containers, in addition to the current folder and the job's",
    )
    if dry_run:
        group.add_argument("--dry-run", action="store_true", help="print the job script and stop")
        parser.set_defaults(dry_run_of="--slurm")


def in_job(parsed: argparse.Namespace) -> int:
    """Submits the command that was typed, follows it, and prints its answer; returns its exit code. Ctrl-C cancels the job."""
    from rung.launch.slurm import RECORD, SCRIPT, Submission, script
    from rung.launch.slurm_task import of_task, task
    from rung.records.record import plain
    from rung.records.slurm_job import SlurmJob
    from rung.runs import to_json, write_whole

    _check(parsed)
    wanted = _wanted(parsed)
    cwd = Path.cwd()
    stamp = datetime.now().astimezone()
    own = "" if task() is None else f"-task{task()}"  # where it is typed in a task of an array
    folder = cwd / JOBS / f"{stamp:%Y%m%d-%H%M%S}-{parsed.command}{own}"
    folder = folder if parsed.dry_run else _made(folder)
    words, of_job = _words(parsed)
    if parsed.command in ("climb", "profile") and parsed.out:
        parsed.out = of_task(parsed.out)
        words = _with_out(words, parsed.out)
    run, begins = None, False
    if parsed.command == "climb":
        begins = not parsed.resume
        run = parsed.resume.resolve() if parsed.resume else parsed.out or folder / "run"
        words = [*words, *(["--out", str(run)] if begins and not parsed.out else [])]
    text = script(wanted, words, folder, cwd, run if begins else None, shlex.join(of_job))
    if parsed.dry_run:
        print(text, end="")
        return 0
    stop_when_asked()
    write_whole(folder / SCRIPT, text, "run it from another folder")
    submission = Submission(folder / SCRIPT)
    try:
        job = _number(submission, folder, wanted)
        kept = SlurmJob(
            job=job,
            words=words,
            cwd=str(cwd),
            nodes=wanted.nodes,
            ranks_per_node=wanted.ranks,
            submitted=stamp.isoformat(timespec="seconds"),
            run=str(run) if run else None,
        )
        write_whole(folder / RECORD, to_json(plain(kept)), "run it from another folder")
        say(f"job {job} was submitted; its files: {folder}")
    except KeyboardInterrupt:
        _withdrawn(submission, folder, wanted)
        raise
    return followed(job, folder, wanted.limit)


def _made(folder: Path) -> Path:
    """A new folder of that name, or of one like it: two jobs may be submitted within a second."""
    for name in itertools.chain([folder.name], (f"{folder.name}-{k}" for k in itertools.count(2))):
        with contextlib.suppress(FileExistsError):
            folder.with_name(name).mkdir(parents=True)
            return folder.with_name(name)
    raise AssertionError


def _number(submission: Submission, folder: Path, wanted: Wanted) -> int:
    """Of the job that SLURM made. Raises RungError with what is to be done where it made none, or did not say."""
    from rung.launch.slurm import Unclear

    try:
        return submission.job()
    except Unclear as error:
        raise Unclear(f"{error} {_by_hand(wanted)} Its files, if there is one: {folder}") from None
    except RungError:
        shutil.rmtree(folder, ignore_errors=True)  # there is no job that it would be of
        raise


def _by_hand(wanted: Wanted) -> str:
    """How a job is ended whose number is not known, as a sentence."""
    if wanted.own_name:
        return f"If there is a job, or one comes later, `scancel --name={wanted.own_name}` ends it."
    return "`squeue --me` shows whether there is a job, and `scancel NUMBER` ends it."


def _withdrawn(submission: Submission, folder: Path, wanted: Wanted) -> None:
    """Cancels the job that SLURM makes, or has made; by its name where sbatch does not say its number, or a second Ctrl-C ends the wait."""
    from rung.launch.slurm import Unclear, cancel_named

    try:
        say("waiting for sbatch, so that its job can be cancelled; Ctrl-C ends the wait ...")
        job = submission.job()
    except (Unclear, KeyboardInterrupt) as error:
        submission.give_up()
        say(f"rung: {str(error) or 'sbatch has not said which job it made.'} {_by_hand(wanted)}")
        if wanted.own_name:
            try:
                cancel_named(wanted.own_name)
            except RungError as refused:
                say(f"rung: {refused}")
    except RungError as error:
        shutil.rmtree(folder, ignore_errors=True)
        say(f"rung: {error}")
    else:
        _cancelled(job, folder)


def followed(job: int, folder: Path, limit: str = "") -> int:
    """Follows a job, prints its answer and returns its exit code. Raises WorkloadError where SLURM ended it, after what there is of an
    answer."""
    from rung.launch.slurm import follow, why

    try:
        with live():
            state = follow(job, folder, say)
    except KeyboardInterrupt as stop:
        _cancelled(job, folder)
        _print_answer(folder)
        stop.told = bool(_answer(folder))  # type: ignore[attr-defined]
        raise
    _print_answer(folder)
    if ended := why(job, state, limit):
        error = WorkloadError(f"{ended} What it wrote is in {folder}.")
        error.told = bool(_answer(folder))
        raise error
    return state.exit_code


def _cancelled(job: int, folder: Path) -> None:
    """Cancels a job and waits until it is gone; a second Ctrl-C does not wait."""
    from rung.launch.slurm import LOST, cancel, follow, look

    say(f"cancelling job {job} ...")
    try:
        cancel(job)
        state = follow(job, folder, say)
    except RungError as error:
        say(f"rung: {error}")
        state = look(job) or LOST
    if state.alive:
        say(f"rung: job {job} may still run: `scancel {job}` ends it.")
    else:
        say(f"job {job} was cancelled; what it wrote is in {folder}")


def _answer(folder: Path) -> str:
    from rung.launch.slurm import ANSWER

    try:
        return (folder / ANSWER).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _print_answer(folder: Path) -> None:
    sys.stdout.write(_answer(folder))
    sys.stdout.flush()


def _wanted(parsed: argparse.Namespace) -> Wanted:
    """Raises UsageError for what cannot run in a job."""
    from rung.launch.slurm import Container, Wanted, container_runtime
    from rung.launch.slurm_task import task

    counts = getattr(parsed, "nproc_per_node", ())
    if len(counts) > 1:
        raise UsageError("with --slurm, give one number with --nproc-per-node.")
    if getattr(parsed, "launcher", None):
        raise UsageError("--slurm starts the ranks itself, by srun and torchrun; leave --launcher out.")
    if parsed.slurm > 1 and not counts:
        raise UsageError(
            f"--slurm {parsed.slurm} needs --nproc-per-node, which says how many ranks each node runs."
            if hasattr(parsed, "nproc_per_node")
            else f"`rung {parsed.command}` runs on one node: use --slurm 1."
        )
    try:
        more = tuple(shlex.split(parsed.sbatch))
    except ValueError as error:
        raise UsageError(f"--sbatch {parsed.sbatch}: {error}.") from None
    if odd := next((option for option in more if option.startswith(("--array", "-a"))), None):
        raise UsageError(
            f"--sbatch {odd} would run one command several times: write a script with the commands of the tasks, and submit it by "
            f"`sbatch {odd}`. In a task of an array, `--out DIR` is DIR/taskN."
        )
    own = "" if task() is None else f"-task{task()}"  # where it is typed in a task of an array
    device, devices = getattr(parsed, "device", None), (getattr(parsed, "devices", None) or "").split(",")
    if parsed.command == "climb" and parsed.resume:
        from rung.runs import Run

        request = Run.open_(parsed.resume).record().manifest.request
        device, devices = request.get("device"), str(request.get("devices") or "").split(",")
    on_gpu = device != "cpu" and hasattr(parsed, "device")
    gpus = (counts[0] if counts else len(devices)) if on_gpu else 0
    container = None
    if parsed.container:
        mounts = tuple(filter(None, parsed.container_mounts.split(",")))
        if odd := next((mount for mount in mounts if ":" not in mount), None):
            raise UsageError(f"--container-mounts {odd}: write HERE:THERE, as in /data:/data.")
        container = Container(parsed.container, container_runtime(), mounts)
    elif parsed.container_mounts:
        raise UsageError("--container-mounts is for --container: give an image, too.")
    return Wanted(
        parsed.slurm,
        counts[0] if counts else 0,
        gpus,
        parsed.partition,
        parsed.account,
        parsed.walltime,
        more,
        container,
        f"rung-{parsed.command}{own}-{secrets.token_hex(4)}",
    )


def words_without(parsed: argparse.Namespace, options: Sequence[str]) -> list[str]:
    """What was typed, without these options, which have a value each."""
    return _words(parsed, options)[0]


def _words(parsed: argparse.Namespace, options: Sequence[str] = OURS) -> tuple[list[str], list[str]]:
    """What was typed, without what concerns the job; and that."""
    ours = [name for name in options if hasattr(parsed, name[2:].replace("-", "_"))]
    words, found, of_job = list(parsed.words), [], []
    while words:
        word = words.pop(0)
        name, equals, _ = word.partition("=")
        if name in ours:
            of_job += [word, *([] if equals else [words.pop(0)])]
        elif word != "--dry-run":
            found.append(word)
    return [*found, *(["--", *parsed.program] if parsed.program else [])], of_job


def _with_out(words: Sequence[str], out: Path) -> list[str]:
    """The words of a command with another value of --out."""
    before = ["", *words]
    return [
        str(out) if last == "--out" else f"--out={out}" if word.startswith("--out=") else word
        for last, word in zip(before, words, strict=False)
    ]


def _check(parsed: argparse.Namespace) -> None:
    """Refuses now what the job would refuse after it has waited in a queue. Raises UsageError."""
    if hasattr(parsed, "nproc_per_node"):
        check_ranks(parsed)
    if parsed.command == "profile" and parsed.program and parsed.nproc_per_node:
        raise UsageError("a command starts its ranks itself: give `-- torchrun ...`, and leave --nproc-per-node out.")
    if parsed.command == "climb" and parsed.resume and (running := job_of(parsed.resume)):
        way = f"{program()} climb --resume {shlex.quote(str(parsed.resume))}"
        raise UsageError(f"this climb runs in job {running[0].job}: `{way}` follows it.")
    targets = [getattr(parsed, name, None) for name in ("target", "a", "b")]
    for target in filter(None, targets):
        if not str(target).endswith(".json"):
            check_early(target, getattr(parsed, "device", None))
    if getattr(parsed, "base", None) and parsed.slurm > 1:
        raise UsageError("--base checks a revision out on one node, which others do not see: use --slurm 1.")


def submitted() -> list[tuple[SlurmJob, Path]]:
    """The jobs that were submitted from the current folder, the earliest first, and their folders. A record that cannot be read is left
    out, with a word."""
    import msgspec

    from rung.launch.slurm import RECORD
    from rung.records.slurm_job import SlurmJob

    found = []
    for path in sorted(JOBS.glob(f"*/{RECORD}")):
        try:
            found.append((msgspec.json.decode(path.read_bytes(), type=SlurmJob), path.parent.resolve()))
        except (OSError, msgspec.DecodeError) as error:
            say(f"note: {path} is no record of a job and is left out: {error}")
    return found


def job_of(run: Path) -> tuple[SlurmJob, Path] | None:
    """The job in which a climb of that run directory runs or waits, with its folder; None where there is none."""
    if IN_JOB in os.environ:  # this is it
        return None
    from rung.launch.slurm import look

    ours = [(job, folder) for job, folder in submitted() if job.run and Path(job.run).resolve() == run.resolve()]
    return next(((job, folder) for job, folder in ours if (state := look(job.job)) and state.alive), None)
