"""A workload made of live objects, written to a folder from which worker processes load it: `DIR/workload.py:workload`.

    objects.pt      its functions, its model and its batch, pickled by value where they come from a script or a notebook
    workload.py     reads them

A model's weights are read by mmap: the processes of a climb share their pages, and each has copies of its own only of what it runs.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import cloudpickle
import torch
from torch.utils import _pytree as pytree

from rung.errors import InputError, UsageError, not_written
from rung.files import check_regular
from rung.workload.base import Batch, Workload, call_model
from rung.workload.by_value import Copies, Reader, check_picklable
from rung.workload.hidden_tensors import hidden_tensors
from rung.workload.load import add_import_folders
from rung.workload.shuffled import shuffled

FILE, NAME, OBJECTS = "workload.py", "workload", "objects.pt"
SOURCE = '''\
"""What rung.climb was given, as its worker processes load it. Loading it runs what is pickled in {objects}: load only your own."""

from pathlib import Path

from rung.workload.live import read

{name} = read(
    Path(__file__).parent,
    folders={folders},
    copies={copies!r},
)
'''


def workload_of(
    model: torch.nn.Module,
    inputs: Batch | Callable[[int], Batch],
    loss: Callable[[Any, Batch], torch.Tensor] | None = None,
    optimizer: Any = None,
    max_grad_norm: float | None = None,
    forward: Callable[[Any, Batch], Any] = call_model,
    name: str = "",
) -> Workload:
    """A workload whose `model()` gives fresh copies of a live model, which stays as it is.

    Args:
        inputs: makes the batch of a seed; or one batch, of which others are made by shuffling (`rung.workload.shuffled`).
        loss, optimizer, max_grad_norm, forward: as of a Workload.
        name: shown in reports; by default that of the model's class.

    Raises:
        UsageError: for what is no model, loss without optimizer, an optimizer that is there already, and a batch that cannot be varied.
    """
    if hasattr(model, "_orig_mod"):
        raise UsageError(
            "the model was compiled by torch.compile, which a climb tries itself: give the model as it was, model._orig_mod."
        )
    if (loss is None) != (optimizer is None):
        raise UsageError("rung.climb needs both loss= and optimizer= for a training step, or neither.")
    if optimizer is not None and not callable(optimizer):
        raise UsageError(
            f"rung.climb got {type(optimizer).__name__} as optimizer=: give a function that makes it, as lambda parameters: "
            "torch.optim.AdamW(parameters)."
        )
    make = inputs if _is_maker(inputs) else shuffled(_batch(inputs))
    called = name or type(model).__name__
    return Workload(called, Copies(model), make, forward, loss=loss, optimizer=optimizer, max_grad_norm=max_grad_norm)


def _is_maker(inputs: Any) -> bool:
    return callable(inputs) and not isinstance(inputs, (torch.Tensor, Mapping))


def _batch(inputs: Any) -> Batch:
    """One batch. What a tokenizer returns is no dict, but passed by name as one."""
    if isinstance(inputs, Mapping):
        inputs = dict(inputs)
    if why := hidden_tensors(inputs):
        raise UsageError(f"rung.climb got as inputs= {why}.")
    if not any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(inputs)):
        raise UsageError(
            f"rung.climb got a {type(inputs).__name__} as inputs=: give one batch (a tensor, or a dict, tuple or list of tensors), or "
            "a function that makes the batch of a seed, as inputs=lambda seed: torch.randn(8, 16)."
        )
    return inputs


def write(workload: Workload, folder: Path) -> str:
    """Writes a workload to a new folder, whole or not at all; the target that names it there.

    Raises UsageError where a part of it cannot be written, or would be another one in the processes that read it, and InputError
    where the disk does not take it.
    """
    partial = folder.with_name(f".{folder.name}.partial")
    try:
        partial.mkdir(parents=True)
        values = {field.name: getattr(workload, field.name) for field in fields(workload)}
        copies = check_picklable(values)
        torch.save(values, partial / OBJECTS, pickle_module=cloudpickle)
        folders = "".join(f"\n        {path!r}," for path in _folders())
        text = SOURCE.format(
            objects=OBJECTS, name=NAME, folders=f"[{folders}\n    ]" if folders else "[]", copies=copies
        )
        (partial / FILE).write_text(text, encoding="utf-8")
        partial.rename(folder)
    except OSError as error:
        raise not_written(folder, error, "choose another out=") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return f"{folder.resolve() / FILE}:{NAME}"


def read(folder: Path, folders: Sequence[str] = (), copies: bool = False) -> Workload:
    """The workload that `write` wrote. It runs what is pickled.

    Args:
        folders: where modules are looked for, beside those of this process.
        copies: whether what the model's function returns is copied, because it may be the same object every time.
    """
    try:
        check_regular(folder / OBJECTS)
    except OSError as error:
        raise InputError(f"{folder / OBJECTS} could not be read: {error.strerror}; climb again.") from error
    add_import_folders(*map(Path, folders))
    reader = types.SimpleNamespace(Unpickler=Reader, __name__=__name__)
    values = torch.load(folder / OBJECTS, map_location="cpu", mmap=True, weights_only=False, pickle_module=reader)
    workload = Workload(**values)
    return replace(workload, model=Copies(workload.model)) if copies else workload


def _folders() -> list[str]:
    """Where this process finds modules, beside Python's own and what is installed."""
    library = {os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
    installed = ("site-packages", "dist-packages")
    found = [os.path.realpath(path or os.getcwd()) for path in sys.path]
    own = [path for path in found if os.path.isdir(path) and not path.startswith(tuple(library))]
    return [path for path in dict.fromkeys(own) if os.path.basename(path) not in installed]
