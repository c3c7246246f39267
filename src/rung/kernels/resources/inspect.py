"""What `rung kernels inspect` was given, and what is done with it."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rung.errors import InputError, RungError, UsageError
from rung.kernels.resources import inductor, user
from rung.kernels.resources.compile import ARCHITECTURES, compile_for, need_triton, resources, warp_size
from rung.kernels.resources.own import Launch, launches
from rung.records.kernels import Resources


def inspect(
    what: str | None, arches: Sequence[str] = (), given: Mapping[str, Any] | None = None, call: str | None = None
) -> tuple[list[Resources], list[str]]:
    """Resources of kernels, and a sentence for each that failed while others did not.

    what: None (all of Rung's own), a name of Rung's own or the beginning of some, FILE.py:KERNEL, a file or directory
    of Inductor's, a Triton cache directory. arches: empty for what a directory holds compiled, else ARCHITECTURES.
    given, call: arguments of FILE.py:KERNEL, see `user.inspect`.
    """
    path = Path(what or "")
    if what and ":" in what and what.rpartition(":")[0].endswith(".py"):
        return user.inspect(what, arches or ARCHITECTURES, given or {}, call), []
    if given or call:
        raise UsageError("arguments and --call belong to a kernel of yours, FILE.py:KERNEL.")
    if what and (path.is_dir() or path.is_file()):
        return _files(path, arches)
    if what and ("/" in what or path.suffix):
        raise InputError(f"{what} does not exist.")
    return _own(what, arches or ARCHITECTURES), []


def named(what: str | None, warp: int) -> list[Launch]:
    """Rung's own kernels of that name or beginning."""
    every = launches(warp)
    exact = [k for k in every if k.name == what]
    return exact or [k for k in every if k.name.startswith(what or "")]


def _own(what: str | None, arches: Sequence[str]) -> list[Resources]:
    """Raises UsageError where there is no such kernel, or none for these."""
    if not named(what, 32):
        names = ", ".join(dict.fromkeys(k.name for k in launches(32)))
        raise UsageError(f"there is no kernel {what!r}, and no file of that name; Rung has {names}.")
    need_triton()
    wanted = [(arch, k) for arch in arches for k in named(what, warp_size(arch)) if k.only in ("", arch)]
    if not wanted:
        raise UsageError(f"{what} is made for one architecture; give --arch {named(what, 32)[0].only}.")
    return [compile_for(arch, k.name, _function(k), k.values, source=k.about) for arch, k in wanted]


def _function(launch: Launch) -> Any:
    return getattr(importlib.import_module(f"rung.kernels.families.{launch.family}"), launch.kernel)


def _files(path: Path, arches: Sequence[str]) -> tuple[list[Resources], list[str]]:
    rows: list[Resources] = []
    failed: list[str] = []
    for file in _metadata_files(path) if path.is_dir() else []:
        try:
            rows.append(_compiled(file))
        except RungError as error:
            failed.append(str(error))
    known = {row.arch for row in rows}
    rows = [row for row in rows if not arches or row.arch in arches]
    generated = sorted(p for p in path.rglob("*.py")) if path.is_dir() else [path]
    generated = [p for p in generated if next(inductor.sources(p), None)]
    wanted = [a for a in arches if a not in known] or (() if known else ARCHITECTURES)
    if generated and wanted:
        more, bad = inductor.inspect(generated, wanted)
        rows, failed = rows + more, failed + bad
    if not rows and not failed:
        text = path.read_text(errors="replace") if path.suffix == ".py" and path.is_file() else ""
        if own := re.findall(r"@(?:triton\.)?jit\b[^\n]*\s+def\s+(\w+)", text):
            raise UsageError(f"{path} is a file: name a kernel in it, as in {path}:{own[0]}; it has {', '.join(own)}.")
        there = f"; it has some for {', '.join(sorted(known))}" if known else ""
        raise InputError(
            f"{path} holds no Triton kernel{there}: neither a cache of Triton's (*.json with *.amdgcn or *.cubin) nor "
            "code of Inductor's (TORCHINDUCTOR_CACHE_DIR, or a log made with TORCH_LOGS=output_code)."
        )
    return rows, failed


def _metadata_files(folder: Path) -> list[Path]:
    """Files with the metadata of a compiled kernel, below a folder of Triton's cache (TRITON_CACHE_DIR, Inductor's `triton` folder): those
    with a binary beside them."""
    found = [p for p in sorted(folder.rglob("*.json")) if not p.name.startswith("__grp__")]
    return [p for p in found if p.with_suffix(".amdgcn").exists() or p.with_suffix(".cubin").exists()]


def _compiled(path: Path) -> Resources:
    """The kernel whose metadata this is. Raises InputError."""
    try:
        data = json.loads(path.read_text())
        target = data["target"]
        arch = str(target["arch"]) if target["backend"] == "hip" else f"sm{target['arch']}"
        text, binary = path.with_suffix(".amdgcn"), path.with_suffix(".cubin")
        asm = {"amdgcn": text.read_text()} if text.exists() else {"cubin": binary.read_bytes()}
        options = ("num_stages", "waves_per_eu", "matrix_instr_nonkdim", "maxnreg")
        config = " ".join(f"{k}={data[k]}" for k in ("num_warps", *options) if data.get(k))
        return resources(asm, data, str(data["name"]), arch, config, str(path.parent))
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} could not be read as Triton's metadata ({type(error).__name__}: {error}).") from None
