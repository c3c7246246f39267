"""What a few optimizer steps do to the weights, and what an optimizer was told: where a candidate's optimizer is another."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from rung.hardware.device import Device
from rung.ladder.observe import Row, identical, large, relative
from rung.ladder.perturb import put, state
from rung.ladder.plan import Numerics
from rung.ladder.tolerance import ALLOWED, MEDIAN
from rung.workload import Batch

# Settings of an optimizer that say how it computes, not what.
HOW = {"params", "fused", "foreach", "capturable", "lr"}
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
            if weight.grad is not None and not weight.grad.is_sparse:
                size = weight.grad.detach().abs()
                if weight.numel() <= FEW:
                    few[name] = weight.grad.detach().to(torch.float64, copy=True)
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
            if name in right and weight.grad is not None and weight.grad.shape == right[name].shape:
                used = right[name] != 0
                error = (weight.grad.detach().double() - right[name])[used].square()
                off[name] = float(error.mean().sqrt()) if error.numel() else 0.0
        usual = sorted(off.values())[len(off) // 2] if off else 0.0
        for name, error in off.items():
            size = right[name].abs()
            most = ALLOWED[self.numerics] * max(error, MEDIAN * usual)
            self._add(name, (size > 0) & (size <= most), away)

    def _add(self, name: str, found: torch.Tensor, away: bool) -> None:
        found = found.to("cpu") if away else found
        self.elements[name] = found | self.elements.get(name, False)

    def left_out(self, name: str, *changes: torch.Tensor) -> list[torch.Tensor]:
        """The changes of a weight without these elements."""
        faint = self.elements.get(name)
        if faint is None or any(change.shape != faint.shape for change in changes):
            return list(changes)
        return [change.masked_fill(faint.to(change.device), 0.0) for change in changes]


# The weights at which step k begins, in the workload's precision; None: where the step before it ended.
Start = Callable[[int], dict[str, torch.Tensor] | None]


class Path:
    """The weights between the reference's steps, at which the steps of all others begin, too. Without that, one element whose
    first sign is rounding alone moves all that comes after it; so it is for large models. Counters are everyone's own."""

    def __init__(self, weights: dict[str, torch.Tensor]) -> None:
        self._weights = [weights]

    def keep(self, model: torch.nn.Module) -> None:
        """At the reference, after each of its steps."""
        if not large(model):
            first, found = self._weights[0], state(model).items()
            self._weights.append(
                {n: t.detach().to("cpu", first[n].dtype, copy=True) for n, t in found if t.is_floating_point()}
            )

    def start(self, k: int) -> dict[str, torch.Tensor] | None:
        return self._weights[k] if k < len(self._weights) else None


@dataclass(frozen=True)
class Training:
    """`count` optimizer steps, the k-th on `batch(k)` and from given weights, the last of them at half the learning rate."""

    count: int
    batch: Callable[[int], Batch]
    device: Device

    def change(
        self,
        step: Any,
        start: Start,
        run: Callable[[Any, Batch], Any] = lambda step, batch: step(batch),
        after: Callable[[torch.nn.Module], None] = lambda model: None,
    ) -> dict[str, torch.Tensor]:
        """Of every weight, what all steps together change, in float64: those of a large model lie in the host's memory.
        after: is shown the model after every step, its gradients still in place."""
        step.fresh()
        found: dict[str, torch.Tensor] = {}
        before: dict[str, torch.Tensor] = {}
        given = start(0)
        for k in range(self.count):
            if given is not None:
                put(step.model, {**state(step.model), **given})
                before = given
            last = k == self.count - 1
            if last:
                _slower(step.optimizer)
            run(step, self.batch(k))
            after(step.model)
            given = None if last else start(k + 1)
            if last or given is not None:
                self._add(found, before, step.model)
        if large(step.model):
            step.model.zero_grad(set_to_none=True)
            step.fresh()
        return found

    def _add(self, found: dict[str, torch.Tensor], before: dict[str, torch.Tensor], model: torch.nn.Module) -> None:
        where = "cpu" if large(model) else self.device.torch_name
        for name, t in state(model).items():
            if t.is_floating_point():
                moved = (t.detach().double() - before[name].to(t.device).double()).to(where)
                found[name] = found[name] + moved if name in found else moved

    def rows(
        self,
        truth: dict[str, torch.Tensor],
        mine: dict[str, torch.Tensor],
        theirs: dict[str, torch.Tensor],
        faint: Faint,
    ) -> list[Row]:
        """A row for every weight that changes, without the elements that are told by rounding alone.

        Below full precision the untouched model's error is of all elements: those that are left out were chosen by its own errors, and
        without them it would be off by less than by chance. What is left out is at least finite, and no larger than twice the
        largest change there is.
        """
        found = []
        most = 2 * max((float(t.abs().max()) for t in truth.values() if t.numel()), default=0.0)
        for name, right in truth.items():
            if bool(right.any()) or bool(theirs[name].any()):
                told, own, other = faint.left_out(name, right, mine[name], theirs[name])
                error, noise = relative(other, told), relative(own, told)
                if not bool(((theirs[name].abs() <= most) | (theirs[name] == other)).all()):
                    error = math.inf
                if faint.numerics != "exact":
                    noise = max(noise, relative(mine[name], right))
                found.append(Row(f"change of {name} over {self.count} steps", "optimizer steps", error, noise))
        return found

    def other_integers(self, baseline: torch.nn.Module, candidate: torch.nn.Module) -> list[str]:
        """Of what is no floating-point number, as counters are, what the candidate's steps left otherwise."""
        theirs = state(candidate)
        return [
            f"after {self.count} steps the candidate's {n} is another than the baseline's"
            for n, t in state(baseline).items()
            if not t.is_floating_point() and not identical(t, theirs[n])
        ]


def other_settings(mine: Any, theirs: Any) -> list[str]:
    """What an optimizer was told that the workload's own was not: three steps may hardly show it."""
    if mine is None or theirs is None:
        return []
    said = []
    for a, b in zip(mine.param_groups, theirs.param_groups, strict=False):
        said += [f"the candidate's optimizer has {k} = {b.get(k)}, the baseline's {a[k]}"
                 for k in a if k not in HOW and k in b and a[k] != b[k]]  # fmt: skip
        if len(a["params"]) != len(b["params"]):
            said.append(
                f"the candidate's optimizer steps {len(b['params'])} parameters, the baseline's {len(a['params'])}"
            )
    return said


def _slower(optimizer: Any) -> None:
    """Half the learning rate, as a scheduler would set it: a rate that was built in shows."""
    for group in optimizer.param_groups:
        if group.get("lr") is not None:  # some find their own
            group["lr"] = group["lr"] / 2
