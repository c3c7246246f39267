"""Convolution weights with their channels innermost: the layout that tensor and matrix cores read without a copy.

Activations follow the weights: a convolution answers in the layout of its weight. Values, objects and the state dict stay.
"""

from __future__ import annotations

import torch

from rung.rewrites.held import held


class ChannelsLast:
    """The weights of a model's 2-D convolutions in channels-last layout, until `undo`."""

    def __init__(self, model: torch.nn.Module) -> None:
        kinds = (torch.nn.Conv2d, torch.nn.ConvTranspose2d)
        # Not `.weight`: a parametrized one is made anew by each look, and spectral norm writes to its buffers then.
        weights = [module._parameters.get("weight") for module in model.modules() if isinstance(module, kinds)]
        # A parametrized or quantised weight is made anew, or laid out, by its owner; one that others hold stays where they see it.
        self._weights = [w for w in weights if type(w) is torch.nn.Parameter and w.is_contiguous() and not held(w)]
        for weight in self._weights:
            weight.data = weight.detach().contiguous(memory_format=torch.channels_last)

    def __len__(self) -> int:
        return sum(w.is_contiguous(memory_format=torch.channels_last) for w in self._weights)

    def undo(self) -> None:
        for weight in self._weights:
            weight.data = weight.detach().contiguous()
