"""Elements of which an optimizer step says nothing: what rounding alone makes of them."""

from __future__ import annotations

import math

import torch

from rung.plan import Numerics
from rung.verify.distances import plainly
from rung.verify.host_transfers import to_host
from rung.verify.observe import large
from rung.verify.tolerance import ALLOWED, MEDIAN

# Adam's first step is the sign of a gradient, and in so small a share of a tensor the sign may be rounding alone: 100 times what
# float32 leaves undecided; and of TF32, whose gradients are off by 0.1 to 0.5 %, a few times that. One of 1000 elements that
# goes the other way in one of three steps is 3 % of all the change, and whether one does is chance.
FAINT: dict[Numerics, float] = {"exact": 1 / 1000, "tf32": 1 / 100, "bf16": 1 / 1000, "fp8": 1 / 1000}
FEWEST = 100  # elements of a tensor, of which one may be left out
SAMPLE = 1 << 20  # elements of a tensor that tell which are its faintest
# Elements of a tensor, of which a single one may show: of 32, one sign that differs in one step is 14 % of the change.
FEW = 1 << 16


class Faint:
    """Which elements of every weight had a gradient among the faintest of its tensor in some step, or, in tensors of up to FEW,
    one below what is allowed of gradients (ALLOWED times what the untouched model's is off by there, or half of the median over these
    tensors), which may be all of a tensor: what an optimizer makes of them says nothing about who computed it. What has no
    gradient at all, as an embedding's unused rows, is not among them."""

    def __init__(self, numerics: Numerics = "exact") -> None:
        self.numerics = numerics
        self.elements: dict[str, torch.Tensor] = {}
        self._steps: list[dict[str, torch.Tensor]] = []

    def look(self, model: torch.nn.Module) -> None:
        """At the reference, after each of its steps."""
        few, away = {}, large(model)
        for name, weight in model.named_parameters():
            grad = None if weight.grad is None else plainly(weight.grad)
            if grad is not None and not grad.is_sparse:
                size = grad.abs()
                if weight.numel() <= FEW:
                    few[name] = grad.to(torch.float64, copy=True)
                if weight.numel() >= FEWEST:
                    some = size.flatten()[:: -(-size.numel() // SAMPLE)]
                    some = some[some > 0]
                    if some.numel():
                        most = some.kthvalue(math.ceil(some.numel() * FAINT[self.numerics])).values
                        self._add(name, (size > 0) & (size <= most), away)
        self._steps.append(few)

    def compare(self, model: torch.nn.Module) -> None:
        """With the untouched model, after each of its steps, once the reference has made all of its own."""
        right, off, away = self._steps.pop(0), {}, large(model)
        for name, weight in model.named_parameters():
            grad = None if weight.grad is None else plainly(weight.grad)
            if name in right and grad is not None and grad.shape == right[name].shape:
                used = right[name] != 0
                error = (grad.double() - right[name])[used].square()
                off[name] = float(error.mean().sqrt()) if error.numel() else 0.0
        usual = sorted(off.values())[len(off) // 2] if off else 0.0
        for name, error in off.items():
            size = right[name].abs()
            most = ALLOWED[self.numerics] * max(error, MEDIAN * usual)
            self._add(name, (size > 0) & (size <= most), away)

    def _add(self, name: str, found: torch.Tensor, away: bool) -> None:
        found = to_host(found) if away else found
        self.elements[name] = found | self.elements.get(name, False)
