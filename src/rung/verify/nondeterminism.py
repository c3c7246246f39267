"""What a candidate that is refused gives when it is asked again: an answer that changes from run to run is no rounding.

torch 2.11, for one, reads back in a reduction what other threads of the same kernel are about to write
(pytorch#190517), and the result is right in some runs and not in others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import torch

from rung.plan import Numerics
from rung.verify.distances import relative
from rung.verify.observe import observe
from rung.verify.tolerance import ALLOWED, FLOOR
from rung.workload import Batch

RUNS = 4  # of one batch


def unsteady(
    candidate: Any,
    baseline: Any,
    cases: Iterable[tuple[dict[str, torch.Tensor], Batch]],
    numerics: Numerics,
    keeps: bool,
) -> list[str]:
    """What to say of two steps that are run several times on equal weights and one batch, of each case: nothing, unless the
    candidate's answers are farther apart than the untouched model's may be. keeps: the candidate is prepared anew when its
    weights are put anew."""
    with contextlib.suppress(Exception):  # a candidate that is wrong may well raise, and the device be lost
        for weights, batch in cases:
            theirs = _spread(candidate, weights, batch, keeps)
            mine = _spread(baseline, weights, batch, False)
            if theirs > max(ALLOWED[numerics] * mine, FLOOR[numerics]):
                return [
                    f"{RUNS} runs of the candidate on one batch differ by up to {theirs:.1e}, those of the untouched model by {mine:.1e} "
                    f"({numerics}): the candidate reads uninitialized memory, or computes in no fixed order"
                ]
    return []


def _spread(step: Any, weights: dict[str, torch.Tensor], batch: Batch, keeps: bool) -> float:
    """How far runs are from the first of them that is finite: the largest relative error of an output's floats or the loss; infinite
    where another is not finite, 0.0 where none is."""
    seen = [observe(step, None if keeps and k else weights, batch) for k in range(RUNS)]
    right, *others = sorted(seen, key=lambda one: not one.finite)
    floats = [name for name, value in right.values.items() if value.is_floating_point()]
    if not right.finite:
        return 0.0
    return max(
        (relative(other.values[name], right.values[name], right.device) for other in others for name in floats),
        default=0.0,
    )
