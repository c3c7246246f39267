"""What an output holds that no rounding touches, plain values and integers: what of it a candidate gives otherwise."""

from __future__ import annotations

import cmath
from collections.abc import Collection, Sequence
from typing import Any

import torch

from rung.verify.observe import Row, Seen
from rung.verify.perturb import inexact

VARIES = 1e-6  # a float's relative change between two runs of one batch: below it, sums in no fixed order may be why


def varying(runs: Sequence[Seen]) -> set[str]:
    """The values that differ between runs of the untouched model on one batch, as counters and times do: of a candidate's
    nothing can be said."""
    first, *others = (run.plain for run in runs)
    return {name for name, value in first.items() if any(_differ(value, other.get(name)) for other in others)}


def value_rows(truth: Seen, mine: Seen, theirs: Seen, case: str, left_out: Collection[str]) -> list[Row]:
    """A row for every float and complex number that is finite in all three."""
    found = []
    for name, right in truth.plain.items():
        own, other = mine.plain.get(name), theirs.plain.get(name)
        if name not in left_out and _finite(right, own, other):
            found.append(Row(f"output{name}", case, _apart(other, right), _apart(own, right)))
    return found


def other_values(truth: Seen, mine: Seen, theirs: Seen, case: str, left_out: Collection[str]) -> list[str]:
    """What else the candidate gives otherwise, in sentences. Where the untouched model and the reference do not agree, rounding
    decides, and neither is right."""
    said = []
    for name, own in mine.plain.items():
        right, other = truth.plain.get(name), theirs.plain.get(name, "of another type")
        shown = f"{other!r:.40}" if name in theirs.plain else other
        agreed = _finite(own, right) or _equal(own, right)
        if name not in left_out and agreed and not _finite(own, other) and not _equal(own, other):
            said.append(f"the candidate's output{name} is {shown} where the baseline's is {own!r:.40} ({case})")
    return said


def settled(run: Seen, other: Seen) -> set[str]:
    """The integer and boolean tensors that are equal in two runs, of other weights and of batches whose floats are others: masks,
    positions, lengths, also in inputs that are written. No near tie decides them, as it does a token's number, so no other element of them is
    rounding."""
    found = {**run.values, **{name: run.inputs[name] for name in (run.left | other.left)}}
    elsewhere = {**other.inputs, **other.values}
    return {name for name, t in found.items() if not inexact(t) and _alike(t, elsewhere.get(name))}


def other_integers(truth: Seen, mine: Seen, theirs: Seen, case: str, names: Collection[str]) -> list[str]:
    """Which of these tensors the candidate gives otherwise, in sentences, where the untouched model and the reference agree."""
    said = []
    held = [{**seen.inputs, **seen.values} for seen in (truth, mine, theirs)]
    for name in sorted(names):
        if not all(name in one for one in held):
            continue
        right, own, other = (one[name] for one in held)
        if own.shape == right.shape == other.shape and (wrong := int(((other != own) & (own == right)).sum())):
            said.append(
                f"the candidate's {name} differs in {wrong} of {own.numel()} values that rounding cannot change ({case})"
            )
    return said


def _alike(a: torch.Tensor, b: torch.Tensor | None) -> bool:
    return b is not None and a.shape == b.shape and bool((a == b).all())


def _differ(a: Any, b: Any) -> bool:
    return _apart(a, b) > VARIES if _finite(a, b) else not _equal(a, b)


def _finite(*values: Any) -> bool:
    """Whether all are floats or complex numbers, none of them NaN or infinite."""
    return all(isinstance(value, (float, complex)) and cmath.isfinite(value) for value in values)


def _equal(a: Any, b: Any) -> bool:
    """Where NaN equals NaN."""
    return bool(a == b or (a != a and b != b))


def _apart(a: Any, b: Any) -> float:
    """How far two numbers are apart, as a share of the larger."""
    return float(abs(a - b) / (max(abs(a), abs(b)) or 1.0))
