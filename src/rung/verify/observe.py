"""What one run of one batch shows, and how far two of them are apart."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from rung.engine.parts import parts
from rung.errors import WorkloadError
from rung.hardware.device import Device
from rung.verify.distances import LARGE, Group, distances, finite, kinds, mismatched, over, overshadowed, plainly, scale
from rung.verify.host_transfers import to_host
from rung.verify.perturb import put
from rung.workload import Batch, Workload

# Of an inference: the bytes of a parameter in three models, one of them in float64, and the share of the memory that they may take.
IN_THREE_MODELS, SHARE = 16, 1 / 3
ENOUGH = 64  # elements, of which a common factor, or the size of an error, is told from chance
SEEN = 0.05  # an error that no rounding makes, so that it is worth saying where it lies
PLAIN = (bool, int, float, complex, str, type(None))  # what is compared beside tensors
GRADIENT = "gradient of "  # begins the name of what is compared of one
INTEGER_FLOOR = 0.01  # the share of integers (token ids, class numbers) that may differ because of a near tie


@dataclass(frozen=True)
class Row:
    """One quantity of one case: a candidate's error and the untouched model's own, both against the reference and over its size.

    beside: of a gradient, the median over all gradients of the case of the untouched model's error, over the size of this one;
    why: what an infinite error means, as a sentence, where it is not that something is not finite, or where a large one lies; kink: what kinks may change of it, or digits
    that training lost (`rung.verify.timed_run_checks`);
    few: whether it is of so few numbers that its errors are a matter of luck (`rung.verify.tolerance`); size: what errors are a share of, 0.0
    where that is the same in all cases.
    """

    what: str
    case: str
    error: float
    noise: float
    floor: float = 0.0
    beside: float = 0.0
    why: str = ""
    kink: float = 0.0
    few: bool = False
    size: float = 0.0


@dataclass(frozen=True)
class Seen:
    """values: outputs and loss by name; gradients: by parameter, None where there is none; form: the output's
    structure, its tensors' shapes and dtypes; plain: numbers, texts and None in the output, by where they lie; unseen: the
    classes of what else is in it. Tensors of a large model lie in the host's memory; device: where they came from, and are compared (None:
    where they are). inputs: what the step leaves of its inputs, by where they lie; written: of those that it changes, which elements."""

    values: dict[str, torch.Tensor]
    gradients: dict[str, torch.Tensor | None]
    form: list[str]
    plain: dict[str, Any] = field(default_factory=dict)
    unseen: list[str] = field(default_factory=list)
    device: str | None = None
    norm: torch.Tensor | None = None  # of all gradients, before they were clipped
    was_finite: bool | None = None  # told before its tensors were moved to the host
    inputs: dict[str, torch.Tensor] = field(default_factory=dict)
    written: dict[str, torch.Tensor] = field(default_factory=dict)

    @property
    def left(self) -> dict[str, torch.Tensor]:
        """What it leaves of the inputs that it changes."""
        return {name: self.inputs[name] for name in self.written if name in self.inputs}

    @property
    def finite(self) -> bool:
        if self.was_finite is not None:
            return self.was_finite
        return all(finite(t) for t in (*self.values.values(), *self.gradients.values()) if t is not None)


def observe(step: Any, weights: dict[str, torch.Tensor] | None, batch: Batch, gradients: bool = True) -> Seen:
    """Runs the step once on a copy of the batch, from these weights (None: from those that it has). gradients: as of `noted`."""
    if weights is not None:
        put(step.model, weights)
    _poison(step.device)
    given = own_copy(batch)
    held = parts(given)[0]  # a forward may take items out of the batch
    loss, output = step(given)
    seen = _with_inputs(noted(step, loss, output, gradients), parts(batch)[0], held)
    if seen.gradients and too_large(step) and not step.plan.capture:
        # Three models with gradients and optimizers do not fit on one GPU; each step begins with fresh ones.
        step.model.zero_grad(set_to_none=True)
        step.fresh()
    return seen


def noted(step: Any, loss: torch.Tensor | None, output: Any, gradients: bool = True) -> Seen:
    """What a step that has just run shows. gradients: False where they are not compared; of each is known then whether there is one."""
    held, form = parts(output)
    tensors = [t for _, t in held if isinstance(t, torch.Tensor)]
    plain = {name: value for name, value in held if isinstance(value, PLAIN)}
    unseen = [type(value).__qualname__ for _, value in held if not isinstance(value, (torch.Tensor, *PLAIN))]
    away = too_large(step)
    values = {f"output {k}" if k else "output": _copied(t, away) for k, t in enumerate(tensors)}
    if loss is not None:
        values["loss"] = _copied(loss, away)
    trained = step.model.named_parameters() if step.workload.mode == "train" else ()
    named = {n: p.grad for n, p in trained if p.requires_grad}
    found = {n: None if g is None else _copied(g, away) if gradients else g.new_empty(0) for n, g in named.items()}
    form += [f"a tensor of {tuple(t.shape)}, {t.dtype}" for t in tensors]
    norm = None if step.grad_norm is None else _copied(step.grad_norm, away)
    if not away:
        return Seen(values, found, form, plain, unseen, norm=norm)
    there = [*tensors, loss, *(named.values() if gradients else ())]
    all_finite = all(finite(plainly(t)) for t in there if t is not None)
    return Seen(values, found, form, plain, unseen, step.device.torch_name, norm, all_finite)


def _with_inputs(seen: Seen, before: list[tuple[str, Any]], after: list[tuple[str, Any]]) -> Seen:
    """What was seen, and what became of the parts of the batch. Of those that are as before no copy is held."""
    inputs: dict[str, torch.Tensor] = {}
    written: dict[str, torch.Tensor] = {}
    for (name, old), (_, new) in zip(before, after, strict=True):
        what = f"input {name}" if name else "input"
        changed = not equal(old, new)
        if isinstance(old, torch.Tensor):
            inputs[what] = plainly(new if changed else old)
        if changed:
            written[what] = _changes(plainly(old), inputs[what]) if what in inputs else torch.tensor(True)
    return replace(seen, inputs=inputs, written=written)


def _changes(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """Which elements are others; all of them in a tensor of another form."""
    if old.shape != new.shape or old.layout != torch.strided or new.layout != torch.strided:
        return torch.ones(new.shape, dtype=torch.bool, device=new.device)
    return ~_alike(old, new)


def refuse_unseen(workload: Workload, seen: Seen) -> None:
    """Raises WorkloadError where the output is made of what cannot be compared, and of nothing else."""
    training = workload.mode == "train"
    if any(name != "loss" for name in seen.values) or (training and not seen.unseen):
        return
    if not seen.unseen:
        raise WorkloadError(
            f"{workload.label}: its output holds no tensor, so nothing can be verified; return what it computes as tensors."
        )
    kinds = ", ".join(dict.fromkeys(seen.unseen))
    instead = (
        "return tensors, as torch.from_numpy(array) makes of an array"
        if {*seen.unseen} == {"ndarray"}
        else "return a dict or a dataclass, or register the type with torch.utils._pytree.register_pytree_node"
    )
    raise WorkloadError(
        f"{workload.label}: its output consists of {kinds}, which Rung cannot compare; {instead}"
        f"{', or set Workload(output=False) to compare only loss and gradients.' if training else '.'}"
    )


def _copied(t: torch.Tensor, away: bool) -> torch.Tensor:
    t = plainly(t)
    return to_host(t) if away else t.clone()


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
    return of_outputs(truth, mine, theirs, case) + _of_gradients(truth, mine, theirs, case)


def of_outputs(truth: Seen, mine: Seen, theirs: Seen, case: str) -> list[Row]:
    """Those of the outputs, the loss, and the inputs that the workload writes to."""
    found = []
    for name, right in truth.values.items():
        if name in theirs.values and name in mine.values:
            found += _of_output(name, case, truth, (theirs.values[name], mine.values[name], right))
    for name in sorted(truth.written.keys() | mine.written.keys()):
        if all(name in seen.inputs for seen in (truth, mine, theirs)):
            found += _of_input(name, case, truth, mine, theirs)
    return found


def _of_output(name: str, case: str, truth: Seen, of: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> list[Row]:
    """of: the candidate's, the untouched model's and the reference's."""
    (other, own, right), device = of, truth.device
    if own.shape != right.shape:
        why = (
            f"rounding decides the shape of {name}, {tuple(own.shape)} in the untouched model and {tuple(right.shape)} in the reference, "
            "so no candidate can be compared with it"
        )
        return [Row(name, case, math.inf, math.inf, why=why)]
    if not right.is_floating_point():
        error, noise = (mismatched(t, right, device) for t in (other, own))
        return [Row(name, case, error, noise, INTEGER_FLOOR, why=_why(name, other, right, error))]
    far, near, size = distances([other, own], right, device)
    error, noise = over(far, size), over(near, size)
    few = right.numel() < ENOUGH
    why = _why(name, other, right, error) or _where(own, other, right, error, noise, device)
    found = [Row(name, case, error, noise, why=why, few=few, size=size)]
    if other.shape != right.shape:
        return found
    if not few:
        noise = max(scale(own, right, device), 0.1 * noise)
        found.append(Row(f"scale of {name}", case, scale(other, right, device), noise, few=True))
    for group in overshadowed(own, right, device):
        found += _of_group(f"{name} ({group.name})", case, truth, (other, own, right), group)
    return found


def _of_input(name: str, case: str, truth: Seen, mine: Seen, theirs: Seen) -> list[Row]:
    """A step writes little of a large cache, so what it writes is compared without the rest, in which an error would drown. Which elements
    these are, the reference and the untouched model decide; what the candidate alone writes is compared by itself. What they leave infinite,
    as a mask's -inf, has no distance: it must be the same."""
    other, own, right = of = theirs.inputs[name], mine.inputs[name], truth.inputs[name]
    if any(t.shape != right.shape or t.layout != torch.strided for t in of):
        return _of_output(name, case, truth, of)
    none = torch.zeros(right.shape, dtype=torch.bool, device=right.device)
    written = truth.written.get(name, none) | mine.written.get(name, none)
    alone = theirs.written.get(name, none) & ~written
    if not right.is_floating_point():
        # A near tie may decide where an integer is written, as it decides which one is.
        return _of_output(name, case, truth, _those(written | alone, of))
    infinite = written & (kinds(right) != 0) & (kinds(own) == kinds(right))
    written &= ~infinite
    found = []
    for what, elements in ((name, written), (f"{name} (elements that the candidate alone writes)", alone)):
        if elements.any():
            found += _of_output(what, case, truth, _those(elements, of))
    if infinite.any():
        what, same = f"infinite elements of {name}", bool((kinds(other) == kinds(right))[infinite].all())
        why = "" if same else f"{what} are others than in the untouched model"
        found.append(Row(what, case, 0.0 if same else math.inf, 0.0, why=why))
    return found


def _those(
    elements: torch.Tensor, of: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    other, own, right = of
    return other[elements], own[elements], right[elements]


def _of_group(
    what: str, case: str, truth: Seen, of: tuple[torch.Tensor, torch.Tensor, torch.Tensor], group: Group
) -> list[Row]:
    """The rows of some elements of an output, which would drown among its others. of: the candidate's, the untouched model's and the
    reference's. The rounding of larger elements may be in them: the log-softmax of a certain class is what remains of two large numbers.
    Nothing can be said where that is as large as they are."""
    other, own, right = of
    count = int(group.elements.sum())
    far, near, size = distances([other, own], right, truth.device, group.elements)
    if group.larger is not None:
        of_larger = distances([own], right, truth.device, group.larger)[0]
        near = max(near, of_larger * math.sqrt(count / max(1, int(group.larger.sum()))))
    if not near < size:
        return []
    noise = over(near, size)
    few = count < ENOUGH
    found = [Row(what, case, over(far, size), noise, few=few, size=size)]
    if not few:
        own_scale, other_scale = (scale(t, right, truth.device, group.elements) for t in (own, other))
        found.append(Row(f"scale of {what}", case, other_scale, max(own_scale, 0.1 * noise), few=True))
    return found


def _of_gradients(truth: Seen, mine: Seen, theirs: Seen, case: str) -> list[Row]:
    """Sizes and errors are root mean squares: what is off by less than gradients are anywhere is no mistake, however little
    there is of it. That of a key's bias is exactly zero, because attention does not depend on it; where attention is nearly
    uniform, those of queries and keys are sums of what cancels out, in other orders."""
    off = {}
    for name, right in truth.gradients.items():
        a, b = theirs.gradients.get(name), mine.gradients.get(name)
        if right is not None and a is not None and b is not None:
            off[name] = distances([a, b], right, truth.device)
    own = sorted(noise for _, noise, _ in off.values() if math.isfinite(noise))
    median = own[len(own) // 2] if own else 0.0
    found = []
    for name, (error, noise, size) in off.items():
        size = size or median
        what, share, right = GRADIENT + name, over(error, size), truth.gradients[name]
        assert right is not None
        few, why = right.numel() < ENOUGH, _why(what, theirs.gradients[name], right, share)
        beside = over(median, size)
        found.append(Row(what, case, share, over(noise, size), beside=beside, why=why, few=few, size=size))
    norms = [seen.norm for seen in (theirs, mine, truth)]
    if all(
        norm is not None for norm in norms
    ):  # what is clipped does not show by how much all gradients were too large
        error, noise, size = distances(norms[:2], norms[2], truth.device)
        found.append(Row("gradient norm", case, over(error, size), over(noise, size), few=True, size=size))
    return found


def missing(truth: Seen, mine: Seen, theirs: Seen, case: str) -> list[str]:
    """What the baseline gives and the candidate does not, or gives in another form."""
    said = []
    if theirs.form != mine.form:
        pairs = zip([*mine.form, "nothing"], [*theirs.form, "nothing"], strict=False)
        a, b = next((a, b) for a, b in pairs if a != b)
        said.append(f"the candidate's output has another form: {b} where the baseline has {a} ({case})")
    if theirs.written.keys() - mine.written.keys():
        said.append(f"the candidate changes its inputs ({case})")
    # Where the reference writes nothing, it is rounding that the baseline writes. Of a step that was timed, no inputs are known.
    if kept := sorted((truth.written.keys() & mine.written.keys() & theirs.inputs.keys()) - theirs.written.keys()):
        said.append(f"the candidate does not write to {kept[0]}, as the baseline does ({case})")
    lost = [n for n, g in mine.gradients.items() if g is not None and theirs.gradients.get(n) is None]
    if lost:
        shown = ", ".join(lost[:5]) + (f" and {len(lost) - 5} more" if len(lost) > 5 else "")
        said.append(f"{len(lost)} parameters get no gradient: {shown} ({case})")
    return said


def _why(what: str, theirs: Any, right: Any, error: float) -> str:
    """What an infinite error means, where all that is compared is finite."""
    if math.isfinite(error) or not finite(theirs):
        return ""
    if theirs.shape != right.shape or theirs.layout != right.layout:
        return f"{what} has another shape than in the untouched model"
    return f"{what} is zero in the untouched model but not in the candidate"


def _where(
    own: torch.Tensor, other: torch.Tensor, right: torch.Tensor, error: float, noise: float, device: str | None
) -> str:
    """Where a large error lies, in a few words: in what the untouched model fills with zeros, as torch's encoder does with padding in one of
    its two ways to compute it. Empty where it is anywhere else."""
    if not SEEN < error < math.inf or own.layout != torch.strided or own.is_nested:
        return ""
    own, other, right = plainly(own), plainly(other), plainly(right)
    zeros = own == 0
    share = float(zeros.double().mean())
    if not 0 < share < 1 or float(right[zeros].abs().max()) > 0:
        return ""
    off, _, size = distances([other, own], right, device, ~zeros)
    if over(off, size) > max(30 * noise, 1e-3 * error):
        return ""
    return (
        f"all of it in the {max(1, round(100 * share))}% of its numbers where the untouched model gives 0 (padding?): have forward fill in 0 there by "
        "masked_fill, if nobody reads them"
    )


def same(a: Batch, b: Batch) -> bool:
    """Whether two batches are equal, bit for bit, where NaN equals NaN."""
    left, right = pytree.tree_leaves(a), pytree.tree_leaves(b)
    return len(left) == len(right) and all(map(equal, left, right))


def equal(a: Any, b: Any) -> bool:
    """The same of two parts of batches: tensors, arrays or anything else. What cannot be compared is equal to itself alone."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return identical(a, b)
    try:
        if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
            return bool(a.shape == b.shape and a.dtype == b.dtype and ((a == b) | ((a != a) & (b != b))).all())
        return bool(a is b or a == b)
    except Exception:  # whatever an object of another library raises
        return a is b


def own_copy(batch: Batch) -> Batch:
    """A batch whose tensors and arrays are copies."""

    def copied(part: Any) -> Any:
        if isinstance(part, torch.Tensor):
            if part.requires_grad and not part.is_leaf:  # a forward may write to it, as to no leaf
                with torch.enable_grad():
                    return part.detach().requires_grad_().clone()
            return part.detach().clone().requires_grad_(part.requires_grad)
        return part.copy() if isinstance(part, np.ndarray) else part

    return pytree.tree_map(copied, batch)


def identical(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Bit for bit, where NaN equals NaN."""
    # The shape of a jagged one equals no other's, and other nested ones have none.
    if a.is_nested and b.is_nested and a.layout == b.layout:
        rows, others = a.unbind(), b.unbind()
        return len(rows) == len(others) and all(map(identical, rows, others))
    if a.is_nested or b.is_nested or (a.shape, a.dtype, a.layout) != (b.shape, b.dtype, b.layout):
        return False
    a, b = plainly(a), plainly(b)
    if a.is_sparse:  # of more elements than a large model has
        return identical(a.indices(), b.indices()) and identical(a.values(), b.values())
    return bool(_alike(a, b).all())


def _alike(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Which elements are, where NaN equals NaN."""
    if a.is_floating_point() and a.element_size() == 1:  # not every torch compares float8
        a, b = a.view(torch.uint8), b.view(torch.uint8)
    return (a == b) | ((a != a) & (b != b))
