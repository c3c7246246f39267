"""`rung kernels tune`: which functions, at which shapes, for how long; and the user's table, written after every kernel."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from rung.errors import UsageError
from rung.hardware import Device, environment, pick
from rung.kernels import tuned
from rung.kernels.examples import EXAMPLES, Example, Shape
from rung.kernels.ops import INTERPRETED
from rung.ladder.kernel_tuning import Tuned, tune
from rung.runs import write_whole
from rung.toml import user_file

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def tune_kernels(
    names: Sequence[str], shape: Shape | None, dtype: str, budget: float, told: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Tunes and saves. names: of `EXAMPLES`, all where there is none; budget: seconds after which no further function is begun;
    told: of each kernel, as it is decided. Raises UsageError for what cannot be tuned."""
    problems, device = _problems(names, shape), pick()
    if not device.is_gpu:
        raise UsageError(
            "tuning measures kernels on a GPU, and torch sees none here; `rung kernels inspect` needs none."
        )
    if INTERPRETED:
        raise UsageError("TRITON_INTERPRET=1 runs kernels on the CPU; unset it to tune them.")
    facts, began = environment(device), time.monotonic()
    made_by = f"rung kernels tune on {device.name}, torch {torch.__version__}, Triton {_triton()}"
    found, left, seen = list[dict[str, Any]](), list[str](), set[tuned.Key]()
    for name, example, size in problems:
        if time.monotonic() - began > budget:
            left.append(name)
            continue
        for row in _decided(name, example, size, dtype, device, seen):
            found.append(row)
            _save(row, device.arch, made_by)
            told(row)
    return {"kind": "kernel tuning", "arch": device.arch, "dtype": dtype, "file": str(user_file(*tuned.FILE)), "kernels": found,
            "left": left, "seconds": time.monotonic() - began, "environment": facts}  # fmt: skip


def _decided(
    name: str, example: Example, shape: Shape, dtype: str, device: Device, seen: set[tuned.Key]
) -> Iterator[dict[str, Any]]:
    try:
        for found in tune(name, example, shape, DTYPES[dtype], device, seen):
            yield _row(found)
    except torch.OutOfMemoryError:
        size = " x ".join(map(str, shape))
        raise UsageError(f"{name} at {size} does not fit the GPU's memory; give a smaller one by --shape.") from None


def _problems(names: Sequence[str], shape: Shape | None) -> list[tuple[str, Example, Shape]]:
    unknown = [name for name in names if name not in EXAMPLES]
    if unknown:
        raise UsageError(f"there is nothing to tune by the name of {unknown[0]}; there are {', '.join(EXAMPLES)}.")
    found = [(name, EXAMPLES[name], shape or EXAMPLES[name].shape) for name in names or EXAMPLES]
    for name, example, size in found:
        if len(size) != len(example.axes):
            raise UsageError(
                f"--shape {'x'.join(map(str, size))} is not of {name}, which has {' x '.join(example.axes)}."
            )
    return found


def _row(found: Tuned) -> dict[str, Any]:
    """As plain values."""
    speedup = found.speedup and found.speedup.speedup.as_dict()
    return {"function": found.example, "way": found.way, "kernel": found.key.kernel, "dtype": found.key.dtype,
            "shape": list(found.shape), "rule": found.rule, "use": found.use, "speedup": speedup, "why": found.why,
            "tried": found.tried, "failed": found.failed}  # fmt: skip


def _save(row: dict[str, Any], arch: str, made_by: str) -> None:
    """Puts the row in the table, or takes an older one out where the rule's configuration has won."""
    key = tuned.key_of(row)
    rows = [old for old in tuned.rows() if (old["arch"], tuned.key_of(old)) != (arch, key)]
    if row["use"]:
        shown = {k: round(row["speedup"][k], 3) for k in ("value", "low", "high")}
        shape = " x ".join(map(str, row["shape"]))
        rows.append({"arch": arch, **{k: row[k] for k in ("kernel", "dtype", "rule", "use")}, "speedup": shown,
                     "shape": shape, "source": made_by})  # fmt: skip
    path = user_file(*tuned.FILE)
    if rows or path.exists():
        write_whole(path, tuned.text(rows))


def _triton() -> str:
    import triton

    return str(triton.__version__)
