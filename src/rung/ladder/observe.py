"""What one run of one batch shows, and how far two of them are apart."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from rung.hardware.device import Device
from rung.ladder.perturb import put
from rung.workload import Batch

LARGE = 300_000_000  # parameters, from which three sets of gradients do not fit beside three models
ENOUGH = 64  # elements, of which a common factor is told from chance
INTEGER_FLOOR = 0.01  # the share of integers (token ids, class numbers) that may differ because of a near tie


@dataclass(frozen=True)
class Row:
    """One quantity of one case: a candidate's error and the untouched model's own, both against the reference and over its size.

    beside: of a gradient, the median over all gradients of the case of the untouched model's error, over the size of this one.
    """

    what: str
    case: str
    error: float
    noise: float
    floor: float = 0.0
    beside: float = 0.0


@dataclass(frozen=True)
class Seen:
    """values: outputs and loss by name; gradients: by parameter, None where there is none; form: the output's
    structure, its tensors' shapes and dtypes. Those of a large model lie in the host's memory."""

    values: dict[str, torch.Tensor]
    gradients: dict[str, torch.Tensor | None]
    form: list[str]

    @property
    def finite(self) -> bool:
        tensors = [*self.values.values(), *(g for g in self.gradients.values() if g is not None)]
        return all(bool(t.isfinite().all()) for t in tensors)


def observe(step: Any, weights: dict[str, torch.Tensor] | None, batch: Batch) -> Seen:
    """Runs the step once, from these weights (None: from those that it has)."""
    if weights is not None:
        put(step.model, weights)
    _poison(step.device)
    seen = noted(step, *step(batch))
    if large(step.model) and seen.gradients and not step.plan.capture:
        # Three models with gradients and optimizers do not fit on one GPU; each step begins with fresh ones.
        step.model.zero_grad(set_to_none=True)
        step.fresh()
    return seen


def noted(step: Any, loss: torch.Tensor | None, output: Any) -> Seen:
    """What a step that has just run shows."""
    leaves, spec = pytree.tree_flatten(output)
    tensors = [t for t in leaves if isinstance(t, torch.Tensor)]
    away = large(step.model)
    values = {f"output {k}" if k else "output": _plain(t, away) for k, t in enumerate(tensors)}
    if loss is not None:
        values["loss"] = _plain(loss, away)
    gradients = {}
    if step.workload.mode == "train":
        named = {n: p.grad for n, p in step.model.named_parameters() if p.requires_grad}
        gradients = {n: None if g is None else _plain(g, away) for n, g in named.items()}
    form = [f"structure {spec}", *(f"a tensor of {tuple(t.shape)}, {t.dtype}" for t in tensors)]
    return Seen(values, gradients, form)


def _plain(t: torch.Tensor, away: bool) -> torch.Tensor:
    t = t.detach()
    if t.is_complex():
        t = torch.view_as_real(t)
    return t.to("cpu", copy=True) if away else t.clone()


def _poison(device: Device) -> None:
    """Leaves NaN in the allocator's free memory, so that what a candidate fails to write cannot look right."""
    sizes = [64, 1 << 12, 1 << 18, 1 << 23, *[1 << 24] * 4] if device.is_gpu else [64, 1 << 12, 1 << 16, 1 << 18] * 8
    with contextlib.suppress(torch.OutOfMemoryError):  # a full device has no free memory to poison
        blocks = [torch.full((n,), math.nan, device=device.torch_name) for n in sizes]
        del blocks


def large(model: torch.nn.Module) -> bool:
    return sum(p.numel() for p in model.parameters()) > LARGE


def rows(truth: Seen, mine: Seen, theirs: Seen, case: str) -> list[Row]:
    """A row for every output, the loss and every gradient that all three have; another for the scale of an output: a
    factor of 1.02 drowns in bfloat16's rounding, but rounding has next to no common factor."""
    found = []
    for name, right in truth.values.items():
        if name in theirs.values and name in mine.values:
            distance, floor = (relative, 0.0) if right.is_floating_point() else (mismatched, INTEGER_FLOOR)
            found.append(
                Row(name, case, distance(theirs.values[name], right), distance(mine.values[name], right), floor)
            )
            if right.is_floating_point() and right.numel() >= ENOUGH:
                noise = max(scale(mine.values[name], right), 0.1 * found[-1].noise)
                found.append(Row(f"scale of {name}", case, scale(theirs.values[name], right), noise))
    return found + _of_gradients(truth, mine, theirs, case)


def _of_gradients(truth: Seen, mine: Seen, theirs: Seen, case: str) -> list[Row]:
    """Sizes and errors are root mean squares: what is off by less than gradients are anywhere is no mistake, however little
    there is of it. That of a key's bias is exactly zero, because attention does not depend on it; where attention is nearly
    uniform, those of queries and keys are sums of what cancels out, in other orders."""
    off = {}
    for name, right in truth.gradients.items():
        a, b = theirs.gradients.get(name), mine.gradients.get(name)
        if right is not None and a is not None and b is not None:
            off[name] = _distance(a, right), _distance(b, right), _rms(right)
    own = sorted(noise for _, noise, _ in off.values() if math.isfinite(noise))
    median = own[len(own) // 2] if own else 0.0
    found = []
    for name, (error, noise, size) in off.items():
        size = size or median
        found.append(
            Row(f"gradient of {name}", case, _over(error, size), _over(noise, size), beside=_over(median, size))
        )
    return found


def missing(mine: Seen, theirs: Seen, case: str) -> list[str]:
    """What the baseline gives and the candidate does not, or gives in another form."""
    said = []
    if theirs.form != mine.form:
        pairs = zip([*mine.form, "nothing"], [*theirs.form, "nothing"], strict=False)
        a, b = next((a, b) for a, b in pairs if a != b)
        said.append(f"the candidate's output has another form: {b} where the baseline has {a} ({case})")
    lost = [n for n, g in mine.gradients.items() if g is not None and theirs.gradients.get(n) is None]
    if lost:
        shown = ", ".join(lost[:5]) + (f" and {len(lost) - 5} more" if len(lost) > 5 else "")
        said.append(f"{len(lost)} parameters get no gradient: {shown} ({case})")
    return said


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    """The relative L2 error of a against b; infinite where the shapes differ or a is not finite."""
    return _over(_distance(a, b), _rms(b))


def _distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """The root mean square of a - b; infinite where the shapes differ or a is not finite."""
    return _rms(a.double() - b.double()) if a.shape == b.shape and bool(a.isfinite().all()) else math.inf


def _rms(t: torch.Tensor) -> float:
    return float(t.double().norm()) / math.sqrt(t.numel()) if t.numel() else 0.0


def _over(error: float, size: float) -> float:
    return error / size if size > 0 else (0.0 if error == 0 else math.inf)


def scale(a: torch.Tensor, b: torch.Tensor) -> float:
    """How far from 1 the factor is by which a is most like b; infinite as in `relative`."""
    if a.shape != b.shape or not bool(a.isfinite().all()):
        return math.inf
    a, b = a.double().flatten(), b.double().flatten()
    size = float(b @ b)
    return abs(float(a @ b) / size - 1) if size > 0 else 0.0


def mismatched(a: torch.Tensor, b: torch.Tensor) -> float:
    """The share of the elements that differ."""
    if a.shape != b.shape:
        return math.inf
    return float((a != b).double().mean()) if a.numel() else 0.0


def same(a: Batch, b: Batch) -> bool:
    """Whether two batches are equal, bit for bit."""
    pairs = zip(pytree.tree_leaves(a), pytree.tree_leaves(b), strict=True)
    return all(
        (x.shape == y.shape and bool(torch.equal(x, y))) if isinstance(x, torch.Tensor) else x == y for x, y in pairs
    )


def identical(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Bit for bit, where NaN equals NaN."""
    return a.shape == b.shape and a.dtype == b.dtype and bool(((a == b) | ((a != a) & (b != b))).all())
