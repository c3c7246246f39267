"""A model that takes long to make, made once and read back by the other processes of a climb.

The file is a pickle of the whole module, so it is only ever read by the climb that wrote it, from a folder that is the climb's own.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rung.workload.base import Workload

if TYPE_CHECKING:
    import torch

SEED = 0  # of `seeded_model`, when the model was made


def save_model(model: torch.nn.Module, path: Path) -> bool:
    """Writes the model, whole or not at all; False where it cannot be pickled or there is no room on the disk."""
    import torch

    partial = path.with_suffix(".partial")
    try:
        torch.save(model, partial)
        partial.replace(path)
    except Exception:  # a local class or a lambda, a full disk: then every process makes its own, as before
        with contextlib.suppress(OSError):
            partial.unlink()
        return False
    return True


def read_from(workload: Workload, path: Path) -> Workload:
    """The same workload, whose model is read from a file; where that fails, or another seed is asked for, it is made."""

    def model() -> torch.nn.Module:
        import torch

        if torch.initial_seed() == SEED:
            with contextlib.suppress(Exception):
                read: torch.nn.Module = torch.load(path, map_location="cpu", mmap=True, weights_only=False)
                return read
        return workload.model()

    return replace(workload, model=model)
