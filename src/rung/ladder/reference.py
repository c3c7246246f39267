"""The truth that errors are measured against, and the workload in the precision in which errors show."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from rung.hardware.device import Device, matmul_precision_name
from rung.ladder.observe import Seen, observe
from rung.ladder.plan import Numerics, Plan
from rung.ladder.step import Step
from rung.workload import Batch, Workload

LOW = (torch.bfloat16, torch.float16)
ULP = 2.0**-23  # of float32


class Reference:
    """The untouched workload in float64. Where it does not run so (a model that makes float32 tensors of its own) or
    does not fit, in float32, whatever its own precision: the error of a float32 workload is then its own noise, which
    `jittered` weights show.
    """

    def __init__(self, workload: Workload, model: nn.Module, device: Device) -> None:
        self._workload, self._model, self._device = replace(workload, amp=None), model, device
        self.name = "float64"
        self.step = Step(self._workload, copy.deepcopy(model).double(), Plan(), device)

    def run(self, weights: dict[str, torch.Tensor], batch: Batch) -> Seen:
        if self.name == "float64":
            with contextlib.suppress(Exception):
                return observe(self.step, weights, self.cast(batch))
            self._fall_back()
        with full_precision():
            return observe(self.step, weights, self.cast(batch))

    def cast(self, batch: Batch) -> Batch:
        """The batch in the reference's precision."""
        if self.name == "float64":
            return _cast(batch, lambda t: t.double() if t.is_floating_point() else t)
        return _cast(batch, _raised)

    def _fall_back(self) -> None:
        # Outside of the handler: an exception's traceback keeps what did not fit alive.
        del self.step
        if self._device.is_gpu:
            torch.cuda.empty_cache()
        self.name = "float32"
        self.step = Step(self._workload, _raise(copy.deepcopy(self._model)), Plan(), self._device)


def jittered(weights: dict[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
    """The weights, each moved by about an ulp of float32: what rounding alone may change shows in the results."""
    generator = torch.Generator().manual_seed(seed)
    moved = {}
    for name, t in weights.items():
        if t.is_floating_point():
            t = t * (1 + 2 * ULP * torch.randn(t.shape, generator=generator).to(t.device, t.dtype))
        moved[name] = t
    return moved


def exactly(workload: Workload) -> Workload:
    """The workload in full precision: without its own autocast, half-precision weights and inputs as float32."""

    def raised(make: Callable[[int], Batch]) -> Callable[[int], Batch]:
        return lambda seed: _cast(make(seed), _raised)

    others = tuple(raised(make) for make in workload.other_shapes)
    return replace(
        workload, amp=None, model=lambda: _raise(workload.model()), inputs=raised(workload.inputs), other_shapes=others
    )


def _raise(model: nn.Module) -> nn.Module:
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.dtype in LOW:
            tensor.data = tensor.data.float()
    return model


def _raised(t: torch.Tensor) -> torch.Tensor:
    return t.float() if t.dtype in LOW else t


def own_precision(workload: Workload, model: nn.Module, device: Device) -> Numerics:
    """The precision that the untouched workload itself runs in."""
    if workload.amp or any(p.dtype in LOW for p in model.parameters()):
        return "bf16"
    return "tf32" if device.is_gpu and matmul_precision_name() != "highest" else "exact"


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    """Matrix products and convolutions in float32 proper, whatever the process was set to."""
    before = matmul_precision_name(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def _cast(batch: Batch, cast: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    return pytree.tree_map(lambda t: cast(t) if isinstance(t, torch.Tensor) else t, batch)
