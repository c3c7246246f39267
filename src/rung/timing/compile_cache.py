"""Compiled code that is kept from one climb to the next: a folder for Inductor's and Triton's caches.

torch checks what it pickled and takes the rest as it finds it: a library or a module that a full disk or a kill cut off would fail
every later compilation. So what changed since the last orderly end is removed, and so are libraries that were never finished. What is
missing is compiled again. A worker that is ended while it links leaves such a library, too: each that begins removes those that nobody
writes any more.

The same is done for precompiled headers, which torch keeps elsewhere, for all that the user compiles on the CPU. GCC passes over one that was
cut off without a word, and torch never makes it anew: each kernel then takes the compiler 4 s in the place of one.

Where torch was installed without bytecode, as images with PYTHONDONTWRITEBYTECODE=1 have it, each process would compile the sources of
torch and sympy anew: 10 of the 15 s that a worker takes to import them. Then Python's bytecode is kept here, too.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import importlib.util
import json
import os
import re
import shutil
import stat
import struct
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rung.runs import write_whole

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"  # Triton's cache is a folder in it
PREFIX, NOT_WRITTEN = (
    "PYTHONPYCACHEPREFIX",
    "PYTHONDONTWRITEBYTECODE",
)  # of Python's bytecode: its folder, and that there is to be none
MOST = 8 << 30  # bytes; beyond, the oldest files go until half of it is left
LOCK, KNOWN = ".lock", ".known.json"
LOCKS = "locks"  # Inductor's, in the folder: one a library, which is held while that is compiled
SINCE = "RUNG_COMPILED_SINCE"  # a variable of workers: only libraries that were written after this time may be removed as cut off
ELF = b"\x7fELF"
UNFINISHED = b"gpcWrite"  # of a precompiled header, its beginning until GCC has written the rest: then it is "gpch"
_INCLUDED = re.compile(rb'^#include "([^"]+)"', re.MULTILINE)


def directory() -> Path:
    """$RUNG_CACHE/compiled, else rung/compiled in the user's cache directory."""
    if chosen := os.environ.get("RUNG_CACHE"):
        return Path(chosen) / "compiled"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "rung" / "compiled"


@contextlib.contextmanager
def compiled_code(most: int = MOST) -> Iterator[dict[str, str]]:
    """The variables with which workers find what earlier ones compiled, while they run. None where there is no place for it; where the
    user chose a cache of torch's, that is left to torch, but for what these workers leave unfinished in it."""
    try:
        with _kept_code(most) as variables:
            yield variables
    finally:
        remove_unfinished_headers()  # those of workers that were ended


@contextlib.contextmanager
def _kept_code(most: int) -> Iterator[dict[str, str]]:
    folder = directory()
    chosen = {SINCE: str(time.time())} if os.environ.get(VARIABLE) else {}
    variables = {**({} if chosen else {VARIABLE: str(folder), SINCE: "0"}), **bytecode(folder / "python")}
    try:
        if not variables:
            raise FileExistsError
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not _is_ours(folder):  # torch runs what it finds there
            raise PermissionError
        lock = (folder / LOCK).open("w")
    except OSError:
        yield chosen
        return
    with lock:
        with contextlib.suppress(
            OSError
        ):  # another process compiles in it now: what is unfinished there is not damaged
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_damaged(folder)
            _make_room(folder, most)
            _remove_graphs_without_header(folder)
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_SH)
        try:
            yield {**chosen, **variables}
        finally:
            with contextlib.suppress(Exception):  # on a full disk it is not known, and taken as it is
                write_whole(folder / KNOWN, json.dumps({name: _mark(folder / name) for name in _files(folder)}))


def bytecode(folder: Path, package: str = "torch") -> dict[str, str]:
    """The variables with which Python keeps bytecode in a folder; none where it has the package's already, or is told another place."""
    with contextlib.suppress(ImportError, ValueError, NotImplementedError):
        spec = importlib.util.find_spec(package)
        if spec and spec.origin and not os.environ.get(PREFIX):
            kept = Path(importlib.util.cache_from_source(spec.origin)).exists()
            return {} if kept else {PREFIX: str(folder), NOT_WRITTEN: ""}
    return {}


def _is_ours(folder: Path) -> bool:
    """Whether nobody but this user may write there."""
    found = folder.stat()
    return found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def remove_damaged(folder: Path) -> list[str]:
    """Removes what is not as it was when a climb last ended, and libraries that were never finished. Returns their names."""
    known = _known(folder)
    removed = []
    for name in _files(folder):
        path = folder / name
        if not (_is_whole(path) and (name not in known or _mark(path) == known[name])):
            path.unlink(missing_ok=True)
            removed.append(name)
    return removed


def remove_cut_off() -> list[str]:
    """In a worker, before it compiles: removes libraries whose compiler was ended while it linked, and precompiled headers that were never
    finished. torch would take them, because they are there. Returns their names."""
    removed = remove_unfinished_headers()
    cache, since = os.environ.get(VARIABLE), os.environ.get(SINCE)
    if not (cache and since):
        return removed
    folder = Path(cache)
    for path in folder.glob("*/*.so"):
        with contextlib.suppress(OSError):  # another worker removed it
            if path.stat().st_mtime >= float(since):
                removed += _remove_unless_whole(path, folder / LOCKS)
    return removed


def remove_unfinished_headers() -> list[str]:
    """Returns their names."""
    folder = precompiled_headers()
    return [name for path in folder.glob("*.gch") for name in _remove_unless_whole(path, folder / LOCKS)]


def precompiled_headers() -> Path:
    """Where torch keeps them, whatever cache is chosen (`default_cache_dir` in torch/_inductor/runtime/cache_dir_utils.py)."""
    try:
        user = getpass.getuser()
    except (KeyError, ModuleNotFoundError, OSError):  # in a container, one without a name
        user = f"uid_{os.getuid()}"
    name = "torchinductor_" + re.sub(r'[\\/:*?"<>|]', "_", user)
    return Path(tempfile.gettempdir()) / name / "precompiled_headers"


def _remove_unless_whole(path: Path, locks: Path) -> list[str]:
    """Its name, if it was removed. What another process writes just now is left to it: it holds Inductor's lock."""
    with contextlib.suppress(OSError):  # another process removed it, or holds the lock
        if not _is_whole(path):
            with (locks / f"{path.name.partition('.')[0]}.lock").open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not _is_whole(path):  # it may have been finished meanwhile
                    path.unlink()
                    return [path.name]
    return []


def _remove_graphs_without_header(folder: Path) -> None:
    """torch 2.6 keeps the header of its C++ code in this folder, and writes it with new code only: code of a graph that it kept would
    include what is gone. Without its graphs it writes all of it again."""
    headers = {folder / name for name in _known(folder) if name.endswith(".h")}
    for path in folder.rglob("*.cpp"):
        with path.open("rb") as file:
            found = _INCLUDED.findall(file.read(4096))
        headers |= {header for name in found if (header := Path(os.fsdecode(name))).is_relative_to(folder)}
    if not all(header.exists() for header in headers):
        for kept in ("fxgraph", "aotautograd"):
            shutil.rmtree(folder / kept, ignore_errors=True)


def _known(folder: Path) -> dict[str, list[int]]:
    """The files when a climb last ended."""
    try:
        return dict(json.loads((folder / KNOWN).read_text()))
    except (OSError, ValueError, TypeError):
        return {}


def _files(folder: Path) -> list[str]:
    found = [
        os.path.relpath(os.path.join(parent, name), folder)
        for parent, _, names in os.walk(folder)
        for name in names
        if not name.endswith(".lock")
    ]
    return [name for name in found if name != KNOWN]


def _mark(path: Path) -> list[int]:
    """What differs for a file that was written again, or cut off."""
    seen = path.stat()
    return [seen.st_size, seen.st_mtime_ns]


def _is_whole(path: Path) -> bool:
    """Of a library, whether its table of sections, which a linker writes last, is there (ELF-64: `e_shoff` at byte 40, entries of
    `e_shentsize` bytes, `e_shnum` of them, at byte 58); of a precompiled header, whether its beginning says so. Other files are renamed into
    their place by torch once they are written."""
    if path.suffix not in (".so", ".gch"):
        return True
    with path.open("rb") as file:
        head = file.read(64)
    if path.suffix == ".gch":
        return bool(head) and not head.startswith(UNFINISHED)
    if len(head) < 64 or head[:4] != ELF:
        return False
    (sections,), (each, count) = struct.unpack_from("<Q", head, 40), struct.unpack_from("<HH", head, 58)
    return bool(sections) and sections + each * count <= path.stat().st_size


def _make_room(folder: Path, most: int) -> None:
    sizes = {name: _mark(folder / name) for name in _files(folder)}
    held = sum(size for size, _ in sizes.values())
    if held <= most:
        return
    for name in sorted(sizes, key=lambda name: sizes[name][1]):
        if held <= most // 2:
            break
        (folder / name).unlink()
        held -= sizes[name][0]
