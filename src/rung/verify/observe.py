"""What one run of one batch shows, and how far two of them are apart."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from rung.engine.parts import parts
from rung.errors import WorkloadError
from rung.hardware.device import Device
from rung.verify.perturb import put
from rung.workload import Batch, Workload

LARGE = 300_000_000  # parameters, from which three sets of gradients do not fit beside three models
# Of an inference: the bytes of a parameter in three models, one of them in float64, and the share of the memory that they may take.
IN_THREE_MODELS, SHARE = 16, 1 / 3
ENOUGH = 64  # elements, of which a common factor is told from chance
PLAIN = (bool, int, float, complex, str, type(None))  # what is compared beside tensors
SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
GRADIENT = "gradient of "  # begins the name of what is compared of one
AT_ONCE = 1 << 24  # elements that are compared in float64 at once: a model's logits may take gigabytes
INTEGER_FLOOR = 0.01  # the share of integers (token ids, class numbers) that may differ because of a near tie


@dataclass(frozen=True)
class Row:
    """One quantity of one case: a candidate's error and the untouched model's own, both against the reference and over its size.

    beside: of a gradient, the median over all gradients of the case of the untouched model's error, over the size of this one;
    why: what an infinite error means, as a sentence, where it is not that something is not finite; kink: what kinks may change of it
    (`rung.verify.tolerance`).
    """

    what: str
    case: str
    error: float
    noise: float
    floor: float = 0.0
    beside: float = 0.0
    why: str = ""
    kink: float = 0.0


@dataclass(frozen=True)
class Seen:
    """values: outputs and loss by name; gradients: by parameter, None where there is none; form: the output's
    structure, its tensors' shapes and dtypes; plain: numbers, texts and None in the output, by where they lie; unseen: the
    classes of what else is in it. Tensors of a large model lie in the host's memory."""

    values: dict[str, torch.Tensor]
    gradients: dict[str, torch.Tensor | None]
    form: list[str]
    plain: dict[str, Any] = field(default_factory=dict)
    unseen: list[str] = field(default_factory=list)

    @property
    def finite(self) -> bool:
        tensors = [*self.values.values(), *(g for g in self.gradients.values() if g is not None)]
        return all(bool(_held(t).isfinite().all()) for t in tensors)


def observe(step: Any, weights: dict[str, torch.Tensor] | None, batch: Batch) -> Seen:
    """Runs the step once, from these weights (None: from those that it has)."""
    if weights is not None:
        put(step.model, weights)
    _poison(step.device)
    seen = noted(step, *step(batch))
    if seen.gradients and too_large(step) and not step.plan.capture:
        # Three models with gradients and optimizers do not fit on one GPU; each step begins with fresh ones.
        step.model.zero_grad(set_to_none=True)
        step.fresh()
    return seen


def noted(step: Any, loss: torch.Tensor | None, output: Any) -> Seen:
    """What a step that has just run shows."""
    held, form = parts(output)
    tensors = [t for _, t in held if isinstance(t, torch.Tensor)]
    plain = {name: value for name, value in held if isinstance(value, PLAIN)}
    unseen = [type(value).__qualname__ for _, value in held if not isinstance(value, (torch.Tensor, *PLAIN))]
    away = too_large(step)
    values = {f"output {k}" if k else "output": _copied(t, away) for k, t in enumerate(tensors)}
    if loss is not None:
        values["loss"] = _copied(loss, away)
    gradients = {}
    if step.workload.mode == "train":
        named = {n: p.grad for n, p in step.model.named_parameters() if p.requires_grad}
        gradients = {n: None if g is None else _copied(g, away) for n, g in named.items()}
    form += [f"a tensor of {tuple(t.shape)}, {t.dtype}" for t in tensors]
    return Seen(values, gradients, form, plain, unseen)


def refuse_unseen(workload: Workload, seen: Seen) -> None:
    """Raises WorkloadError where the output is made of what cannot be compared, and of nothing else."""
    training = workload.mode == "train"
    if any(name != "loss" for name in seen.values) or (training and not seen.unseen):
        return
    if not seen.unseen:
        raise WorkloadError(f"workload {workload.name!r}: its output holds no tensor, so nothing can be verified.")
    kinds = ", ".join(dict.fromkeys(seen.unseen))
    raise WorkloadError(
        f"workload {workload.name!r}: its output consists of {kinds}, which Rung cannot compare; return a dict or a dataclass, or "
        "register the type with torch.utils._pytree.register_pytree_node"
        f"{', or set Workload(output=False) to compare only loss and gradients.' if training else '.'}"
    )


def plainly(t: torch.Tensor) -> torch.Tensor:
    """The numbers of a tensor as a strided tensor of real ones, without a copy where it is one. A sparse one of more elements
    than a large model has stays sparse, each element once."""
    t = t.detach()
    if t.is_sparse:
        t = t.coalesce()
    if t.layout in SPARSE and t.numel() <= LARGE:
        t = t.to_dense()
    return torch.view_as_real(t.resolve_conj().resolve_neg()) if t.is_complex() else t.resolve_neg()


def _copied(t: torch.Tensor, away: bool) -> torch.Tensor:
    t = plainly(t)
    return t.to("cpu", copy=True) if away else t.clone()


def _held(t: torch.Tensor) -> torch.Tensor:
    return t.values() if t.is_sparse else t


def _poison(device: Device) -> None:
    """Leaves NaN in the allocator's free memory, so that what a candidate fails to write cannot look right."""
    sizes = [64, 1 << 12, 1 << 18, 1 << 23, *[1 << 24] * 4] if device.is_gpu else [64, 1 << 12, 1 << 16, 1 << 18] * 8
    with contextlib.suppress(torch.OutOfMemoryError):  # a full device has no free memory to poison
        blocks = [torch.full((n,), math.nan, device=device.torch_name) for n in sizes]
        del blocks


def large(model: torch.nn.Module, device: Device | None = None) -> bool:
    """Whether three models of this size, with what is compared of them, do not fit into memory at once. device: of an inference, which
    has no gradients."""
    count: int = sum(p.numel() for p in model.parameters())
    return count > (LARGE if device is None else max(LARGE, SHARE * device.memory / IN_THREE_MODELS))


def too_large(step: Any) -> bool:
    """Whether a step's model is."""
    return large(step.model, None if step.workload.mode == "train" else step.device)


def rows(truth: Seen, mine: Seen, theirs: Seen, case: str) -> list[Row]:
    """A row for every output, the loss and every gradient that all three have; another for the scale of an output: a
    factor of 1.02 drowns in bfloat16's rounding, but rounding has next to no common factor."""
    found = []
    for name, right in truth.values.items():
        if name in theirs.values and name in mine.values:
            distance, floor = (relative, 0.0) if right.is_floating_point() else (mismatched, INTEGER_FLOOR)
            error, noise = distance(theirs.values[name], right), distance(mine.values[name], right)
            found.append(Row(name, case, error, noise, floor, why=_why(name, theirs.values[name], right, error)))
            if right.is_floating_point() and right.numel() >= ENOUGH and theirs.values[name].shape == right.shape:
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
        what, share = GRADIENT + name, _over(error, size)
        why = _why(what, theirs.gradients[name], truth.gradients[name], share)
        found.append(Row(what, case, share, _over(noise, size), beside=_over(median, size), why=why))
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
    if a.shape != b.shape or a.layout != b.layout or not bool(_held(a).isfinite().all()):
        return math.inf
    if a.is_sparse:
        return _rms((a.double() - b.double()).coalesce())
    squares = sum(float((x.double() - y.double()).square().sum()) for x, y in _pieces(a, b))
    return math.sqrt(squares / a.numel()) if a.numel() else 0.0


def _why(what: str, theirs: Any, right: Any, error: float) -> str:
    """What an infinite error means, where all that is compared is finite."""
    if math.isfinite(error) or not bool(_held(theirs).isfinite().all()):
        return ""
    if theirs.shape != right.shape or theirs.layout != right.layout:
        return f"{what} has another shape than in the untouched model"
    return f"{what} is zero in the untouched model but not in the candidate"


def _rms(t: torch.Tensor) -> float:
    squares = sum(float(x.double().square().sum()) for (x,) in _pieces(_held(t)))
    return math.sqrt(squares / t.numel()) if t.numel() else 0.0


def _pieces(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """The same parts of several tensors of one shape, each of at most AT_ONCE elements."""
    return zip(*(t.reshape(-1).split(AT_ONCE) for t in tensors), strict=True)


def _over(error: float, size: float) -> float:
    return error / size if size > 0 else (0.0 if error == 0 else math.inf)


def scale(a: torch.Tensor, b: torch.Tensor) -> float:
    """How far from 1 the factor is by which a is most like b; infinite as in `relative`."""
    if a.shape != b.shape or not bool(a.isfinite().all()):
        return math.inf
    both, size = 0.0, 0.0
    for x, y in _pieces(a, b):
        x, y = x.double(), y.double()
        both, size = both + float(x @ y), size + float(y @ y)
    return abs(both / size - 1) if size > 0 else 0.0


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
