"""What may go from the history: entries whose run directories are gone, and, where that is asked for, old run directories."""

from __future__ import annotations

import os
import shutil
from datetime import datetime, timedelta, timezone
from pathlib import Path

from rung.errors import InputError, RungError
from rung.records.history import Collected, Entry, Removed
from rung.runs.history import History
from rung.runs.store import Run, is_partial

# What Rung writes at the top of a run directory, and of a recording. With anything else in it, a directory is left to its owner.
OF_A_CLIMB = {
    "manifest.json", "baseline.json", "plan.json", "result.json", "begun.json", "attempts", "traces", "workers", "recipe.toml",
    "report.html", "model.pt", "model.runs", "slurm-job.json", ".lock",
}  # fmt: skip
OF_A_RECORDING = {"plan.json", "profile.json", "recording", "samples", "steps-0.json", "steps-1.json", "slurm-job.json"}


def collect(store: History, older_than: float | None = None, do: bool = False) -> Collected:
    """What goes, and what was asked for and stays.

    Args:
        older_than: Days, from which on run directories go with their entries. None: no directory goes.
        do: False only says what would go.

    Raises:
        InputError: The history cannot be read or written.
    """
    removed, kept = list[Removed](), list[Removed]()
    now = datetime.now(timezone.utc)
    entries = store.entries()
    wanted = _wanted(entries, older_than, now)
    for entry in reversed(entries):
        if entry.directory is None or (store.shared and entry.host != os.uname().nodename):
            continue
        directory = Path(entry.directory)
        gone = not directory.exists() and not directory.is_symlink()
        if not gone and not _old(entry, older_than, now):
            continue
        why_not = f"it has a tag: {', '.join(entry.tags)}" if entry.tags else "" if gone else _why_not(entry, directory)
        if not why_not and not gone and entry.of != "climb" and (other := wanted.get(os.path.realpath(directory))):
            why_not = f"entry {other} is of the same directory, and is newer or has a tag"
        if why_not:
            kept.append(Removed(entry=entry.id, directory=None if gone else entry.directory, why=why_not))
        elif gone:
            removed.append(Removed(entry=entry.id, directory=None, why=f"its directory is gone: {directory}"))
        else:
            removed.append(Removed(entry=entry.id, directory=entry.directory, why=f"it is of {entry.created[:10]}"))
    if do:
        for one in removed:
            if one.directory is not None:
                _remove(Path(one.directory))
            store.remove([one.entry])
    return Collected(store=store.name, done=do, removed=removed, kept=kept)


def _old(entry: Entry, older_than: float | None, now: datetime) -> bool:
    return older_than is not None and _age(entry, now) > timedelta(days=older_than)


def _wanted(entries: list[Entry], older_than: float | None, now: datetime) -> dict[str, int]:
    """The directories that an entry keeps, by their real paths, with the number of that entry.

    A recording does not say when it was made. Where several were made in one directory, nothing tells whose it is now.
    """
    if older_than is None:
        return {}
    return {
        os.path.realpath(entry.directory): entry.id
        for entry in entries
        if entry.directory is not None and (entry.tags or not _old(entry, older_than, now))
    }


def _age(entry: Entry, now: datetime) -> timedelta:
    try:
        return now - datetime.fromisoformat(entry.created)
    except (ValueError, TypeError):
        return timedelta(0)


def _why_not(entry: Entry, directory: Path) -> str:
    """Why a directory is not removed, "" where it is Rung's own, whole and not in use."""
    if directory.is_symlink() or not directory.is_dir():
        return "it is a link or a file"
    try:
        names = {path.name for path in directory.iterdir() if not is_partial(path.name)}
        if entry.of == "climb":
            run = Run.open_(directory)
            if run.read("manifest.json").get("created") != entry.created:
                return "another climb is in its place"
            if run.locked:
                return "a climb is running in it"
            foreign = names - OF_A_CLIMB
        else:
            if not {"plan.json", "recording"} <= names:
                return "it is not a recording"
            foreign = {name for name in names if not of_a_recording(name)}
    except (RungError, OSError) as error:
        return str(error)
    return f"it has files that are not Rung's: {', '.join(sorted(foreign)[:3])}" if foreign else ""


def of_a_recording(name: str) -> bool:
    """Whether a file or folder of this name is Rung's own in the folder of a recording."""
    return name in OF_A_RECORDING or name.endswith(".log")


def _remove(directory: Path) -> None:
    try:
        shutil.rmtree(directory)
    except OSError as error:
        if not os.path.lexists(directory):  # an earlier entry was of it, too, or another process has removed it
            return
        raise InputError(
            f"{error.filename} could not be removed: {error.strerror}; remove {directory} by hand."
        ) from error
