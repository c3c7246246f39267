"""Copies of a model with all that `copy.deepcopy` leaves out, and the tensors that lie in objects of any class."""

from __future__ import annotations

import copy
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from rung.errors import WorkloadError
from rung.workload.closures import Rebinding

if TYPE_CHECKING:
    import torch

OF_MODULES = ("_parameters", "_buffers", "_modules")  # torch's tables in a module


def copy_model(model: torch.nn.Module) -> torch.nn.Module:
    """A copy of a model that shares no tensor with it. It has what `copy.deepcopy` refuses or leaves out:

    - Tensors that a module computed from its parameters when it was made, and keeps as plain attributes (`torch.nn.utils.prune`, the older
      `weight_norm`), are copied as values. deepcopy takes no tensor that has a history, and the next forward computes them anew.
    - Tensors in a compressed sparse layout (CSR) are copied, of which deepcopy copies none.
    - Parameters of a module that TorchScript compiled are copied as leaves. deepcopy's have a history, so that no optimizer takes them.
    - Hooks on parameters are registered on the copy's parameters.
    - Functions that hold on to the model hold the copy (`Rebinding`).
    """
    import torch

    compressed = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
    known: dict[int, Any] = {id(t): t.detach().clone() for t in _attribute_tensors(model) if not t.is_leaf}
    for t in (*_attribute_tensors(model), *model.parameters(), *model.buffers()):
        if t.layout in compressed and t.is_leaf:
            value = t.detach().clone()
            known[id(t)] = torch.nn.Parameter(value) if isinstance(t, torch.nn.Parameter) else value
    with torch.no_grad():
        made = copy.deepcopy(model, known)
    functions = Rebinding(known)
    functions.within(made)
    for original, duplicate in zip(model.parameters(), made.parameters(), strict=True):
        duplicate.requires_grad_(original.requires_grad)
        if not has_gradient_hooks(original) or not original.requires_grad:
            continue  # a frozen parameter's hooks are not called, and torch registers none
        for hook in (original._backward_hooks or {}).values():
            duplicate.register_hook(functions.of(hook))
        for hook in (original._post_accumulate_grad_hooks or {}).values():
            duplicate.register_post_accumulate_grad_hook(functions.of(hook))
    return made


def copy_sharing_tensors(model: torch.nn.Module, label: str) -> torch.nn.Module:
    """A copy that shares every tensor with the original. Raises WorkloadError where a model cannot be copied, with the attribute that
    cannot."""
    tensors = {id(t): t for t in (*_attribute_tensors(model), *model.parameters(), *model.buffers())}
    known: dict[int, Any] = dict(tensors)
    try:
        made = copy.deepcopy(model, known)
        Rebinding(known).within(made)
        return made
    except Exception as error:
        if at_fault := _not_copied(model, tensors):
            raise WorkloadError(
                f"{label}: {at_fault} cannot be copied "
                f"({error}), and a candidate is compared with copies of the model; make it where it is used, or outside of the model."
            ) from error
        raise WorkloadError(
            f"{label}: its model cannot be copied ({type(error).__name__}: {error}), and a candidate is compared with copies of it."
        ) from error


def _not_copied(model: torch.nn.Module, tensors: Mapping[int, torch.Tensor]) -> str:
    """The first attribute of a model's modules that deepcopy refuses, in words; empty where it takes each. tensors: its memo."""
    for place, module in model.named_modules():
        for attribute, value in vars(module).items():
            if attribute in OF_MODULES:
                continue
            try:
                copy.deepcopy(value, dict(tensors))
            except Exception:
                return f"{f'{place}.{attribute}'.lstrip('.')} of its model, a {type(value).__name__},"
    return ""


def has_gradient_hooks(tensor: torch.Tensor) -> bool:
    """Whether hooks see its gradient, as it comes or once it is added to `.grad`. No copy and no pickle has them by itself."""
    return bool(tensor._backward_hooks or tensor._post_accumulate_grad_hooks)


def _attribute_tensors(model: torch.nn.Module) -> list[torch.Tensor]:
    """Tensors that are plain attributes of a model's modules, or lie in one: activations that a hook notes in a dict, states in an object."""
    return tensors_within(
        [value for module in model.modules() for name, value in vars(module).items() if name not in OF_MODULES]
    )


def tensors_within(values: list[Any]) -> list[torch.Tensor]:
    """Tensors among these objects, or in their items and attributes, whatever their classes. Modules are not looked into."""
    import torch

    not_entered = (torch.nn.Module, type, types.ModuleType, types.FunctionType, str)
    tensors, seen = [], set()
    to_visit = [*values]
    while to_visit:
        value = to_visit.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif isinstance(value, Mapping):
            to_visit += value.values()
        elif isinstance(value, (list, tuple, set)):
            to_visit += value
        elif not isinstance(value, not_entered):
            to_visit += getattr(value, "__dict__", {}).values()
            if is_dataclass(value):  # it may have slots alone
                to_visit += [getattr(value, one.name) for one in fields(value) if hasattr(value, one.name)]
    return tensors
