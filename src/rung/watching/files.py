"""The folder that the ranks of a job write to: one file a rank, `rank-00003.jsonl`, a `Sample` a line.

A line is appended at once, so what a killed rank wrote is there. A file that has grown too large is replaced by its newer half.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

import msgspec

from rung.errors import InputError
from rung.records.watch import Sample

ROOT = Path(".rung") / "watch"
VARIABLE = "RUNG_WATCH"  # names the folder
LARGEST = 1 << 20  # bytes of a file
TAIL = 32 << 10  # bytes that are read of one
_JOBS = ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID")


def folder_for(variables: Mapping[str, str], script: str) -> Path:
    """Where the ranks of this job write, which they find out each by itself: the script's name and the job's number, where it has one.

    variables: of the environment; script: the program, as in sys.argv[0].
    """
    if chosen := variables.get(VARIABLE):
        return Path(chosen)
    job = next((variables[name] for name in _JOBS if variables.get(name) not in (None, "", "none")), "")
    array = [variables.get(f"SLURM_ARRAY_{name}_ID", "") for name in ("JOB", "TASK")]
    if all(array):  # what squeue shows, before the number that each task has for itself
        job = f"{'_'.join(array)}-{job}"
    stem = Path(script).stem if script not in ("", "-c", "-m") else "python"
    return ROOT / re.sub(r"[^\w.-]", "_", f"{stem}-{job}" if job else stem)


def find(named: str | None) -> Path:
    """The folder that a user means: a path, a job's name or number, or the one that was written to last. Raises InputError where there is none."""
    how = "the ranks of a job write there once its program calls rung.watch(model); see docs/how-to/many-gpus.md."
    if named is None:
        written = sorted(ROOT.glob("*/rank-*.jsonl"), key=_written)
        if not written:
            raise InputError(f"nothing was written to {ROOT} yet: {how}")
        return written[-1].parent
    exact = [Path(named), ROOT / named]
    number = re.fullmatch(r"[A-Za-z0-9]+(_\d+)?", named)
    ends = [f"-{named}", *([f"-{named}-*"] if number and number[1] else [])]  # of a task, its own number follows
    numbered = [path for end in ends for path in sorted(ROOT.glob(f"*{end}"))] if number else []
    for path in (*exact, *numbered):
        if path.is_dir() and next(path.glob("rank-*.jsonl"), None):
            return path
    known = ", ".join(sorted(path.name for path in ROOT.glob("*/"))[:5])
    there = f"{ROOT} has {known}" if known else f"{ROOT} has nothing"
    raise InputError(f"no rank of a job {named!r} has written anything ({there}): {how}")


def _written(path: Path) -> float:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return 0.0


class RankFile:
    """The file of one rank, as it writes it."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.path = folder / f"rank-{rank:05d}.jsonl"
        self._torn = True  # whether the last line may be cut off: by a kill, or a full disk

    def append(self, sample: Sample) -> None:
        """Raises OSError where that cannot be."""
        line = msgspec.json.encode(sample) + b"\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        torn, self._torn = self._torn, True
        with self.path.open("ab") as file:
            file.write(b"\n" + line if torn and file.tell() else line)
            size = file.tell()
        self._torn = False
        if size > LARGEST:
            self._halve()

    def _halve(self) -> None:
        newer = _tail(self.path, LARGEST // 2)
        partial = self.path.with_suffix(".partial")
        partial.write_bytes(newer[newer.find(b"\n") + 1 :])
        os.replace(partial, self.path)


def samples(folder: Path) -> list[list[Sample]]:
    """The newest lines of each rank, oldest first, of the process that began last. What is no line is passed over: it may be half
    written."""
    return [lines for path in sorted(folder.glob("rank-*.jsonl")) if (lines := _samples(path))]


def _samples(path: Path) -> list[Sample]:
    try:
        data = _tail(path, TAIL)
    except OSError:
        return []
    lines = []
    for line in data.split(b"\n"):
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            lines.append(_DECODER.decode(line))
    began = max((line.began for line in lines), default=0.0)
    return [line for line in lines if line.began == began]


_DECODER = msgspec.json.Decoder(Sample)


def _tail(path: Path, most: int) -> bytes:
    """Raises OSError where it is no file: a pipe may never end."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(file, "rb") as opened:
        facts = os.fstat(file)
        if not stat.S_ISREG(facts.st_mode):
            raise OSError(f"{path} is not a file")
        opened.seek(max(0, facts.st_size - most))
        return opened.read(most)
