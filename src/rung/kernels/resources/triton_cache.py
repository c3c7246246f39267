"""Kernels that Triton has compiled already, out of its cache directory (TRITON_CACHE_DIR, Inductor's `triton` folder)."""

from __future__ import annotations

import json
from pathlib import Path

from rung.errors import InputError
from rung.kernels.resources.compile import resources
from rung.kernels.resources.record import Resources


def metadata_files(folder: Path) -> list[Path]:
    """Files with the metadata of a compiled kernel, below a folder: those with a binary beside them."""
    found = [p for p in sorted(folder.rglob("*.json")) if not p.name.startswith("__grp__")]
    return [p for p in found if p.with_suffix(".amdgcn").exists() or p.with_suffix(".cubin").exists()]


def read(path: Path) -> Resources:
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
