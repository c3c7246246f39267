"""Convolution weights with their channels innermost: the layout that tensor and matrix cores read without a copy.

Activations follow the weights: a convolution answers in the layout of its weight. Values, objects and the state dict stay.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import nn

from rung.rewrites.joined import held

KINDS = (nn.Conv2d, nn.ConvTranspose2d, nn.Conv3d, nn.ConvTranspose3d)
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}  # by the dimensions of a weight


def contiguous_weights(model: nn.Module) -> list[nn.Parameter]:
    """The weights of a model's 2-D and 3-D convolutions that lie in the usual layout and are its own to lay out."""
    # Not `.weight`: a parametrized one is made anew by each look, and spectral norm writes to its buffers then.
    weights = [module._parameters.get("weight") for module in model.modules() if isinstance(module, KINDS)]
    # A parametrized or quantised weight is made anew, or laid out, by its owner; one that others hold stays where they see it.
    return [w for w in weights if type(w) is nn.Parameter and w.is_contiguous() and not held(w)]


class ChannelsLast:
    """The weights of a model's convolutions in channels-last layout, until `undo`."""

    def __init__(self, model: nn.Module) -> None:
        self._weights = contiguous_weights(model)
        self._optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        for weight in self._weights:
            weight.data = weight.detach().contiguous(memory_format=FORMATS[weight.dim()])

    def __len__(self) -> int:
        return sum(w.is_contiguous(memory_format=FORMATS[w.dim()]) for w in self._weights)

    def follow(self, optimizer: torch.optim.Optimizer) -> None:
        """Has an optimizer's states lie as the weights do: torch's fused steps read both in one order, and say nothing where they have
        two. What is loaded is laid out anew. What is saved is in the usual layout, for programs that have their weights in it."""
        self._optimizers.add(optimizer)
        self._lay_out(optimizer)
        optimizer.register_load_state_dict_post_hook(self._lay_out)
        optimizer.register_state_dict_post_hook(self._saved)

    def undo(self) -> None:
        for weight in self._weights:
            weight.data = weight.detach().contiguous()
        for optimizer in self._optimizers:
            self._lay_out(optimizer)

    def _lay_out(self, optimizer: torch.optim.Optimizer) -> None:
        for weight in self._weights:
            state = optimizer.state.get(weight, {})
            for name, value in state.items():
                if _is_as_large(value, weight) and value.stride() != weight.stride():
                    state[name] = torch.empty_like(weight, dtype=value.dtype, device=value.device).copy_(value)

    def _saved(self, optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> dict[str, Any]:
        ours = {id(v) for w in self._weights for v in optimizer.state.get(w, {}).values() if _is_as_large(v, w)}
        states = {
            key: {name: value.contiguous() if id(value) in ours else value for name, value in state.items()}
            for key, state in saved["state"].items()
        }
        return {**saved, "state": states}


def _is_as_large(value: Any, weight: nn.Parameter) -> bool:
    return isinstance(value, torch.Tensor) and value.shape == weight.shape
