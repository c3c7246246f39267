"""Random numbers of a model, drawn by a GPU.

Most of the time in which a model is made goes into random numbers, which torch draws on one core: 17 of the 18 s of a model of 596 M
parameters. So a GPU draws them where there is one. The model stays on the CPU meanwhile, as its author has it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

LARGE = 1 << 20  # numbers; fewer are drawn where they are
DRAWS = (torch.ops.aten.normal_.default, torch.ops.aten.uniform_.default)  # what torch.nn.init draws


class RandomOn(TorchDispatchMode):
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
