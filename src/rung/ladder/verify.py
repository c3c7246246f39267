"""Does a candidate compute what the baseline computes? Outputs, loss, every gradient, and the weights after steps.

The measure of an error is the untouched model's own: both are compared with a float64 reference, on fresh
inputs and perturbed weights, and a candidate may be off by no more than a few times what the unchanged model is
off at the same precision. Rewrites are judged in the model's full precision first, where a dropped mask or a
changed eps stands thousands of times above the noise, and only then at the precision that the user allowed.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from rung.errors import WorkloadError
from rung.hardware.device import Device, to_device
from rung.ladder.capture import WARM_CALLS
from rung.ladder.perturb import perturbed, put, state
from rung.ladder.plan import Numerics, Plan
from rung.ladder.step import Step, matmul_precision
from rung.ladder.verification import Check, Verification
from rung.workload import Batch, Workload, seeded_model, shapes

SEEDS = (11, 12, 13)  # 11 % 3 == 2: faint weights; 12 and 13: sharp ones
OPTIMIZER_STEPS = 3
# How many times the untouched model's own error a candidate may have. In full precision a re-ordered sum may
# well be ten times off while a real mistake is thousands; at low precision a mistake may be only ten times off.
ALLOWED = {"exact": 30.0, "tf32": 3.0, "bf16": 3.0}
# Errors below this are rounding, whatever the untouched model's are: a few ulp of the format's products.
FLOOR = {"exact": 2e-6, "tf32": 1e-4, "bf16": 1e-3}

Build = Callable[[torch.nn.Module, Plan], Any]


def verify(
    workload: Workload,
    plan: Plan,
    device: Device,
    build: Build | None = None,
    precisions: Sequence[Numerics] | None = None,
) -> Verification:
    """Compares a candidate with the float64 baseline, first at the exact contract, then at the plan's own.

    build: `(model, plan) -> step`, `Step` unless a test brings its own candidate; precisions: only these.
    """
    workload = without_dropout(workload)
    build = build or (lambda model, at: Step(workload, model, at, device))
    result = Verification()
    for numerics in precisions or plan.precisions():
        result.precisions.append(numerics)
        with matmul_precision(plan.at(numerics)):
            _verify_at(workload, plan.at(numerics), device, build, numerics, result)
        if result.failures or any(not c.passed for c in result.checks):
            break
    return result


def audit(workload: Workload, device: Device) -> list[str]:
    """Checks that the baseline itself can be verified; returns the names of parameters without a gradient.

    Refuses, with a sentence: results that are not finite or that depend on torch's random state, inputs that
    do not change with the seed, and a training step in which most trainable parameters get no gradient.
    """
    workload = without_dropout(workload)
    step = Step(workload, seeded_model(workload).to(device.torch_name), Plan(), device)
    first, second = workload.inputs(1), workload.inputs(2)
    if _same(first, second):
        raise WorkloadError(
            f"workload {workload.name!r}: inputs(1) and inputs(2) are equal; inputs must depend on the seed."
        )
    values = {k: v.clone() for k, v in state(step.model).items()}
    seen = []
    for seed in (1, 2):
        put(step.model, values)
        step.fresh()
        torch.manual_seed(seed)
        loss, output = step(to_device(first, device))
        seen.append([t.double().clone() for t in [*_tensors(output), *([loss] if loss is not None else [])]])
    if not seen[0]:
        raise WorkloadError(f"workload {workload.name!r}: its output holds no tensor, so nothing can be verified.")
    if not all(bool(t.isfinite().all()) for t in seen[0]):
        raise WorkloadError(f"workload {workload.name!r}: its output or loss is not finite on fresh weights.")
    if any(_relative(a, b) > 1e-3 for a, b in zip(*seen, strict=True)):
        raise WorkloadError(
            f"workload {workload.name!r}: its result depends on torch's random state (dropout by function, sampling?), "
            "so no candidate can be compared with it; switch the randomness off for the climb."
        )
    if workload.mode == "infer":
        return []
    trainable = {n: p for n, p in step.model.named_parameters() if p.requires_grad}
    without = [n for n, p in trainable.items() if p.grad is None]
    if 2 * len(without) > len(trainable):
        shown = ", ".join(without[:5]) + (f" and {len(without) - 5} more" if len(without) > 5 else "")
        raise WorkloadError(
            f"workload {workload.name!r}: {len(without)} of {len(trainable)} trainable parameters get no gradient "
            f"({shown}): part of the model runs outside autograd, so it does not train; mend that first."
        )
    return without


def without_dropout(workload: Workload) -> Workload:
    """The same workload with every dropout module at p = 0: two precisions never draw the same mask."""
    from dataclasses import replace

    def model() -> torch.nn.Module:
        made = workload.model()
        for module in made.modules():
            if isinstance(module, torch.nn.modules.dropout._DropoutNd):
                module.p = 0.0
        return made

    return replace(workload, model=model)


@dataclass
class _Seen:
    """What one run of one batch showed: by name, in float64."""

    values: dict[str, torch.Tensor]
    gradients: dict[str, torch.Tensor | None]


def _verify_at(
    workload: Workload, plan: Plan, device: Device, build: Build, numerics: Numerics, result: Verification
) -> None:
    model = seeded_model(workload).to(device.torch_name)
    candidate_model = copy.deepcopy(model)
    before = _fingerprint(candidate_model)
    baseline = Step(workload, copy.deepcopy(model), plan.precision_only(), device)
    reference_model, reference_name = copy.deepcopy(model).double(), "float64"
    reference = Step(workload_in_double(workload), reference_model, Plan(), device)
    try:
        candidate = build(candidate_model, plan)
        errors: list[tuple[str, str, float, float]] = []
        makers = shapes(workload)
        for index, make in enumerate(makers):
            for _ in range(WARM_CALLS + 1 if plan.capture else 0):
                candidate(to_device(make(0), device))
            for seed in SEEDS:
                weights = perturbed(model, seed)
                batch = to_device(make(seed + 100), device)
                case = f"shape {index + 1}, seed {seed}"
                try:
                    truth = _run(reference, weights, _double(batch))
                except torch.OutOfMemoryError:
                    # float64 does not fit: fall back to the model's own full precision.
                    reference_name = "float32"
                    reference = Step(workload, copy.deepcopy(model), Plan(), device)
                    truth = _run(reference, weights, batch)
                mine = _run(baseline, weights, batch)
                given = pytree.tree_map(lambda t: t.clone() if isinstance(t, torch.Tensor) else t, batch)
                theirs = _run(candidate, weights, given)
                if not _same(batch, given):
                    result.failures.append(f"the candidate changes its inputs ({numerics}, {case})")
                result.failures += _missing(truth, mine, theirs, f"{numerics}, {case}")
                errors += _errors(truth, mine, theirs, case)
                result.cases += 1
                del truth, mine, theirs
        if workload.mode == "train":
            errors += _trained(workload, reference, baseline, candidate, model, device, plan)
        result.checks += _judge(errors, numerics)
        result.failures += _changed(before, _fingerprint(candidate_model))
    except WorkloadError:
        raise
    except Exception as error:
        # A candidate that cannot run on a shape is wrong there; the baseline ran on it in this same loop.
        result.failures.append(f"the candidate raised {type(error).__name__}: {str(error)[:300]} ({numerics})")
        if type(error).__name__ == "OutOfMemoryError":
            raise
    result.reference = reference_name


def _run(step: Any, weights: dict[str, torch.Tensor], batch: Batch) -> _Seen:
    put(step.model, weights)
    _poison(step.device)
    loss, output = step(batch)
    values = {f"output {k}" if k else "output": t for k, t in enumerate(_tensors(output))}
    if loss is not None:
        values["loss"] = loss
    gradients = (
        {n: None if p.grad is None else p.grad for n, p in step.model.named_parameters() if p.requires_grad}
        if step.workload.mode == "train"
        else {}
    )
    return _Seen(
        {k: t.detach().double().clone() for k, t in values.items()},
        {k: None if g is None else g.detach().double().clone() for k, g in gradients.items()},
    )


def _poison(device: Device) -> None:
    """Leaves NaN in the allocator's free memory, so that what a candidate fails to write cannot look right."""
    if device.is_gpu:
        blocks = [torch.full((n,), math.nan, device=device.torch_name) for n in (64, 1 << 12, 1 << 18, 1 << 23)]
        blocks += [torch.full((1 << 24,), math.nan, device=device.torch_name) for _ in range(4)]
    else:
        blocks = [torch.full((n,), math.nan) for n in (64, 1 << 12, 1 << 16, 1 << 18) for _ in range(8)]
    del blocks


def _errors(truth: _Seen, mine: _Seen, theirs: _Seen, case: str) -> list[tuple[str, str, float, float]]:
    rows = []
    for name, right in truth.values.items():
        if name in theirs.values:
            rows.append((name, case, _relative(theirs.values[name], right), _relative(mine.values[name], right)))
    for name, right_gradient in truth.gradients.items():
        theirs_gradient, mine_gradient = theirs.gradients.get(name), mine.gradients.get(name)
        if right_gradient is not None and theirs_gradient is not None and mine_gradient is not None:
            rows.append(
                (f"gradient of {name}", case, _relative(theirs_gradient, right_gradient), _relative(mine_gradient, right_gradient))
            )  # fmt: skip
    return rows


def _missing(truth: _Seen, mine: _Seen, theirs: _Seen, case: str) -> list[str]:
    said = []
    if set(theirs.values) != set(mine.values):
        said.append(f"the candidate returns {len(theirs.values)} tensors, the baseline {len(mine.values)} ({case})")
    lost = [n for n, g in mine.gradients.items() if g is not None and theirs.gradients.get(n) is None]
    if lost:
        shown = ", ".join(lost[:5]) + (f" and {len(lost) - 5} more" if len(lost) > 5 else "")
        said.append(f"{len(lost)} parameters get no gradient: {shown} ({case})")
    return said


def _trained(
    workload: Workload, reference: Step, baseline: Step, candidate: Any, model: torch.nn.Module, device: Device, plan: Plan
) -> list[tuple[str, str, float, float]]:  # fmt: skip
    """The change of every weight over a few optimizer steps on fresh batches, from equal weights."""
    weights = perturbed(model, SEEDS[1])
    count = OPTIMIZER_STEPS + (WARM_CALLS if plan.capture else 0)
    changes = []
    for step in (reference, baseline, candidate):
        step.fresh()
        put(step.model, weights)
        exact = step is reference
        for k in range(count):
            batch = to_device(workload.inputs(500 + k), device)
            step(_double(batch) if exact and reference.workload is not workload else batch)
        changes.append({n: (t.detach().double() - weights[n].double()) for n, t in state(step.model).items()
                        if t.is_floating_point()})  # fmt: skip
    return [
        (f"change of {name} over {count} steps", "optimizer steps", _relative(changes[2][name], right), _relative(changes[1][name], right))
        for name, right in changes[0].items()
        if bool(right.any()) or bool(changes[2][name].any())
    ]  # fmt: skip


def _judge(errors: Sequence[tuple[str, str, float, float]], numerics: Numerics) -> list[Check]:
    """A quantity's noise is the untouched model's worst error over the cases: one lucky case must not make
    a candidate wrong. A single number (the loss) may be right by chance, so its kind's median counts too."""

    def kind(what: str) -> str:
        return what.split(" ")[0] if what != "loss" else "output"

    worst: dict[str, float] = {}
    by_kind: dict[str, list[float]] = {}
    for what, _, _, noise in errors:
        worst[what] = max(worst.get(what, 0.0), noise)
        by_kind.setdefault(kind(what), []).append(noise)
    checks = []
    for what, case, error, _ in errors:
        middle = sorted(by_kind[kind(what)])[len(by_kind[kind(what)]) // 2]
        noise = max(worst[what], 0.5 * middle)
        tolerance = max(ALLOWED[numerics] * noise, FLOOR[numerics])
        checks.append(Check(what, numerics, case, error, noise, tolerance))
    return checks


def _relative(a: torch.Tensor, b: torch.Tensor) -> float:
    """The relative L2 error of a against b; infinite where the shapes differ or a is not finite."""
    if a.shape != b.shape or not bool(a.isfinite().all()):
        return math.inf
    size = float(b.norm())
    return float((a - b).norm()) / size if size > 0 else (0.0 if not bool(a.any()) else math.inf)


def _tensors(output: Any) -> list[torch.Tensor]:
    return [t for t in pytree.tree_leaves(output) if isinstance(t, torch.Tensor) and t.is_floating_point()]


def _double(batch: Batch) -> Batch:
    return pytree.tree_map(lambda t: t.double() if isinstance(t, torch.Tensor) and t.is_floating_point() else t, batch)


def workload_in_double(workload: Workload) -> Workload:
    """The workload without its own autocast, for the reference."""
    from dataclasses import replace

    return replace(workload, amp=None, options={**workload.options, "reference": True})


def _same(a: Batch, b: Batch) -> bool:
    pairs = zip(pytree.tree_leaves(a), pytree.tree_leaves(b), strict=True)
    return all(
        (x.shape == y.shape and bool(torch.equal(x, y))) if isinstance(x, torch.Tensor) else x == y for x, y in pairs
    )


def _fingerprint(model: torch.nn.Module) -> dict[str, Any]:
    """What a candidate must leave as it was, apart from the weights' values."""
    modules = dict(model.named_modules())
    return {
        "state-dict keys": list(model.state_dict()),
        "train or eval mode": [m.training for m in modules.values()],
        "classes of the modules": [type(m) for m in modules.values()],
        "parameter objects": [id(p) for p in model.parameters()],
        "requires_grad": [p.requires_grad for p in model.parameters()],
        "hooks": [len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in modules.values()],
    }  # fmt: skip


def _changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [f"the candidate changed the model's {what}" for what in before if before[what] != after[what]]
