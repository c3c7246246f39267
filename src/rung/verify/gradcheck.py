"""Whether a backward pass uses the random numbers that its forward pass drew: a finite difference of the loss says so.

A fused kernel stores no dropout mask and draws it a second time for its backward pass. If that is another mask, gradients are distributed
as they should be, and are yet not those of the loss that was computed. `rung.verify.randomness` cannot see it.

From one seed of torch's generators every run draws the same masks, so the loss is a function of the weights. Its gradients under two seeds, g and h,
differ by what masks do. Along d, which is g - h with each parameter's part at unit length, the loss of the first seed changes at the rate <g, d>
if g is its derivative. If the backward pass drew another mask, d knows nothing of the loss' own, and the rate is less by about
<g - h, d> / 2. An error is given as a share of that: 0 for a right backward pass, about 1 where all its masks are others. One mask of many gives
its share of what all of them do to gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from rung.verify.distances import plainly, stored
from rung.verify.observe import observe
from rung.verify.perturb import perturbed, put
from rung.verify.random_draws import MANUAL_SEED
from rung.workload import Batch

SEEDS = (12, 13)  # of weights and masks: an error counts that shows on both
# Of what perturbs weights: on sharp ones masks of attention do as much as others. Where differences say nothing there, the workload's own.
STRENGTHS = (1.0, 0.0)
CHANGE = 1e-3  # of the loss, by the first step along d
MOVED = 0.01  # the most that it may be of the weights' size: farther away a loss is another
ROUNDING = 2.0**-19  # of the loss, sixteen ulp: what an error comes to has to be more
HALVINGS = 5  # of the step, where curvature or non-differentiable points are in its way
AGREE = 3  # steps, before an error is believed
PARTS = 4  # of the parameters, in their order: what is wrong in a few layers is little of what all masks do
WRONG = 0.005  # the least share that is an error
SURE = 5.0  # times as large an error has to be as what these steps differ by, and as the untouched model's

Weights = dict[str, torch.Tensor]


def other_masks(baseline: Any, candidate: Any, weights: Weights, batch: Batch) -> str | None:
    """That the candidate's backward pass uses other random numbers than its forward pass, as a sentence. None where it does not, and where that
    cannot be told: differences are not precise enough, or the untouched model's gradients are no derivative of its loss.

    baseline, candidate: training steps in full precision, random numbers drawn as they come; weights: where they begin.
    """
    try:
        return _other_masks(baseline, candidate, weights, batch)
    except torch.OutOfMemoryError:
        return None


def _other_masks(baseline: Any, candidate: Any, weights: Weights, batch: Batch) -> str | None:
    trained = [name for name, p in baseline.model.named_parameters() if p.requires_grad and name in weights]
    size = -(-len(trained) // PARTS) or 1
    parts = [trained[k : k + size] for k in range(0, len(trained), size)]
    for strength in STRENGTHS:

        def seeded(step: Any, seed: int, strength: float = strength) -> _Masked:
            put(baseline.model, weights)
            return _Masked(step, perturbed(baseline.model, seed, strength), batch, seed)

        runs = _Last(seeded)
        unknown = []
        for part in parts:
            error = _least(runs.of(candidate, seed).error(part) for seed in SEEDS)
            if math.isnan(error):
                unknown.append(part)
            elif error > WRONG:
                enough = min(WRONG, error / SURE)
                baseline_errors = [runs.of(baseline, seed).error(part, enough) for seed in SEEDS]
                if all(baseline_error <= enough for baseline_error in baseline_errors):
                    return (
                        "the candidate's backward pass uses another dropout mask, or other random numbers, than its forward pass: by finite "
                        f"differences of its loss, {error:.1%} of what they change in the gradients of {part[0]} to {part[-1]} is wrong, and "
                        f"{max(baseline_errors):.1%} in the untouched model"
                    )
        parts = unknown
    return None


class _Last:
    """Keeps the last one made: each holds as much as two models, and the next part of the parameters mostly needs the same."""

    def __init__(self, make: Callable[[Any, int], _Masked]) -> None:
        self._make = make
        self._last: tuple[Any, int, _Masked] | None = None

    def of(self, step: Any, seed: int) -> _Masked:
        if self._last is None or self._last[0] is not step or self._last[1] != seed:
            self._last = None  # frees its memory before there is another
            self._last = step, seed, self._make(step, seed)
        return self._last[2]


def _least(errors: Iterator[float]) -> float:
    """The smallest error. After one that is small enough, or NaN, no other is computed."""
    least = math.inf
    for error in errors:
        if not error > WRONG:
            return error
        least = min(least, error)
    return least


class _Masked:
    """The loss of a step as a function of its weights, under the masks of one seed; of its gradients here, how far they are from those under
    the next seed's, and what they are along that."""

    def __init__(self, step: Any, weights: Weights, batch: Batch, seed: int) -> None:
        self._step, self._weights, self._batch, self._seed = step, weights, batch, seed
        self._loss, gradients = self._run(seed)
        self._apart: Weights = {}
        self._along: dict[str, float] = {}
        for name, other in self._run(seed + 1)[1].items():
            if name in gradients:
                own = gradients.pop(name)
                self._apart[name] = apart = own - other
                self._along[name] = float((own.double() * apart).sum())

    def error(self, names: list[str], enough: float = WRONG) -> float:
        """Of the gradients of these parameters; NaN where finite differences do not tell. enough: a smaller one is not told more precisely."""
        direction: Weights = {}
        rate = expected = held = 0.0
        for name in names:
            if name not in self._apart:
                continue
            apart = self._apart[name]
            size = float(apart.norm())
            if size:
                direction[name] = apart / size
                rate += self._along[name] / size
                expected += size / 2
                held += float(self._weights[name].norm()) ** 2
        if not (expected and self._loss and math.isfinite(self._loss) and math.isfinite(expected)):
            return math.nan
        length, errors = min(CHANGE * abs(self._loss) / expected, MOVED * math.sqrt(held)), []
        for _ in range(1 + HALVINGS):
            ends = [self._at(direction, along) for along in (length, -length)]
            errors.append(((ends[0] - ends[1]) / (2 * length) - rate) / expected)
            error = abs(errors[-1])
            if error <= enough:
                return error
            if error * 2 * length * expected < ROUNDING * abs(self._loss):
                return math.nan
            if len(errors) >= AGREE and SURE * (max(errors[-AGREE:]) - min(errors[-AGREE:])) < error:
                # Numbers that do not follow the seed would make any loss another.
                again = abs(self._at({}, 0.0) - self._loss) / (length * expected)
                return error if SURE * again < error else math.nan
            length /= 2
        return math.nan

    def _run(self, seed: int) -> tuple[float, Weights]:
        """The loss, and its gradients as they are before they are clipped."""
        MANUAL_SEED(seed)
        seen = observe(self._step, self._weights, self._batch)
        gradients = {
            name: g for name, g in seen.gradients.items() if g is not None and not g.is_sparse and name in self._weights
        }
        if seen.norm is not None:
            every = [stored(g) for g in seen.gradients.values() if g is not None]  # those left out are in the norm, too
            clipped = math.sqrt(sum(float(g.double().square().sum()) for g in every))
            unclipped = float(seen.norm) / clipped if clipped else 0.0
            gradients = {name: g * unclipped for name, g in gradients.items()} if clipped else {}
        return float(seen.values["loss"]), gradients

    def _at(self, direction: Weights, length: float) -> float:
        """The loss on weights that are moved so far."""
        moved = dict(self._weights)
        for name, along in direction.items():
            moved[name] = moved[name].clone()
            plainly(moved[name]).add_(along.to(moved[name].device), alpha=length)
        MANUAL_SEED(self._seed)
        return float(observe(self._step, moved, self._batch, gradients=False).values["loss"])
