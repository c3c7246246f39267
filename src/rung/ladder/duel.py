"""Two recipes against each other: fresh pairs of processes, alternating blocks, until the answer is clear."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rung.launch import Worker, WorkerFailed
from rung.measure import Comparison, Restart, decide, median_interval

PROFILED_STEPS = 3
SERVES = "rung.ladder.candidate:Candidate"


@dataclass(frozen=True)
class Limits:
    """Seconds: `prepare` for loading, compiling and warming up; `block` for anything after that."""

    prepare: float = 900.0
    block: float = 120.0


@dataclass(frozen=True)
class Setup:
    """What every worker of a run is told."""

    target: str
    options: dict[str, str]
    device: str | None
    logs: Path
    limits: Limits = Limits()


class SideFailed(Exception):
    """A worker of one side failed; `side` is 'best' or 'candidate'."""

    def __init__(self, side: str, error: WorkerFailed) -> None:
        super().__init__(str(error))
        self.side, self.error = side, error


@dataclass
class Duel:
    """What was seen of both sides. samples: nanoseconds a step, per restart and side."""

    comparison: Comparison | None = None
    restarts: list[Restart] = field(default_factory=list)
    samples: list[dict[str, list[int]]] = field(default_factory=list)
    warm: list[dict[str, dict[str, Any]]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        if not self.warm:
            return {}
        sides = ("best", "candidate")
        firsts = self.warm[0]
        return {
            "comparison": self.comparison.as_dict() if self.comparison else None,
            "restarts": self.samples,
            "times": {
                s: median_interval([x for r in self.samples for x in r[s]]).as_dict() for s in sides if self.samples
            },
            "memory": {s: max((w[s]["memory"] for w in self.warm), key=lambda m: max(m.values())) for s in sides},
            "first_run_seconds": {s: firsts[s]["first_run_seconds"] for s in sides},
            "warm_up": [{s: {k: w[s][k] for k in ("runs", "steady")} for s in sides} for w in self.warm],
            "matches": firsts["candidate"]["matches"],
            "warnings": sorted(set(self.warnings)),
        }


def open_worker(stack: ExitStack, setup: Setup, rungs: Sequence[str], log: str) -> Worker:
    """A worker that has loaded the target under a recipe; it ends with the stack."""
    worker = stack.enter_context(Worker(SERVES, setup.logs / f"{log}.log"))
    worker.send("open", target=setup.target, options=setup.options, rungs=list(rungs), device=setup.device)
    return worker


def fight(
    setup: Setup,
    best: Sequence[str],
    candidate: Sequence[str],
    *,
    log: str,
    gpu: bool,
    left: Callable[[], float],
    trace: Path | None = None,
) -> Duel:
    """Restarts both sides until the comparison is decided, or until `left()` seconds are gone.

    trace: where the candidate is profiled to, in its first restart, after it was timed.
    Raises SideFailed when a worker of one side raises, hangs or dies.
    """
    duel = Duel()
    while True:
        began = time.monotonic()
        duel.restarts.append(
            _restart(setup, best, candidate, f"{log}-{len(duel.restarts) + 1}", gpu, left, duel, trace)
        )
        took = time.monotonic() - began
        duel.comparison = decide(duel.restarts, last=left() < 1.2 * took)
        if duel.comparison and duel.comparison.final:
            return duel


def _restart(
    setup: Setup,
    best: Sequence[str],
    candidate: Sequence[str],
    log: str,
    gpu: bool,
    left: Callable[[], float],
    duel: Duel,
    trace: Path | None,
) -> Restart:
    prepare = max(30.0, min(setup.limits.prepare, left()))
    with ExitStack() as stack:
        workers = {
            "best": open_worker(stack, setup, best, f"{log}-best"),
            "candidate": open_worker(stack, setup, candidate, f"{log}-candidate"),
        }

        def ask(side: str, method: str, deadline: float, **arguments: Any) -> Any:
            try:
                return workers[side].call(method, deadline, **arguments)
            except WorkerFailed as error:
                raise SideFailed(side, error) from error

        for side, worker in workers.items():
            try:
                worker.receive("open", prepare)
            except WorkerFailed as error:
                raise SideFailed(side, error) from error
        # Both at once: compiling and loading take longest. That they disturb each other costs nothing, because
        # nothing of this is timed, and the first quad below settles them.
        for worker in workers.values():
            worker.send("warm", seconds=8.0)
        warm = {}
        for side, worker in workers.items():
            try:
                warm[side] = worker.receive("warm", prepare)
            except WorkerFailed as error:
                raise SideFailed(side, error) from error
        duel.warm.append(warm)
        duel.warnings += [f"{side} never became steady while warming up" for side in warm if not warm[side]["steady"]]
        counts = {side: _steps_a_block(warm[side]["estimate"], gpu) for side in warm}
        once = sum(2 * counts[s] * warm[s]["estimate"] for s in warm) / 1e9
        quads = max(4, min(10, round((2.0 if gpu else 6.0) / once)))
        samples: dict[str, list[int]] = {"best": [], "candidate": []}
        rows = []
        for k in range(quads + 1):
            # A B B A, then B A A B: whatever comes first in a quad is favoured by neither.
            order = ("best", "candidate", "candidate", "best") if k % 2 else ("candidate", "best", "best", "candidate")
            medians: dict[str, list[float]] = {"best": [], "candidate": []}
            for side in order:
                block = ask(side, "block", setup.limits.block, count=counts[side])
                medians[side].append(_median(block["samples"]))
                if k:
                    samples[side] += block["samples"]
                if block["outside"] > 0.25:
                    duel.warnings.append(f"{side}: {block['outside']:.0%} of the wall time lies outside of its events")
            if k:  # the first quad after warming up alone settles both in each other's company
                rows.append((medians["best"][0], medians["candidate"][0], medians["candidate"][1], medians["best"][1]))
        duel.samples.append(samples)
        for side in warm:
            warm[side]["memory"] = ask(side, "memory", setup.limits.block)
        if trace and not duel.restarts:
            # A profile that fails costs the next predictions, and no verdict.
            with contextlib.suppress(WorkerFailed):
                workers["candidate"].call("profile", setup.limits.block, path=str(trace), steps=PROFILED_STEPS)
    return Restart(tuple(rows))


def _steps_a_block(estimate: int, gpu: bool) -> int:
    """Blocks of about 60 ms on a GPU and 150 ms on a CPU: long against the switch, short against drift."""
    return max(1, min(50, round((60e6 if gpu else 150e6) / max(estimate, 1))))


def _median(values: Sequence[int]) -> float:
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
