"""What Inductor generated: its kernels, out of its cache directory or out of a log with `TORCH_LOGS=output_code`.

A kernel's source is imported, as torch does itself: so Inductor's own heuristics give the configurations that it would
choose from, and the signature says what it was specialised on. Nothing is launched.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rung.errors import InputError, RungError
from rung.files import read_text
from rung.kernels.resources.compile import OPTIONS, Specialised, build, need_triton
from rung.kernels.resources.user import load
from rung.records.kernels import Resources
from rung.runs import temporary_folder

_IN_OUTPUT_CODE = re.compile(r"async_compile\.triton\(\s*'(\w+)',\s*('''.*?''')", re.DOTALL)
_LOG = re.compile(r"^.*?\[__output_code\] ?", re.MULTILINE)
_DRIVER = re.compile(r"^triton_helpers\.set_driver_to_\w+\(\)$", re.MULTILINE)  # there may be none here
_KERNEL = re.compile(r"^@triton_heuristics\..*?^@triton\.jit\s+def (\w+)", re.DOTALL | re.MULTILINE)


def sources(path: Path) -> Iterator[tuple[str, str]]:
    """The kernels of a file, as (name, source): a file of one kernel, output code, or a log that holds output code."""
    text = read_text(path, errors="replace")
    if "[__output_code]" in text:
        text = _LOG.sub("", text)
    found = _IN_OUTPUT_CODE.findall(text)
    for name, quoted in found:
        yield name, ast.literal_eval(quoted)
    if not found and (alone := _KERNEL.search(text)):
        yield alone.group(1), text


def collect(paths: Sequence[Path]) -> dict[str, tuple[str, Path]]:
    """Kernels of these files by name and source, each once: output code and the file of a kernel both have it."""
    found: dict[str, tuple[str, Path]] = {}
    seen: set[str] = set()
    for path in paths:
        for name, source in sources(path):
            body = source[source.find("@triton.jit") :].strip()
            if body not in seen:
                seen.add(body)
                found[name if name not in found else f"{name} ({len(found)})"] = (source, path)
    return found


def inspect(paths: Sequence[Path], arches: Sequence[str]) -> tuple[list[Resources], list[str]]:
    """Every kernel of these files for each architecture and configuration, and a sentence for each that failed."""
    need_triton()
    rows, failed = [], []
    for name, (source, path) in collect(paths).items():
        try:
            for tuner in _tuners(name, source, path):
                for config in tuner.configs:
                    for arch in arches:
                        rows.append(_compiled(name, tuner, config, arch, path))
        except RungError as error:
            failed.append(str(error))
    return rows, failed


def _tuners(name: str, source: str, path: Path) -> list[Any]:
    """The kernel with Inductor's heuristics around it."""
    with temporary_folder("rung-inspect-") as folder:
        file = folder / "kernel.py"
        file.write_text(_DRIVER.sub("", source))
        try:
            module = load(file, "rung_inspected_inductor")
        except InputError as error:
            why = str(error).partition(": ")[2] or error
            raise InputError(
                f"{name} of {path} cannot be loaded ({why}): read it with the version of torch that generated it."
            ) from error
        found = [v for v in vars(module).values() if hasattr(v, "triton_meta") and hasattr(v, "configs")]
    if not found:
        raise InputError(f"{name} of {path} has no kernel that this version of torch understands.")
    return found


def _compiled(name: str, tuner: Any, config: Any, arch: str, path: Path) -> Resources:
    kernel, meta = tuner.fn, tuner.triton_meta
    constants = dict(meta.get("constants") or {})
    blocks = {k: v for k, v in config.kwargs.items() if k in kernel.arg_names}
    signature = {k: "constexpr" if k in constants or k in blocks else v for k, v in meta["signature"].items()}
    signature |= dict.fromkeys(blocks, "constexpr")
    first = (meta.get("configs") or [{}])[0]
    attributes = {kernel.arg_names[k[0]]: v for k, v in first.items()} if isinstance(first, dict) else {}
    options = {"num_warps": config.num_warps, "num_stages": config.num_stages}
    options |= {k: v for k, v in config.kwargs.items() if k in OPTIONS and k not in blocks}
    words = " ".join(f"{k}={v}" for k, v in {**blocks, **options}.items())
    ordered = {k: signature[k] for k in kernel.arg_names if k in signature}
    return build(
        arch, name, kernel, Specialised(ordered, {**constants, **blocks}, attributes, options), str(path), words
    )
