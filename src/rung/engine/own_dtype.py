"""Results in the dtype in which a model gives them by itself, where autocast computes them."""

from __future__ import annotations

from typing import Any

import torch

from rung.engine.parts import on_tensors


class OwnDtype:
    """The dtype of a model's weights: of its first parameter that is a floating-point number."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model, self._path, self._name = model, tuple[str, ...](), ""
        self.dtype = torch.float32

    def look(self) -> torch.dtype:
        """Before each call: the model may have been given another dtype since the last. It goes where the parameter was, because a
        walk over all modules takes longer than a small model."""
        module: torch.nn.Module | None = self._model
        for name in self._path:
            module = module._modules.get(name) if module is not None else None
        found = module._parameters.get(self._name) if module is not None else None
        if found is None or not found.is_floating_point():
            found = self._search()
        self.dtype = torch.float32 if found is None else found.dtype
        return self.dtype

    def _search(self) -> torch.nn.Parameter | None:
        for name, parameter in self._model.named_parameters():
            if parameter.is_floating_point():
                *path, self._name = name.split(".")
                self._path = tuple(path)
                return parameter
        return None


def cast_back(output: Any, dtype: torch.dtype) -> Any:
    """The output as the model gives it outside autocast; gradients flow through the cast."""
    if dtype == torch.bfloat16:
        return output
    return on_tensors(lambda t: t.to(dtype) if t.dtype == torch.bfloat16 else t, output)
