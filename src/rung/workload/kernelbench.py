"""A problem in KernelBench's format as a workload: `kernelbench:PATH/level1/19_ReLU.py`.

Such a file defines a module `Model`, `get_init_inputs()` with the arguments of its constructor, and `get_inputs()` with those of its
forward (github.com/ScalingIntelligence/KernelBench, Ouyang et al. 2025). The file is the user's, from a checkout of their own.
"""

from __future__ import annotations

import random
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rung.errors import UsageError, WorkloadError
from rung.workload.base import Batch, Workload
from rung.workload.load import KERNELBENCH

DEFINES = ("Model", "get_inputs", "get_init_inputs")
EXAMPLE = f"{KERNELBENCH}KernelBench/level1/19_ReLU.py"


def problem_file(target: str) -> Path:
    """The file that a target names. Raises UsageError where it is none."""
    path = Path(target.removeprefix(KERNELBENCH))
    if target == KERNELBENCH or path.is_dir():
        raise UsageError(f"{target} names no problem: give the path of one file, as in {EXAMPLE}.")
    if not path.is_file():
        raise UsageError(f"there is no file {path}: give the path of a problem in your checkout, as in {EXAMPLE}.")
    if path.suffix != ".py":
        raise UsageError(f"{path} is not a Python file: give the path of a problem, as in {EXAMPLE}.")
    return path


def workload_of(module: types.ModuleType, path: Path) -> Workload:
    """The problem that an imported file holds: inference on seeded weights and inputs. Nothing of it is made yet."""
    model, get_inputs, get_init_inputs = (_defined(module, path, name) for name in DEFINES)
    if not (isinstance(model, type) and issubclass(model, torch.nn.Module)):
        raise UsageError(f"{path} is not in KernelBench's format: its Model is not a class of torch.nn.Module.")

    def inputs(seed: int) -> Batch:
        with _drawn_from(seed):
            return _arguments(path, "get_inputs", get_inputs())

    # Equal seeds of torch's generators give equal weights; some constructors are given random tensors, drawn from them too.
    return Workload(path.stem, lambda: model(*_arguments(path, "get_init_inputs", get_init_inputs())), inputs)


def _defined(module: types.ModuleType, path: Path, name: str) -> Callable[..., Any]:
    try:
        made: Callable[..., Any] = getattr(module, name)
    except AttributeError:
        others = f"{', '.join(DEFINES[:-1])} and {DEFINES[-1]}"
        raise UsageError(f"{path} is not in KernelBench's format: it has no {name}; it must define {others}.") from None
    if not callable(made):
        raise UsageError(f"{path} is not in KernelBench's format: its {name} is a {type(made).__name__}, no function.")
    return made


def _arguments(path: Path, maker: str, made: Any) -> list[Any]:
    """Positional arguments: what one of the file's functions returned."""
    if isinstance(made, (str, torch.Tensor, Mapping)) or not isinstance(made, (list, tuple)):
        raise WorkloadError(f"{path}: {maker}() returned {type(made).__name__}; it must return a list of arguments.")
    return list(made)


@contextmanager
def _drawn_from(seed: int) -> Iterator[None]:
    """Everything that is drawn inside comes from the seed; afterwards the generators go on where they were. Tensors are made on the GPU
    where there is one: some problems read 6 GB, which a CPU draws in several seconds."""
    gpu = torch.cuda.is_available()
    before = random.getstate(), np.random.get_state()
    with torch.random.fork_rng([torch.cuda.current_device()] if gpu else []), torch.device("cuda" if gpu else "cpu"):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])
