"""The files of a recorded run directory that may be read over the network: what Rung wrote there, and nothing that a link or a name leads to."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from rung.errors import InputError
from rung.records.history import Entry
from rung.runs.garbage import OF_A_CLIMB, OF_A_RECORDING
from rung.runs.store import Run

MOST = 300  # files that are listed
# Pickles, logs of the user's own program and locks stay where they are.
_SHOWN = {
    "climb": OF_A_CLIMB - {"begun.json", "model.pt", "model.runs", "workers", ".lock"},
    "profile": OF_A_RECORDING,
}
_NO_LINK = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC


def files_of(entry: Entry) -> list[tuple[str, int]]:
    """(path, bytes) of each file, the first MOST in order; none where there is no directory, or another one is in its place."""
    found = []
    try:
        with _directory(entry) as top:
            for folder, folders, names, place in os.fwalk(".", dir_fd=top):
                if folder == ".":
                    shown = _SHOWN[entry.of]
                    folders[:], names = ([n for n in kind if n in shown] for kind in (folders, names))
                folders.sort()
                for name in names:
                    facts = os.stat(name, dir_fd=place, follow_symlinks=False)
                    if stat.S_ISREG(facts.st_mode) and not name.startswith("."):
                        found.append((os.path.normpath(os.path.join(folder, name)), facts.st_size))
                if len(found) > 10 * MOST:
                    break
    except (OSError, InputError):
        return found
    return sorted(found, key=lambda file: (file[0].count("/"), file[0]))[:MOST]


def open_file(entry: Entry, parts: Sequence[str]) -> BinaryIO:
    """A file of the entry's directory, by the names of the folders on the way to it and its own.

    Raises:
        InputError: There is no such file, or it is not to be read: it is a link or a pipe, or lies behind one.
    """
    if any(part.startswith(".") or "/" in part or "\0" in part or not part for part in parts) or (
        not parts or parts[0] not in _SHOWN.get(entry.of, ())
    ):
        raise InputError("there is no such file of this run.")
    with contextlib.ExitStack() as opened:
        at = opened.enter_context(_directory(entry))
        try:
            for part in parts[:-1]:
                at = os.open(part, _NO_LINK | os.O_DIRECTORY, dir_fd=at)
                opened.callback(os.close, at)
            file = os.open(parts[-1], _NO_LINK | os.O_NONBLOCK, dir_fd=at)  # a pipe would never begin
        except OSError as error:
            raise InputError(f"there is no such file of this run: {error.strerror}.") from None
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise InputError("there is no such file of this run.")
        return os.fdopen(file, "rb")


def climb_run(entry: Entry) -> Run:
    """The run directory of a climb. Raises InputError where it is not there any more."""
    with _directory(entry):
        return Run.open_(Path(entry.directory or ""))


@contextlib.contextmanager
def _directory(entry: Entry) -> Iterator[int]:
    """The entry's run directory, opened. Raises InputError where it is gone, is a link, or is of another run by now."""
    if not entry.directory or not os.path.isabs(entry.directory) or "\0" in entry.directory or entry.of not in _SHOWN:
        raise InputError("this entry has no directory.")
    try:
        top = os.open(entry.directory, _NO_LINK | os.O_DIRECTORY)
    except OSError as error:
        raise InputError(f"the directory of this run cannot be read: {error.strerror}.") from None
    try:
        _check(entry, top)
        yield top
    finally:
        os.close(top)


def _check(entry: Entry, top: int) -> None:
    """Raises InputError where the directory is not that of the entry."""
    if entry.of == "climb":
        own = Run.open_(Path(entry.directory or "")).read("manifest.json").get("created") == entry.created
    else:
        own = {"plan.json", "recording"} <= set(os.listdir(top))
    if not own:
        raise InputError("something else is in the place of this run's directory.")
