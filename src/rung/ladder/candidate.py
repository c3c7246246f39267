"""What a worker process serves for the climb: one workload under one recipe, which it loads (`loaded.py`), times and verifies
(`verified.py`)."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace as with_fields

from rung.engine.disturbed import bytes_of, elements, graphs_compiled, not_finite, shapes_of
from rung.engine.dynamo import expect_changes
from rung.engine.parallel import all_tensor_parallel, in_effect, in_parallel, sharded, without_exchange
from rung.engine.step import Step, matmul_precision
from rung.errors import WorkloadError
from rung.hardware import affinity
from rung.hardware.device import (
    expandable_segments,
    release_cache,
    reset_peak_memory,
    synchronize,
    to_device,
)
from rung.hardware.neighbours import idle_like
from rung.ladder.answers import Loaded
from rung.ladder.survey import described as of_workload
from rung.ladder.survey import flops, quick_facts
from rung.ladder.verified import VerifiedWorkload
from rung.launch.fork_server import spared
from rung.measure import MINIMUM_RUNS
from rung.plan import CONTRACTS, Plan
from rung.profilers import torch_profiler
from rung.recipes.compatibility import differences
from rung.recipes.fingerprint import describe_model
from rung.records.climb import OverShapes
from rung.records.measured import Witness
from rung.records.record import plain
from rung.timing.function import not_done_yet
from rung.timing.timed import Timed
from rung.timing.work import work_with_peaks
from rung.verify.audit import refuse_no_gradient
from rung.verify.observe import too_large
from rung.verify.ranks import TrainedTogether
from rung.verify.reference import own_precision
from rung.verify.timed_run_checks import (
    FIRST_NEW_SEED,
    WatchedSteps,
    compare_with_untouched,
    refill,
    slowdown_on_new_inputs,
)
from rung.workload import seeded_model, shapes
from rung.workload.base import refuse_other_arguments
from rung.workload.hidden_tensors import refuse_hidden_tensors
from rung.workload.model_cache import save_model

SLOW_TO_MAKE = 1.0  # seconds; a model that is made faster than that is made anew in each worker
BATCHES = 4  # rotated, so that no candidate is timed on one batch that it has seen before
# Bytes of a batch, above which so few are rotated: more would leave no room for a second process.
LARGE, FEW = 1 << 30, 2


class Candidate(VerifiedWorkload, Timed):
    """One step is a step of the workload, each on the next of a few batches."""

    _first: float | None = None
    _watched: WatchedSteps | None = None
    _together: TrainedTogether | None = None  # of the ranks of a job
    called: torch.nn.Module | None = None  # in the place of the model, by ranks that train it together
    _made = False

    def __init__(self) -> None:
        self._peak: dict[str, int] = {}  # up to when others than the workload took memory here

    def facts(self, save: str = "", neighbours: bool = False) -> dict[str, Any]:
        """Makes the model; the few facts that decide which plain modes apply. save: where the model is kept for other workers,
        if making it takes long; `saved` says whether it was. neighbours: looks for idle GPUs, too."""
        began = time.perf_counter()
        self._make()
        made = time.perf_counter() - began
        worth = bool(save) and self.ranks.world == 1 and self.device.is_gpu and made > SLOW_TO_MAKE
        kept = worth and save_model(self.model, Path(save))
        facts = quick_facts(self.workload, self.step, self.device)
        idle = idle_like(self.device) if neighbours else []
        gpus = [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())] if self.device.is_gpu else []
        workload = of_workload(self.workload, self.model)
        return plain(Loaded(workload=workload, facts=facts, making_seconds=made, saved=kept, gpus=gpus, idle_gpus=idle))

    def _make(self) -> None:
        """The model, a few batches, and the step, which does not run yet."""
        self._scope = matmul_precision(self.plan)
        self._scope.__enter__()
        self.model = seeded_model(self.workload).to(self.device.torch_name)
        self.batches = self._rotated(self.inputs)
        refuse_hidden_tensors(self.workload, self.batches[0])
        refuse_other_arguments(self.workload, self.model, self.batches[0])
        self._next: Iterator[Any] = itertools.cycle(self.batches)
        reset_peak_memory(self.device)
        self.called = in_parallel(self.workload, self.model, self.device, self.plan)
        self.step = Step(self.workload, self.model, self.plan, self.device, called=self.called)
        several = self.ranks.world > 1
        self._together = TrainedTogether(self.workload, self.model, self.called, self.device) if several else None
        reset_peak_memory(self.device)
        self._made = True

    def _rotated(self, make: Callable[[int], Any]) -> list[Any]:
        """The batches of a shape on the device, by their seeds from 1 on."""
        first = to_device(make(1), self.device)
        count = FEW if bytes_of(first) > LARGE else BATCHES
        return [first, *(to_device(make(seed), self.device) for seed in range(2, count + 1))]

    def first(self) -> float:
        """Builds the step and runs it once, compiling and loading included; the seconds of that run."""
        if not self._made:
            self._make()
        if "torch._dynamo" in sys.modules:  # what never compiles need not wait for it: it loads as long as torch itself
            expect_changes()
        begin = time.perf_counter()
        with refuse_no_gradient(self.step, self.batches[0]):
            self._one()
        self._first = time.perf_counter() - begin + self._spared()
        return self._first

    def _spared(self) -> float:
        """Seconds that a fresh process takes longer than a fork, the first time that it compiles: for imports."""
        names = ["torch._inductor.compile_fx", *(["torch._dynamo"] if self.workload.mode == "infer" else [])]
        return sum(spared.get(name, 0.0) for name in names) if self.plan.compiles else 0.0

    def warm(self, seconds: float) -> dict[str, Any]:
        """Runs until it is steady, or for `seconds`; the first run is reported apart."""
        first = self._first if self._first is not None else self.first()
        warmed = self._until_steady(seconds, first)
        exchange = in_effect(self.called) if self.called else {}
        if self.ranks.world > 1:
            exchange["cores"] = "own" if affinity.bound() else "all"
        applied = {**self.step.applied(), **self._environment(), **exchange}
        doubts, apart = self._doubts()
        return {
            **warmed, "applied": applied, "original": self._left(), "doubts": [*doubts, *apart], "apart": apart, "forked": bool(spared),
        }  # fmt: skip

    def use_shape(self, shape: int, seconds: float) -> dict[str, Any]:
        """From now on runs another of the workload's input shapes, with the same model and step; warmed up as `warm` does."""
        make = shapes(self.workload)[shape]
        self.batches = self._rotated(make)
        self._next = itertools.cycle(self.batches)
        begin = time.perf_counter()
        self._one()
        self._first = time.perf_counter() - begin
        return self.warm(seconds)

    def doubts(self) -> list[str]:
        """Why the time of this step may not be the one that is meant, in sentences: a recipe that was made for something
        else, results that are not finite, ranks that do not train one model."""
        doubts, apart = self._doubts()
        return [*doubts, *apart]

    def _doubts(self) -> tuple[list[str], list[str]]:
        """The same; what is wrong with how ranks train together by itself."""
        said = []
        if self.made_for:
            here = {"mode": self.workload.mode, "device": self.device.name, "torch": str(torch.__version__)}
            of_this = {"model": describe_model(self.model), "ranks": str(self.ranks.world)}
            said = differences(self.made_for, {**here, **of_this})
        batch = next(self._next)
        loss, output = self.step(batch)
        if loss is None and (lazy := not_done_yet(output)):
            raise WorkloadError(
                f"{self.workload.label}: its forward returns {lazy}, which has done nothing yet; give "
                "Workload(forward=lambda model, batch: ...) that runs it to its end."
            )
        odd = not_finite(output if loss is None else loss)
        if odd:
            said.append(
                f"{'its output holds' if loss is None else 'its loss is'} {odd}: look at that first; a step of such values may take another time."
            )
        if self._together is None:
            return said, []
        self._peak = self.memory()  # of the workload: what looking at the ranks takes is not
        apart = self._together.doubts(batch)
        release_cache(self.device)
        reset_peak_memory(self.device)
        return said, apart

    def over_shapes(self) -> dict[str, Any]:
        """Builds the step and runs it on several batches of every shape that the workload offers: how many different
        `shapes` the batches have, the `graphs` compiled for them, and the `seconds` that all of it took."""
        before, began = graphs_compiled(), time.perf_counter()
        self.first()
        seen = []
        for make in shapes(self.workload):
            batches = self._rotated(make)
            seen += batches
            for batch in batches:
                self.step(batch)
        synchronize(self.device)
        taken = time.perf_counter() - began
        return plain(OverShapes(shapes=len(shapes_of(seen)), graphs=graphs_compiled() - before, seconds=taken))

    def alone(self, count: int) -> list[int | float] | None:
        """`count` samples of a training step, nanoseconds, in which the ranks exchange no gradients; None where that cannot be left out.
        The ranks' weights have gone apart afterwards."""
        scope = without_exchange(self.called)
        if scope is None:
            return None
        with scope:
            samples = [self.block(count) for count in (MINIMUM_RUNS, count)][1]["samples"]
        weights = [float(p.detach().double().sum()) for p in self.model.parameters() if p.requires_grad]
        apart = self.ranks.most(weights) != [-w for w in self.ranks.most([-w for w in weights])]
        return list(samples) if apart else None

    def rehearse(self) -> int:
        """Runs a step on every batch and writes down what TunableOp found; how many products that are."""
        self.first()
        for _ in self.batches:
            self._one()
        torch.cuda.tunable.write_file()
        return len(torch.cuda.tunable.get_results())

    def _environment(self) -> dict[str, Any]:
        """The variables of the plan as this process has them, and whether TunableOp uses what it once found."""
        found: dict[str, Any] = {f"variable {name}": os.environ.get(name) for name, _ in self.plan.env}
        if os.environ.get("PYTORCH_TUNABLEOP_ENABLED") == "1":
            found["tuned_products"] = len(torch.cuda.tunable.get_results())
        if self.device.is_gpu and any("expandable_segments:True" in value for _, value in self.plan.env):
            found["expandable_segments"] = expandable_segments()
        return found

    def one_batch(self) -> bool:
        """Whether all ranks take the same batch, because they compute one tensor-parallel model."""
        return self.ranks.world > 1 and all_tensor_parallel(self.model)

    def work(self, flops_in: str | None = None) -> dict[str, Any]:
        """FLOP of one step on one rank, as torch counts them, and what the chip could do, where they are known. flops_in: in which
        precision they are; by default that of the plan or of the workload itself, the lower of both."""
        # Weights in int8 are widened inside of the product: it is computed as it was before.
        plan = replace(self.plan, linears="" if self.plan.linears == "int8" else self.plan.linears)
        own = own_precision(self.workload, self.model, self.device)
        lowest = max(plan.numerics, own, key=CONTRACTS.index)
        precision = "fp32" if lowest == "exact" else lowest
        del self.step
        gathered = self.plan.exchange.weights  # in bfloat16, which goes with autocast
        step = Step(self.workload, self.model, Plan(bf16=bool(gathered)), self.device, called=self.called)
        counted = flops(self.workload, step, self.device)
        if counted and self.one_batch():
            counted /= self.ranks.world  # torch counts products of DTensors as a whole
        return plain(with_fields(work_with_peaks(self.device, flops_in or precision), flops=counted))

    def call(self) -> None:
        """One step on the next batch; it may still run when this returns."""
        batch = next(self._next)
        watched = self._watched if self._watched and not self._watched.full else None
        if watched:
            watched.before(self.step, batch)
        try:
            result = self.step(batch)  # here alone: it is not to see that it is watched
        except torch.OutOfMemoryError:
            if not watched:
                raise
            watched.give_up()  # what is kept is what there was no room for
        else:
            if watched:
                watched.after(self.step, result)

    def _one(self) -> None:
        self.call()
        synchronize(self.device)

    def disturbances(self) -> dict[str, Any]:
        """What changed while it was timed, shapes of the inputs among it."""
        return {**super().disturbances(), "shapes": shapes_of(self.batches), "original": self._left()}

    def _left(self) -> int | None:
        """How many elements the batches have, where the plan leaves inputs of that size to the original."""
        size = elements(self.batches[0])
        return size if self.plan.original.takes(size) else None

    def watch(self) -> bool:
        """From now on, what steps are given and what they give is kept, until `witness`; every second batch is another,
        in the same memory. False where the model is too large for that."""
        if too_large(self.step) or sharded(self.model):
            return False
        for k in range(1, len(self.batches), 2):
            refill(self.batches[k], to_device(self.inputs(FIRST_NEW_SEED + k), self.device))
        self._peak = self.memory()  # of the workload: the copies that are kept from now on are not
        self._next, self._watched = itertools.cycle(self.batches), WatchedSteps()
        return True

    def witness(self) -> dict[str, Any]:
        """What the watched steps show (`rung.verify.timed_run_checks`): `failures`, in sentences; `unseen`: in inference, how many
        times as long a step takes on new inputs. left: why something was not looked at."""
        watched, self._watched = self._watched, None
        if watched is None:
            self._peak = self.memory()  # of the workload: what is held beside it now is not
        try:
            return plain(self._witnessed(watched))
        finally:
            release_cache(self.device)
            reset_peak_memory(self.device)

    def _witnessed(self, watched: WatchedSteps | None) -> Witness:
        found = Witness(failures=[], unseen=None, left="")
        if self._together and (apart := self._together.gone_apart()):
            found.failures = [f"{apart} while it was timed"]
        if sharded(self.model):
            return with_fields(
                found, left="each rank holds a part of the weights, and the untouched model needs them all"
            )
        if self.workload.mode == "infer":
            found.unseen = slowdown_on_new_inputs(
                self.step, self.batches, lambda s: to_device(self.inputs(s), self.device), self.device
            )
        if watched is None:
            return with_fields(found, left="the model is too large for the untouched one to be held beside it")
        if watched.full:
            return with_fields(found, left="there is no memory for copies of its weights and results")
        try:
            # The gradients of a rank are the mean of all ranks', and its batch alone is at hand here: verification looks at these.
            before = list(found.failures or ())
            said = compare_with_untouched(
                self.workload, self.plan, self.device, watched, gradients=self.ranks.world == 1
            )
            found.failures = [*before, *said[:5]]
        except torch.OutOfMemoryError:
            found.left = "there is no memory for the untouched model beside it"
        return found

    def memory(self) -> dict[str, int]:
        if self._peak and not self.device.is_gpu:  # whose mark cannot be reset
            return self._peak
        return {name: max(now, self._peak.get(name, 0)) for name, now in super().memory().items()}

    def profile(self, path: str, steps: int) -> None:
        """Records `steps` steady steps with torch.profiler into a gzipped Chrome trace; of several ranks, the first one's."""
        self._peak = self.memory()  # of the workload: what recording takes is not
        elsewhere = not Path(path).parent.is_dir()  # on a host that has no such folder nothing is recorded
        if self.ranks.rank or elsewhere:  # it takes the same steps
            torch_profiler.unrecorded(self.call, torch_profiler.Options(active=steps).total, self.device)
        else:
            torch_profiler.record(self.call, path, steps, self.device)
