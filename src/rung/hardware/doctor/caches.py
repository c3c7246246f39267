"""Where compiled kernels and tuning results are kept: on a slow or forgotten disk they are made anew."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from rung.hardware.doctor.gpus import Here
from rung.hardware.doctor.machine import Machine
from rung.records.doctor import NOTE, OK, WARN, Level, Line
from rung.toml import shipped

_NETWORK = ("nfs", "nfs4", "lustre", "cifs", "smb3", "beegfs", "gpfs", "ceph", "9p", "fuse.sshfs", "wekafs")


def lines(machine: Machine, here: Here) -> Iterator[Line]:
    mounts = _mounts(machine)
    for row in shipped("hardware/doctor/caches.toml")["cache"]:
        if row["for"] in (here.vendor, "any"):
            yield _line(machine, row, mounts)


def _line(machine: Machine, row: Mapping[str, Any], mounts: dict[str, str]) -> Line:
    variable = row["variable"]
    chosen = machine.environ.get(variable)
    home = machine.environ.get("HOME", "/root")
    user = machine.environ.get("USER") or machine.environ.get("LOGNAME") or "root"
    temporary = machine.environ.get("TMPDIR") or "/tmp"
    usual = row["default"].replace("{home}", home).replace("{user}", user).replace("{tmp}", temporary)
    place = chosen or usual
    kind = _kind_of_disk(place, mounts)
    level: Level = OK
    matters = ""
    if kind in _NETWORK:
        level, matters = WARN, f"on {kind}: many small files, and locks between nodes"
    elif not _writable(machine, place):
        level, matters = WARN, "not writable, so each process compiles everything again"
    elif chosen is None and PurePosixPath(place).is_relative_to(temporary):
        level, matters = NOTE, "in the temporary folder: lost after a restart, and in each new container"
    there = "" if machine.path(place).is_dir() else ", not there yet"
    value = f"{place}{there}" + (f" ({variable})" if chosen else "")
    better = level != OK and not (
        level == NOTE and PurePosixPath(home).is_relative_to(temporary)
    )  # nothing else is known that stays
    change = (f"export {variable}={home}/.cache/{row['name'].replace(' ', '-').lower()}",) if better else ()
    return Line("caches", row["name"], value, level, chosen is None, matters, change, row["source"])


def _mounts(machine: Machine) -> dict[str, str]:
    """Mount point → file system."""
    rows = [line.split() for line in (machine.text("/proc/mounts") or "").splitlines()]
    return {row[1]: row[2] for row in rows if len(row) > 2}


def _kind_of_disk(place: str, mounts: dict[str, str]) -> str:
    path = PurePosixPath(place)
    return next((mounts[str(p)] for p in (path, *path.parents) if str(p) in mounts), "")


def _writable(machine: Machine, place: str) -> bool:
    """Of the folder, or of the nearest one above it that is there."""
    path: Path = machine.path(place)
    while not path.exists() and path != path.parent and path != machine.root:
        path = path.parent
    return os.access(path, os.W_OK | os.X_OK)
