"""Builds the sdist and the wheel of a commit, the same bytes each time: python tools/dist.py [COMMIT] [--out dist]

Uncommitted changes are left out. Times come from the commit, modes and order are fixed, and the wheel is built from the sdist, as pip does
where no wheel fits. The bytes also depend on the version of setuptools, which the wheel names.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

REPO = Path(__file__).parent.parent
BACKEND = "import sys; from setuptools import build_meta; print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"


def build(commit: str, out: Path) -> list[Path]:
    """Writes both files into `out` and returns their paths. Raises CalledProcessError where git or setuptools fails."""
    seconds = int(_git("log", "-1", "--format=%ct", commit))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tree = folder / "tree"
        _unpack(_git("-c", "tar.umask=0022", "archive", "--format=tar", commit), tree)
        sdist = _run_backend("build_sdist", tree, folder, seconds)
        sdist.write_bytes(_canonical(sdist.read_bytes(), seconds))
        _unpack(gzip.decompress(sdist.read_bytes()), folder)
        wheel = _run_backend("build_wheel", folder / sdist.name.removesuffix(".tar.gz"), folder, seconds)
        out.mkdir(parents=True, exist_ok=True)
        return [Path(shutil.move(path, out / path.name)) for path in (sdist, wheel)]


def _git(*words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=REPO, stdout=subprocess.PIPE, check=True).stdout


def _unpack(tar: bytes, folder: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        archive.extractall(folder)


def _run_backend(what: str, project: Path, out: Path, seconds: int) -> Path:
    """Has setuptools build in a process of its own, which no local setting reaches: the umask decides on modes in a wheel."""
    env = os.environ | {"SOURCE_DATE_EPOCH": str(seconds), "TZ": "UTC", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0"}
    words = [sys.executable, "-c", BACKEND, what, str(out)]
    done = subprocess.run(words, cwd=project, env=env, umask=0o022, stdout=subprocess.PIPE, text=True, check=True)
    return out / done.stdout.split()[-1]


def _canonical(sdist: bytes, seconds: int) -> bytes:
    """The same members in order, without the times, owners and modes of this machine."""
    packed = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(sdist), mode="r:gz") as archive,
        gzip.GzipFile(filename="", fileobj=packed, mode="wb", mtime=seconds) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.GNU_FORMAT) as written,
    ):
        for member in sorted(archive.getmembers(), key=lambda member: member.name):
            fixed = tarfile.TarInfo(member.name)
            fixed.type, fixed.size, fixed.mtime = member.type, member.size, seconds
            fixed.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            written.addfile(fixed, archive.extractfile(member) if member.isfile() else None)
    return packed.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commit", nargs="?", default="HEAD")
    parser.add_argument("--out", type=Path, default=REPO / "dist")
    options = parser.parse_args()
    if _git("status", "--porcelain", "--untracked-files=no"):
        print(f"warning: uncommitted changes are left out; {options.commit} is built", file=sys.stderr)
    for path in build(options.commit, options.out):
        print(hashlib.sha256(path.read_bytes()).hexdigest(), path)


if __name__ == "__main__":
    main()
