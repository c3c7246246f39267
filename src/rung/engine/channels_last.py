"""Convolution weights with their channels innermost: the layout that tensor and matrix cores read without a copy.

Activations follow the weights: a convolution answers in the layout of its weight. Values, objects and the state dict stay.
"""

from __future__ import annotations

import torch
from torch import nn

from rung.rewrites.held import held

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
        for weight in self._weights:
            weight.data = weight.detach().contiguous(memory_format=FORMATS[weight.dim()])

    def __len__(self) -> int:
        return sum(w.is_contiguous(memory_format=FORMATS[w.dim()]) for w in self._weights)

    def undo(self) -> None:
        for weight in self._weights:
            weight.data = weight.detach().contiguous()
