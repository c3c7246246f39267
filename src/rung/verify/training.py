"""What a few optimizer steps change of the weights, and an optimizer's settings: where a candidate's optimizer differs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from rung.hardware.device import Device
from rung.verify.distances import finite, kinds, over, pieces, plainly
from rung.verify.host_transfers import to_host
from rung.verify.observe import Row, identical, large
from rung.verify.perturb import inexact, put, state
from rung.verify.sign_ambiguous import SignAmbiguous
from rung.workload import Batch

# Settings of an optimizer that say how it computes, not what.
IMPLEMENTATION = {"params", "fused", "foreach", "capturable", "lr"}
SHARE = 0.1  # of a GPU's free memory: the most that the weights between steps take there; moving them takes longer than the steps
# Fewer elements of a weight are few: their steps may all cancel out by chance, as those of one and of two did. More are measured by their own
# change. Unused rows of an embedding may be all that is left, and their decay is next to nothing beside the steps of used ones.
FEW_LEFT = 32
# The weights at which step k begins, in the workload's precision; None: where the step before it ended.
Start = Callable[[int], dict[str, torch.Tensor] | None]


class Path:
    """The weights between the reference's steps. The steps of all others begin there, too. Without that, one element whose
    first sign is rounding alone moves all that comes after it. That is so for large models, whose weights are not kept. Counters are everyone's own."""

    def __init__(self, weights: dict[str, torch.Tensor], steps: int, device: Device) -> None:
        self._weights = [weights]
        size = steps * sum(t.numel() * t.element_size() for t in weights.values())
        fits = device.is_gpu and size < SHARE * torch.cuda.mem_get_info(device.index)[0]
        self._device = device.torch_name if fits else "cpu"

    def keep(self, model: torch.nn.Module) -> None:
        """Takes the reference's weights, after each of its steps."""
        if not large(model):
            first, after = self._weights[0], state(model).items()
            rounded = {n: t.detach().to(first[n].dtype, copy=True) for n, t in after if inexact(t)}
            self._weights.append({n: t.to(self._device) for n, t in rounded.items()})

    def start(self, k: int) -> dict[str, torch.Tensor] | None:
        return self._weights[k] if k < len(self._weights) else None


@dataclass(frozen=True)
class Training:
    """`count` optimizer steps, the k-th on `batch(k)` and from given weights, the last of them at half the learning rate. buffers: whether their
    changes are compared, too."""

    count: int
    batch: Callable[[int], Batch]
    device: Device
    buffers: bool = True

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
        changes: dict[str, torch.Tensor] = {}
        before: dict[str, torch.Tensor] = {}
        given = start(0)
        for k in range(self.count):
            if given is not None:
                put(step.model, {**state(step.model), **given})
                before = given
            last = k == self.count - 1
            if last:
                _halve_learning_rate(step.optimizer)
            run(step, self.batch(k))
            after(step.model)
            given = None if last else start(k + 1)
            if last or given is not None:
                self._add(changes, before, step.model)
        if large(step.model):
            step.model.zero_grad(set_to_none=True)
            step.fresh()
        return changes

    def _add(self, changes: dict[str, torch.Tensor], before: dict[str, torch.Tensor], model: torch.nn.Module) -> None:
        """Adds what one step changed to the changes."""
        on_host = large(model)
        for name, t in self._compared(model):
            if not inexact(t):
                continue
            for what, moved in _moved(name, plainly(before[name].to(t.device)), plainly(t)).items():
                moved = to_host(moved) if on_host else moved
                changes[what] = _total(changes[what], moved) if what in changes else moved

    def _compared(self, model: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
        return [(name, t) for name, t in state(model).items() if self.buffers or isinstance(t, torch.nn.Parameter)]

    def rows(
        self,
        reference: dict[str, torch.Tensor],
        baseline: dict[str, torch.Tensor],
        candidate: dict[str, torch.Tensor],
        ambiguous: SignAmbiguous,
    ) -> list[Row]:
        """A row for every weight that changes, without its sign-ambiguous elements.

        An error is a share of what the elements that are left change. Where few are left, their steps may cancel out. There it is a share of
        what all elements change, if that is more. Below full precision the untouched model's error is of all elements: those that are
        left out were chosen by its own errors, and without them it would be off by less than by chance. What is left out is at least
        finite, and no larger than twice the largest change there is.
        """
        compared, device = [], self.device.torch_name
        limit = 2 * max(
            (float(x.abs().max()) for t in reference.values() for (x,) in pieces(t, device=device) if x.numel()),
            default=0.0,
        )
        for name, right in reference.items():
            if name not in candidate:  # whether what is infinite stays so is asked where the shape stays
                why = f"the candidate's steps leave another shape than the untouched model's, so there are no {name}"
                compared.append(self._row(name, math.inf, 0.0, why))
                continue
            left_out = ambiguous.elements.get(name)
            changes = _Changes.of(right, baseline[name], candidate[name], left_out, limit, device)
            if changes.moves:
                compared.append(self._row_of(name, changes, full_precision=ambiguous.numerics == "exact"))
        return compared

    def _row_of(self, name: str, changes: _Changes, full_precision: bool) -> Row:
        size = max(changes.size, changes.size_of_all) if changes.left < FEW_LEFT else changes.size
        error, noise = over(changes.error, size), over(changes.noise, size)
        if not full_precision:
            noise = max(noise, over(changes.noise_of_all, changes.size_of_all))
        why = self._why(name, changes) if changes.finite else ""
        return self._row(name, math.inf if changes.too_large else error, noise, why)

    def _row(self, name: str, error: float, noise: float, why: str) -> Row:
        return Row(f"change of {name} over {self.count} steps", "optimizer steps", error, noise, why=why)

    def _why(self, name: str, changes: _Changes) -> str:
        """What an infinite error of a change means that is finite itself."""
        if changes.too_large and changes.size_of_all:
            return f"change of {name} is more than twice the largest change in the untouched model"
        what = f"elements of {name}" if changes.size_of_all else name
        return f"the candidate changes {what} over {self.count} steps, but the untouched model does not"

    def other_integers(self, baseline: torch.nn.Module, candidate: torch.nn.Module) -> list[str]:
        """A sentence for every integer or boolean tensor, as a counter, that the candidate's steps leave different."""
        after = state(candidate)
        return [
            f"after {self.count} steps the candidate's {n} differs from the baseline's"
            for n, t in self._compared(baseline)
            if not inexact(t) and not identical(t, after[n])
        ]


def _moved(name: str, before: torch.Tensor, after: torch.Tensor) -> dict[str, torch.Tensor]:
    """What a step changes, in float64. An observer of quantization begins at an infinite range, or at none, and a running minimum at infinity. The
    change of such elements is what the step leaves, and whether they are infinite still."""
    if before.shape != after.shape:
        return {name: after.double()}
    if finite(before):
        return {name: after.double() - before.double()}
    infinite = ~before.isfinite()
    moved = after.double() - before.double().masked_fill(infinite, 0.0)
    stays = infinite & ~after.isfinite()
    return {name: moved.masked_fill(stays, 0.0), f"infinite elements of {name}": kinds(after) - kinds(before)}


def _total(so_far: torch.Tensor, moved: torch.Tensor) -> torch.Tensor:
    """The sum of what two steps change; where they leave different shapes, both changes one behind the other."""
    return so_far + moved if so_far.shape == moved.shape else torch.cat([so_far.flatten(), moved.flatten()])


@dataclass
class _Changes:
    """How far apart the changes of a weight are. Errors and sizes are root mean squares.

    error, noise: of the candidate's and the untouched model's change, against the reference's, without the elements that are left out.
    size: of the reference's change, without these. noise_of_all, size_of_all: with these.
    moves: whether the reference or the candidate changes any element.
    left: how many elements are not left out.
    finite: whether all of the candidate's changes are.
    too_large: whether an element that was left out is larger than `limit`."""

    error: float
    noise: float
    size: float
    noise_of_all: float
    size_of_all: float
    moves: bool
    left: int
    finite: bool
    too_large: bool

    @classmethod
    def of(
        cls,
        reference: torch.Tensor,
        baseline: torch.Tensor,
        candidate: torch.Tensor,
        left_out: torch.Tensor | None,
        limit: float,
        device: str,
    ) -> _Changes:
        if candidate.shape != reference.shape:
            return cls(math.inf, 0.0, 1.0, 0.0, 1.0, moves=True, left=0, finite=True, too_large=False)
        masks = [] if left_out is None or left_out.shape != reference.shape else [left_out]
        squares, finite, moves, within, left = [0.0] * 5, [True] * 4, False, True, reference.numel()
        for r, b, c, *mask in pieces(reference, baseline, candidate, *masks, device=device):
            left -= int(mask[0].sum()) if mask else 0
            kept_r, kept_b, kept_c = (t.masked_fill(mask[0], 0.0) if mask else t for t in (r, b, c))
            differences = (kept_c - kept_r, kept_b - kept_r, kept_r, b - r, r)
            squares = [so_far + float(t.square().sum()) for so_far, t in zip(squares, differences, strict=True)]
            checked = (kept_c, kept_b, b, c)
            finite = [so_far and bool(t.isfinite().all()) for so_far, t in zip(finite, checked, strict=True)]
            moves = moves or bool(r.any()) or bool(c.any())
            within = within and bool(((c.abs() <= limit) | (c == kept_c)).all())
        counts = [left, left, left, reference.numel(), reference.numel()]
        means = (total / max(1, count) for total, count in zip(squares, counts, strict=True))
        error, noise, size, noise_of_all, size_of_all = map(math.sqrt, means)
        error, noise, noise_of_all = (
            root if ok else math.inf for root, ok in zip((error, noise, noise_of_all), finite, strict=False)
        )
        return cls(
            error,
            noise,
            size,
            noise_of_all,
            size_of_all,
            moves=moves,
            left=left,
            finite=finite[3],
            too_large=not within,
        )


def changed_optimizer_settings(baseline: Any, candidate: Any) -> list[str]:
    """A sentence for every setting of the candidate's optimizer that is not the workload's own: three steps may hardly show it."""
    failures = []
    for own, other in zip(_groups(baseline), _groups(candidate), strict=False):
        failures += [
            f"the candidate's optimizer has {k} = {other.get(k)}, but the baseline's has {own[k]}"
            for k in own
            if k not in IMPLEMENTATION and k in other and own[k] != other[k]
        ]
        if len(own["params"]) != len(other["params"]):
            failures.append(
                f"the candidate's optimizer steps {len(other['params'])} parameters, but the baseline's steps {len(own['params'])}"
            )
    return failures


def _groups(optimizer: Any) -> list[dict[str, Any]]:
    """An optimizer's parameter groups. Empty where there is no optimizer, or one that is not torch's."""
    return getattr(optimizer, "param_groups", [])


def _halve_learning_rate(optimizer: Any) -> None:
    """As a scheduler would: a rate that was built into compiled code shows."""
    for group in _groups(optimizer):
        if group.get("lr") is not None:  # some optimizers find their own
            group["lr"] = group["lr"] / 2
