"""Did functions do, while they were timed, what they were verified to do? A function could compute only where it is looked at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from rung.engine.step import Step
from rung.hardware.device import Device, to_device
from rung.plan import Numerics, Plan
from rung.verify.observe import Observation, Row, identical, missing_results, observe, observe_result, own_copy, rows
from rung.verify.plain_functions import Inputs, as_workload, in_half_precision
from rung.verify.reference import Reference
from rung.verify.timed_run_checks import CASE, FIRST_NEW_SEED, outside_tolerance, refill, slowdown_on_new_inputs
from rung.workload import Batch, call_model

Case = tuple[Batch, Observation]


class TimedFunctions:
    """Judges what functions gave by the one that they are compared with, `call`, and by it in float64."""

    def __init__(self, name: str, call: Callable[..., Any], inputs: Inputs, device: Device) -> None:
        self._inputs, self._device = inputs, device
        self._numerics: Numerics = "bf16" if in_half_precision(inputs) else "exact"
        workload = as_workload(name, call, inputs, gradients=False)
        model = workload.model()
        self._baseline, self._reference = Step(workload, model, Plan(), device), Reference(workload, model, device)
        self._seeds = FIRST_NEW_SEED

    def renew(self, batches: Sequence[Batch]) -> bool:
        """Writes new content into the memory of every second batch; False where inputs of other seeds do not fit in."""
        return all(refill(batch, self._new()) for batch in batches[1::2])

    def _new(self) -> Batch:
        self._seeds += 1
        return to_device(self._inputs(self._seeds), self._device)

    def case(self, batch: Batch, result: Any) -> Case:
        """A batch and what a call gave, copied. Nothing is waited for: what is written later is not there yet."""
        return own_copy(batch), observe_result(self._baseline, None, result)

    def constants(self, batches: Sequence[Batch]) -> set[int]:
        """Which of the tensors in the true output are the same, bit by bit, whatever the inputs: on these, and on as many that no function has
        been given. Who keeps such a tensor, and does not write it again, has left nothing out."""
        same = dict(enumerate(self._outputs(batches[0])))
        for batch in (*batches[1:], *(None for _ in batches)):
            if not same:  # of most functions, after one batch more
                break
            now = self._outputs(self._new() if batch is None else batch)
            same = {k: t for k, t in same.items() if k < len(now) and identical(t, now[k])}
        return set(same)

    def _outputs(self, batch: Batch) -> list[torch.Tensor]:
        return list(self._reference.run({}, batch).values.values())

    def wrong(self, cases: Sequence[Case]) -> list[str]:
        """A sentence for everything that differs from what the reference function gives."""
        failures: list[str] = []
        compared: list[Row] = []
        for batch, candidate in cases:
            reference, baseline = self._reference.run({}, batch), observe(self._baseline, {}, batch)
            if reference.finite and baseline.finite:
                failures += missing_results(reference, baseline, candidate, CASE)
                compared += rows(reference, baseline, candidate, CASE)
        return failures + outside_tolerance(compared, self._numerics)

    def on_new_inputs(self, call: Callable[..., Any], batches: Sequence[Batch]) -> float:
        """How many times as long a call takes on new inputs as on the same ones again (`rung.verify.timed_run_checks.slowdown_on_new_inputs`)."""
        step: Any = lambda batch: call_model(call, batch)  # noqa: E731
        return (
            slowdown_on_new_inputs(step, batches, lambda _: self._new(), self._device) or 1.0
        )  # never a seed that another function was given
