"""Values of an output that rounding cannot change: numbers, texts and None outside of tensors, and integers that no float decides."""

from __future__ import annotations

import cmath
from collections.abc import Collection, Sequence
from typing import Any

import torch

from rung.verify.observe import Observation, Row
from rung.verify.perturb import inexact

VARIES = 1e-6  # a float's relative change between two runs of one batch: below it, sums in no fixed order may be why


def varying_values(runs: Sequence[Observation]) -> set[str]:
    """The values that differ between runs of the untouched model on one batch, as counters and times do. A candidate's cannot be judged."""
    first, *others = (run.plain for run in runs)
    return {name for name, value in first.items() if any(_differ(value, other.get(name)) for other in others)}


def float_rows(
    reference: Observation, baseline: Observation, candidate: Observation, case: str, varying: Collection[str]
) -> list[Row]:
    """A row for every float and complex number outside of tensors that is finite in all three."""
    compared = []
    for name, reference_value in reference.plain.items():
        baseline_value, candidate_value = baseline.plain.get(name), candidate.plain.get(name)
        if name not in varying and _finite(reference_value, baseline_value, candidate_value):
            error = _relative_difference(candidate_value, reference_value)
            noise = _relative_difference(baseline_value, reference_value)
            compared.append(Row(f"output{name}", case, error, noise))
    return compared


def changed_values(
    reference: Observation, baseline: Observation, candidate: Observation, case: str, varying: Collection[str]
) -> list[str]:
    """A sentence for every other value that the candidate gives differently. Where the untouched model and the reference do not agree,
    rounding decides, and neither is right."""
    failures = []
    for name, baseline_value in baseline.plain.items():
        reference_value, candidate_value = reference.plain.get(name), candidate.plain.get(name, "of another type")
        shown = f"{candidate_value!r:.40}" if name in candidate.plain else candidate_value
        agreed = _finite(baseline_value, reference_value) or _equal(baseline_value, reference_value)
        kept = _finite(baseline_value, candidate_value) or _equal(baseline_value, candidate_value)
        if name not in varying and agreed and not kept:
            failures.append(
                f"the candidate's output{name} is {shown} where the baseline's is {baseline_value!r:.40} ({case})"
            )
    return failures


def exact_integers(run: Observation, other: Observation) -> set[str]:
    """The integer and boolean tensors that are equal in two runs, of other weights and of batches whose floats are others: masks,
    positions, lengths, also in inputs that are written. No near tie decides them, as it does a token's number, so rounding changes none of
    their elements."""
    tensors = {**run.values, **{name: run.inputs[name] for name in (run.left | other.left)}}
    elsewhere = {**other.inputs, **other.values}
    return {name for name, t in tensors.items() if not inexact(t) and _same_tensor(t, elsewhere.get(name))}


def changed_integers(
    reference: Observation, baseline: Observation, candidate: Observation, case: str, names: Collection[str]
) -> list[str]:
    """A sentence for each of these tensors that the candidate gives differently where the untouched model and the reference agree."""
    failures = []
    tensors = [{**seen.inputs, **seen.values} for seen in (reference, baseline, candidate)]
    for name in sorted(names):
        if not all(name in of_one for of_one in tensors):
            continue
        reference_value, baseline_value, candidate_value = (of_one[name] for of_one in tensors)
        if not baseline_value.shape == reference_value.shape == candidate_value.shape:
            continue
        wrong = int(((candidate_value != baseline_value) & (baseline_value == reference_value)).sum())
        if wrong:
            failures.append(
                f"the candidate's {name} differs in {wrong} of {baseline_value.numel()} values that rounding cannot change ({case})"
            )
    return failures


def _same_tensor(a: torch.Tensor, b: torch.Tensor | None) -> bool:
    return b is not None and a.shape == b.shape and bool((a == b).all())


def _differ(a: Any, b: Any) -> bool:
    return _relative_difference(a, b) > VARIES if _finite(a, b) else not _equal(a, b)


def _finite(*values: Any) -> bool:
    """Whether all are floats or complex numbers, none of them NaN or infinite."""
    return all(isinstance(value, (float, complex)) and cmath.isfinite(value) for value in values)


def _equal(a: Any, b: Any) -> bool:
    """Whether they are equal, where NaN equals NaN."""
    return bool(a == b or (a != a and b != b))


def _relative_difference(a: Any, b: Any) -> float:
    """The difference of two numbers, as a share of the larger."""
    return float(abs(a - b) / (max(abs(a), abs(b)) or 1.0))
