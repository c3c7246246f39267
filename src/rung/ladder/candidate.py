"""What a worker process does for the climb: hold one workload under one recipe, and answer for it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import torch

from rung.errors import WorkloadError
from rung.hardware import environment, peaks_of, pick
from rung.hardware.device import (
    matmul_precision_name,
    memory_in_use,
    peak_memory,
    reset_peak_memory,
    synchronize,
    to_device,
)
from rung.hardware.sensors import identity
from rung.ladder.audit import audit, without_dropout
from rung.ladder.disturbed import graphs_compiled, shapes_of
from rung.ladder.optimizer import accepts, can_be_captured
from rung.ladder.plan import Numerics, Plan
from rung.ladder.reference import own_precision
from rung.ladder.rungs import plan_of
from rung.ladder.step import Step, matmul_precision
from rung.ladder.verify import verify
from rung.measure import MINIMUM_RUNS, warm_up
from rung.measure.timers import Events, Timer, choose
from rung.profilers import torch_profiler
from rung.workload import load, seeded_model

BATCHES = 4  # rotated, so that no candidate is timed on one batch that it has seen before


class Candidate:
    """Every method takes and returns plain values, because it is called through a pipe."""

    _first: float | None = None
    _timer: Timer | None = None

    def open(self, target: str, options: dict[str, str], rungs: list[str], device: str | None) -> dict[str, Any]:
        """Loads the workload; nothing of the model is made yet."""
        # Verification builds the same function several times over, each at two shapes.
        for name in ("cache_size_limit", "recompile_limit"):
            if hasattr(torch._dynamo.config, name):
                setattr(torch._dynamo.config, name, 64)
        self.device = pick(device)
        if self.device.is_gpu:  # streams, events and graphs belong to the current device
            torch.cuda.set_device(self.device.index)
        self.workload = load(target, options)
        self.plan = plan_of(rungs)
        w = self.workload
        return {"name": w.name, "mode": w.mode, "samples": w.samples, "tokens": w.tokens, "steps": w.steps,
                "environment": environment(self.device)}  # fmt: skip

    def survey(self) -> dict[str, Any]:
        """The facts that decide which rungs apply, and the audit that decides whether to climb at all."""
        without_gradient = audit(self.workload, self.device)
        model = seeded_model(self.workload).to(self.device.torch_name)
        step = Step(self.workload, model, Plan(), self.device)
        optimizer = step.optimizer
        weights = list(model.parameters())
        peaks = peaks_of(self.device)
        found = self._captured_graphs()
        return {
            "workload": {
                "name": self.workload.name,
                "mode": self.workload.mode,
                "samples": self.workload.samples,
                "tokens": self.workload.tokens,
                "parameters": sum(p.numel() for p in weights),
                "flops": self._flops(step),
                "options": {k: str(v) for k, v in self.workload.options.items()},
            },
            "gpu": self.device.is_gpu,
            "mode": self.workload.mode,
            "amp": str(self.workload.amp) if self.workload.amp else None,
            "dtype": str(weights[0].dtype) if weights else "none",
            "matmul_precision": matmul_precision_name(),
            "optimizer": type(optimizer).__name__ if optimizer else None,
            "optimizer_can_fuse": bool(optimizer and accepts(optimizer, "fused")),
            "optimizer_is_fused": bool(optimizer and optimizer.defaults.get("fused")),
            "optimizer_can_be_captured": bool(optimizer and can_be_captured(optimizer)),
            "without_gradient": without_gradient,
            "own_precision": own_precision(self.workload, model, self.device),
            "rates": peaks.flops if peaks else {},
            "environment": environment(self.device),
            **found,
        }

    def _captured_graphs(self) -> dict[str, Any]:
        """What Dynamo captures, how often it breaks, and what the rewrites would find, without compiling."""
        from torch._dynamo.utils import counters

        from rung.ladder.surgery import PASSES

        counters.clear()
        model = seeded_model(self.workload).to(self.device.torch_name)
        step = Step(self.workload, model, Plan(passes=tuple(PASSES)), self.device)
        try:
            step(to_device(self.workload.inputs(0), self.device))
        except Exception as error:
            return {"matches": {}, "skipped": [f"capture failed: {type(error).__name__}: {str(error)[:300]}"],
                    "graphs": 0, "graph_breaks": []}  # fmt: skip
        assert step.surgeon is not None
        breaks = [f"{reason.strip().splitlines()[0]} (x{n})" for reason, n in counters["graph_break"].items()]
        return {
            "matches": dict(step.surgeon.matches),
            "skipped": list(step.surgeon.skipped),
            "graphs": step.surgeon.graphs,
            "graph_breaks": breaks,
        }

    def _flops(self, step: Step) -> float | None:
        """Floating-point operations of one step's matrix products and attention, as torch counts them."""
        from torch.utils.flop_counter import FlopCounterMode

        try:
            with FlopCounterMode(display=False) as counter:
                step(to_device(self.workload.inputs(0), self.device))
            return float(counter.get_total_flops())
        except Exception:  # a workload that the counter cannot follow is still a workload
            return None

    def first(self) -> float:
        """Builds the step and runs it once, compiling and loading included; the seconds of that run."""
        self._scope = matmul_precision(self.plan)
        self._scope.__enter__()
        self.model = seeded_model(self.workload).to(self.device.torch_name)
        self.batches = [to_device(self.workload.inputs(s), self.device) for s in range(1, BATCHES + 1)]
        self._next: Iterator[Any] = itertools.cycle(self.batches)
        reset_peak_memory(self.device)
        self.step = Step(self.workload, self.model, self.plan, self.device)
        begin = time.perf_counter()
        self._one()
        self._first = time.perf_counter() - begin
        return self._first

    def warm(self, seconds: float) -> dict[str, Any]:
        """Runs until it is steady, or for `seconds`; the first run is reported apart."""
        first = self._first if self._first is not None else self.first()
        until = time.perf_counter() + seconds
        samples, steady = warm_up(self._timed, lambda: until - time.perf_counter())
        tail = sorted(samples[steady or MINIMUM_RUNS - 1 :])
        self._estimate = tail[len(tail) // 2]
        return {
            "first_run_seconds": first,
            "runs": len(samples) + 1,
            "samples": samples,
            "steady": steady is not None,
            "memory": peak_memory(self.device),
            "matches": dict(self.step.surgeon.matches) if self.step.surgeon else {},
            "precision": matmul_precision_name(),
        }

    def estimate(self) -> float:
        """Nanoseconds of a step, once warm."""
        return self._estimate

    def in_use(self) -> int:
        """Bytes in use now: of torch's allocator on a GPU, of the process on a CPU."""
        return memory_in_use(self.device)

    def work(self) -> dict[str, Any]:
        """FLOP of one step, as torch counts them, and the chip's rates, where they are known."""
        peaks = peaks_of(self.device)
        precision = "bf16" if self.plan.bf16 or self.workload.amp else "fp32"
        if precision == "fp32" and matmul_precision_name() != "highest":
            precision = "tf32"
        del self.step
        step = Step(self.workload, self.model, Plan(), self.device)
        return {
            "flops": self._flops(step),
            "precision": precision,
            "peak_flops": peaks.flops[precision] if peaks else None,
        }

    def _twin(self, reference: torch.nn.Module, plan: Plan) -> Step:
        """This workload's step with the weights of another's model, of the same names and shapes."""
        model = seeded_model(without_dropout(self.workload))
        theirs, mine = reference.state_dict(), model.state_dict()
        odd = [k for k in {**theirs, **mine} if k not in mine or k not in theirs or mine[k].shape != theirs[k].shape]
        if odd:
            raise WorkloadError(
                f"the two models cannot be compared: {len(odd)} of their weights differ in name or shape "
                f"({', '.join(odd[:3])})."
            )
        model.load_state_dict(theirs)
        return Step(self.workload, model.to(self.device.torch_name), plan, self.device)

    def _timed(self) -> int:
        start = time.perf_counter_ns()
        self._one()
        return time.perf_counter_ns() - start

    def call(self) -> None:
        """One step on the next batch; it may still run when this returns."""
        self.step(next(self._next))

    def _one(self) -> None:
        self.call()
        synchronize(self.device)

    def timer(self, wanted: str, cold: bool) -> dict[str, Any]:
        """Chooses how `block` times, says how, and which GPU it is."""
        self._timer, facts = choose(self.call, self.device, wanted, cold)
        self._graphs = graphs_compiled()
        return {**facts, "gpu": identity(self.device)}

    def disturbances(self) -> dict[str, Any]:
        """What changed while it was timed: shapes of the inputs, graphs compiled since the timer was chosen."""
        return {"shapes": shapes_of(self.batches), "compiled": graphs_compiled() - self._graphs}

    def block(self, count: int) -> dict[str, Any]:
        """`count` samples, nanoseconds a step; where no timer was chosen, of steps back to back."""
        block = (self._timer or Events(self.call, self.device)).block(count)
        return {"samples": block.samples, "outside": block.outside, "calls": block.calls}

    def memory(self) -> dict[str, int]:
        return peak_memory(self.device)

    def profile(self, path: str, steps: int) -> None:
        """Records `steps` steady steps with torch.profiler into a gzipped Chrome trace."""
        torch_profiler.record(self.call, path, steps, self.device)

    def precisions(self) -> list[Numerics]:
        """Where this recipe is to be verified."""
        return list(self.plan.phases(own_precision(self.workload, seeded_model(self.workload), self.device)))

    def verify(self, numerics: Numerics, against: dict[str, Any] | None = None) -> dict[str, Any]:
        """Compares this recipe with the reference at one precision.

        against: another workload (target and options) that is the reference; its weights are given to this one.
        """
        began = time.perf_counter()
        if against:
            reference = load(against["target"], against["options"])
            found = verify(reference, self.plan, self.device, self._twin, precisions=[numerics]).as_dict()
        else:
            found = verify(self.workload, self.plan, self.device, precisions=[numerics]).as_dict()
        return {**found, "seconds": time.perf_counter() - began}
