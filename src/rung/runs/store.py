"""A run's directory: complete at every moment, whatever kills the process that writes it.

    manifest.json   what is run, on what, and how it stands
    baseline.json   the baseline's measurement
    plan.json       a dry run's predictions
    attempts/NN-rung.json   one file a rung, written when its verdict is known
    recipe.toml, result.json, report.html, traces/, workers/

Every file is written beside its place, flushed to the disk and renamed into it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import re
import secrets
import shlex
import shutil
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TextIO

import msgspec

from rung.errors import InputError, UsageError, not_written
from rung.files import read_text
from rung.program import program
from rung.records.climb import Attempt, Baseline, ClimbRun, DryRun, Manifest, Result
from rung.records.record import SCHEMA, plain
from rung.renamed import with_current_names


def data_directory() -> Path:
    """$RUNG_DATA, else `rung` in the user's data directory (XDG)."""
    if chosen := os.environ.get("RUNG_DATA"):
        return Path(chosen)
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "rung"


# What each file must be for a climb to go on and a report to be made.
RECORDS: dict[str, type[msgspec.Struct]] = {
    "manifest.json": Manifest,
    "baseline.json": Baseline,
    "plan.json": DryRun,
    "result.json": Result,
    "attempts": Attempt,
}
ABANDONED = 86400.0  # seconds; a partial file of that age is of a process that was killed


def write_whole(path: Path, text: str, otherwise: str = "choose another --out") -> None:
    """Writes a file that a user named, whole or not at all. A pipe or a device is written to as it is: a file would take its
    place. otherwise: what to do where there is no room."""
    try:
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")
            return
    except OSError as error:
        raise not_written(path, error, otherwise) from error
    # Of a link, and /dev/stdout is one, what it stands for.
    _put(path, Path(os.path.realpath(path)), text, otherwise)


def _put(path: Path, place: Path, text: str, otherwise: str) -> None:
    # A name of its own, because another process may write this file, too. A long name is cut: all of it has to fit into 255 bytes.
    begin = f".{place.name[:50]}."
    partial = place.with_name(f"{begin}{secrets.token_hex(8)}.partial")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(place.parent, begin)
        with partial.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, place)
    except BaseException as error:  # Ctrl-C, too, or a text that is not Unicode
        with contextlib.suppress(OSError):  # on a read-only disk, or where the folder is a file, that cannot be, either
            partial.unlink()
        if isinstance(error, OSError):
            raise not_written(path, error, otherwise) from error
        raise


def _remove_abandoned(folder: Path, begin: str) -> None:
    """Removes the partial files of killed processes, of the files whose partial names begin so."""
    ours = re.compile(re.escape(begin) + r"([0-9a-f]{16}\.)?partial")
    with contextlib.suppress(OSError), os.scandir(folder) as entries:  # what cannot be removed is in nobody's way
        for entry in entries:
            if ours.fullmatch(entry.name) and time.time() - entry.stat(follow_symlinks=False).st_mtime > ABANDONED:
                os.unlink(entry.path)


def is_partial(name: str) -> bool:
    """Whether a file of this name is one that Rung was writing when it was killed, or still writes."""
    return re.fullmatch(r"\..*\.[0-9a-f]{16}\.partial", name) is not None


def to_json(value: Any) -> str:
    """JSON that every reader takes: what is not finite becomes null."""
    return json.dumps(_finite(value), indent=1) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return value


class Run:
    """One run directory. `create` makes it, `open_` finds it again."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._lock: TextIO | None = None

    @classmethod
    def create(cls, root: Path, name: str, exact: Path | None = None) -> Run:
        """A fresh directory below root, or exactly the one given, which must be empty or missing."""
        stamp = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S")
        base = exact or root / f"{stamp}-{name}"
        directory, k = base, 1
        if exact and exact.exists() and not exact.is_dir():
            raise UsageError(f"{exact} is a file; give a directory that is empty, or not there yet, to --out.")
        if exact and exact.exists() and any(exact.iterdir()):
            begun = (exact / "manifest.json").exists()  # before it, a climb that was killed has nothing to go on with
            way = (
                f", or go on with `{program()} climb --resume {shlex.quote(str(exact))}`" if begun else ", or empty it"
            )
            raise UsageError(f"{exact} is not empty; give another --out{way}.")
        try:
            directory.parent.mkdir(parents=True, exist_ok=True)
            while not exact:
                with contextlib.suppress(FileExistsError):  # another climb may begin in the same second
                    directory.mkdir()
                    break
                k += 1
                directory = base.with_name(f"{base.name}-{k}")
            (directory / "attempts").mkdir(parents=True)
            (directory / "traces").mkdir()
        except OSError as error:
            raise InputError(f"{directory} could not be made: {error.strerror}; choose another --out.") from error
        return cls(directory)

    @classmethod
    def open_(cls, directory: Path) -> Run:
        if not (directory / "manifest.json").is_file():
            if tasks := sorted(directory.glob("task*/manifest.json")):
                raise InputError(f"{directory} has a run of each task of an array: name one, as {tasks[0].parent}.")
            raise InputError(
                f"{directory} is not a run directory: it has no manifest.json; `rung runs` lists those there are."
            )
        run = cls(directory)
        run.read("manifest.json")
        return run

    def lock(self) -> None:
        """Keeps a second climb out of this directory for as long as this process lives."""
        path = self.directory / ".lock"
        try:
            lock = path.open("a")  # which empties nothing
        except OSError as error:
            raise InputError(
                f"{path}: {error.strerror}; a climb writes to its directory, so check the free space and the permissions."
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise UsageError(
                f"{self.directory} is being climbed by another process; wait for it, or stop it."
            ) from None
        except OSError:  # a file system without locks, as Lustre may be: a climb there goes on without one
            pass
        self._lock = lock

    @property
    def locked(self) -> bool:
        """Whether a process is climbing in this directory now. Looking takes the lock for a moment, so who has no need does not."""
        try:
            with (self.directory / ".lock").open() as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def unlock(self) -> None:
        if self._lock:
            self._lock.close()
            self._lock = None

    def drop_if_empty(self) -> None:
        """Removes a directory in which nothing was measured: an unknown target leaves nothing behind."""
        if not (self.directory / "manifest.json").exists():
            shutil.rmtree(self.directory, ignore_errors=True)

    def write(self, name: str, value: Any) -> None:
        """value: a record, or plain values."""
        self.write_text(name, to_json(plain(value) if isinstance(value, msgspec.Struct) else value))

    def write_text(self, name: str, text: str, otherwise: str = "choose another --out") -> None:
        """Writes a file of this directory. A link or a pipe in its place is replaced: the directory may be a stranger's, and the
        link may lead to any file of this user's."""
        _put(self.directory / name, self.directory / name, text, otherwise)

    def read(self, name: str) -> dict[str, Any]:
        """All that a file holds, which may be more than this version knows of."""
        return self._read(name)[0]

    def maybe(self, name: str) -> dict[str, Any] | None:
        return self.read(name) if self.has(name) else None

    def has(self, name: str) -> bool:
        return (self.directory / name).is_file()

    def manifest(self) -> Manifest:
        found: Manifest = self._read("manifest.json")[1]
        return found

    @property
    def ended(self) -> bool:
        """Whether its climb came to its end: by its own rules, or with its budget."""
        return self.manifest().status == "complete"

    def baseline(self) -> Baseline | None:
        found: Baseline | None = self._read("baseline.json")[1] if self.has("baseline.json") else None
        return found

    def result(self) -> Result | None:
        found: Result | None = self._read("result.json")[1] if self.has("result.json") else None
        return found

    def attempts(self) -> list[Attempt]:
        return [self._read(name)[1] for name in self._attempt_files()]

    def add_attempt(self, attempt: Attempt) -> None:
        self.write(f"attempts/{attempt.number:02d}-{attempt.rung}.json", attempt)

    def _attempt_files(self) -> list[str]:
        """In the order of their numbers, which have two digits or more."""
        names = [path.name for path in (self.directory / "attempts").glob("[0-9]*.json")]
        return [f"attempts/{name}" for name in sorted(names, key=lambda name: (_leading_number(name), name))]

    def _read(self, name: str) -> tuple[dict[str, Any], Any]:
        """What a file holds, and its record. Raises InputError where it is damaged."""
        path = self.directory / name
        try:
            value = json.loads(with_current_names(read_text(path)))
        except (OSError, ValueError, RecursionError) as error:
            raise InputError(f"{path} could not be read: {error}; the run directory is damaged.") from error
        if not isinstance(value, dict):
            raise InputError(f"{path} holds no JSON object; the run directory is damaged.")
        if name == "manifest.json" and value.get("schema") != SCHEMA:
            raise InputError(f"{self.directory} was written by another version of rung; it cannot be read by this one.")
        remedy = "climb again" if name == "manifest.json" else "remove the file and `--resume` measures it again"
        kind = RECORDS.get(name.partition("/")[0])
        try:
            return value, msgspec.convert(value, kind) if kind else None
        except (msgspec.ValidationError, OverflowError) as error:
            raise InputError(f"{path} is damaged: {error}; {remedy}.") from error

    def record(self) -> ClimbRun:
        """What reports are made of."""
        return msgspec.convert(self.data(), ClimbRun)

    def data(self) -> dict[str, Any]:
        """All that is in its files, which may be more than this version knows of: what `--json` prints."""
        manifest = self.read("manifest.json")
        return {
            "kind": "run",
            "schema": SCHEMA,
            "directory": str(self.directory),
            "running": manifest.get("status") == "running" and self.locked,
            "manifest": manifest,
            "baseline": self.maybe("baseline.json"),
            "attempts": [self.read(name) for name in self._attempt_files()],
            "plan": self.maybe("plan.json"),
            "result": self.maybe("result.json"),
        }


def _leading_number(name: str) -> int:
    found = re.match("[0-9]+", name)
    return int(found[0]) if found else 0


def runs_below(root: Path) -> list[Run]:
    """The runs of a folder, oldest first; what is no run is passed over. None is read yet: one may be damaged."""
    return [Run(p.parent) for p in sorted(root.glob("*/manifest.json"))]
