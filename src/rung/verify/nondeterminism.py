"""Whether a refused candidate gives another answer in every run: such a difference is not rounding.

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


def describe_nondeterminism(
    candidate: Any,
    baseline: Any,
    cases: Iterable[tuple[dict[str, torch.Tensor], Batch]],
    numerics: Numerics,
    keeps_weights: bool,
) -> list[str]:
    """Runs both steps several times on the weights and the batch of each case. Returns a sentence if the candidate's runs are farther apart than
    the untouched model's may be, else nothing. keeps_weights: the candidate prepares itself anew when its weights are put anew."""
    with contextlib.suppress(Exception):  # a candidate that is wrong may well raise, and the device be lost
        for weights, batch in cases:
            candidate_spread = _spread(candidate, weights, batch, keeps_weights)
            baseline_spread = _spread(baseline, weights, batch, False)
            if candidate_spread > max(ALLOWED[numerics] * baseline_spread, FLOOR[numerics]):
                return [
                    f"{RUNS} runs of the candidate on one batch differ by up to {candidate_spread:.1e}, those of the untouched model by "
                    f"{baseline_spread:.1e} ({numerics}): the candidate reads uninitialized memory, or computes in no fixed order"
                ]
    return []


def _spread(step: Any, weights: dict[str, torch.Tensor], batch: Batch, keeps_weights: bool) -> float:
    """The largest relative error, of an output's floats or the loss, of any run against the first finite one. Infinite where a run is not
    finite; 0.0 where none is."""
    runs = [observe(step, None if keeps_weights and k else weights, batch) for k in range(RUNS)]
    first, *others = sorted(runs, key=lambda run: not run.finite)
    if not first.finite:
        return 0.0
    floats = [name for name, value in first.values.items() if value.is_floating_point()]
    return max(
        (relative(other.values[name], first.values[name], first.device) for other in others for name in floats),
        default=0.0,
    )
