"""Dropout: where a model has it, the same workload without it, and whether a candidate draws it, and other random numbers, as the baseline does.

Two programs never draw the same masks by themselves, so single runs cannot be compared; the distribution of many can. Of every output,
of the loss and of every gradient, the runs of both, from the same weights and batch, are asked two things: are their
means as near, and do they scatter as widely, as two sets of the baseline's own would? A permutation test says how
far apart chance puts them. It sees a dropout that was lost, one that is replayed with the same mask, another rate, a missing
1/(1-p); of many dropouts, one that is lost alone only where it makes a difference in some gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from rung.verify.observe import GRADIENT, observe
from rung.workload import Batch, Workload

RUNS = 24  # of each
PERMUTATIONS = 4000  # a difference is claimed where none of them is as large: a false alarm in 4000
MOST_ELEMENTS = 1 << 14  # of one tensor that are looked at
ROUNDING = 1e-4  # scatter below this share of a tensor's size is no dropout, of a tensor as of an element


def other_randomness(
    baseline: Any, candidate: Any, weights: dict[str, torch.Tensor], batch: Batch, warm: int
) -> str | None:
    """What differs in the candidate's random results, as a sentence, or None.

    baseline, candidate: steps with dropout on, and random numbers drawn as they come; weights: of both; warm: runs before a captured step replays.
    """
    torch.manual_seed(0)  # once: what draws anew in each run is what is asked
    baseline_runs = _runs(baseline, weights, batch, 0)
    sizes = sorted(float(np.abs(runs).mean()) for name, runs in baseline_runs.items() if name.startswith(GRADIENT))
    median = sizes[len(sizes) // 2] if sizes else 0.0
    random = [
        name for name, runs in baseline_runs.items() if _scatters(runs, median if name.startswith(GRADIENT) else 0.0)
    ]
    if not random:
        return None
    candidate_runs = _runs(candidate, weights, batch, warm)
    for name in random:
        runs = candidate_runs.get(name)
        if runs is None or runs.shape != baseline_runs[name].shape or not np.isfinite(runs).all():
            return (
                f"with random numbers drawn anew, the candidate's {name} is missing, has another shape or is not finite"
            )
    if not any(_scatters(candidate_runs[name]) for name in random):
        return "the candidate gives the same results in every run, but the random numbers that the untouched model draws make them differ"
    differing = _most_different({name: (baseline_runs[name], candidate_runs[name]) for name in random})
    if differing is None:
        return None
    ratio = float(candidate_runs[differing].std(axis=0).mean() / baseline_runs[differing].std(axis=0).mean())
    return (
        f"with random numbers drawn anew, the candidate's {differing} has another distribution than the baseline's: over {RUNS} runs its "
        f"standard deviation is {ratio:.2f} times as large"
    )


def _runs(step: Any, weights: dict[str, torch.Tensor], batch: Batch, warm: int) -> dict[str, np.ndarray]:
    """By tensor, (RUNS, elements) float32: the outputs, the loss and the gradients of each run."""
    runs_of: dict[str, list[np.ndarray]] = {}
    for k in range(warm + RUNS):
        seen = observe(step, weights, batch)
        # A layer that is left out by chance has none in some runs.
        weights_of = dict(step.model.named_parameters())
        gradients = {
            GRADIENT + n: torch.zeros_like(weights_of[n]) if g is None else g for n, g in seen.gradients.items()
        }
        for name, tensor in {**seen.values, **gradients}.items():
            if k >= warm and tensor.is_floating_point() and not tensor.is_sparse:
                runs_of.setdefault(name, []).append(_sample(tensor))
    return {name: np.stack(runs) for name, runs in runs_of.items() if len({len(run) for run in runs}) == 1}


def _sample(t: torch.Tensor) -> np.ndarray:
    flat = t.reshape(-1)
    return np.asarray(flat[:: -(-flat.numel() // MOST_ELEMENTS) or 1].float().cpu().numpy())  # numpy has no bfloat16


def _scatters(runs: np.ndarray, usual_size: float = 0.0) -> bool:
    """Whether runs differ by more than rounding. usual_size: of tensors of this kind. All of a gradient may be rounding, as that of a bias under a
    batch norm, which is zero."""
    return bool(runs.std(axis=0).max(initial=0.0) > ROUNDING * max(np.abs(runs).mean(), usual_size))


def _most_different(pairs: dict[str, tuple[np.ndarray, np.ndarray]]) -> str | None:
    """The tensor whose two sets of runs are further apart than chance ever put any tensor's, if there is one."""
    random = np.random.default_rng(0)
    halves = np.where(np.arange(2 * RUNS) < RUNS, 1.0, -1.0) / RUNS
    signs = np.stack([halves, *(random.permutation(halves) for _ in range(PERMUTATIONS))])
    names, scores = [], []
    for name, (a, b) in pairs.items():
        for statistic in _statistics(np.concatenate([a, b]), signs):
            names.append(name)
            scores.append((statistic - statistic.mean()) / (statistic.std() or 1.0))
    largest = np.max(scores, axis=0)
    if (largest[1:] >= largest[0]).any():
        return None
    return names[int(np.argmax([score[0] for score in scores]))]


def _statistics(points: np.ndarray, signs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each row of signs (which run belongs to whom, over RUNS): how far apart the means are, and the scatters.

    The logarithm of the squared distance, because its tail is short; every element that dropout moves counts alike, whatever its
    size. What scatters by rounding alone, as the gradient of a key's bias, which is zero, is as different as two programs' rounding.
    """
    spread = points.std(axis=0)
    moved = spread > ROUNDING * np.abs(points).mean()
    points = (points[:, moved] - points[:, moved].mean(axis=0)) / spread[moved]
    products = points @ points.T
    apart = np.log(np.maximum(((signs @ products) * signs).sum(axis=1), 1e-12))
    wide = np.abs(signs @ np.log(np.maximum(np.diag(products), 1e-12)))
    return apart, wide


def rates(model: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """The modules, and their attributes, that hold a dropout rate above 0: of dropout modules, and the plain numbers named
    after it (`attention_dropout`, `drop_path`) that a forward hands to `F.dropout` or to attention."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            names = ["p"]
        else:
            names = [name for name in vars(module) if "drop" in name.lower()]
        for name in names:
            value = getattr(module, name)
            if isinstance(value, float) and 0.0 < value <= 1.0:
                yield module, name


def active(model: nn.Module) -> bool:
    """Whether a run of this model, in the mode that it is in, may draw dropout masks."""
    return any(module.training for module, _ in rates(model))


def without_dropout(workload: Workload) -> Workload:
    """The same workload with every dropout rate at 0: two precisions never draw the same mask."""

    def model() -> torch.nn.Module:
        made = workload.model()
        for module, name in rates(made):
            setattr(module, name, 0.0)
        return made

    return replace(workload, model=model)
