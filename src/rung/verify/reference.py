"""The truth that errors are measured against, and the workload in the precision in which errors show."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from rung.engine.step import Step
from rung.hardware.device import Device, matmul_precision_name, release_cache
from rung.plan import Numerics, Plan
from rung.verify.observe import Observation, observe
from rung.verify.perturb import inexact, state
from rung.verify.random_draws import SharedDraws
from rung.workload import Batch, Workload
from rung.workload.copy_model import copy_model

LOW = (torch.bfloat16, torch.float16)
DOUBLE = (torch.float64, torch.complex128)
ULP = dict.fromkeys(DOUBLE, 2.0**-52)  # of others that of float32, 2**-23


class Reference:
    """The untouched workload in float64. Where it does not run so (a model that makes float32 tensors of its own) or
    does not fit, in float32, whatever its own precision: the error of a float32 workload is then its own noise, which
    `jittered` weights show. alone: whether no other process has memory of the device; beside others, what does not fit raises.
    """

    def __init__(
        self,
        workload: Workload,
        model: nn.Module,
        device: Device,
        alone: bool = True,
        whole: Callable[[Step], Any] = lambda step: step,
        double: bool = True,
    ) -> None:
        """whole: what is run in the place of a step (`rung.verify.verify.OneProcess`); double: False where float32 is far more precise than
        what is compared with it, and takes half the memory."""
        self._workload, self._model, self._device = replace(workload, amp=None), model, device
        self._alone, self._whole = alone, whole
        self.name = "float64" if double else "float32"
        self.draws: SharedDraws | None = None  # of a workload whose forward draws random numbers
        self.step = whole(Step(self._workload, (_double if double else in_float32)(copy_model(model)), Plan(), device))

    def run(self, weights: dict[str, torch.Tensor], batch: Batch) -> Observation:
        if self.name == "float64":
            try:
                with self._replaying_draws():
                    return observe(self.step, weights, self.cast(batch))
            except torch.OutOfMemoryError:
                if not self._alone:
                    raise
            except Exception:
                pass
            self._fall_back()
        with full_precision(), self._replaying_draws():
            return observe(self.step, weights, self.cast(batch))

    def stepped(self, batch: Batch) -> Any:
        """A step on a batch of the workload's precision, from the weights that the reference has."""
        with self._replaying_draws():
            return self.step(self.cast(batch))

    def _replaying_draws(self) -> contextlib.AbstractContextManager[None]:
        return self.draws.replayed() if self.draws else contextlib.nullcontext()

    def cast(self, batch: Batch) -> Batch:
        """The batch in the reference's precision."""
        if self.name == "float64":
            return _cast(batch, _doubled)
        return _cast(batch, _raised)

    def no_more_precise(self, batch: Batch) -> bool:
        """Whether the workload runs in float64 itself, all of it, so that against this reference it has no error of its own."""
        weights = [t for t in state(self._model).values() if inexact(t)]
        if not _all_double(weights or pytree.tree_leaves(batch)):
            return False
        narrow = _Narrow()
        with contextlib.suppress(Exception), narrow:  # a workload that raises is refused elsewhere
            self._whole(Step(self._workload, copy_model(self._model), Plan(), self._device))(self.cast(batch))
        return not narrow.seen

    def _fall_back(self) -> None:
        # Outside of the handler: an exception's traceback keeps what did not fit alive.
        del self.step
        release_cache(self._device)
        self.name = "float32"
        self.step = self._whole(Step(self._workload, in_float32(copy_model(self._model)), Plan(), self._device))


def jittered(weights: dict[str, torch.Tensor], seed: int, times: float = 1.0) -> dict[str, torch.Tensor]:
    """The weights, each moved by about an ulp of float32, or of float64 if in that: what rounding alone may change shows in the
    results. times: by so much more."""
    # Where the weights are: a core of the host draws a thousand million numbers in ten seconds.
    draws = {device: torch.Generator(device).manual_seed(seed) for device in {t.device for t in weights.values()}}
    moved = {}
    for name, t in weights.items():
        if inexact(t):
            moves = torch.randn(t.shape, generator=draws[t.device], dtype=t.dtype.to_real(), device=t.device)
            t = t * (1 + 2 * times * ULP.get(t.dtype, 2.0**-23) * moves)
        moved[name] = t
    return moved


def exactly(workload: Workload) -> Workload:
    """The workload in full precision: without its own autocast, half-precision weights and inputs as float32."""

    def raised(make: Callable[[int], Batch]) -> Callable[[int], Batch]:
        return lambda seed: _cast(make(seed), _raised)

    others = tuple(raised(make) for make in workload.other_shapes)
    return replace(
        workload,
        amp=None,
        model=lambda: in_float32(workload.model()),
        inputs=raised(workload.inputs),
        other_shapes=others,
    )


class _Narrow(TorchDispatchMode):
    """Whether anything is computed in less than float64. Single numbers are not: an optimizer counts its steps in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        tensors = (t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor) and t.dim())
        self.seen |= any(inexact(t) and t.dtype not in DOUBLE for t in tensors)
        return result


def _double(model: nn.Module) -> nn.Module:
    model.double()  # what is complex stays as it is
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_complex():
            tensor.data = tensor.data.to(torch.complex128)
    return model


def _doubled(t: torch.Tensor) -> torch.Tensor:
    return t.to(torch.complex128) if t.is_complex() else t.double() if t.is_floating_point() else t


def in_float32(model: nn.Module) -> nn.Module:
    """The model itself, its weights and buffers in 16 bits made float32."""
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.dtype in LOW:
            tensor.data = tensor.data.float()
    return model


def _raised(t: torch.Tensor) -> torch.Tensor:
    return t.float() if t.dtype in LOW else t


def own_precision(workload: Workload, model: nn.Module, device: Device) -> Numerics:
    """The precision that the untouched workload itself runs in."""
    weights = list(model.parameters())
    # Without weights it computes in the dtype of its inputs.
    tensors = weights or [t for t in pytree.tree_leaves(workload.inputs(0)) if isinstance(t, torch.Tensor)]
    if workload.amp or any(t.dtype in LOW for t in tensors):
        return "bf16"
    if not device.is_gpu or matmul_precision_name() == "highest" or _all_double(state(model).values()):
        return "exact"
    return "tf32"


def _all_double(values: Iterable[Any]) -> bool:
    """Whether there are real or complex tensors among the values, and all of them in float64."""
    are_double = [t.dtype in DOUBLE for t in values if isinstance(t, torch.Tensor) and inexact(t)]
    return bool(are_double) and all(are_double)


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    """Matrix products and convolutions in float32 proper, whatever the process was set to."""
    before = matmul_precision_name()
    torch.set_float32_matmul_precision("highest")
    try:
        with _exact_convolutions():
            yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextlib.contextmanager
def _exact_convolutions() -> Iterator[None]:
    cudnn: Any = torch.backends.cudnn
    newer = [(kind, "fp32_precision", kind.fp32_precision) for kind in _told_apart(cudnn)]
    try:
        before = [*newer, (cudnn, "allow_tf32", cudnn.allow_tf32)]
        cudnn.allow_tf32 = False
    except RuntimeError:  # torch's older setting does not know what the newer one was told
        before = newer
    try:
        for kind in _told_apart(cudnn):
            if (
                kind.fp32_precision == "tf32"
            ):  # where that is on for all backends, it is on for those that were told nothing
                kind.fp32_precision = "ieee"
        yield
    finally:
        for kind, name, value in before:
            setattr(kind, name, value)


def _told_apart(cudnn: Any) -> list[Any]:
    """What has a precision of its own in torch's newer setting (2.9)."""
    return [cudnn.conv, cudnn.rnn] if hasattr(cudnn, "conv") else []


def _cast(batch: Batch, cast: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    return pytree.tree_map(lambda t: cast(t) if isinstance(t, torch.Tensor) else t, batch)
