"""Objects that another process is to have: which may be written for it, and how it reads them.

Functions and classes of a script or a notebook are pickled by value (cloudpickle), those of other modules by name.
"""

from __future__ import annotations

import inspect
import io
import itertools
import pickle
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import cloudpickle
import torch

from rung.errors import UsageError, first_line
from rung.workload.copy_model import copy_model, has_gradient_hooks


@dataclass(frozen=True)
class Copies:
    """Makes a fresh copy of a model at every call; of what a function makes, where that may be the same object every time."""

    original: torch.nn.Module | Callable[[], torch.nn.Module]

    def __call__(self) -> torch.nn.Module:
        return copy_model(self.original if isinstance(self.original, torch.nn.Module) else self.original())


def check_picklable(values: Mapping[str, Any]) -> bool:
    """Checks all that would be written, part by part, and raises UsageError where it should not be. Returns whether the function
    that makes the model refers to one, which it may return at every call."""
    make = values["model"]
    checked = _Checker("model", make)
    if isinstance(make, Copies) and isinstance(make.original, torch.nn.Module):
        checked.allow(make.original.modules())
    checked.run()
    for name, value in values.items():
        if name != "model":
            _Checker(name, value, checked.modules).run()
    return bool(checked.modules) and not isinstance(make, Copies)


class _Checker(cloudpickle.Pickler):
    """Pickles one part of a workload to nowhere, and checks each of its objects. model: modules that only a model may refer to."""

    def __init__(self, part: str, value: Any, model: Mapping[int, torch.nn.Module] | None = None) -> None:
        super().__init__(io.BytesIO())
        self._part, self._value, self._model = part, value, model
        self._weights = {id(t) for m in (model or {}).values() for t in m.parameters(recurse=False)}
        self._moved: set[int] = set()  # storages that go to the device of the model
        self.modules: dict[int, torch.nn.Module] = {}

    def run(self) -> None:
        try:
            self.dump(self._value)
        except UsageError:
            raise
        except Exception as error:  # of pickling, whatever an object's own code raises
            raise UsageError(
                f"{self._part}= cannot be written for the processes of a climb: {first_line(error)}; put the function that makes it into "
                'a file, with one that returns the rung.Workload, and climb that, as rung.climb("model.py:make").'
            ) from error

    def allow(self, modules: Iterable[torch.nn.Module]) -> None:
        """These modules' weights and buffers are read on the CPU, and moved with the model."""
        for module in modules:
            self.modules[id(module)] = module
            tensors = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
            if empty := next((name for name, tensor in tensors if tensor.is_meta), None):
                raise UsageError(
                    f"the model has no values for {empty}, which is on the device meta: load or initialize it first."
                )
            if watched := next((name for name, tensor in tensors if has_gradient_hooks(tensor)), None):
                raise UsageError(
                    f"the model has a hook on the gradient of {watched}, which its copies in the processes of a climb would lack: put a function "
                    'that makes the model, with its hooks, into a file, and climb that, as rung.climb("model.py:make").'
                )
            self._moved |= {tensor.untyped_storage()._cdata for _, tensor in tensors}

    def persistent_id(self, value: Any) -> str | None:
        """Called with every object."""
        if isinstance(value, (torch.UntypedStorage, torch.storage.TypedStorage)):
            return "storage"  # its numbers are not looked at
        if isinstance(value, torch.nn.Module):
            if self._model and id(value) in self._model:
                self._refuse_model(value)
            if self._part == "model":
                self.allow([value])
        if isinstance(value, torch.Tensor):
            if id(value) in self._weights:
                self._refuse_model(value)
            if value.device.type != "cpu" and not self._may_be_elsewhere(value):
                self._refuse_device(value)
        return None

    def _may_be_elsewhere(self, tensor: torch.Tensor) -> bool:
        """Of a model, what moves with it; and what has no values, which is of no use to the model at hand, either."""
        if tensor.is_meta:
            return self._part == "model"
        return tensor.untyped_storage()._cdata in self._moved

    def _refuse_model(self, value: Any) -> None:
        raise UsageError(
            f"{self._part}= refers to {self._name_of(value) or 'something'} that is the model or a part of it, and a climb runs copies: "
            "take the model that forward is given, and the parameters that optimizer is given."
        )

    def _refuse_device(self, tensor: torch.Tensor) -> None:
        named, device = self._name_of(tensor) or "a tensor", tensor.device
        if self._part == "model":
            why = "does not move with the model: register it as a buffer, by register_buffer(name, tensor)"
        else:
            why = "is on the CPU in the processes of a climb: make it where it is used, or put it into the batch"
        raise UsageError(f"{self._part}= refers to {named} on {device}, which {why}.")

    def _name_of(self, value: Any) -> str:
        """By which a function of this part, or a module of the model, refers to it; empty where that is further down."""
        names = {name: found for module in self.modules.values() for name, found in vars(module).items()}
        if inspect.isfunction(self._value):
            variables = inspect.getclosurevars(self._value)
            names |= {**variables.globals, **variables.nonlocals}
        return next((name for name, found in names.items() if found is value), "")


_numbers = itertools.count()


class Reader(pickle.Unpickler):
    """Gives functions that were pickled by value a module of their own for their globals. Dynamo looks for what a function refers to
    in the module of that name; `__main__` is another one in a worker."""

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self._modules: dict[int, tuple[dict[str, Any], types.ModuleType]] = {}

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        if module.partition(".")[0] == "cloudpickle" and name == "_make_function":
            return lambda code, names, *rest: found(code, vars(self._module_of(names)), *rest)
        return found

    def _module_of(self, names: dict[str, Any]) -> types.ModuleType:
        if id(names) not in self._modules:
            module = types.ModuleType(f"rung_live_{next(_numbers)}")
            vars(module).update({name: value for name, value in names.items() if name != "__name__"})
            sys.modules[module.__name__] = module
            self._modules[id(names)] = names, module
        return self._modules[id(names)][1]
