"""What a worker process does for the climb: hold one workload under one recipe, and answer for it."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace as with_fields

from rung.engine.disturbed import bytes_of, elements, graphs_compiled, not_finite, shapes_of
from rung.engine.dynamo import expect_changes, inductor_settings
from rung.engine.parallel import in_effect, in_parallel, sharded, without_exchange
from rung.engine.step import Step, matmul_precision
from rung.errors import UsageError, WorkloadError
from rung.hardware import Device, affinity, environment, pick
from rung.hardware.device import (
    expandable_segments,
    release_cache,
    reset_peak_memory,
    synchronize,
    to_device,
)
from rung.hardware.neighbours import idle_like
from rung.ladder.answers import Audited, Loaded, not_loaded
from rung.ladder.survey import described as of_workload
from rung.ladder.survey import flops, quick_facts, survey
from rung.launch.fork_server import spared
from rung.measure import MINIMUM_RUNS
from rung.plan import CONTRACTS, Numerics, Original, Plan
from rung.profilers import torch_profiler
from rung.recipes.fit import described, differences
from rung.records.climb import OverShapes
from rung.records.measured import Witness
from rung.records.record import plain
from rung.rungs import plan_of
from rung.rungs.inductor import names
from rung.timing.compile_cache import remove_cut_off
from rung.timing.timed import Timed
from rung.timing.work import roof
from rung.verify.audit import audit, elements_called, one_shape_only
from rung.verify.observe import too_large
from rung.verify.over_ranks import verify_over_ranks
from rung.verify.randomness import active, without_dropout
from rung.verify.ranks import TrainedTogether
from rung.verify.reference import own_precision
from rung.verify.turns import Turns
from rung.verify.verify import precompile, verify
from rung.verify.witness import NEW, Watched, against_the_untouched, refill, unseen
from rung.workload import Workload, load, of_rank, seeded_model, shapes
from rung.workload.load import find
from rung.workload.saved import read_from, save_model

SLOW_TO_MAKE = 1.0  # seconds; a model that is made faster than that is made anew in each worker
READ_AT_IMPORT = re.compile("TORCH|TRITON")  # variables that torch's compiler reads when it is imported
BATCHES = 4  # rotated, so that no candidate is timed on one batch that it has seen before
# Bytes of a batch, above which so few are rotated: more would leave no room for a second process.
LARGE, FEW = 1 << 30, 2


class NotLoaded(Exception):
    """A candidate's code could not be compiled or loaded, which says nothing of what it computes."""


class Candidate(Timed):
    """One step is a step of the workload, each on the next of a few batches."""

    _first: float | None = None
    _watched: Watched | None = None
    _together: TrainedTogether | None = None  # of the ranks of a job
    called: torch.nn.Module | None = None  # in the place of the model, by ranks that train it together
    _made = False
    _loaded: tuple[str, dict[str, str], Workload] | None = None  # target and options; ahead of `open`

    def __init__(self) -> None:
        self._peak: dict[str, int] = {}  # up to when others than the workload took memory here

    def preload(self, target: str, device: str | None) -> None:
        """Imports what running the target takes, before it is known under which recipe; nothing of it is made."""
        importlib.import_module("torch._inductor.compile_fx")
        with contextlib.suppress(Exception):  # what is wrong with the target is said when it is opened
            find(target)
        if pick(device).is_gpu:
            torch.cuda.init()

    def load_ahead(self, target: str, options: dict[str, str], device: str | None) -> None:
        """Calls the target's function before it is known under which recipe it is opened. What is wrong with it is said then."""
        with contextlib.suppress(Exception, SystemExit):
            if pick(device).index == 0:  # to make another one the current one takes its memory
                self._loaded = target, options, load(target, options)

    def open(
        self,
        target: str,
        options: dict[str, str],
        rungs: list[str],
        device: str | None,
        shape: int = 0,
        original: dict[str, int] | None = None,
        made_for: dict[str, str] | None = None,
        one_shape: bool = False,
        saved_model: str = "",
        gpu_draws: bool = False,
        briefly: bool = False,
    ) -> dict[str, Any]:
        """Loads the workload; nothing of the model is made yet. shape: which of its input shapes is run; original: inputs
        that are left to the workload as it is (`rung.plan.Original`); made_for: what its recipe was made for; one_shape: it
        runs on inputs of the measured shape alone; saved_model: a file to read the model from (`rung.workload.saved`); gpu_draws: where it is
        made, a GPU draws its random numbers; briefly: of the environment (`rung.hardware.environment`)."""
        self.device = pick(self.ranks.device(device, torch.cuda.device_count()))
        if self.device.is_gpu:  # streams, events and graphs belong to the current device
            torch.cuda.set_device(self.device.index)
        self.ranks.join(self.device.is_gpu)
        remove_cut_off()
        before = dict(os.environ)
        found, self._loaded = self._loaded, None
        self.workload = found[2] if found and found[:2] == (target, options) else load(target, options)
        changed = [
            name for name, value in os.environ.items() if before.get(name) != value and READ_AT_IMPORT.search(name)
        ]
        if one_shape:
            self.workload = replace(self.workload, one_shape=True, other_shapes=())
        self._of_one = self.workload  # which all ranks make alike, on whatever GPU each of them is
        if saved_model or gpu_draws:
            gpu = torch.device(self.device.torch_name) if self.device.is_gpu else None
            self.workload = read_from(self.workload, Path(saved_model) if saved_model else None, gpu)
        if self.ranks.world > 1:
            self.workload = of_rank(self.workload, self.ranks.rank, self.ranks.world)
        self.inputs = shapes(self.workload)[shape] if shape else self.workload.inputs
        self.plan = replace(plan_of(rungs), original=Original(**original or {}))
        if self.plan.exchange.cores and self.ranks.world > 1:
            affinity.bind(self.device)
        self.made_for = made_for or {}
        w = self.workload
        if w.mode == "train":  # torch's optimizers load it when they are made; here no garbage is looked for meanwhile
            importlib.import_module("torch._dynamo")
        return {"name": w.name, "mode": w.mode, "samples": w.samples, "tokens": w.tokens, "steps": w.steps,
                "environment": environment(self.device, briefly=briefly), "parallel": w.parallel if w.mode == "train" else "none",
                "too_late": changed if spared else [],
                "gpu_bytes": torch.cuda.memory_reserved(self.device.index) if self.device.is_gpu else 0}  # fmt: skip

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

    def survey(self) -> dict[str, Any]:
        """The facts that decide which rungs apply, of a workload that was audited."""
        expect_changes()
        return plain(survey(self.workload, self.device))

    def audit(self, against: dict[str, Any] | None = None) -> dict[str, Any]:
        """Raises, with a sentence, where the workload itself, or the one that it is verified against, cannot be verified. Returns which
        parameters are `without_gradient`, why the workload runs on `one_shape` alone, and Inductor's settings here, which take long to
        import."""
        if against:
            without_gradient = audit(load(against["target"], against["options"]), self.device)
            return plain(Audited(without_gradient=without_gradient, one_shape=""))
        self.workload, one_shape = probed(self.workload, self.device)
        without_gradient = audit(self.workload, self.device)
        settings = inductor_settings(names())
        called = elements_called(self.workload, self.device)
        return plain(Audited(without_gradient=without_gradient, one_shape=one_shape, called=called, inductor=settings))

    def _make(self) -> None:
        """The model, a few batches, and the step, which does not run yet."""
        self._scope = matmul_precision(self.plan)
        self._scope.__enter__()
        self.model = seeded_model(self.workload).to(self.device.torch_name)
        self.batches = self._rotated(self.inputs)
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
            of_this = {"model": described(self.model), "ranks": str(self.ranks.world)}
            said = differences(self.made_for, {**here, **of_this})
        batch = next(self._next)
        loss, output = self.step(batch)
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

    def work(self, flops_in: str | None = None) -> dict[str, Any]:
        """FLOP of one step, as torch counts them, and what the chip could do, where they are known. flops_in: in which
        precision they are; by default that of the plan or of the workload itself, the lower of both."""
        # Weights in int8 are widened inside of the product: it is computed as it was before.
        plan = replace(self.plan, linears="" if self.plan.linears == "int8" else self.plan.linears)
        own = own_precision(self.workload, self.model, self.device)
        lowest = max(plan.numerics, own, key=CONTRACTS.index)
        precision = "fp32" if lowest == "exact" else lowest
        del self.step
        gathered = self.plan.exchange.weights  # in bfloat16, which goes with autocast
        step = Step(self.workload, self.model, Plan(bf16=bool(gathered)), self.device, called=self.called)
        return plain(
            with_fields(roof(self.device, flops_in or precision), flops=flops(self.workload, step, self.device))
        )

    def _twin(self, reference: torch.nn.Module, plan: Plan) -> Step:
        """This workload's step with the weights of another's model, of the same names and shapes."""
        model = seeded_model(self.workload if active(reference) else without_dropout(self.workload))
        theirs, mine = reference.state_dict(), model.state_dict()
        odd = [k for k in {**theirs, **mine} if k not in mine or k not in theirs or mine[k].shape != theirs[k].shape]
        if odd:
            error = WorkloadError(
                f"the two models cannot be compared: {len(odd)} of their weights differ in name or shape "
                f"({', '.join(odd[:3])}{', ...' if len(odd) > 3 else ''}); make both with the same weights, or leave --verify out to compare times alone."
            )
            error.exit_code = UsageError.exit_code  # neither workload failed
            raise error
        model.load_state_dict(theirs)
        return Step(self.workload, model.to(self.device.torch_name), plan, self.device)

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
            refill(self.batches[k], to_device(self.inputs(NEW + k), self.device))
        self._peak = self.memory()  # of the workload: the copies that are kept from now on are not
        self._next, self._watched = itertools.cycle(self.batches), Watched()
        return True

    def witness(self) -> dict[str, Any]:
        """What the watched steps show (`rung.verify.witness`): `failures`, in sentences; `unseen`: in inference, how many
        times as long a step takes on new inputs. left: why something was not looked at."""
        watched, self._watched = self._watched, None
        if watched is None:
            self._peak = self.memory()  # of the workload: what is held beside it now is not
        try:
            return plain(self._witnessed(watched))
        finally:
            release_cache(self.device)
            reset_peak_memory(self.device)

    def _witnessed(self, watched: Watched | None) -> Witness:
        found = Witness(failures=[], unseen=None, left="")
        if self._together and (apart := self._together.gone_apart()):
            found.failures = [f"{apart} while it was timed"]
        if sharded(self.model):
            return with_fields(
                found, left="each rank holds a part of the weights, and the untouched model needs them all"
            )
        if self.workload.mode == "infer":
            found.unseen = unseen(
                self.step, self.batches, lambda s: to_device(self.inputs(s), self.device), self.device
            )
        if watched is None:
            return with_fields(found, left="the model is too large for the untouched one to be held beside it")
        if watched.full:
            return with_fields(found, left="there is no memory for copies of its weights and results")
        try:
            # The gradients of a rank are the mean of all ranks', and its batch alone is at hand here: verification looks at these.
            before = list(found.failures or ())
            said = against_the_untouched(
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

    def precisions(self) -> list[Numerics]:
        """Where this recipe is to be verified."""
        return list(self.plan.phases(own_precision(self.workload, seeded_model(self.workload), self.device)))

    def precompile(self) -> None:
        """Compiles what `verify` comes to last in full precision, the step with dropout, so that it finds that in the cache."""
        expect_changes()
        precompile(self.workload, self.plan, self.device)

    def verify(
        self,
        numerics: Numerics,
        against: dict[str, Any] | None = None,
        alone: bool = True,
        backwards: bool = False,
        others: bool = False,
        turns: str = "",
    ) -> dict[str, Any]:
        """Compares this recipe with the reference at one precision. alone: whether no other worker has memory of the device;
        backwards: whether the first shape comes last; others: only what shapes beside the measured one add;
        turns: a file of those who verify on this GPU in turns. Of several ranks each compares what it gives itself.
        Raises NotLoaded where the compiled code was not there to compare.

        against: another workload (target and options) that is the reference; its weights are given to this one.
        """
        expect_changes()  # the same function is built several times over, each at two shapes
        began, taken = time.perf_counter(), Turns(turns, self.device)
        if against:
            reference = load(against["target"], against["options"])
            found = verify(reference, self.plan, self.device, self._twin, precisions=[numerics])
        elif self.ranks.world > 1:
            found = verify_over_ranks(self._of_one, self.plan, self.device, numerics, alone=alone)
        else:
            found = verify(
                self.workload,
                self.plan,
                self.device,
                precisions=[numerics],
                alone=alone,
                backwards=backwards,
                others=others,
                turns=taken,
            )
        if said := next(filter(not_loaded, found.failures), ""):
            raise NotLoaded(said)
        record = with_fields(found.record(), seconds=time.perf_counter() - began)
        return {**plain(record), "memory": taken.memory()}


def probed(workload: Workload, device: Device) -> tuple[Workload, str]:
    """The workload, and why it is of one shape alone; empty where others can be derived, or were named."""
    why = one_shape_only(workload, device)
    return (replace(workload, one_shape=True) if why else workload), why
