"""The running statistics of a model's batch norms, and whether these wrote to them.

A batch norm that trains writes its statistics without raising their version counters. What it does raise is its count of batches.
"""

from __future__ import annotations

import weakref

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

# Whose batch norms count every batch that they train on. Their instance norms do not.
COUNTING = ("torch", "timm")


class Count:
    """How many batches a layer has trained on, where it counts them."""

    def __init__(self, layer: nn.Module) -> None:
        own = "forward" in vars(layer) or type(layer).forward.__module__.partition(".")[0] not in COUNTING
        count = layer._buffers.get("num_batches_tracked") if isinstance(layer, _BatchNorm) and not own else None
        self._layer = weakref.ref(layer)
        # A tensor that was made in inference mode has no version.
        self._count = weakref.ref(count) if count is not None and not count.is_inference() else lambda: None

    def now(self) -> int | None:
        """Equal to what it was before as long as the layer has trained on no batch; None where that is not known (any more)."""
        layer, count = self._layer(), self._count()
        if layer is None or count is None or layer._buffers.get("num_batches_tracked") is not count:
            return None
        return int(count._version)


class Statistics:
    """The running statistics of a model, and the counts of the layers that write to them. The model is not kept alive."""

    def __init__(self, model: nn.Module | None = None) -> None:
        self._model = weakref.ref(model) if model is not None else lambda: None
        self._counts: dict[int, tuple[weakref.ref[torch.Tensor], list[Count]]] = {}

    def look(self) -> None:
        """Reads the model as it is now."""
        model, counts = self._model(), dict[int, tuple[weakref.ref[torch.Tensor], list[Count]]]()
        for layer in model.modules() if model is not None else ():
            if not isinstance(layer, _NormBase):
                continue
            count = Count(layer)
            for name in ("running_mean", "running_var"):
                if (statistic := layer._buffers.get(name)) is not None:  # it may be several layers'
                    counts.setdefault(id(statistic), (weakref.ref(statistic), []))[1].append(count)
        self._counts = counts

    def knows(self, tensor: torch.Tensor) -> bool:
        """Whether it was a statistic when the model was looked at."""
        return self._counts.get(id(tensor), (lambda: None,))[0]() is tensor

    def counts(self, tensor: torch.Tensor) -> list[Count]:
        """What goes up when a batch norm writes to this tensor; nothing where that is not known."""
        counted = self._counts[id(tensor)][1] if self.knows(tensor) else []
        return counted if all(count.now() is not None for count in counted) else []
