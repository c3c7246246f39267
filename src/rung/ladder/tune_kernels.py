"""`rung kernels tune`: which functions, at which shapes, for how long; and the user's table, written after every kernel."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from rung.errors import InputError, UsageError
from rung.hardware import Device, environment, pick
from rung.kernels import tuned
from rung.kernels.examples import EXAMPLES, Example, Shape
from rung.kernels.ops import INTERPRETED
from rung.ladder.kernel_tuning import Tuned, tune
from rung.runs import write_whole
from rung.toml import TUNED, user_file

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def tune_kernels(
    names: Sequence[str], shape: Shape | None, dtype: str, budget: float, told: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Tunes and saves. names: of `EXAMPLES`, all where there is none; budget: seconds after which no further function is begun;
    told: of each kernel, as it is decided. Raises UsageError for what cannot be tuned, InputError for a table that cannot be
    read or written."""
    problems, device = _problems(names, shape), pick()
    if not device.is_gpu:
        raise UsageError(
            "tuning measures kernels on a GPU, and torch sees none here; `rung kernels inspect` needs none."
        )
    if INTERPRETED:
        raise UsageError("TRITON_INTERPRET=1 runs kernels on the CPU; unset it to tune them.")
    path = _table()
    facts, began = environment(device), time.monotonic()
    found, left, failed, seen = list[dict[str, Any]](), list[str](), list[str](), set[tuned.Key]()
    for name, example, size in problems:
        if time.monotonic() - began > budget:
            left.append(name)
            continue
        before = {tuned.key_of(row): row["use"] for row in tuned.rows(path) if _is_of(row, device)}
        try:
            for kernel in tune(name, example, size, DTYPES[dtype], device, seen, before):
                row = {**_row(kernel, dtype), "dropped": kernel.outcome == "shown" and kernel.key in before}
                found.append(row)
                told(row)
                _save(path, kernel, device)
        except torch.OutOfMemoryError:
            failed.append(f"{name} at {_by(size)} does not fit the GPU's memory; give a smaller one by --shape.")
            gc.collect()
            torch.cuda.empty_cache()
    tuned.forget()
    return {"kind": "kernel tuning", "gpu": device.name, "arch": device.arch, "dtype": dtype, "file": str(path),
            "kernels": found, "left": left, "failed": failed, "seconds": time.monotonic() - began,
            "environment": facts}  # fmt: skip


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


def _row(found: Tuned, dtype: str) -> dict[str, Any]:
    """As plain values."""
    speedup = found.speedup and found.speedup.speedup.as_dict()
    return {"function": found.function, "way": found.way, "kernel": found.key.kernel, "problem": found.key.problem,
            "dtype": dtype, "shape": list(found.shape), "rule": found.rule, "use": found.use, "outcome": found.outcome,
            "why": found.why, "speedup": speedup, "tried": found.tried, "failed": found.failed}  # fmt: skip


def _table() -> Path:
    """The user's file, which can be read and written, as far as that can be known before."""
    path = user_file(*TUNED)
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is no file; have RUNG_KERNELS name one for the table of launch configurations.")
    path = path.resolve()  # what a link leads to is written, not the link
    with _alone(path):
        tuned.rows(path)
    return path


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """While no other process changes the table, as where each of a machine's GPUs is tuned."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.with_name(f".{path.name}.lock").open("w")
    except OSError as error:
        raise InputError(
            f"{path} cannot be written ({error.strerror}); have RUNG_KERNELS name a file that can."
        ) from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _save(path: Path, found: Tuned, device: Device) -> None:
    """Puts the row in the table, or takes an older one out where the rule's configuration was shown to do."""
    if found.outcome == "unclear":
        return
    with _alone(path):
        rows = tuned.rows(path)
        kept = [row for row in rows if not (_is_of(row, device) and tuned.key_of(row) == found.key)]
        if found.use and found.speedup:
            interval = {k: round(v, 3) for k, v in found.speedup.speedup.as_dict().items()}
            kept.append({"gpu": device.name, "arch": device.arch, "triton": tuned.triton_version(), "kernel": found.key.kernel,
                         "problem": found.key.problem, "rule": found.rule, "use": found.use, "speedup": interval,
                         "of": f"{found.function}, {found.way}, {_by(found.shape)}, torch {torch.__version__}"})  # fmt: skip
        if kept != rows:
            write_whole(path, tuned.text(kept), "have RUNG_KERNELS name another file")


def _is_of(row: dict[str, Any], device: Device) -> bool:
    """Whether a row is obeyed here."""
    return (row["gpu"], row["triton"]) == (device.name, tuned.triton_version())


def _by(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))
