"""A model that takes long to make, made once and read back by the other processes of a climb.

The file is a pickle of the whole module, so it is only ever read by the climb that wrote it, from a folder that is the climb's own.
Making a model may do more than a pickle holds: one of transformers notes in a table of its library what it can hand out of its layers, and
without that note its forward finds None. So the first process that finds the file runs the model in it. Others read it once that is noted.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rung.errors import lacks_memory
from rung.workload.base import Workload
from rung.workload.copy_model import has_gradient_hooks

if TYPE_CHECKING:
    import torch

MEMORY = (
    "out of memory",
    "not enough memory",
    "ALLOC_FAILED",
)  # what libraries say that lack it, in an error of no class of its own
SEED = 0  # of `seeded_model`, when the model was made


def save_model(model: torch.nn.Module, path: Path) -> bool:
    """Writes the model, whole or not at all; False where it cannot be pickled, a pickle would lack something of it, or there is no room on the
    disk."""
    import torch

    if any(map(has_gradient_hooks, model.parameters())):
        return False
    # As `rung.runs.store.is_partial` knows them.
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")
    try:
        torch.save(model, partial)
        partial.replace(path)
    except Exception:  # a local class or a lambda, a full disk: then every process makes its own, as before
        with contextlib.suppress(OSError):
            partial.unlink()
        return False
    return True


def try_saved(path: Path, run: Callable[[Callable[[], torch.nn.Module]], object]) -> None:
    """Notes whether the model in the file runs, unless that is known; a file whose model does not is removed. run: is given what reads it.
    Where memory was lacking, nothing is known: others load side by side."""
    if not path.exists() or _note(path).exists():
        return
    try:
        run(lambda: _read(path))
        _note(path).touch()
    except Exception as error:  # whatever a user's model raises; it ran as it was made, or the climb would have ended
        if _note(path).exists() or lacks_memory(error) or any(word in str(error) for word in MEMORY):
            return
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def forget_saved(path: Path) -> None:
    """Removes the file, and what is noted of it."""
    path.unlink(missing_ok=True)
    _note(path).unlink(missing_ok=True)


def _note(path: Path) -> Path:
    return path.with_suffix(".runs")


def _read(path: Path) -> torch.nn.Module:
    import torch

    read: torch.nn.Module = torch.load(path, map_location="cpu", mmap=True, weights_only=False)
    return read


def read_from(workload: Workload, path: Path | None, gpu: torch.device | None = None) -> Workload:
    """The same workload, whose model is read from a file that `try_saved` has noted; where there is none or that fails, or another seed is
    asked for, it is made. gpu: what draws its random numbers then."""

    import torch

    from rung.workload.random_on_gpu import RandomOn

    def model() -> torch.nn.Module:
        if path is not None and torch.initial_seed() == SEED and _note(path).exists():
            with contextlib.suppress(Exception):
                return _read(path)
        if gpu is None:
            return workload.model()
        with RandomOn(gpu):
            made = workload.model()
        torch.cuda.empty_cache()  # what it was drawn in is no memory of the workload
        return made

    return replace(workload, model=model)
