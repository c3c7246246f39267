"""What the reference and the untouched model answer: on each case, and over a few optimizer steps.

The reference in float64 takes about twice the untouched model's memory. Beside the graphs that a candidate records, its peak would be
three times that. So in training all of it is answered before a candidate is made, as far as the host's memory has room for the answers;
then the reference's memory is free. In inference, answers are few next to the weights, which stay: each case is answered when it is asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from rung.engine.step import Step
from rung.errors import WorkloadError, first_line
from rung.hardware.device import Device, to_device
from rung.hardware.limits import free_memory
from rung.plan import Numerics, Plan
from rung.verify.faint import Faint
from rung.verify.observe import Seen, large, observe, refuse_unseen, rows
from rung.verify.perturb import inexact, perturbed, state
from rung.verify.reference import Reference, jittered
from rung.verify.training import Changes, Path, Training
from rung.workload import Batch, Workload, seeded_model
from rung.workload.own_model import copied

ROOM = 1 / 8  # of the host's free memory, that the answers of one verification may take: others run beside it
TRAINED_ON = 12  # the seed of the weights from which optimizer steps begin: sharp ones


@dataclass(frozen=True)
class Case:
    """A batch, `make(seed + 100)`, and the seed of the weights that it is run on. name: as failures call it."""

    make: Callable[[int], Batch]
    seed: int
    name: str


@dataclass(frozen=True)
class Answered:
    """One case: the weights and the batch, on the device; what the reference and the untouched model give."""

    weights: dict[str, torch.Tensor]
    batch: Batch
    truth: Seen
    mine: Seen


@dataclass(frozen=True)
class Steps:
    """A few optimizer steps: what the reference and the untouched model change of every weight, where each step begins, of which elements
    nothing is said, and what they leave of what is no real or complex number, as counters are."""

    training: Training
    path: Path
    faint: Faint
    truth: Changes
    mine: Changes
    integers: dict[str, torch.Tensor]


@dataclass(frozen=True)
class _Kept:
    strength: float
    truth: Seen
    mine: Seen


class Answers:
    """The answers of a workload at one precision. plan: at that precision; alone: as of `rung.verify.verify.verify`."""

    def __init__(self, workload: Workload, plan: Plan, device: Device, numerics: Numerics, alone: bool) -> None:
        self._workload, self._device, self._numerics = workload, device, numerics
        self.model = seeded_model(workload).to(device.torch_name)
        self.reference = Reference(workload, self.model, device, alone)
        self.baseline = Step(workload, copied(self.model), plan.precision_only(), device)
        self.double = False  # whether float64 is the workload's own precision
        self._kept: dict[Case, _Kept] = {}
        self._steps: Steps | None = None

    def ahead(self, cases: Sequence[Case], steps: int) -> bool:
        """Answers all of these cases and optimizer steps now, and gives the reference's memory back. False where the host has no room for
        all answers: what is missing is answered when it is asked, and the reference keeps its memory."""
        room, finite = ROOM * free_memory(), True
        for number, case in enumerate(cases):
            batch = to_device(case.make(case.seed + 100), self._device)
            strength, _, truth, mine = self._asked(case.seed, batch)
            finite &= all(math.isfinite(row.noise) for row in rows(truth, mine, mine, case.name))
            self._kept[case] = _Kept(strength, _moved(truth, "cpu"), _moved(mine, "cpu"))
            _drop_gradients(self.baseline)
            if (_bytes(truth) + _bytes(mine)) * (len(cases) - number) > room:
                return False
            room -= _bytes(truth) + _bytes(mine)
        made = self.trained(steps, finite)
        self._steps = replace(made, truth=_changed(made.truth, "cpu"), mine=_changed(made.mine, "cpu"))
        self._release()
        return True

    def of(self, case: Case) -> Answered:
        """Answers one case, or hands out what was answered ahead, once."""
        batch = to_device(case.make(case.seed + 100), self._device)
        kept = self._kept.pop(case, None)
        if kept is None:
            _, weights, truth, mine = self._asked(case.seed, batch)
            return Answered(weights, batch, truth, mine)
        weights = perturbed(self.model, case.seed, kept.strength)
        return Answered(weights, batch, _moved(kept.truth, self._where), _moved(kept.mine, self._where))

    def trained(self, count: int, finite: bool) -> Steps:
        """The change of every weight over so many optimizer steps on fresh batches, each from equal weights; or what was answered ahead.
        finite: whether the untouched model's error was, in all cases."""
        if self._steps is not None:
            kept, self._steps = self._steps, None
            return replace(kept, truth=_changed(kept.truth, self._where), mine=_changed(kept.mine, self._where))
        weights = perturbed(self.model, TRAINED_ON, 1.0 if finite else 0.0)
        training = Training(count, lambda k: to_device(self._workload.inputs(500 + k), self._device), self._device)
        faint, path = Faint(self._numerics), Path(weights, count, self._device)

        def seen(model: torch.nn.Module) -> None:
            faint.look(model)
            path.keep(model)

        def noisy(k: int) -> dict[str, torch.Tensor] | None:
            given = path.start(k)
            return None if given is None else self.noisy(given, k)

        truth = training.change(
            self.reference.step,
            lambda k: None if k else weights,
            lambda step, batch: step(self.reference.cast(batch)),
            seen,
        )
        _drop_gradients(self.reference.step)
        mine = training.change(self.baseline, noisy, after=faint.compare)
        integers = {n: t.detach().clone() for n, t in state(self.baseline.model).items() if not inexact(t)}
        return Steps(training, path, faint, truth, mine, integers)

    def mine(self, weights: dict[str, torch.Tensor], batch: Batch, seed: int) -> Seen:
        return observe(self.baseline, self.noisy(weights, seed), batch)

    def noisy(self, weights: dict[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
        """Where the reference is no more precise than the untouched model, rounding is shown by weights moved by an ulp."""
        return weights if self.reference.name == "float64" and not self.double else jittered(weights, seed)

    def _asked(self, seed: int, batch: Batch) -> tuple[float, dict[str, torch.Tensor], Seen, Seen]:
        """The strength of weights on which the untouched model is finite, these weights, and what the reference and it give there."""
        for strength in (1.0, 0.5, 0.1, 0.0):
            weights = perturbed(self.model, seed, strength)
            try:
                truth = self.reference.run(weights, batch)
                _drop_gradients(self.reference.step)
                mine = self.mine(weights, batch, seed)
            except Exception as error:
                raise WorkloadError(
                    f"workload {self._workload.name!r}: the untouched workload raised {type(error).__name__} while it was "
                    f"compared with: {first_line(error)}"
                ) from error
            refuse_unseen(self._workload, mine)
            if truth.finite and mine.finite:
                return strength, weights, truth, mine
        raise WorkloadError(
            f"workload {self._workload.name!r}: the untouched workload is not finite at {self._numerics} precision on the "
            f"inputs of seed {seed + 100}, so nothing can be compared with it."
        )

    def _release(self) -> None:
        """Gives back what the reference and the untouched model took to run. Both stay, and can be run again."""
        _drop_gradients(self.reference.step, self.baseline)
        if self._device.is_gpu:
            torch.cuda.empty_cache()

    @property
    def _where(self) -> str:
        """Where answers are compared: those of a large model lie in the host's memory anyway."""
        return "cpu" if large(self.model) else self._device.torch_name


def _drop_gradients(*steps: Step) -> None:
    """And the optimizers' states: one model's need not lie beside another's that runs."""
    for step in steps:
        step.model.zero_grad(set_to_none=True)
        step.fresh()


def _moved(seen: Seen, where: str) -> Seen:
    gradients = {name: None if g is None else g.to(where) for name, g in seen.gradients.items()}
    return replace(seen, values=_changed(seen.values, where), gradients=gradients)


def _changed(changes: Changes, where: str) -> Changes:
    return {name: t.to(where) for name, t in changes.items()}


def _bytes(seen: Seen) -> int:
    tensors = [*seen.values.values(), *(g for g in seen.gradients.values() if g is not None)]
    return sum(t._nnz() * t.element_size() if t.is_sparse else t.numel() * t.element_size() for t in tensors)
