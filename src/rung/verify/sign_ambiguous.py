"""Sign-ambiguous gradients: elements so small that rounding may decide their sign. An optimizer's step there tells nothing about a candidate."""

from __future__ import annotations

import math

import torch

from rung.plan import Numerics
from rung.verify.distances import plainly
from rung.verify.host_transfers import to_host
from rung.verify.observe import large
from rung.verify.tolerance import ALLOWED, MEDIAN

# The share of a tensor's elements whose gradients are the smallest. Adam's first step is the sign of a gradient, and in so small a share the
# sign may be rounding alone: 100 times what float32 leaves undecided; and of TF32, whose gradients are off by 0.1 to 0.5 %, a few times that.
# One of 1000 elements that goes the other way in one of three steps is 3 % of all the change, and whether one does is chance.
SMALLEST_SHARE: dict[Numerics, float] = {"exact": 1 / 1000, "tf32": 1 / 100, "bf16": 1 / 1000, "fp8": 1 / 1000}
FEWEST = 100  # elements of a tensor, of which one may be left out
SAMPLE = 1 << 20  # elements of a tensor that tell which are its smallest
# Elements of a tensor, of which a single one may show: of 32, one sign that differs in one step is 14 % of the change.
FEW = 1 << 16


class SignAmbiguous:
    """The elements of every weight, as masks in `elements`, whose gradient was sign-ambiguous in some step.

    That is a gradient among the smallest SMALLEST_SHARE of its tensor. In tensors of up to FEW elements it is also one below what is allowed of
    gradients, which may be all of a tensor: ALLOWED times what the untouched model's is off by there, or times half of the median over these
    tensors. Elements without any gradient, as an embedding's unused rows, are not among them."""

    def __init__(self, numerics: Numerics = "exact") -> None:
        self.numerics = numerics
        self.elements: dict[str, torch.Tensor] = {}
        self._reference_gradients: list[dict[str, torch.Tensor]] = []  # of the tensors of up to FEW elements, by step

    def add_reference(self, model: torch.nn.Module) -> None:
        """Takes the reference's gradients, after each of its steps."""
        of_small_tensors, on_host = {}, large(model)
        for name, weight in model.named_parameters():
            grad = None if weight.grad is None else plainly(weight.grad)
            if grad is None or grad.is_sparse:
                continue
            size = grad.abs()
            if weight.numel() <= FEW:
                of_small_tensors[name] = grad.to(torch.float64, copy=True)
            if weight.numel() >= FEWEST:
                sample = size.flatten()[:: -(-size.numel() // SAMPLE)]
                sample = sample[sample > 0]
                if sample.numel():
                    limit = sample.kthvalue(math.ceil(sample.numel() * SMALLEST_SHARE[self.numerics])).values
                    self._add(name, (size > 0) & (size <= limit), on_host)
        self._reference_gradients.append(of_small_tensors)

    def add_baseline(self, model: torch.nn.Module) -> None:
        """Takes the untouched model's gradients, after each of its steps, once the reference has made all of its own."""
        reference, errors, on_host = self._reference_gradients.pop(0), {}, large(model)
        for name, weight in model.named_parameters():
            grad = None if weight.grad is None else plainly(weight.grad)
            if name in reference and grad is not None and grad.shape == reference[name].shape:
                used = reference[name] != 0
                squares = (grad.double() - reference[name])[used].square()
                errors[name] = float(squares.mean().sqrt()) if squares.numel() else 0.0
        median = sorted(errors.values())[len(errors) // 2] if errors else 0.0
        for name, error in errors.items():
            size = reference[name].abs()
            limit = ALLOWED[self.numerics] * max(error, MEDIAN * median)
            self._add(name, (size > 0) & (size <= limit), on_host)

    def _add(self, name: str, ambiguous: torch.Tensor, on_host: bool) -> None:
        ambiguous = to_host(ambiguous) if on_host else ambiguous
        self.elements[name] = ambiguous | self.elements.get(name, False)
