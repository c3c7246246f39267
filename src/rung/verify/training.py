"""What a few optimizer steps do to the weights, and what an optimizer was told: where a candidate's optimizer is another."""

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
HOW = {"params", "fused", "foreach", "capturable", "lr"}
SHARE = 0.1  # of a GPU's free memory, that the weights between steps may take there; moving them takes longer than the steps
# Fewer elements of a weight are few: their steps may all cancel out by chance, as those of one and of two did. More are measured by their own
# change. Unused rows of an embedding may be all that is left, and their decay is next to nothing beside the steps of used ones.
FEW_LEFT = 32
# The weights at which step k begins, in the workload's precision; None: where the step before it ended.
Start = Callable[[int], dict[str, torch.Tensor] | None]


class Path:
    """The weights between the reference's steps, at which the steps of all others begin, too. Without that, one element whose
    first sign is rounding alone moves all that comes after it; so it is for large models. Counters are everyone's own."""

    def __init__(self, weights: dict[str, torch.Tensor], steps: int, device: Device) -> None:
        self._weights = [weights]
        size = steps * sum(t.numel() * t.element_size() for t in weights.values())
        stay = device.is_gpu and size < SHARE * torch.cuda.mem_get_info(device.index)[0]
        self._where = device.torch_name if stay else "cpu"

    def keep(self, model: torch.nn.Module) -> None:
        """At the reference, after each of its steps."""
        if not large(model):
            first, found = self._weights[0], state(model).items()
            rounded = {n: t.detach().to(first[n].dtype, copy=True) for n, t in found if inexact(t)}
            self._weights.append({n: t.to(self._where) for n, t in rounded.items()})

    def start(self, k: int) -> dict[str, torch.Tensor] | None:
        return self._weights[k] if k < len(self._weights) else None


@dataclass(frozen=True)
class Training:
    """`count` optimizer steps, the k-th on `batch(k)` and from given weights, the last of them at half the learning rate. buffers: whether what
    they do to these is looked at, too."""

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
        away = large(model)
        for name, t in self._looked_at(model):
            if not inexact(t):
                continue
            for what, moved in _moved(name, plainly(before[name].to(t.device)), plainly(t)).items():
                moved = to_host(moved) if away else moved
                found[what] = _total(found[what], moved) if what in found else moved

    def _looked_at(self, model: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
        return [(name, t) for name, t in state(model).items() if self.buffers or isinstance(t, torch.nn.Parameter)]

    def rows(
        self,
        truth: dict[str, torch.Tensor],
        mine: dict[str, torch.Tensor],
        theirs: dict[str, torch.Tensor],
        ambiguous: SignAmbiguous,
    ) -> list[Row]:
        """A row for every weight that changes, without the elements that are told by rounding alone.

        An error is a share of what those that are left change. Where few are left, their steps may cancel out. There it is a share of
        what all elements change, if that is more. Below full precision the untouched model's error is of all elements: those that are
        left out were chosen by its own errors, and without them it would be off by less than by chance. What is left out is at least
        finite, and no larger than twice the largest change there is.
        """
        found, device = [], self.device.torch_name
        most = 2 * max(
            (float(x.abs().max()) for t in truth.values() for (x,) in pieces(t, device=device) if x.numel()),
            default=0.0,
        )
        for name, right in truth.items():
            if name not in theirs:  # whether what is infinite stays so is asked where the shape stays
                why = f"the candidate's steps leave another shape than the untouched model's, so there are no {name}"
                found.append(
                    Row(f"change of {name} over {self.count} steps", "optimizer steps", math.inf, 0.0, why=why)
                )
                continue
            seen = _Changes.of(right, mine[name], theirs[name], ambiguous.elements.get(name), most, device)
            if not seen.moves:
                continue
            size = max(seen.size, seen.size_of_all) if seen.left < FEW_LEFT else seen.size
            error, noise = over(seen.error, size), over(seen.noise, size)
            if ambiguous.numerics != "exact":
                noise = max(noise, over(seen.noise_of_all, seen.size_of_all))
            why = self._why(name, seen) if seen.finite else ""
            error = math.inf if seen.too_large else error
            found.append(Row(f"change of {name} over {self.count} steps", "optimizer steps", error, noise, why=why))
        return found

    def _why(self, name: str, seen: _Changes) -> str:
        """What an infinite error of a change means that is finite itself."""
        if seen.too_large and seen.size_of_all:
            return f"change of {name} is more than twice the largest change in the untouched model"
        what = f"elements of {name}" if seen.size_of_all else name
        return f"the candidate changes {what} over {self.count} steps, but the untouched model does not"

    def other_integers(self, baseline: torch.nn.Module, candidate: torch.nn.Module) -> list[str]:
        """Of what is no real or complex number, as counters are, what the candidate's steps left otherwise."""
        theirs = state(candidate)
        return [
            f"after {self.count} steps the candidate's {n} differs from the baseline's"
            for n, t in self._looked_at(baseline)
            if not inexact(t) and not identical(t, theirs[n])
        ]


def _moved(name: str, before: torch.Tensor, after: torch.Tensor) -> dict[str, torch.Tensor]:
    """What a step changes, in float64. An observer of quantization begins at an infinite range, or at none, and a running minimum at infinity: of
    such elements it is what the step leaves, and whether they are infinite still."""
    if before.shape != after.shape:
        return {name: after.double()}
    if finite(before):
        return {name: after.double() - before.double()}
    infinite = ~before.isfinite()
    moved = after.double() - before.double().masked_fill(infinite, 0.0)
    stays = infinite & ~after.isfinite()
    return {name: moved.masked_fill(stays, 0.0), f"infinite elements of {name}": kinds(after) - kinds(before)}


def _total(so_far: torch.Tensor, moved: torch.Tensor) -> torch.Tensor:
    """The sum of what steps change; of those that leave other shapes, one behind the other."""
    return so_far + moved if so_far.shape == moved.shape else torch.cat([so_far.flatten(), moved.flatten()])


@dataclass
class _Changes:
    """How far the changes of a weight are apart. Sizes are root mean squares.

    error, noise, size: of the candidate's and the untouched model's distance to the reference, and of the reference's own change, without the
    elements that rounding alone tells; noise_of_all, size_of_all: of the untouched model and the reference with these; moves: whether the
    reference or the candidate changes any element; left: how many elements are not left out; finite: whether all of the candidate's changes
    are; too_large: whether an element that was left out is larger than `most`."""

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
        right: torch.Tensor,
        own: torch.Tensor,
        other: torch.Tensor,
        ambiguous: torch.Tensor | None,
        most: float,
        device: str,
    ) -> _Changes:
        """ambiguous: the elements that are left out."""
        if other.shape != right.shape:
            return cls(math.inf, 0.0, 1.0, 0.0, 1.0, moves=True, left=0, finite=True, too_large=False)
        masks = [] if ambiguous is None or ambiguous.shape != right.shape else [ambiguous]
        squares, finite, moves, within, left = [0.0] * 5, [True] * 4, False, True, right.numel()
        for r, mine, theirs, *out in pieces(right, own, other, *masks, device=device):
            left -= int(out[0].sum()) if out else 0
            told, my_own, their_own = (t.masked_fill(out[0], 0.0) if out else t for t in (r, mine, theirs))
            apart = (their_own - told, my_own - told, told, mine - r, r)
            squares = [so_far + float(t.square().sum()) for so_far, t in zip(squares, apart, strict=True)]
            looked_at = (their_own, my_own, mine, theirs)
            finite = [so_far and bool(t.isfinite().all()) for so_far, t in zip(finite, looked_at, strict=True)]
            moves = moves or bool(r.any()) or bool(theirs.any())
            within = within and bool(((theirs.abs() <= most) | (theirs == their_own)).all())
        counts = [left, left, left, right.numel(), right.numel()]
        means = (total / max(1, count) for total, count in zip(squares, counts, strict=True))
        error, noise, size, of_all, size_of_all = map(math.sqrt, means)
        error, noise, of_all = (
            root if ok else math.inf for root, ok in zip((error, noise, of_all), finite, strict=False)
        )
        return cls(
            error, noise, size, of_all, size_of_all, moves=moves, left=left, finite=finite[3], too_large=not within
        )


def other_settings(mine: Any, theirs: Any) -> list[str]:
    """What an optimizer was told that the workload's own was not: three steps may hardly show it."""
    said = []
    for a, b in zip(_groups(mine), _groups(theirs), strict=False):
        said += [f"the candidate's optimizer has {k} = {b.get(k)}, but the baseline's has {a[k]}"
                 for k in a if k not in HOW and k in b and a[k] != b[k]]  # fmt: skip
        if len(a["params"]) != len(b["params"]):
            said.append(
                f"the candidate's optimizer steps {len(b['params'])} parameters, but the baseline's steps {len(a['params'])}"
            )
    return said


def _groups(optimizer: Any) -> list[dict[str, Any]]:
    """None where there is no optimizer, or one that is not torch's."""
    return getattr(optimizer, "param_groups", [])


def _slower(optimizer: Any) -> None:
    """Half the learning rate, as a scheduler would set it: a rate that was built in shows."""
    for group in _groups(optimizer):
        if group.get("lr") is not None:  # some find their own
            group["lr"] = group["lr"] / 2
