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
from rung.hardware.device import Device, release_cache, to_device
from rung.plan import Numerics, Plan
from rung.verify.distances import finite, plainly
from rung.verify.exact_values import changed_integers, changed_values, exact_integers, float_rows, varying_values
from rung.verify.gpu_lock import GpuLock
from rung.verify.gradcheck import other_masks
from rung.verify.nondeterminism import describe_nondeterminism
from rung.verify.observe import Observation, Row, identical, missing_results, observe, refuse_unseen, rows
from rung.verify.perturb import inexact, moved_on, perturbed, put, state, unlike
from rung.verify.random_draws import DrawsDiffer, SharedDraws, draws_random_numbers
from rung.verify.randomness import active, other_randomness, without_dropout
from rung.verify.reference import Reference, exactly, full_precision, jittered, own_precision
from rung.verify.side_effects import (
    changed_properties,
    global_functions,
    model_properties,
    restore_functions,
    restore_settings,
    torch_settings,
)
from rung.verify.sign_ambiguous import SignAmbiguous
from rung.verify.tolerance import Moves, allow_jumps, judge, unlucky
from rung.verify.training import Path, Training, changed_optimizer_settings
from rung.verify.verdict import Verification
from rung.workload import Batch, Workload, seeded_model, shapes
from rung.workload.copy_model import copy_model

SEEDS = (11, 12, 13)  # 11 % 3 == 2: faint weights; 12 and 13: sharp ones
# For the untouched model, where a candidate would be refused for a few numbers: sharp and faint weights, as above.
MORE_SEEDS = range(14, 22)
OPTIMIZER_STEPS = 3
STRENGTHS = (1.0, 0.5, 0.1, 0.0)  # of what perturbs weights: less, where the untouched model is not finite on them

Build = Callable[[torch.nn.Module, Plan], Any]


class CandidateFailed(Exception):
    """The candidate raised; the untouched workload ran on the same batch."""


class OneProcess:
    """What is verified, and how it is asked: one process. A job of several ranks is asked by `rung.verify.over_ranks`."""

    several_ranks = False

    @property
    def keeps_buffers(self) -> bool:
        """Whether the buffers that a step leaves are compared."""
        return True

    def whole(self, step: Step) -> Any:
        """What is run in the place of a step of the untouched workload."""
        return step

    def agreed(self, holds: bool) -> bool:
        """Whether something holds everywhere on which it depends what the candidate is run on next."""
        return holds


def verify(
    workload: Workload,
    plan: Plan,
    device: Device,
    build: Build | None = None,
    precisions: Sequence[Numerics] | None = None,
    alone: bool = True,
    backwards: bool = False,
    others: bool = False,
    gpu_lock: GpuLock | None = None,
    job: OneProcess | None = None,
) -> Verification:
    """Compares a candidate with the reference, first in full precision, then at the lowest that it runs in.

    build: `(model, plan) -> step`, `Step` unless a test brings its own candidate; precisions: only these; alone: whether no other
    process has memory of the device that this one could use: then a reference in float64 that does not fit is one in float32;
    backwards: whether the first shape comes last; others: only what further shapes add to a verification of the first, which another
    process has done; gpu_lock: shared with other verifications on this GPU; job: one process, or a job of ranks.
    Raises WorkloadError where the untouched workload itself cannot be run or is not finite.
    """
    result, job = Verification(), job or OneProcess()
    gpu_lock = gpu_lock or GpuLock("", device)
    for numerics in precisions or plan.phases(own_precision(workload, seeded_model(workload), device)):
        result.precisions.append(numerics)
        exact = numerics == "exact"
        judged = exactly(workload) if exact else workload
        with full_precision() if exact else matmul_precision(plan.at(numerics)):
            comparison = _Comparison(
                without_dropout(judged), plan.at(numerics), device, build, numerics, result, alone, gpu_lock, job
            )
            comparison.run(backwards, others)
            # In full precision only: over thousands of elements the test sees two programs' rounding in bfloat16, too.
            if exact and not result.wrong and not others and not job.several_ranks:
                random = comparison.draws is not None
                del comparison  # its models' memory
                result.failures += _compare_randomness(judged, plan.at(numerics), device, build, gpu_lock, random)
        if result.wrong:
            break
    return result


def precompile(workload: Workload, plan: Plan, device: Device) -> None:
    """Runs a candidate once with dropout, as `verify` comes to it last in full precision, so that its compiled code is in the cache by
    then. Nothing is compared."""
    workload = exactly(workload)
    with full_precision():
        model = seeded_model(workload).to(device.torch_name)
        step = Step(workload, model, replace(plan.at("exact"), capture=False), device)
        step(to_device(shapes(workload)[-1](SEEDS[0]), device))


def _compare_randomness(
    workload: Workload, plan: Plan, device: Device, build: Build | None, gpu_lock: GpuLock, random: bool
) -> list[str]:
    """A sentence if the candidate computes something else with dropout on and random numbers drawn as they come: everything else is compared
    without dropout and on equal numbers. random: whether the forward draws any itself."""
    model = seeded_model(workload).to(device.torch_name)
    if not random and (workload.mode != "train" or not active(model)):
        return []
    baseline = Step(workload, copy_model(model), Plan(), device)
    weights = perturbed(model, 0, 0.0)
    batch = to_device(shapes(workload)[-1](SEEDS[0]), device)
    try:
        candidate = _run_candidate(build or (lambda m, at: Step(workload, m, at, device)), model, plan)
        if gpu_lock.shared:
            _run_candidate(candidate, batch)  # which compiles it, while others hold the lock
        with gpu_lock.hold():
            warm = WARM_CALLS + 1 if plan.capture else 0
            difference = other_randomness(baseline, candidate, weights, batch, warm)
            if not difference and workload.mode == "train":
                difference = other_masks(baseline, candidate, weights, batch)
    except CandidateFailed as failed:
        return [f"{failed} (with random numbers that it draws itself)"]
    return [difference] if difference else []


def _run_candidate(call: Callable[..., Any], *arguments: Any) -> Any:
    """Calls what runs the candidate's code; raises CandidateFailed where that raises."""
    try:
        return call(*arguments)
    except (WorkloadError, torch.OutOfMemoryError):  # which says nothing of what is computed
        raise
    except Exception as error:
        raise CandidateFailed(f"the candidate raised {type(error).__name__}: {first_line(error)}") from error


class _Comparison:
    """The comparison at one precision. What it finds goes into `result`."""

    def __init__(
        self,
        workload: Workload,
        plan: Plan,
        device: Device,
        build: Build | None,
        numerics: Numerics,
        result: Verification,
        alone: bool,
        gpu_lock: GpuLock,
        job: OneProcess,
    ) -> None:
        self.workload, self.plan, self.device, self.numerics = workload, plan, device, numerics
        self.result, self.gpu_lock, self.job = result, gpu_lock, job
        self.model = seeded_model(workload).to(device.torch_name)
        self.reference = Reference(workload, self.model, device, alone, job.whole)
        self.baseline = job.whole(Step(workload, copy_model(self.model), plan.precision_only(), device))
        self.build = build or (lambda model, at: Step(workload, model, at, device))
        self.draws: SharedDraws | None = None  # where the workload's forward draws random numbers
        self.rows: list[Row] = []
        self.varying: set[str] = set()  # values of the output that differ from run to run
        self.exact_integers: set[str] = set()  # tensors of integers that no float decides
        self.double = False  # whether that is the workload's own precision
        self.shape = 0  # the number of the shape that is run

    def run(self, backwards: bool, others: bool) -> None:
        """backwards, others: as of `verify`."""
        model = copy_model(self.model)  # of the candidate
        # What the workload itself loads and sets when it first runs is its own.
        with contextlib.suppress(Exception), self.gpu_lock.hold():
            self._inspect_untouched()
        properties, settings, functions = model_properties(model), torch_settings(), global_functions(model)
        try:
            self._prepare(model)
            self._compare_shapes(backwards, others)
            with self.gpu_lock.hold():
                if others and not backwards:
                    self._compare_first_shape_again()
                if self.workload.mode == "train" and not (others and backwards):
                    self._compare_training()
            if self.plan.linears:
                self.result.failures += self.candidate.unlike()
        except CandidateFailed as failed:
            if self.job.several_ranks:  # the others wait for this one
                raise
            self._add_raised(failed)
        self._judge()
        untouched = model_properties(self.baseline.model)
        self.result.failures += changed_properties(properties, model_properties(model), untouched)
        self.result.failures += restore_settings(settings)
        self.result.failures += restore_functions(functions)
        if self.reference.name != "float64":
            self.result.reference = self.reference.name

    def _prepare(self, model: torch.nn.Module) -> None:
        """Builds the candidate from a copy of the model."""
        plan = self.draws.adapt(self.plan) if self.draws else self.plan
        self.candidate = _run_candidate(self.build, model, plan)
        if self.draws:
            self.candidate = self.draws.seeded(self.candidate)
        self.result.failures += self._moved_by_preparing(model)

    def _compare_shapes(self, backwards: bool, others: bool) -> None:
        """Compares on every shape. Of `others`, the first shape only runs, for the change to the next one."""
        numbered = list(enumerate(shapes(self.workload)))
        for self.shape, make in reversed(numbered) if backwards else numbered:
            if self.gpu_lock.shared:
                self._run_once(make)  # which compiles it, while others hold the lock
            with self.gpu_lock.hold():
                self._until_replayed(make)
                if others and not self.shape and not backwards:
                    self._run_once(make)
                    continue
                for seed in SEEDS:
                    self._compare_case(make, seed, f"{self._shape_name(self.shape)}, seed {seed}")
        self.shape = 0

    def _compare_first_shape_again(self) -> None:
        """After the other shapes, back to the first, where the candidate was seen before."""
        make, seed = self.workload.inputs, SEEDS[0]
        self._until_replayed(make)
        self._compare_case(make, seed, f"{self._shape_name(0)} after others, seed {seed}")

    def _add_raised(self, failed: CandidateFailed) -> None:
        where = f"{self.numerics}, {self._shape_name(self.shape)}" if self.shape else self.numerics
        self.result.failures.append(f"{failed} ({where})")
        if self.shape and not self.workload.other_shapes:
            self.result.failures.append(
                "name the shapes that it has to run on in Workload(other_shapes=(lambda seed: ...,)), "
                "or set one_shape=True if it runs on the measured one alone"
            )

    def _judge(self) -> None:
        """Adds a check for every row. Where a candidate would be refused, the untouched model may have been lucky, or the candidate be
        nondeterministic."""
        checks = judge(self.rows, self.numerics, self.double)
        if not self.result.failures and not self.job.several_ranks and (names := unlucky(self.rows, checks)):
            checks = judge(self.rows, self.numerics, self.double, self._baseline_elsewhere(names))
        self.result.checks += checks
        if not all(check.passed for check in checks) and not self.job.several_ranks:
            cases = ((perturbed(self.model, k), self._batch(self.workload.inputs, k + 100)) for k in SEEDS)
            keeps = self.plan.keeps_weights
            with self.gpu_lock.hold():
                self.result.failures += describe_nondeterminism(
                    self.candidate, self.baseline, cases, self.numerics, keeps
                )

    def _inspect_untouched(self) -> None:
        """Finds out whether it draws random numbers, which plain values of its output vary, which integers no float decides, and whether float64
        is its own precision."""
        batch = to_device(self.workload.inputs(0), self.device)
        runs: list[Observation] = []

        def once() -> None:
            runs[:] = [observe(self.baseline, None, batch)]

        if self.job.several_ranks:
            once()
        elif draws_random_numbers(once, self.device):
            self.draws = self.reference.draws = SharedDraws(self.baseline)
            self.baseline = self.draws.recorded()
            self.draws.use_batch(0, batch)
            once()
        if any(value is not None for value in runs[0].plain.values()):
            runs += [observe(self.baseline, state(self.model), batch) for _ in range(2)]
        self.varying = varying_values(runs)
        self.double = self.reference.no_more_precise(batch)
        if not all(map(inexact, (*runs[0].values.values(), *runs[0].left.values()))):
            elsewhere = pytree.tree_map(lambda t: moved_on(t) if isinstance(t, torch.Tensor) else t, batch)
            self.exact_integers = exact_integers(runs[0], observe(self.baseline, unlike(self.model), elsewhere))

    def _moved_by_preparing(self, prepared: torch.nn.Module) -> list[str]:
        """A sentence if preparing the candidate changed weights: nothing else would show it, because every run is given weights of its own."""
        moved = [n for n, w in state(self.model).items() if not identical(w, state(prepared)[n])]
        return [f"preparing the candidate changes weights, {moved[0]} first"] if moved else []

    def _shape_name(self, index: int) -> str:
        """What a shape is called: who reads it may not know that the second one was derived."""
        if not index or self.workload.other_shapes:
            return f"shape {index + 1}"
        rows = next(t.shape[0] for t in pytree.tree_leaves(shapes(self.workload)[1](0)) if isinstance(t, torch.Tensor))
        return f"shape 2: a batch of {rows} rows derived from yours"

    def _until_replayed(self, make: Callable[[int], Batch]) -> None:
        """What is replayed is judged in its replays, not in the calls that come before."""
        for _ in range(WARM_CALLS + 1 if self.plan.capture or self.plan.replays else 0):
            self._run_once(make)

    def _run_once(self, make: Callable[[int], Batch]) -> None:
        _run_candidate(self.candidate, to_device(make(0), self.device))

    def _batch(self, make: Callable[[int], Batch], seed: int) -> Batch:
        """What steps are compared on next, and the random numbers that all of them draw there."""
        batch = to_device(make(seed), self.device)
        if self.draws:
            self.draws.use_batch(seed, batch)
        return batch

    def _compare_case(self, make: Callable[[int], Batch], seed: int, case: str) -> None:
        release_cache(self.device)  # of another shape, of float64: candidates have the GPU beside this process
        batch = self._batch(make, seed + 100)
        weights, reference, baseline = self._observe_untouched(seed, batch)
        if self.plan.keeps_weights:  # others may have it prepared and recorded anew
            put(self.candidate.model, weights)
            self._until_replayed(make)
        candidate = _run_candidate(observe, self.candidate, None if self.plan.keeps_weights else weights, batch)
        self._compare(reference, baseline, candidate, case, weights, batch)
        if self.workload.mode == "infer":
            self._compare_second_batch(make, seed, weights, case)
        self.result.cases += 1

    def _compare_second_batch(
        self, make: Callable[[int], Batch], seed: int, weights: dict[str, torch.Tensor], case: str
    ) -> None:
        """Another batch on the same weights, which must still be there: an answer may be cached by either."""
        batch = self._batch(make, seed + 200)
        reference, baseline = self._observe_both(weights, batch, seed)
        candidate = _run_candidate(observe, self.candidate, None, batch)
        self._compare(reference, baseline, candidate, f"{case}, second batch", weights, batch)
        if self.reference.name != "float64":
            return  # the baseline's weights were moved by an ulp
        given = self._show_rounding(weights, seed)  # the baseline's own may be an ulp off
        after, after_baseline = state(self.candidate.model), state(self.baseline.model)
        moved = {name for name, w in weights.items() if not identical(after[name], w)}
        moved_by_baseline = {name for name in weights if not identical(after_baseline[name], given[name])}
        for names, problem in (
            (moved - moved_by_baseline, "the candidate changes weights"),
            (moved_by_baseline - moved, "the candidate does not update what the workload updates"),
        ):
            if first := next((name for name in weights if name in names), None):
                self.result.failures.append(f"{problem}, {first} first ({self.numerics}, {case})")

    def _observe_untouched(self, seed: int, batch: Batch) -> tuple[dict[str, torch.Tensor], Observation, Observation]:
        """Weights on which the untouched model is finite, and what the reference and it give there."""
        for strength in STRENGTHS:
            weights = perturbed(self.model, seed, strength)
            try:
                reference, baseline = self._observe_both(weights, batch, seed)
            except DrawsDiffer:
                raise
            except Exception as error:
                raise WorkloadError(
                    f"{self.workload.label}: the untouched {self.workload.kind} raised {type(error).__name__} while a candidate "
                    f"was compared with it: {first_line(error)}"
                ) from error
            refuse_unseen(self.workload, baseline)
            if self.job.agreed(reference.finite and baseline.finite):
                return weights, reference, baseline
        raise WorkloadError(
            f"{self.workload.label}: the untouched {self.workload.kind} is not finite at {self.numerics} precision on the "
            f"inputs of seed {seed + 100}, so nothing can be compared with it."
        )

    def _baseline_elsewhere(self, names: set[str]) -> list[Row]:
        """Rows of these quantities with the untouched model in the candidate's place, on other weights and batches."""
        compared = []
        with self.gpu_lock.hold():
            for seed in MORE_SEEDS:
                _, reference, baseline = self._observe_untouched(seed, self._batch(self.workload.inputs, seed + 100))
                compared += [row for row in rows(reference, baseline, baseline, f"seed {seed}") if row.what in names]
        return compared

    def _observe_both(
        self, weights: dict[str, torch.Tensor], batch: Batch, seed: int
    ) -> tuple[Observation, Observation]:
        """What the reference and the untouched model give."""
        return self.reference.run(weights, batch), observe(self.baseline, self._show_rounding(weights, seed), batch)

    def _show_rounding(self, weights: dict[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
        """The untouched model's weights. Where the reference is no more precise than it, they are moved by an ulp, which shows its rounding."""
        return weights if self.reference.name == "float64" and not self.double else jittered(weights, seed)

    def _compare(
        self,
        reference: Observation,
        baseline: Observation,
        candidate: Observation,
        case: str,
        weights: dict[str, torch.Tensor],
        batch: Batch,
    ) -> None:
        """Adds what the candidate lacks or changes to the failures, and a row for every quantity. weights, batch: what all three were run on."""

        def of_moved_baseline(moved: Moves) -> list[Row]:
            return rows(reference, baseline, observe(self.baseline, moved(weights), batch), case)

        where = f"{self.numerics}, {case}"
        self.result.failures += missing_results(reference, baseline, candidate, where)
        self.result.failures += changed_values(reference, baseline, candidate, where, self.varying)
        self.result.failures += changed_integers(reference, baseline, candidate, where, self.exact_integers)
        self.rows += self._allow_jumps(rows(reference, baseline, candidate, case), of_moved_baseline)
        self.rows += float_rows(reference, baseline, candidate, case, self.varying)

    def _allow_jumps(self, compared: list[Row], moved: Callable[[Moves], list[Row]]) -> list[Row]:
        """The rows with what non-differentiable points may change of gradients, in full precision alone."""
        return allow_jumps(compared, moved) if self.numerics == "exact" and self.workload.mode == "train" else compared

    def _compare_training(self) -> None:
        """The change of every weight over a few optimizer steps on fresh batches, each from equal weights."""
        count = OPTIMIZER_STEPS + (WARM_CALLS if self.plan.capture or self.plan.replays else 0)
        training = Training(
            count,
            lambda k: self._batch(self.workload.inputs, 500 + k),
            self.device,
            self.job.keeps_buffers,
        )

        def with_rounding(k: int) -> dict[str, torch.Tensor] | None:
            start = path.start(k)
            return None if start is None else self._show_rounding(start, k)

        sharp = self.job.agreed(all(math.isfinite(row.noise) for row in self.rows))
        # Gradients of perturbed weights may be so large that the untouched model itself diverges.
        for strength in STRENGTHS if sharp else STRENGTHS[-1:]:
            weights = perturbed(self.model, SEEDS[1], strength)
            ambiguous, path = SignAmbiguous(self.numerics), Path(weights, count, self.device)
            reference = self._reference_change(training, weights, ambiguous, path)
            baseline = training.change(self.baseline, with_rounding, after=ambiguous.add_baseline)
            changes = (*reference.values(), *baseline.values())
            if self.job.agreed(all(finite(t, self.device.torch_name) for t in changes)):
                break
        candidate = training.change(self.candidate, path.start, _run_candidate)

        def of_moved_baseline(moved: Moves) -> list[Row]:
            def moved_start(k: int) -> dict[str, torch.Tensor] | None:
                start = path.start(k)
                return None if start is None else moved(start)

            return training.rows(reference, baseline, training.change(self.baseline, moved_start), ambiguous)

        self.rows += self._allow_jumps(training.rows(reference, baseline, candidate, ambiguous), of_moved_baseline)
        self.result.failures += changed_optimizer_settings(self.baseline.optimizer, self.candidate.optimizer)
        self.result.failures += training.other_integers(self.baseline.model, self.candidate.model)
        if path.start(1) is not None:
            self._compare_after_training()

    def _reference_change(
        self, training: Training, weights: dict[str, torch.Tensor], ambiguous: SignAmbiguous, path: Path
    ) -> dict[str, torch.Tensor]:
        """What the reference's steps change. `ambiguous` is given their gradients, and `path` the weights after each."""

        def after(model: torch.nn.Module) -> None:
            ambiguous.add_reference(model)
            path.keep(model)

        return training.change(
            self.reference.step,
            lambda k: None if k else weights,
            lambda step, batch: self.reference.stepped(batch),
            after,
        )

    def _compare_after_training(self) -> None:
        """One more batch, on the weights that the candidate's own last step left: no step since begins where that one ended."""
        left = {name: t.detach().clone() for name, t in state(self.candidate.model).items()}
        if self.job.agreed(all(finite(plainly(t)) for t in left.values())):
            batch = self._batch(self.workload.inputs, 600)
            candidate = _run_candidate(observe, self.candidate, None, batch)
            reference, baseline = self._observe_both(left, batch, 0)
            self._compare(reference, baseline, candidate, "after optimizer steps", left, batch)
