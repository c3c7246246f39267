"""What one run on one batch shows, and how far apart the runs of the reference, the untouched model and a candidate are."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

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
LARGE_ERROR = 0.05  # no rounding makes it, so it is worth saying where it lies
PLAIN = (bool, int, float, complex, str, type(None))  # what is compared beside tensors
GRADIENT = "gradient of "  # begins the name of what is compared of one
INTEGER_FLOOR = 0.01  # the share of integers (token ids, class numbers) that may differ because of a near tie


@dataclass(frozen=True)
class Row:
    """One quantity of one case: a candidate's error and the untouched model's own, both against the reference and over its size.

    median_noise: of a gradient, the median over all gradients of the case of the untouched model's error, over the size of this one.
    why: a sentence that says what an infinite error means, unless something is not finite, or where a large error lies.
    jump: how far off it may be, as a share, because of non-differentiable points (`rung.verify.tolerance`) or because training lost digits of it
    (`rung.verify.timed_run_checks`).
    few: whether it is of so few numbers that its errors are a matter of luck (`rung.verify.tolerance`).
    size: what errors are a share of, 0.0 where that is the same in all cases.
    """

    what: str
    case: str
    error: float
    noise: float
    floor: float = 0.0
    median_noise: float = 0.0
    why: str = ""
    jump: float = 0.0
    few: bool = False
    size: float = 0.0


@dataclass(frozen=True)
class Observation:
    """What one run shows.

    values: outputs and loss by name; gradients: by parameter, None where there is none; form: the output's
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


def observe(step: Any, weights: dict[str, torch.Tensor] | None, batch: Batch, gradients: bool = True) -> Observation:
    """Runs the step once on a copy of the batch, from these weights (None: from those that it has). gradients: as of `observe_result`."""
    if weights is not None:
        put(step.model, weights)
    _poison(step.device)
    given = own_copy(batch)
    leaves = parts(given)[0]  # a forward may take items out of the batch
    loss, output = step(given)
    seen = _with_inputs(observe_result(step, loss, output, gradients), parts(batch)[0], leaves)
    if seen.gradients and too_large(step) and not step.plan.capture:
        # Three models with gradients and optimizers do not fit on one GPU; each step begins with fresh ones.
        step.model.zero_grad(set_to_none=True)
        step.fresh()
    return seen


def observe_result(step: Any, loss: torch.Tensor | None, output: Any, gradients: bool = True) -> Observation:
    """What a step that has just run shows. gradients: False where they are not compared; of each is known then whether there is one."""
    leaves, form = parts(output)
    tensors = [t for _, t in leaves if isinstance(t, torch.Tensor)]
    plain = {name: value for name, value in leaves if isinstance(value, PLAIN)}
    unseen = [type(value).__qualname__ for _, value in leaves if not isinstance(value, (torch.Tensor, *PLAIN))]
    on_host = too_large(step)
    values = {f"output {k}" if k else "output": _snapshot(t, on_host) for k, t in enumerate(tensors)}
    if loss is not None:
        values["loss"] = _snapshot(loss, on_host)
    parameters = step.model.named_parameters() if step.workload.mode == "train" else ()
    grads = {name: p.grad for name, p in parameters if p.requires_grad}
    copies = {
        name: None if grad is None else _snapshot(grad, on_host) if gradients else grad.new_empty(0)
        for name, grad in grads.items()
    }
    form += [f"a tensor of {tuple(t.shape)}, {t.dtype}" for t in tensors]
    norm = None if step.grad_norm is None else _snapshot(step.grad_norm, on_host)
    if not on_host:
        return Observation(values, copies, form, plain, unseen, norm=norm)
    on_device = [*tensors, loss, *(grads.values() if gradients else ())]
    all_finite = all(finite(plainly(t)) for t in on_device if t is not None)
    return Observation(values, copies, form, plain, unseen, step.device.torch_name, norm, all_finite)


def _with_inputs(seen: Observation, before: list[tuple[str, Any]], after: list[tuple[str, Any]]) -> Observation:
    """The observation with what became of the parts of the batch. Of those that are as before no copy is held."""
    inputs: dict[str, torch.Tensor] = {}
    written: dict[str, torch.Tensor] = {}
    for (name, old), (_, new) in zip(before, after, strict=True):
        what = f"input {name}" if name else "input"
        changed = not equal_parts(old, new)
        if isinstance(old, torch.Tensor):
            inputs[what] = plainly(new if changed else old)
        if changed:
            written[what] = _changed_elements(plainly(old), inputs[what]) if what in inputs else torch.tensor(True)
    return replace(seen, inputs=inputs, written=written)


def _changed_elements(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """Which elements differ, as a mask; all of them in a tensor of another shape or layout."""
    if old.shape != new.shape or old.layout != torch.strided or new.layout != torch.strided:
        return torch.ones(new.shape, dtype=torch.bool, device=new.device)
    return ~_equal_elements(old, new)


def refuse_unseen(workload: Workload, seen: Observation) -> None:
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


def _snapshot(t: torch.Tensor, on_host: bool) -> torch.Tensor:
    t = plainly(t)
    return to_host(t) if on_host else t.clone()


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
    """Whether a step's model is `large`."""
    return large(step.model, None if step.workload.mode == "train" else step.device)


class Tensors(NamedTuple):
    """One quantity as each of the three gives it."""

    candidate: torch.Tensor
    baseline: torch.Tensor
    reference: torch.Tensor

    def at(self, elements: torch.Tensor) -> Tensors:
        """The same of some elements, given as a mask."""
        return Tensors(*(t[elements] for t in self))


def rows(reference: Observation, baseline: Observation, candidate: Observation, case: str) -> list[Row]:
    """A row for every output, the loss and every gradient that all three have; another for the scale of an output: a
    factor of 1.02 drowns in bfloat16's rounding, but rounding has next to no common factor."""
    return output_rows(reference, baseline, candidate, case) + _gradient_rows(reference, baseline, candidate, case)


def output_rows(reference: Observation, baseline: Observation, candidate: Observation, case: str) -> list[Row]:
    """Those of the outputs, the loss, and the inputs that the workload writes to."""
    compared = []
    for name, value in reference.values.items():
        if name in candidate.values and name in baseline.values:
            tensors = Tensors(candidate.values[name], baseline.values[name], value)
            compared += _rows_of_output(name, case, tensors, reference.device)
    for name in sorted(reference.written.keys() | baseline.written.keys()):
        if all(name in seen.inputs for seen in (reference, baseline, candidate)):
            compared += _rows_of_input(name, case, reference, baseline, candidate)
    return compared


def _rows_of_output(name: str, case: str, tensors: Tensors, device: str | None) -> list[Row]:
    candidate, baseline, reference = tensors
    if baseline.shape != reference.shape:
        why = (
            f"rounding decides the shape of {name}, {tuple(baseline.shape)} in the untouched model and {tuple(reference.shape)} in the reference, "
            "so no candidate can be compared with it"
        )
        return [Row(name, case, math.inf, math.inf, why=why)]
    if not reference.is_floating_point():
        error, noise = (mismatched(t, reference, device) for t in (candidate, baseline))
        return [Row(name, case, error, noise, INTEGER_FLOOR, why=_why_infinite(name, candidate, reference, error))]
    candidate_error, baseline_error, size = distances([candidate, baseline], reference, device)
    error, noise = over(candidate_error, size), over(baseline_error, size)
    few = reference.numel() < ENOUGH
    why = _why_infinite(name, candidate, reference, error) or _where_large(tensors, error, noise, device)
    compared = [Row(name, case, error, noise, why=why, few=few, size=size)]
    if candidate.shape != reference.shape:
        return compared
    if not few:
        noise = max(scale(baseline, reference, device), 0.1 * noise)
        compared.append(Row(f"scale of {name}", case, scale(candidate, reference, device), noise, few=True))
    for group in overshadowed(baseline, reference, device):
        compared += _rows_of_group(f"{name} ({group.name})", case, tensors, group, device)
    return compared


def _rows_of_input(
    name: str, case: str, reference: Observation, baseline: Observation, candidate: Observation
) -> list[Row]:
    """A step writes little of a large cache, so what it writes is compared without the rest, in which an error would drown. The reference and
    the untouched model decide which elements these are; what the candidate alone writes is compared by itself. What they leave infinite,
    as a mask's -inf, has no distance: it must be the same."""
    tensors = Tensors(candidate.inputs[name], baseline.inputs[name], reference.inputs[name])
    shape, device = tensors.reference.shape, tensors.reference.device
    if any(t.shape != shape or t.layout != torch.strided for t in tensors):
        return _rows_of_output(name, case, tensors, reference.device)
    none = torch.zeros(shape, dtype=torch.bool, device=device)
    written = reference.written.get(name, none) | baseline.written.get(name, none)
    alone = candidate.written.get(name, none) & ~written
    if not tensors.reference.is_floating_point():
        # A near tie may decide where an integer is written, as it decides which one is.
        return _rows_of_output(name, case, tensors.at(written | alone), reference.device)
    kind = kinds(tensors.reference)
    infinite = written & (kind != 0) & (kinds(tensors.baseline) == kind)
    written &= ~infinite
    compared = []
    for what, elements in ((name, written), (f"{name} (elements that the candidate alone writes)", alone)):
        if elements.any():
            compared += _rows_of_output(what, case, tensors.at(elements), reference.device)
    if infinite.any():
        what, same = f"infinite elements of {name}", bool((kinds(tensors.candidate) == kind)[infinite].all())
        why = "" if same else f"{what} are others than in the untouched model"
        compared.append(Row(what, case, 0.0 if same else math.inf, 0.0, why=why))
    return compared


def _rows_of_group(what: str, case: str, tensors: Tensors, group: Group, device: str | None) -> list[Row]:
    """The rows of some elements of an output, which would drown among its others. The rounding of larger elements may be in them: the log-softmax
    of a certain class is what remains of two large numbers. Nothing can be said where that is as large as they are."""
    candidate, baseline, reference = tensors
    count = int(group.elements.sum())
    candidate_error, baseline_error, size = distances([candidate, baseline], reference, device, group.elements)
    if group.larger is not None:
        of_larger = distances([baseline], reference, device, group.larger)[0]
        baseline_error = max(baseline_error, of_larger * math.sqrt(count / max(1, int(group.larger.sum()))))
    if not baseline_error < size:
        return []
    noise = over(baseline_error, size)
    few = count < ENOUGH
    compared = [Row(what, case, over(candidate_error, size), noise, few=few, size=size)]
    if not few:
        noise = max(scale(baseline, reference, device, group.elements), 0.1 * noise)
        error = scale(candidate, reference, device, group.elements)
        compared.append(Row(f"scale of {what}", case, error, noise, few=True))
    return compared


def _gradient_rows(reference: Observation, baseline: Observation, candidate: Observation, case: str) -> list[Row]:
    """Sizes and errors are root mean squares: what is off by less than gradients are anywhere is no mistake, however little
    there is of it. That of a key's bias is exactly zero, because attention does not depend on it; where attention is nearly
    uniform, those of queries and keys are sums of what cancels out, in other orders."""
    errors = {}
    for name, right in reference.gradients.items():
        own, other = baseline.gradients.get(name), candidate.gradients.get(name)
        if right is not None and own is not None and other is not None:
            errors[name] = distances([other, own], right, reference.device)
    baseline_errors = sorted(noise for _, noise, _ in errors.values() if math.isfinite(noise))
    median = baseline_errors[len(baseline_errors) // 2] if baseline_errors else 0.0
    compared = []
    for name, (error, noise, size) in errors.items():
        size = size or median
        what, share, right = GRADIENT + name, over(error, size), reference.gradients[name]
        assert right is not None
        few, why = right.numel() < ENOUGH, _why_infinite(what, candidate.gradients[name], right, share)
        median_noise = over(median, size)
        compared.append(
            Row(what, case, share, over(noise, size), median_noise=median_noise, why=why, few=few, size=size)
        )
    norms = [seen.norm for seen in (candidate, baseline, reference)]
    # What is clipped does not show by how much all gradients were too large.
    if all(norm is not None for norm in norms):
        error, noise, size = distances(norms[:2], norms[2], reference.device)
        compared.append(Row("gradient norm", case, over(error, size), over(noise, size), few=True, size=size))
    return compared


def missing_results(reference: Observation, baseline: Observation, candidate: Observation, case: str) -> list[str]:
    """A sentence for everything that the baseline gives and the candidate does not, or gives in another form."""
    failures = []
    if candidate.form != baseline.form:
        pairs = zip([*baseline.form, "nothing"], [*candidate.form, "nothing"], strict=False)
        own, other = next((own, other) for own, other in pairs if own != other)
        failures.append(f"the candidate's output has another form: {other} where the baseline has {own} ({case})")
    if candidate.written.keys() - baseline.written.keys():
        failures.append(f"the candidate changes its inputs ({case})")
    # Where the reference writes nothing, it is rounding that the baseline writes. Of a step that was timed, no inputs are known.
    written_by_both = reference.written.keys() & baseline.written.keys()
    if unwritten := sorted((written_by_both & candidate.inputs.keys()) - candidate.written.keys()):
        failures.append(f"the candidate does not write to {unwritten[0]}, as the baseline does ({case})")
    lost = [n for n, g in baseline.gradients.items() if g is not None and candidate.gradients.get(n) is None]
    if lost:
        shown = ", ".join(lost[:5]) + (f" and {len(lost) - 5} more" if len(lost) > 5 else "")
        failures.append(f"{len(lost)} parameters get no gradient: {shown} ({case})")
    return failures


def _why_infinite(what: str, candidate: Any, reference: Any, error: float) -> str:
    """What an infinite error means, where all that is compared is finite; else empty."""
    if math.isfinite(error) or not finite(candidate):
        return ""
    if candidate.shape != reference.shape or candidate.layout != reference.layout:
        return f"{what} has another shape than in the untouched model"
    return f"{what} is zero in the untouched model but not in the candidate"


def _where_large(tensors: Tensors, error: float, noise: float, device: str | None) -> str:
    """Where a large error lies, in a few words: in what the untouched model fills with zeros, as torch's encoder does with padding in one of
    its two ways to compute it. Empty where it is anywhere else."""
    if not LARGE_ERROR < error < math.inf or tensors.baseline.layout != torch.strided or tensors.baseline.is_nested:
        return ""
    candidate, baseline, reference = map(plainly, tensors)
    zeros = baseline == 0
    share = float(zeros.double().mean())
    if not 0 < share < 1 or float(reference[zeros].abs().max()) > 0:
        return ""
    elsewhere, _, size = distances([candidate, baseline], reference, device, ~zeros)
    if over(elsewhere, size) > max(30 * noise, 1e-3 * error):
        return ""
    return (
        f"all of it in the {max(1, round(100 * share))}% of its numbers where the untouched model gives 0 (padding?): have forward fill in 0 there by "
        "masked_fill, if nobody reads them"
    )


def same_batch(a: Batch, b: Batch) -> bool:
    """Whether two batches are equal, bit for bit, where NaN equals NaN."""
    left, right = pytree.tree_leaves(a), pytree.tree_leaves(b)
    return len(left) == len(right) and all(map(equal_parts, left, right))


def equal_parts(a: Any, b: Any) -> bool:
    """Whether two parts of batches are equal, as of `same_batch`: tensors, arrays or anything else. An object that cannot be compared equals itself alone."""
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
    """Whether two tensors are equal, bit for bit, where NaN equals NaN."""
    # The shape of a jagged one equals no other's, and other nested ones have none.
    if a.is_nested and b.is_nested and a.layout == b.layout:
        rows, others = a.unbind(), b.unbind()
        return len(rows) == len(others) and all(map(identical, rows, others))
    if a.is_nested or b.is_nested or (a.shape, a.dtype, a.layout) != (b.shape, b.dtype, b.layout):
        return False
    a, b = plainly(a), plainly(b)
    if a.is_sparse:  # of more elements than a large model has
        return identical(a.indices(), b.indices()) and identical(a.values(), b.values())
    return bool(_equal_elements(a, b).all())


def _equal_elements(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Which elements are equal, as a mask, where NaN equals NaN."""
    if a.is_floating_point() and a.element_size() == 1:  # not every torch compares float8
        a, b = a.view(torch.uint8), b.view(torch.uint8)
    return (a == b) | ((a != a) & (b != b))
