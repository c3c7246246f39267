"""Where the vendors install their tools: looked into after PATH, which often lacks them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path


def tool_folders(environ: Mapping[str, str] | None = None, root: Path = Path("/")) -> list[Path]:
    """Folders of ROCm's, CUDA's and Nsight's programs that are there, newest version first. root: in place of "/"."""
    known = os.environ if environ is None else environ

    def below(name: str) -> Path:
        return root / name.lstrip("/")

    found = [below(known.get("ROCM_PATH") or "/opt/rocm") / "bin"]
    found.append(below(known.get("CUDA_HOME") or "/usr/local/cuda") / "bin")
    for tool in ("nsight-systems", "nsight-compute"):
        for version in sorted(below(f"/opt/nvidia/{tool}").glob("*"), reverse=True):
            found += [version / "bin", version]
    return [folder for folder in found if folder.is_dir()]


def which(name: str, environ: Mapping[str, str] | None = None, root: Path = Path("/")) -> str | None:
    """An executable on PATH, else in one of these folders."""
    path = (os.environ if environ is None else environ).get("PATH", "")
    folders = [path] if path else []  # an empty one would be the current folder
    return shutil.which(name, path=os.pathsep.join([*folders, *map(str, tool_folders(environ, root))]))
