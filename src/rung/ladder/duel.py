"""Two recipes against each other: fresh pairs of processes, alternating blocks, until the answer is clear."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rung.launch import Worker, WorkerFailed
from rung.measure import CLIMB, Comparison, Looks, Restart, decide, interleaved, median_interval, until_next_look

PROFILED_STEPS = 3
WARM_SECONDS = 8.0  # the most that is spent on finding the steady state
SERVES = "rung.ladder.candidate:Candidate"


@dataclass(frozen=True)
class Limits:
    """Seconds: `prepare` for loading, compiling and warming up; `block` for anything after that."""

    prepare: float = 900.0
    block: float = 120.0


@dataclass(frozen=True)
class Side:
    """One of the two that are compared: what its workers load, with which variables, and where they start."""

    target: str
    options: dict[str, str] = field(default_factory=dict)
    rungs: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    cwd: Path | None = None


@dataclass(frozen=True)
class Setup:
    """How workers run. together: how many pairs of them may be loaded at once."""

    device: str | None
    logs: Path
    limits: Limits = Limits()
    together: int = 1


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
    environments: dict[str, dict[str, Any]] = field(default_factory=dict)
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


def open_worker(stack: ExitStack, setup: Setup, side: Side, log: str) -> Worker:
    """A worker that loads one side's target under its recipe; it ends with the stack."""
    worker = stack.enter_context(Worker(SERVES, setup.logs / f"{log}.log", side.env, side.cwd))
    worker.send("open", target=side.target, options=side.options, rungs=list(side.rungs), device=setup.device)
    return worker


def fight(
    setup: Setup,
    best: Side,
    candidate: Side,
    *,
    log: str,
    left: Callable[[], float],
    looks: Looks = CLIMB,
    margin: float | None = None,
    trace: Path | None = None,
    seen: Callable[[Duel], None] = lambda duel: None,
    at_least: int = 1,
) -> Duel:
    """Restarts both sides until the comparison is decided, or until `left()` seconds are gone.

    looks, margin: as in `rung.measure.decide`; trace: where the candidate is profiled to, in its first restart,
    after it was timed; seen: is told after every restart; at_least: restarts, however little is left.
    Raises SideFailed when a worker of one side raises, hangs or dies.
    """
    duel = Duel()
    took = 0.0
    while True:
        began = time.monotonic()
        with ExitStack() as stack:
            count = min(setup.together, until_next_look(len(duel.restarts), looks))
            first = len(duel.restarts) + 1
            pairs = [_Pair(setup, best, candidate, f"{log}-{first + k}", stack) for k in range(count)]
            for pair in pairs:
                pair.warm(setup.limits.prepare)
            for pair in pairs:
                duel.restarts.append(pair.timed(duel))
                if trace and len(duel.restarts) == 1:
                    pair.profile(trace)
                seen(duel)
        took = max(took, time.monotonic() - began)
        duel.comparison = decide(
            duel.restarts, looks=looks, margin=margin, last=len(duel.restarts) >= at_least and left() < 1.2 * took
        )
        if duel.comparison and duel.comparison.final:
            return duel


class _Pair:
    """One restart: a fresh worker of each side. All of them begin to load when they are made, and compile and warm
    up at once, the longest parts of a restart; nothing of that is timed."""

    def __init__(self, setup: Setup, best: Side, candidate: Side, log: str, stack: ExitStack) -> None:
        self.limits = setup.limits
        self.workers = {
            "best": open_worker(stack, setup, best, f"{log}-best"),
            "candidate": open_worker(stack, setup, candidate, f"{log}-candidate"),
        }
        for side in self.workers:
            self._send(side, "warm", seconds=WARM_SECONDS)
        self.state: dict[str, dict[str, Any]] = {}
        self.facts: dict[str, dict[str, Any]] = {}

    def warm(self, deadline: float) -> None:
        """Waits until both sides have loaded and warmed up."""
        for side in self.workers:
            self.facts[side] = self._receive(side, "open", deadline)
            self.state[side] = self._receive(side, "warm", deadline)

    def timed(self, duel: Duel) -> Restart:
        """Alternates blocks of both sides."""
        duel.warm.append(self.state)
        duel.environments = {side: facts["environment"] for side, facts in self.facts.items()}
        gpu = duel.environments["best"]["device"]["kind"] == "cuda"
        duel.warnings += [f"{s} never became steady while warming up" for s, w in self.state.items() if not w["steady"]]
        counts = {side: _steps_a_block(w["estimate"], gpu) for side, w in self.state.items()}
        once = sum(2 * counts[s] * w["estimate"] for s, w in self.state.items()) / 1e9
        quads = max(4, min(10, round((2.0 if gpu else 4.0) / once)))
        restart, best, candidate = interleaved(
            lambda: self._block("best", counts["best"], duel),
            lambda: self._block("candidate", counts["candidate"], duel),
            quads,
        )
        duel.samples.append({"best": best, "candidate": candidate})
        for side in self.workers:
            self.state[side]["memory"] = self._ask(side, "memory")
        return restart

    def _block(self, side: str, count: int, duel: Duel) -> list[int]:
        block = self._ask(side, "block", count=count)
        if block["outside"] > 0.25:
            duel.warnings.append(f"{side}: {block['outside']:.0%} of the wall time lies outside of its events")
        samples: list[int] = block["samples"]
        return samples

    def profile(self, trace: Path) -> None:
        """Records the candidate. A profile that fails costs the next predictions, and no verdict."""
        with contextlib.suppress(WorkerFailed):
            self.workers["candidate"].call("profile", self.limits.block, path=str(trace), steps=PROFILED_STEPS)

    def _ask(self, side: str, method: str, **arguments: Any) -> Any:
        self._send(side, method, **arguments)
        return self._receive(side, method, self.limits.block)

    def _send(self, side: str, method: str, **arguments: Any) -> None:
        try:
            self.workers[side].send(method, **arguments)
        except WorkerFailed as error:
            raise SideFailed(side, error) from error

    def _receive(self, side: str, method: str, deadline: float) -> Any:
        try:
            return self.workers[side].receive(method, deadline)
        except WorkerFailed as error:
            raise SideFailed(side, error) from error


def _steps_a_block(estimate: int, gpu: bool) -> int:
    """Blocks of about 60 ms on a GPU and 150 ms on a CPU: long against the switch, short against drift."""
    return max(1, min(50, round((60e6 if gpu else 150e6) / max(estimate, 1))))
