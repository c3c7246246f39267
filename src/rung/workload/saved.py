"""A model that takes long to make, made once and read back by the other processes of a climb.

Most of that time goes into random numbers, which torch draws on one core: 17 of the 18 s of a model of 596 M parameters. So a GPU draws
them where there is one. The model stays on the CPU meanwhile, as its author has it.

The file is a pickle of the whole module, so it is only ever read by the climb that wrote it, from a folder that is the climb's own.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rung.workload.base import Workload

SEED = 0  # of `seeded_model`, when the model was made
LARGE = 1 << 20  # numbers; fewer are drawn where they are
DRAWS = (torch.ops.aten.normal_.default, torch.ops.aten.uniform_.default)  # what torch.nn.init draws


def save_model(model: torch.nn.Module, path: Path) -> bool:
    """Writes the model, whole or not at all; False where it cannot be pickled or there is no room on the disk."""
    partial = path.with_suffix(".partial")
    try:
        torch.save(model, partial)
        partial.replace(path)
    except Exception:  # a local class or a lambda, a full disk: then every process makes its own, as before
        with contextlib.suppress(OSError):
            partial.unlink()
        return False
    return True


def read_from(workload: Workload, path: Path | None, gpu: torch.device | None = None) -> Workload:
    """The same workload, whose model is read from a file; where there is none or that fails, or another seed is asked for, it is made. gpu:
    what draws its random numbers then."""

    def model() -> torch.nn.Module:
        if path is not None and torch.initial_seed() == SEED:
            with contextlib.suppress(Exception):
                read: torch.nn.Module = torch.load(path, map_location="cpu", mmap=True, weights_only=False)
                return read
        if gpu is None:
            return workload.model()
        with DrawnOn(gpu):
            made = workload.model()
        torch.cuda.empty_cache()  # what it was drawn in is no memory of the workload
        return made

    return replace(workload, model=model)


class DrawnOn(TorchDispatchMode):
    """Large tensors on the CPU get their random numbers from another device: other ones than the CPU would draw, and as random."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function in DRAWS and self._takes(args[0]) and kwargs.get("generator") is None:
            drawn = torch.empty(args[0].shape, dtype=args[0].dtype, device=self._device)
            return args[0].copy_(function(drawn, *args[1:], **kwargs))
        return function(*args, **kwargs)

    @staticmethod
    def _takes(tensor: torch.Tensor) -> bool:
        return (
            type(tensor) in (torch.Tensor, torch.nn.Parameter)
            and tensor.device.type == "cpu"
            and tensor.numel() >= LARGE
        )
