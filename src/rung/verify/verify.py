"""Does a candidate compute what the baseline computes? Outputs, loss, every gradient, and the weights after steps.

The measure of an error is the untouched model's own: both are compared with a float64 reference, on fresh
inputs and perturbed weights, and a candidate may be off by no more than a few times what the unchanged model is
off at the same precision. Rewrites are judged in full precision first, where a dropped mask or a changed eps
stands thousands of times above the noise, and only then at the precision that the user allowed or wrote.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from rung.engine.cuda_graph import WARM_CALLS
from rung.engine.step import Step, matmul_precision
from rung.errors import WorkloadError, first_line
from rung.hardware.device import Device, to_device
from rung.plan import Numerics, Plan
from rung.verify.answers import Answers, Case
from rung.verify.dropout import active, without_dropout
from rung.verify.kinks import Moves, beside_kinks
from rung.verify.observe import Row, Seen, identical, missing, observe, rows, same
from rung.verify.perturb import inexact, moved_on, perturbed, put, state, unlike
from rung.verify.randomness import other_randomness
from rung.verify.reference import exactly, full_precision, own_precision
from rung.verify.tolerance import judge
from rung.verify.training import other_settings
from rung.verify.unsteady import unsteady
from rung.verify.untouched import changed, changed_settings, fingerprint, functions, process, replaced
from rung.verify.values import other_integers, other_values, settled, value_rows, varying
from rung.verify.verdict import Verification
from rung.workload import Batch, Workload, seeded_model, shapes
from rung.workload.own_model import copied

SEEDS = (11, 12, 13)  # 11 % 3 == 2: faint weights; 12 and 13: sharp ones
OPTIMIZER_STEPS = 3

Build = Callable[[torch.nn.Module, Plan], Any]


class CandidateFailed(Exception):
    """The candidate raised; the untouched workload ran on the same batch."""


def verify(
    workload: Workload,
    plan: Plan,
    device: Device,
    build: Build | None = None,
    precisions: Sequence[Numerics] | None = None,
    alone: bool = True,
    backwards: bool = False,
) -> Verification:
    """Compares a candidate with the reference, first in full precision, then at the lowest that it runs in.

    build: `(model, plan) -> step`, `Step` unless a test brings its own candidate; precisions: only these; alone: whether no other
    process has memory of the device that this one could use: then a reference in float64 that does not fit is one in float32;
    backwards: whether the first shape comes last, because another process compiles it meanwhile.
    Raises WorkloadError where the untouched workload itself cannot be run or is not finite.
    """
    result = Verification()
    for numerics in precisions or plan.phases(own_precision(workload, seeded_model(workload), device)):
        verifier = Verifier(workload, plan, device, numerics, build, alone)
        verifier.answer()
        verifier.compare(backwards)
        result.add(verifier.result)
        if result.wrong:
            break
    return result


def precompile(workload: Workload, plan: Plan, device: Device) -> None:
    """Runs a candidate once on the last shape as `verify` builds it in full precision, and with dropout as well, so that its compiled
    code is in the cache when another process verifies it. Nothing is compared."""
    at = replace(plan.at("exact"), capture=False)
    judged = without_dropout(exactly(workload))
    with full_precision():
        step = Step(judged, seeded_model(judged).to(device.torch_name), at, device)
        step(to_device(shapes(judged)[-1](SEEDS[0] + 100), device))
        if workload.mode == "train" and active(model := seeded_model(exactly(workload))):
            step = Step(exactly(workload), model.to(device.torch_name), at, device)
            step(to_device(shapes(workload)[-1](SEEDS[0]), device))


def _with_dropout(workload: Workload, plan: Plan, device: Device, build: Build | None) -> list[str]:
    """What the candidate does otherwise once dropout is on: everything else is compared without it."""
    model = seeded_model(workload).to(device.torch_name)
    if workload.mode != "train" or not active(model):
        return []
    baseline = Step(workload, copied(model), Plan(), device)
    batch = to_device(shapes(workload)[-1](SEEDS[0]), device)
    try:
        candidate = _theirs(build or (lambda m, at: Step(workload, m, at, device)), model, plan)
        different = other_randomness(baseline, candidate, batch, WARM_CALLS + 1 if plan.capture else 0)
    except CandidateFailed as failed:
        return [f"{failed} (with dropout on)"]
    return [different] if different else []


def _theirs(call: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except (WorkloadError, torch.OutOfMemoryError):  # which says nothing of what is computed
        raise
    except Exception as error:
        raise CandidateFailed(f"the candidate raised {type(error).__name__}: {first_line(error)}") from error


class Verifier:
    """The comparison at one precision, in two parts: what the untouched model answers, and what the candidate does. build, alone: as of
    `verify`."""

    def __init__(
        self,
        workload: Workload,
        plan: Plan,
        device: Device,
        numerics: Numerics,
        build: Build | None = None,
        alone: bool = True,
    ) -> None:
        self._exact = numerics == "exact"
        self._judged = exactly(workload) if self._exact else workload  # with its dropout
        self.workload = without_dropout(self._judged)
        self.plan, self.device, self.numerics, self._build = plan.at(numerics), device, numerics, build
        self.result = Verification(precisions=[numerics])
        with self._scope():
            self.answers = Answers(self.workload, self.plan, device, numerics, alone)
        self.baseline, self.model = self.answers.baseline, self.answers.model
        self.answered = False
        self.rows: list[Row] = []
        self.varying: set[str] = set()
        self.settled: set[str] = set()
        self._shapes = [
            [Case(make, seed, f"{self._shape(index)}, seed {seed}") for seed in SEEDS]
            for index, make in enumerate(shapes(self.workload))
        ]

    def answer(self, ahead: bool = True) -> bool:
        """Asks the untouched model, of training everything that the candidate will be asked. Returns whether the reference's memory is free
        again. ahead: False leaves that for when it is needed, which saves the way of the answers to the host's memory and back. Raises WorkloadError where the untouched model cannot be run or is not finite."""
        self.answered = True
        with self._scope():
            with contextlib.suppress(
                Exception
            ):  # what the workload itself loads and sets when it first runs is its own
                self._look_at_the_untouched()
            cases = [case for cases in self._shapes for case in cases]
            return ahead and self.workload.mode == "train" and self.answers.ahead(cases, self._steps)

    def compare(self, backwards: bool = False) -> None:
        """Makes the candidate, and compares what it gives; `result` has what came of it."""
        with self._scope():
            self._compared(backwards)
            # In full precision only: over thousands of elements the test sees two programs' rounding in bfloat16, too.
            if self._exact and not self.result.wrong:
                self.result.failures += _with_dropout(self._judged, self.plan, self.device, self._build)

    def _scope(self) -> contextlib.AbstractContextManager[None]:
        return full_precision() if self._exact else matmul_precision(self.plan)

    @property
    def _steps(self) -> int:
        """Optimizer steps that are compared, the last of them in replays where there are any."""
        return OPTIMIZER_STEPS + (WARM_CALLS if self.plan.capture or self.plan.replays else 0)

    def _compared(self, backwards: bool) -> None:
        mine = copied(self.model)
        before, settings, torchs = fingerprint(mine), process(), functions(mine)
        build = self._build or (lambda model, at: Step(self.workload, model, at, self.device))
        try:
            self.candidate = _theirs(build, mine, self.plan)
            self.result.failures += self._moved_by_preparing(mine)
            for cases in reversed(self._shapes) if backwards else self._shapes:
                self._until_replayed(cases[0].make)
                for case in cases:
                    self._case(case)
            if self.workload.mode == "train":
                self._trained()
            if self.plan.linears:
                self.result.failures += self.candidate.unlike()
        except CandidateFailed as failed:
            self.result.failures.append(f"{failed} ({self.numerics})")
        checks = judge(self.rows, self.numerics, self.answers.double)
        self.result.checks += checks
        if not all(check.passed for check in checks):
            asked = ((perturbed(self.model, k), to_device(self.workload.inputs(k + 100), self.device)) for k in SEEDS)
            keeps = self.plan.keeps_weights
            self.result.failures += unsteady(self.candidate, self.baseline, asked, self.numerics, keeps)
        untouched = fingerprint(self.baseline.model)
        self.result.failures += changed(before, fingerprint(mine), untouched) + changed_settings(settings)
        self.result.failures += replaced(torchs)
        if self.answers.reference.name != "float64":
            self.result.reference = self.answers.reference.name

    def _look_at_the_untouched(self) -> None:
        """Which plain values of its output vary, which integers no float decides, and whether float64 is its own precision."""
        batch = to_device(self.workload.inputs(0), self.device)
        runs = [observe(self.baseline, None, batch)]
        if any(value is not None for value in runs[0].plain.values()):
            runs += [observe(self.baseline, state(self.model), batch) for _ in range(2)]
        self.varying = varying(runs)
        self.answers.double = self.answers.reference.no_more_precise(batch)
        if not all(map(inexact, runs[0].values.values())):
            elsewhere = pytree.tree_map(lambda t: moved_on(t) if isinstance(t, torch.Tensor) else t, batch)
            self.settled = settled(runs[0], observe(self.baseline, unlike(self.model), elsewhere))

    def _moved_by_preparing(self, prepared: torch.nn.Module) -> list[str]:
        """Weights that are others once the candidate is prepared: nothing else would show it, because every run is
        given weights of its own."""
        moved = [n for n, w in state(self.model).items() if not identical(w, state(prepared)[n])]
        return [f"the candidate changes the weights when it is prepared, {moved[0]} first"] if moved else []

    def _shape(self, index: int) -> str:
        """What a shape is called: who reads it may not know that the second one was derived."""
        if not index or self.workload.other_shapes:
            return f"shape {index + 1}"
        rows = next(t.shape[0] for t in pytree.tree_leaves(shapes(self.workload)[1](0)) if isinstance(t, torch.Tensor))
        return f"shape 2: a batch of {rows} rows derived from yours"

    def _until_replayed(self, make: Callable[[int], Batch]) -> None:
        """What is replayed is judged in its replays, not in the calls that come before."""
        for _ in range(WARM_CALLS + 1 if self.plan.capture or self.plan.replays else 0):
            _theirs(self.candidate, to_device(make(0), self.device))

    def _case(self, case: Case) -> None:
        asked = self.answers.of(case)
        given = pytree.tree_map(lambda t: t.clone() if isinstance(t, torch.Tensor) else t, asked.batch)
        if self.plan.keeps_weights:  # others may have it prepared and recorded anew
            put(self.candidate.model, asked.weights)
            self._until_replayed(case.make)
        theirs = _theirs(observe, self.candidate, None if self.plan.keeps_weights else asked.weights, given)
        self._compare(asked.truth, asked.mine, theirs, case.name, asked.weights, asked.batch)
        if not same(asked.batch, given):
            self.result.failures.append(f"the candidate changes its inputs ({self.numerics}, {case.name})")
        if self.workload.mode == "infer":
            self._again(case, asked.weights)
        self.result.cases += 1

    def _again(self, case: Case, weights: dict[str, torch.Tensor]) -> None:
        """Another batch on the same weights, which must still be there: an answer may be cached by either."""
        batch = to_device(case.make(case.seed + 200), self.device)
        truth, mine = self.answers.reference.run(weights, batch), self.answers.mine(weights, batch, case.seed)
        theirs = _theirs(observe, self.candidate, None, batch)
        self._compare(truth, mine, theirs, f"{case.name}, second batch", weights, batch)
        if self.answers.reference.name != "float64":
            return  # the baseline's weights were moved by an ulp
        left, own = state(self.candidate.model), state(self.baseline.model)
        given = self.answers.noisy(weights, case.seed)  # the baseline's own may be an ulp off
        moved_by = [(not identical(left[n], w), not identical(own[n], given[n])) for n, w in weights.items()]
        for who, says in (
            ((True, False), "the candidate changes the weights, {}"),
            ((False, True), "the candidate leaves as it was what the workload updates, {}"),
        ):
            moved = [n for n, by in zip(weights, moved_by, strict=True) if by == who]
            if moved:
                self.result.failures.append(f"{says.format(moved[0])} first ({self.numerics}, {case.name})")

    def _compare(
        self, truth: Seen, mine: Seen, theirs: Seen, case: str, weights: dict[str, torch.Tensor], batch: Batch
    ) -> None:
        self._look_at_values(truth, mine, theirs, case)
        self.rows += self._kinked(
            rows(truth, mine, theirs, case),
            lambda moved: rows(truth, mine, observe(self.baseline, moved(weights), batch), case),
        ) + value_rows(truth, mine, theirs, case, self.varying)

    def _look_at_values(self, truth: Seen, mine: Seen, theirs: Seen, case: str) -> None:
        """What no rounding touches."""
        said = f"{self.numerics}, {case}"
        self.result.failures += missing(mine, theirs, said) + other_values(truth, mine, theirs, said, self.varying)
        self.result.failures += other_integers(truth, mine, theirs, said, self.settled)

    def _kinked(self, found: list[Row], moved: Callable[[Moves], list[Row]]) -> list[Row]:
        return beside_kinks(found, moved) if self.numerics == "exact" and self.workload.mode == "train" else found

    def _trained(self) -> None:
        """The change of every weight over a few optimizer steps on fresh batches, each from equal weights."""
        asked = self.answers.trained(self._steps, all(math.isfinite(r.noise) for r in self.rows))
        training, path, faint = asked.training, asked.path, asked.faint
        theirs = training.change(self.candidate, path.start, _theirs)

        def elsewhere(moved: Moves) -> list[Row]:
            def start(k: int) -> dict[str, torch.Tensor] | None:
                given = path.start(k)
                return None if given is None else moved(given)

            return training.rows(asked.truth, asked.mine, training.change(self.baseline, start), faint)

        self.rows += self._kinked(training.rows(asked.truth, asked.mine, theirs, faint), elsewhere)
        self.result.failures += other_settings(self.baseline.optimizer, self.candidate.optimizer)
        self.result.failures += training.other_integers(asked.integers, self.candidate.model)
        if path.start(1) is not None:
            self._sees_its_update()

    def _sees_its_update(self) -> None:
        """One more batch, on the weights that the candidate's own last step left: no step since begins where that one ended. It has to give
        what it gives once the same weights are written into it, as those of all cases were."""
        left = {name: t.detach().clone() for name, t in state(self.candidate.model).items()}
        if not all(bool(t.isfinite().all()) for t in left.values()):
            return
        batch = to_device(self.workload.inputs(600), self.device)
        theirs = _theirs(observe, self.candidate, None, batch)
        right = _theirs(observe, self.candidate, left, batch)
        case = "after optimizer steps"
        self._look_at_values(right, right, theirs, case)
        found = rows(right, right, theirs, case) + value_rows(right, right, theirs, case, self.varying)
        # What is allowed comes of the untouched model's errors in the other cases: a candidate's own say nothing of what it may do.
        self.rows += [replace(row, noise=math.nan) for row in found]
