"""Linear layers that compute in 8 bits: their forward is bound to another one, everything else stays."""

from __future__ import annotations

import contextlib
import types
from collections import Counter
from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.nn import functional as F

from rung.rungs.eight_bits import fp8_format

Forward = Callable[[nn.Linear, torch.Tensor], torch.Tensor]
PROBES = 64  # rows of random inputs on which a layer in 8 bits is held against its weight
# What may be between them, of each output's size over the probes. e4m3 with a scale a row is off by 0.04, int8 by 0.01,
# with one scale for all rows some by 0.1; a row that is lost, or another's, by 1.
UNLIKE = 0.25
ALIGNED = 16  # elements: what torch._scaled_mm asks of both sizes of a weight


def suitable(model: nn.Module) -> list[nn.Linear]:
    """Plain linear layers: no subclass, no hooks, no parametrization, no weight that another module uses or that was made in
    inference mode, where nobody counts its changes, and none whose forward somebody else has bound."""
    used = Counter(id(p) for m in model.modules() for p in m._parameters.values() if p is not None)
    return [
        m
        for m in model.modules()
        if type(m) is nn.Linear
        and type(m.weight) is nn.Parameter
        and not m.weight.is_inference()
        and used[id(m.weight)] == 1
        and not any(size % ALIGNED for size in m.weight.shape)
        and not (m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or "forward" in vars(m))
    ]


class Copied:
    """A layer's weight in 8 bits and the scales of its rows, in memory that stays theirs: compiled code and recorded graphs
    read them where they lie."""

    def __init__(self, layer: nn.Linear, rounded: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]) -> None:
        self._layer, self._rounded, self._of = layer, rounded, (layer.weight, layer.bias)
        # An inference tensor could not be written to outside of inference mode.
        with torch.inference_mode(False), torch.no_grad():
            self.weight, self.scales = rounded(layer.weight.detach())
        for tensor in (self.weight, self.scales):
            torch._dynamo.mark_static_address(tensor)

    @property
    def fits(self) -> bool:
        """Whether the layer still has the parameters that it had, on their device, whatever their values."""
        weight, bias = self._layer.weight, self._layer.bias
        return weight is self._of[0] and bias is self._of[1] and weight.device == self.weight.device

    def renew(self) -> None:
        """From the layer's present weight."""
        for mine, new in zip((self.weight, self.scales), self._rounded(self._layer.weight.detach()), strict=True):
            mine.copy_(new)


class EightBits:
    """The suitable layers of a model in `kind` (`fp8` or `int8`), until `undo`. Weights are copied: the originals stay,
    and a change of theirs is not seen until `renew`. With gradients enabled, the layers compute as they always did."""

    def __init__(self, model: nn.Module, kind: str, arch: str) -> None:
        self.layers = suitable(model)
        self._copies: list[Copied] = []
        self._bound: list[types.MethodType] = []
        for layer in self.layers:
            bound, copied = fp8_forward(layer, arch) if kind == "fp8" else int8_forward(layer)
            # As a method of the layer: a deep copy of the model has it as a method of its own layer, and pickle the class's own.
            self._bound.append(types.MethodType(bound, layer))
            self._copies.append(copied)
        self._bind()

    def _bind(self) -> None:
        for layer, bound in zip(self.layers, self._bound, strict=True):
            vars(layer)["forward"] = bound

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Bound inside of it alone. Who calls the model by other ways does not ask whether the copies are still of its weights."""
        self._bind()
        try:
            yield
        finally:
            self.undo()

    def renew(self) -> bool:
        """The copies are of the present weights again, where they lie. False where layers were given other parameters: then
        nothing is changed."""
        fit = all(copied.fits for copied in self._copies)
        for copied in self._copies if fit else ():
            copied.renew()
        return fit

    def undo(self) -> None:
        for layer in self.layers:
            vars(layer).pop("forward", None)

    def unlike(self, model: nn.Module) -> list[str]:
        """Layers that do not compute what their weights say, in sentences. In the output of a whole model one row that
        is lost drowns in the rounding of all others."""
        said = []
        for name, layer in model.named_modules():
            if layer not in self.layers:
                continue
            x = torch.randn(PROBES, layer.in_features, generator=torch.Generator().manual_seed(0)).to(layer.weight)
            with torch.no_grad(), self.inside():
                right = F.linear(x.float(), *(None if t is None else t.float() for t in (layer.weight, layer.bias)))
                size = right.norm(dim=0)
                off = (layer(x).float() - right).norm(dim=0) / size.clamp(min=0.01 * float(size.mean()) + 1e-30)
            worst = int(off.argmax())
            if not float(off[worst]) <= UNLIKE:
                said.append(f"{name} is not what its weight says: row {worst} is off by {float(off[worst]):.0%}")
        return said


def fp8_forward(layer: nn.Linear, arch: str) -> tuple[Forward, Copied]:
    """x [..., K] -> [..., N] by torch._scaled_mm with a scale a row of x and a scale a row of the weight; bfloat16
    between the product and the result's dtype. Raises ValueError for an architecture without FP8 units."""
    form = fp8_format(arch)
    if form is None:
        raise ValueError(f"{arch} has no units for products in FP8")
    dtype, most = getattr(torch, form.dtype), form.most

    def rounded(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows, scales = _rows(weight, dtype, most)
        return rows.t(), scales.t().contiguous()

    copied = Copied(layer, rounded)
    transposed, across, bias = copied.weight, copied.scales, layer.bias

    def forward(self: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        # A copy of the layer has weights of its own; of no rows there is no product in 8 bits.
        if torch.is_grad_enabled() or self is not layer or not x.numel():
            return nn.Linear.forward(self, x)
        result = torch.bfloat16 if x.dtype == torch.float32 and torch.is_autocast_enabled(x.device.type) else x.dtype
        rows, down = _rows(x.reshape(-1, x.shape[-1]), dtype, most)
        # Sums of 13 bits do for factors of 3; without it, Hopper's kernels for a scale a row are slow (pytorch#147971).
        out = torch._scaled_mm(
            rows, transposed, scale_a=down, scale_b=across, out_dtype=torch.bfloat16, use_fast_accum=True
        ).to(result)
        out = out if bias is None else out + bias.to(result)
        return out.view(*x.shape[:-1], out.shape[-1])

    return forward, copied


def int8_forward(layer: nn.Linear) -> tuple[Forward, Copied]:
    """x [..., K] -> [..., N] with the weight in int8 and a scale a row, symmetric."""

    def rounded(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        wide = weight.float()
        scales = wide.abs().amax(dim=1).clamp(min=1e-12) / 127
        return (wide / scales[:, None]).round().to(torch.int8), scales

    copied = Copied(layer, rounded)
    weight, scales, bias = copied.weight, copied.scales, layer.bias

    def forward(self: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled() or self is not layer:  # a copy of the layer has weights of its own
            return nn.Linear.forward(self, x)
        out = F.linear(x, weight.to(x.dtype))
        # In float32: of scales in bfloat16, with more rows than one, Inductor makes an operation that it cannot lower
        # where the input is not a tensor yet (2.11 and 2.13, aten._weight_int8pack_mm).
        out = (out * scales).to(out.dtype)
        return out if bias is None else out + bias.to(out.dtype)

    return forward, copied


def _rows(x: torch.Tensor, dtype: torch.dtype, most: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows in 8 bits, and the float32 factor [rows, 1] that brings each back."""
    wide = x.float()
    scale = wide.abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / most
    return (wide / scale).clamp(-most, most).to(dtype), scale
