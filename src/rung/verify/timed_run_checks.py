"""Does a candidate compute the same while it is timed as while it is verified? It could compute only where it is looked at, or only what it never saw.

After the timed blocks the same process times one more, by the same calls. Around each of its steps, not in it, the weights
and the batch before and what the step gave are copied; every second batch is refilled in place. All of it is then
compared with the untouched workload. In inference, steps on new inputs are timed beside steps on the same inputs again.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

from rung.engine.step import Step
from rung.hardware.device import Device, synchronize
from rung.plan import Numerics, Plan
from rung.verify.distances import COMPRESSED
from rung.verify.observe import (
    GRADIENT,
    Observation,
    Row,
    equal_parts,
    identical,
    missing_results,
    observe,
    observe_result,
    own_copy,
    rows,
)
from rung.verify.perturb import distinct, state
from rung.verify.random_draws import draws_random_numbers
from rung.verify.randomness import active
from rung.verify.reference import Reference, jittered, own_precision
from rung.verify.tolerance import FLOOR, judge
from rung.workload import Batch, Workload, seeded_model
from rung.workload.copy_model import copy_model

FIRST_NEW_SEED = 10_000  # of inputs that nothing has seen
PAIRS, MOST_PAIRS = 9, 27  # of a step on new inputs and one on the same again; the most where they seem to differ
CHANCE = 1.1  # times as long: on a busy machine that is chance
SECONDS = 10.0  # that the pairs may take, however long a step is; where they seem to differ three times as long, for PAIRS of them
SLACK = 3.0  # times verification's tolerances: of two cases only, on weights as training left them
MOST_LOST = 0.3  # with SLACK, less than all of it: what is not computed at all is refused
CASE = "while it was timed"


class WatchedSteps:
    """Copies of what some steps were given and what they gave. `before` and `after` are called around each step."""

    def __init__(self) -> None:
        self.cases: list[tuple[dict[str, torch.Tensor], Batch, Observation]] = []
        self.idle: list[bool] = []  # for every step, whether it trains and no weight moved
        self.full = False  # there was no memory for the copies, and nothing more is kept

    def before(self, step: Step, batch: Batch) -> None:
        with self._or_give_up():
            self._weights = {n: t.detach().clone() for n, t in state(step.model).items()}
            self._batch = own_copy(batch)

    def after(self, step: Step, result: tuple[Any, Any]) -> None:
        if self.full:
            return
        with self._or_give_up():
            self.cases.append((self._weights, self._batch, observe_result(step, *result)))
            unmoved = (identical(t, self._weights[n]) for n, t in state(step.model).items())
            self.idle.append(step.training and all(unmoved))

    def give_up(self) -> None:
        """Drops all copies, and keeps no more."""
        self.full = True
        self.cases, self._weights, self._batch = [], {}, None

    @contextlib.contextmanager
    def _or_give_up(self) -> Iterator[None]:
        try:
            yield
        except torch.OutOfMemoryError:
            self.give_up()


def refill(batch: Batch, other: Batch) -> bool:
    """Writes the content of another batch into the tensors of this one. False, and nothing is written, where more than the content differs."""
    old, new = pytree.tree_leaves(batch), pytree.tree_leaves(other)
    if pytree.tree_structure(batch) != pytree.tree_structure(other) or not all(map(_refillable, old, new)):
        return False  # of another shape, it may have to be compiled
    with torch.no_grad():
        for to, source in zip(old, new, strict=True):
            if isinstance(to, torch.Tensor):
                to.copy_(source)
    return True


def _refillable(a: Any, b: Any) -> bool:
    """Whether the content of b can be written into a, or need not be."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        if a.is_nested or b.is_nested or (a.shape, a.dtype, a.layout) != (b.shape, b.dtype, b.layout):
            return False
        if a.layout in COMPRESSED and a.values().shape != b.values().shape:
            return False  # they hold another number of elements
        return distinct(a) is a
    return type(a) is type(b) and not isinstance(a, torch.Tensor) and equal_parts(a, b)


def compare_with_untouched(
    workload: Workload, plan: Plan, device: Device, watched: WatchedSteps, *, gradients: bool = True
) -> list[str]:
    """A sentence for everything that the watched steps gave differently than the untouched workload does from the same weights and batch.
    gradients: whether they are of this batch, too.

    Where the workload draws random numbers, as with dropout on, only whether weights move is checked: no two programs draw the same. Raises
    what the untouched workload raises, and torch.OutOfMemoryError where it does not fit.
    """
    if any(watched.idle):
        return [f"the weights do not change in a step ({CASE})"]
    model = seeded_model(workload).to(device.torch_name)
    if workload.mode == "train" and active(model):
        return []
    numerics = plan.phases(own_precision(workload, model, device))[-1]
    # Beside others who fill the GPU: bfloat16 and TF32 are off by thousands of times what float32 is.
    reference_step = Reference(workload, model, device, double=numerics == "exact")
    baseline_step = Step(workload, copy_model(model), plan.precision_only(), device)
    if watched.cases and draws_random_numbers(partial(observe, baseline_step, *watched.cases[0][:2]), device):
        return []
    failures: list[str] = []
    compared: list[Row] = []
    for k, (weights, batch, candidate) in enumerate(watched.cases):
        reference, lost = reference_step.run(weights, batch), {}
        if reference_step.name == "float64" or numerics != "exact":
            baseline = observe(baseline_step, weights, batch)
        else:  # the reference is the untouched model itself
            baseline = observe(baseline_step, jittered(weights, k), batch)
            lost = _lost_digits(reference, observe(baseline_step, state(model), batch))
        if not gradients:
            all_three = (reference, baseline, candidate)
            reference, baseline, candidate = (replace(seen, gradients={}, was_finite=None) for seen in all_three)
        if reference.finite and baseline.finite:
            failures += missing_results(reference, baseline, candidate, CASE)
            of_case = rows(reference, baseline, candidate, CASE)
            compared += [replace(row, jump=max(row.jump, lost.get(row.what, 0.0))) for row in of_case]
    return failures + outside_tolerance(compared, numerics)


def outside_tolerance(compared: Sequence[Row], numerics: Numerics) -> list[str]:
    """A sentence for every row that is off by more than SLACK times its tolerance, the worst first."""
    failed = [check for check in judge(compared, numerics) if not check.error <= SLACK * check.tolerance]
    return [check.sentence() for check in sorted(failed, key=lambda check: -check.error / check.tolerance)]


def _lost_digits(now: Observation, first: Observation) -> dict[str, float]:
    """How far off the loss and each gradient may be, as a share of its size and by its name, once training has made it small: as much as would be
    rounding of its size on the model's first weights, and at most MOST_LOST. One minus a probability next to one keeps few of its digits, and
    weights moved by an ulp do not show that."""
    before = {row.what: row.size for row in rows(first, first, first, CASE)}
    small = [row for row in rows(now, now, now, CASE) if row.what == "loss" or row.what.startswith(GRADIENT)]
    shares = {row.what: FLOOR["exact"] * before.get(row.what, 0.0) / row.size for row in small if row.size}
    return {what: min(share, MOST_LOST) for what, share in shares.items()}


def slowdown_on_new_inputs(
    step: Step, batches: Sequence[Batch], make: Callable[[int], Batch], device: Device
) -> float | None:
    """How many times as long a step takes on new inputs as on the same inputs again. None where inputs are seldom of the same shapes.

    The new inputs lie in the old ones' memory. While they are made, the caches go cold and the GPU has nothing to do, so one more step runs before
    both timed ones."""
    timed, tries = _PairedTimes(device), 0
    while not timed.enough():
        batch, tries = batches[len(timed.new) % len(batches)], tries + 1
        if not refill(batch, make(FIRST_NEW_SEED + 100 + tries)):
            if tries >= MOST_PAIRS:
                return None
            continue
        timed.measure(step, batches[(len(timed.new) + 1) % len(batches)])
        timed.new.append(timed.measure(step, batch))
        timed.again.append(timed.measure(step, batch))
    return timed.ratio()


class _PairedTimes:
    """Times of a step on new inputs and on the same inputs again, in ns, by each of several clocks: on a GPU wall time, on a CPU also CPU time,
    which leaves out waiting for a core."""

    def __init__(self, device: Device) -> None:
        self.new: list[list[int]] = []
        self.again: list[list[int]] = []
        self._device = device
        self._clocks = [time.perf_counter_ns] if device.is_gpu else [time.perf_counter_ns, time.process_time_ns]
        self._began = time.monotonic()

    def measure(self, step: Step, batch: Batch) -> list[int]:
        synchronize(self._device)
        begin = [clock() for clock in self._clocks]
        step(batch)
        synchronize(self._device)
        return [clock() - since for clock, since in zip(self._clocks, begin, strict=True)]

    def ratio(self) -> float:
        """The least that can be said, because on a busy machine the same step takes three times as long as it did a moment ago: the least over
        the clocks, and over the ratio of the fastest times and that of which three in four pairs have more."""
        ratios = []
        for clock in range(len(self._clocks)):
            new = [max(1, took[clock]) for took in self.new]
            again = [max(1, took[clock]) for took in self.again]
            pairs = sorted(a / b for a, b in zip(new, again, strict=True))
            ratios += [min(new) / min(again), pairs[len(pairs) // 4]]
        return min(ratios)

    def enough(self) -> bool:
        if len(self.new) < 2:
            return False
        seconds = time.monotonic() - self._began
        if self.ratio() < CHANCE:
            return len(self.new) >= PAIRS or seconds > SECONDS
        return len(self.new) >= MOST_PAIRS or seconds > (SECONDS if len(self.new) >= PAIRS else 3 * SECONDS)
