"""Temporary folders that do not pile up: what a killed run leaves is removed by a later one.

A folder is in use while its process holds the lock of a file in it; the system gives that up with the process, however it ends.
Removed is what holds such a file, belongs to this user and was made on this machine, which a shared folder need not be.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

LOCK = ".in-use"
OURS = "rung-"  # how their names begin


@contextlib.contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """A new folder that is removed at the end, unless `keep` was called with it. Removes first what killed runs left.

    prefix: begins with `rung-`.
    """
    remove_left_behind()
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    with open(folder / LOCK, "w") as lock:
        with contextlib.suppress(OSError):  # without locks on that file system nobody removes it
            fcntl.flock(lock, fcntl.LOCK_EX)
            lock.write(os.uname().nodename)
            lock.flush()
        try:
            yield folder
        finally:
            if (folder / LOCK).exists():
                shutil.rmtree(folder, ignore_errors=True)


def keep(folder: Path) -> None:
    """Leaves a temporary folder to the user, for good."""
    (folder / LOCK).unlink(missing_ok=True)


def remove_left_behind() -> list[Path]:
    """Removes the temporary folders of processes that are gone; returns which."""
    removed = []
    with contextlib.suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if entry.name.startswith(OURS) and _removed(Path(entry.path)):
                removed.append(Path(entry.path))
    return removed


def _removed(folder: Path) -> bool:
    """Removes one folder where it is left behind, its lock last: what cannot be removed now is found by the next run."""
    with contextlib.suppress(OSError, ValueError):
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            return False
        with open(os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if lock.read() != os.uname().nodename:
                return False
            for path in (path for path in folder.iterdir() if path.name != LOCK):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink()
            if len(os.listdir(folder)) == 1:
                (folder / LOCK).unlink()
                folder.rmdir()
                return True
    return False
