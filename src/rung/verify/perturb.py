"""Weights on which errors show.

Freshly initialised weights hide mistakes: attention is nearly uniform, so a missing mask or a zeroed projection
hardly moves the output; biases are zero and norms one, so a wrong one is invisible; activations are large
against eps; a batch norm's running mean is zero and its variance one. So a model is checked on two kinds of weights:
*sharp*, where attention decides, and *faint*, where what enters a norm is about as small as its eps.
"""

from __future__ import annotations

import math

import torch
from torch.nn.modules.batchnorm import _NormBase
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from rung.verify.distances import own_part

SHARP = 2.0  # a matrix's elements get at least this over sqrt(fan-in): attention logits of standard deviation ~4
FAINT = 0.05  # ... exactly this: activations of ~1e-4 to 1e-2, whose squares are near eps
CONSTANT = 1e-5  # times their size: numbers that are spread by less are all the same one (a noisy layer's scale), but for rounding
VARIANCE = 1e-4  # running variances on faint weights: ten times the usual eps


def perturbed(model: torch.nn.Module, seed: int, strength: float = 1.0) -> dict[str, torch.Tensor]:
    """New values for the model's floating and complex parameters, on its device, from a seed.

    Every third seed is faint, the others sharp. Vectors (biases, norm weights) are shifted by noise of 0.2 times
    `strength`; below full strength matrices keep their size, for models that are not finite otherwise.
    """
    generator = torch.Generator().manual_seed(1_000_003 + seed)
    faint = seed % 3 == 2
    values = {}
    parameters = dict(model.named_parameters())
    for name, old in state(model).items():
        new = distinct(old.detach()).clone()
        if name in parameters and inexact(old) and old.numel():
            real = torch.view_as_real(new) if new.is_complex() else new
            spread = float(real.float().std()) if old.dim() >= 2 else 0.0
            if spread < CONSTANT * float(real.float().abs().mean()):
                spread = 0.0
            if old.dim() >= 2:
                wanted = (FAINT if faint else SHARP) / math.sqrt(old.numel() / old.shape[0])
                if strength == 1 and spread > 0 and (faint or spread < wanted):
                    real *= wanted / spread
            if spread == 0:
                noise = torch.randn(real.shape, generator=generator) * (0.2 * strength)
                real += noise.to(device=real.device, dtype=real.dtype)
        values[name] = new if new.shape == old.shape else new.expand(old.shape).clone()
    if strength:
        _statistics(model, values, generator, strength, faint)
    return values


def _statistics(
    model: torch.nn.Module, values: dict[str, torch.Tensor], generator: torch.Generator, strength: float, faint: bool
) -> None:
    """Running means and variances as training would leave them: some way off zero and one, each channel's another."""
    for name, module in model.named_modules():
        mean, variance = (f"{name}.{part}".lstrip(".") for part in ("running_mean", "running_var"))
        if not isinstance(module, _NormBase) or not {mean, variance} <= set(values):
            continue
        moved = [torch.randn(values[mean].shape, generator=generator).to(values[mean]) for _ in range(2)]
        values[variance] *= (0.5 * strength * moved[0]).exp() * (VARIANCE if faint and strength == 1 else 1.0)
        values[mean] += 0.5 * strength * moved[1] * values[variance].sqrt()


def state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by name, tied ones once; also those that the state dict leaves out. Quantised and other wrapped
    tensors stay as the workload makes them: few operations are defined on them, and noise is not among them. Of those that ranks share out,
    this rank's parts."""
    held = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    own = {name: own_part(t) for name, t in held.items()}
    return {name: tensor for name, tensor in own.items() if not is_traceable_wrapper_subclass(tensor)}


def unlike(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Weights that have little to do with the model's, of the same numbers."""
    parameters = dict(model.named_parameters())
    values = {name: old.detach().clone() for name, old in state(model).items()}
    return {name: moved_on(t) if name in parameters else t for name, t in values.items()}


def moved_on(t: torch.Tensor) -> torch.Tensor:
    """Of floats, the same numbers, each one element further on."""
    return t.reshape(-1).roll(1).view(t.shape) if inexact(t) else t


def inexact(t: torch.Tensor) -> bool:
    """Whether it holds numbers that rounding moves: real or complex ones. Those of one byte (float8) are codes that somebody chose, and
    torch computes with none of them."""
    return bool((t.is_floating_point() and t.element_size() > 1) or t.is_complex())


def put(model: torch.nn.Module, values: dict[str, torch.Tensor]) -> None:
    """Copies the values into the model in place: a captured graph goes on reading the same memory. A buffer that a forward has resized, as
    observers of quantization do, is given its size back."""
    buffers = dict(model.named_buffers())
    with torch.no_grad():
        for name, tensor in state(model).items():
            if tensor.shape != values[name].shape and name in buffers:
                tensor.resize_(values[name].shape)
            held = distinct(tensor)
            held.copy_(values[name] if held is tensor else values[name][tuple(slice(n) for n in held.shape)])


def distinct(t: torch.Tensor) -> torch.Tensor:
    """The tensor itself; of an expanded one, whose elements are the same memory along a dimension, the first there."""
    if t.layout == torch.strided:
        for dim, (stride, size) in enumerate(zip(t.stride(), t.shape, strict=True)):
            if not stride and size > 1:
                t = t.narrow(dim, 0, 1)
    return t
