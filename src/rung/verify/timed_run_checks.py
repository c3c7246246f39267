"""Is what was timed what is verified? A candidate could compute only where it is looked at, or only what it never saw.

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
from rung.plan import Plan
from rung.verify.distances import COMPRESSED
from rung.verify.observe import GRADIENT, Row, Seen, equal, identical, missing, noted, observe, own_copy, rows
from rung.verify.perturb import distinct, state
from rung.verify.random_draws import draws
from rung.verify.randomness import active
from rung.verify.reference import Reference, jittered, own_precision
from rung.verify.tolerance import FLOOR, judge
from rung.workload import Batch, Workload, seeded_model
from rung.workload.base import copied

NEW = 10_000  # the first seed of inputs that nothing has seen
PAIRS, MOST_PAIRS = 9, 27  # of a step on new inputs and one on the same again; the most where they seem to differ
ALIKE = 1.1  # times as long: chance on a busy machine
SECONDS = (
    10.0  # that they may take, however long a step is; where they seem to differ three times as long, for PAIRS of them
)
SLACK = 3.0  # times verification's tolerances: of two cases only, on weights as training left them
MOST_LOST = 0.3  # with SLACK, less than all of it: what is not computed at all is refused
CASE = "while it was timed"


class Watched:
    """What some steps were given, and what they gave."""

    def __init__(self) -> None:
        self.cases: list[tuple[dict[str, torch.Tensor], Batch, Seen]] = []
        self.idle: list[bool] = []  # whether no weight moved, of every training step
        self.full = False  # there was no memory for the copies, and nothing more is kept

    def before(self, step: Step, batch: Batch) -> None:
        with self._room():
            self._weights = {n: t.detach().clone() for n, t in state(step.model).items()}
            self._batch = own_copy(batch)

    def after(self, step: Step, result: tuple[Any, Any]) -> None:
        if self.full:
            return
        with self._room():
            self.cases.append((self._weights, self._batch, noted(step, *result)))
            still = (identical(t, self._weights[n]) for n, t in state(step.model).items())
            self.idle.append(step.training and all(still))

    def give_up(self) -> None:
        self.full = True
        self.cases, self._weights, self._batch = [], {}, None

    @contextlib.contextmanager
    def _room(self) -> Iterator[None]:
        try:
            yield
        except torch.OutOfMemoryError:
            self.give_up()


def refill(batch: Batch, other: Batch) -> bool:
    """Writes the content of another batch into the tensors of this one, where nothing but that is another."""
    old, new = pytree.tree_leaves(batch), pytree.tree_leaves(other)
    if pytree.tree_structure(batch) != pytree.tree_structure(other) or not all(map(_alike, old, new)):
        return False  # of another shape, it may have to be compiled
    with torch.no_grad():
        for mine, theirs in zip(old, new, strict=True):
            if isinstance(mine, torch.Tensor):
                mine.copy_(theirs)
    return True


def _alike(a: Any, b: Any) -> bool:
    """Whether the content of one can be written into the other, or need not be."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        if a.is_nested or b.is_nested or (a.shape, a.dtype, a.layout) != (b.shape, b.dtype, b.layout):
            return False
        if a.layout in COMPRESSED and a.values().shape != b.values().shape:
            return False  # they hold another number of elements
        return distinct(a) is a
    return type(a) is type(b) and not isinstance(a, torch.Tensor) and equal(a, b)


def against_the_untouched(
    workload: Workload, plan: Plan, device: Device, watched: Watched, *, gradients: bool = True
) -> list[str]:
    """What the steps gave otherwise than the untouched workload does from the same weights and batch, in sentences. gradients: whether
    they are of this batch, too.

    Where it draws random numbers, as with dropout on, only the weights are looked at: no two programs draw the same. Raises what the untouched
    workload raises, torch.OutOfMemoryError where it does not fit.
    """
    if any(watched.idle):
        return [f"the weights do not change in a step ({CASE})"]
    model = seeded_model(workload).to(device.torch_name)
    if workload.mode == "train" and active(model):
        return []
    numerics = plan.phases(own_precision(workload, model, device))[-1]
    # Beside others who fill the GPU: bfloat16 and TF32 are off by thousands of times what float32 is.
    reference = Reference(workload, model, device, double=numerics == "exact")
    baseline = Step(workload, copied(model), plan.precision_only(), device)
    said: list[str] = []
    found: list[Row] = []
    if watched.cases and draws(partial(observe, baseline, *watched.cases[0][:2]), device):
        return []
    for k, (weights, batch, theirs) in enumerate(watched.cases):
        truth, lost = reference.run(weights, batch), {}
        if reference.name == "float64" or numerics != "exact":
            mine = observe(baseline, weights, batch)
        else:  # the reference is the untouched model itself
            mine = observe(baseline, jittered(weights, k), batch)
            lost = _lost(truth, observe(baseline, state(model), batch))
        if not gradients:
            truth, mine, theirs = (replace(seen, gradients={}, was_finite=None) for seen in (truth, mine, theirs))
        if truth.finite and mine.finite:
            said += missing(truth, mine, theirs, CASE)
            compared = rows(truth, mine, theirs, CASE)
            found += [replace(row, kink=max(row.kink, lost.get(row.what, 0.0))) for row in compared]
    bad = [c for c in judge(found, numerics) if not c.error <= SLACK * c.tolerance]
    return said + [c.sentence() for c in sorted(bad, key=lambda c: -c.error / c.tolerance)]


def _lost(now: Seen, first: Seen) -> dict[str, float]:
    """How far off the loss and each gradient may be, as a share of its size and by its name, once training has made it small: as much as would be
    rounding of its size on the model's first weights, and at most MOST_LOST. One minus a probability next to one keeps few of its digits, and
    weights moved by an ulp do not show that."""
    before = {row.what: row.size for row in rows(first, first, first, CASE)}
    small = [row for row in rows(now, now, now, CASE) if row.what == "loss" or row.what.startswith(GRADIENT)]
    shares = {row.what: FLOOR["exact"] * before.get(row.what, 0.0) / row.size for row in small if row.size}
    return {what: min(share, MOST_LOST) for what, share in shares.items()}


def unseen(step: Step, batches: Sequence[Batch], make: Callable[[int], Batch], device: Device) -> float | None:
    """How many times as long a step takes on new inputs as on the same inputs again. The new ones lie in the old ones' memory; None
    where inputs are seldom of the same shapes. Before both there is a step: while inputs are made the caches go cold, and the GPU has
    nothing to do.

    On a busy machine the same step takes three times as long as it did a moment ago. So it is the least of what can be said: of the
    fastest on each, and of three in four pairs; on a CPU by wall time and by CPU time, which leaves out waiting for a core."""
    clocks = [time.perf_counter_ns] if device.is_gpu else [time.perf_counter_ns, time.process_time_ns]

    def timed(batch: Batch) -> list[int]:
        synchronize(device)
        begin = [clock() for clock in clocks]
        step(batch)
        synchronize(device)
        return [clock() - since for clock, since in zip(clocks, begin, strict=True)]

    new: list[list[int]] = []
    again: list[list[int]] = []

    def longer() -> float:
        found = []
        for clock in range(len(clocks)):
            first, second = [max(1, took[clock]) for took in new], [max(1, took[clock]) for took in again]
            pairs = sorted(a / b for a, b in zip(first, second, strict=True))
            found += [min(first) / min(second), pairs[len(pairs) // 4]]
        return min(found)

    def enough() -> bool:
        seconds = time.monotonic() - began
        if longer() < ALIKE:
            return len(new) >= PAIRS or seconds > SECONDS
        return len(new) >= MOST_PAIRS or seconds > (SECONDS if len(new) >= PAIRS else 3 * SECONDS)

    tries, began = 0, time.monotonic()
    while len(new) < 2 or not enough():
        batch, tries = batches[len(new) % len(batches)], tries + 1
        if not refill(batch, make(NEW + 100 + tries)):
            if tries >= MOST_PAIRS:
                return None
            continue
        timed(batches[(len(new) + 1) % len(batches)])
        new.append(timed(batch))
        again.append(timed(batch))
    return longer()
