"""The workers of one restart: one of each side. They are warmed up and timed in alternating blocks."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rung.engine.disturbed import left_to_the_original
from rung.launch import Caller, WorkerFailed, quiet
from rung.measure import Restart
from rung.measure.core_time import BUSY, CoreTime, total
from rung.measure.interleave import turns
from rung.measure.timers import shared
from rung.records.measured import Witness
from rung.records.record import record_of
from rung.side import Setup, Side
from rung.timing.ab_run import ABRun
from rung.timing.tasks import Task
from rung.timing.timed import Opened, TimedBlock, Warmed, loops_in_step
from rung.timing.workers import open_side

progress = logging.getLogger(__name__)

PROFILED_STEPS = 3
ROUNDS_SECONDS = {"gpu": 2.0, "cpu": 4.0}  # of a restart, unless these are more than 10 rounds or fewer than the fewest
FEWEST_ROUNDS = 4
BLOCK_SECONDS = {"gpu": 0.06, "cpu": 0.15}  # long against the switch, short against drift
SLOWED = 4  # times as long as that: the machine is slower than when steps were estimated, and blocks get fewer of them
WARM_SECONDS = 8.0  # the most that is spent on finding the steady state
# Where the sides wait for cores that others have: times as many rounds. No round but the fewest begins after so many times the usual seconds.
HARDER = 3


@dataclass(frozen=True)
class Asked:
    """A call of one side's worker, whose answer a timing waits for."""

    side: str
    method: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


Timing = Generator[Asked, Any, Restart]


class SideFailed(Exception):
    """A worker of one side failed; `side` is its name."""

    def __init__(self, side: str, error: WorkerFailed) -> None:
        super().__init__(str(error))
        self.side, self.error = side, error


class WorkerGroup:
    """A fresh worker of each side. All of them load, compile and warm up at the same time, from when the group is made. These are the longest
    parts of a restart, and nothing of that is timed."""

    def __init__(self, setup: Setup, sides: Mapping[str, Side], log: str, stack: ExitStack) -> None:
        self.limits = setup.limits
        self.workers: dict[str, Caller] = {
            name: open_side(stack, setup, side, f"{log}-{name}") for name, side in sides.items()
        }
        for side in self.workers:
            self._send(side, "warm", seconds=WARM_SECONDS)
        self.state: dict[str, Warmed] = {}
        self.facts: dict[str, Opened] = {}

    @classmethod
    def of(cls, setup: Setup, tasks: Mapping[str, Task]) -> WorkerGroup:
        """A group of workers that are opened and warmed up already."""
        group = cls.__new__(cls)
        group.limits = setup.limits
        group.workers = {name: task.worker for name, task in tasks.items() if task.worker is not None}
        group.facts = {name: task.answer("open", Opened) for name, task in tasks.items()}
        group.state = {name: task.answer("warm", Warmed) for name, task in tasks.items()}
        return group

    def warm(self, deadline: float) -> None:
        """Waits until all sides have loaded and warmed up."""
        for side in self.workers:
            self.ready(side, deadline)

    def ready(self, side: str, deadline: float) -> None:
        """Waits for one side."""
        self.facts[side] = record_of(Opened, self._receive(side, "open", deadline))
        self.state[side] = record_of(Warmed, self._receive(side, "warm", deadline))

    def drop(self, side: str) -> None:
        """Ends the worker of a side and continues without it."""
        self.workers.pop(side).kill()
        self.facts.pop(side, None)
        self.state.pop(side, None)

    def timed(self, ab_run: ABRun, *, briefly: bool = False) -> Restart:
        """Times blocks of all sides in alternation. briefly: in the fewest rounds, for a first answer."""
        timing = self.timing(ab_run, briefly=briefly)
        with quiet(list(self.workers.values())):
            asked = next(timing)
            while True:
                self.ask(asked)
                answer = self.answer(asked, self.limits.block)
                try:
                    asked = timing.send(answer)
                except StopIteration as end:
                    restart: Restart = end.value
                    return restart

    def timing(self, ab_run: ABRun, *, briefly: bool = False) -> Timing:
        """The same as a generator of calls to the sides. So several restarts may be timed at once, each on a device of its own
        (`rung.timing.side_by_side`)."""
        ab_run.warm.append(self.state)
        ab_run.environments = {side: facts.environment for side, facts in self.facts.items()}
        gpu = self._on_gpu()
        ab_run.warnings += [
            f"{s}: the step time did not settle during warm-up" for s, w in self.state.items() if not w.steady
        ]
        ab_run.warnings += [f"{s}: {left_to_the_original(n)}" for s, w in self.state.items() if (n := w.original)]
        ab_run.warnings += [f"{s}: {doubt}" for s, w in self.state.items() for doubt in w.doubts]
        estimates = yield from self._estimates()
        loops = {side: self.state[side].loops for side in self.workers}
        in_step = loops_in_step(list(estimates.values()), list(loops.values()))
        for side in (side for side in self.workers if in_step and loops[side] != in_step):
            yield Asked(side, "use_loops", {"loops": in_step})
        counts = {side: _steps_a_block(ns, gpu) for side, ns in estimates.items()}
        usual = BLOCK_SECONDS[_kind(gpu)]
        rounds = FEWEST_ROUNDS if briefly else _rounds(_once(estimates.values(), gpu), gpu)
        got: dict[str, list[tuple[float, CoreTime]]] = {}
        sides = list(self.workers)
        began = time.monotonic()
        until = began + HARDER * ROUNDS_SECONDS[_kind(gpu)]

        def more(so_far: Restart) -> bool:
            busy = any(total(g for _, g in of_blocks).share_waited > BUSY for of_blocks in got.values())
            return len(so_far.rounds) < (HARDER if busy else 1) * rounds and time.monotonic() < until

        order = turns(len(sides), FEWEST_ROUNDS, more)
        turn = next(order)
        while True:
            side = sides[turn]
            asked = time.monotonic()
            answer = yield Asked(side, "block", {"count": counts[side]})
            took = time.monotonic() - asked
            taken = _note_block(ab_run, got, side, record_of(TimedBlock, answer), took)
            if took > SLOWED * usual:
                counts[side] = max(1, round(counts[side] * usual / took))
            try:
                turn = order.send(taken)
            except StopIteration as end:
                found: tuple[Restart, list[list[float]]] = end.value
                break
        restart, samples = found
        if any(total(g for _, g in of_blocks).share_waited > BUSY for of_blocks in got.values()):
            restart = replace(restart, shortest=tuple(map(min, samples)))
        if in_cpu_time := _in_cpu_time(sides, got, len(restart.rounds)):
            ab_run.cpu_restarts.append(in_cpu_time)
        for side, of_blocks in got.items():
            ab_run.cores[side] = total([ab_run.cores.get(side, CoreTime(0, 0)), *(g for _, g in of_blocks)])
        progress.debug("timed %s for %.1f s", ", ".join(sides), time.monotonic() - began)
        ab_run.samples.append(dict(zip(sides, samples, strict=True)))
        for side in sides:
            self.state[side].memory = yield Asked(side, "memory")
        return restart

    def ask(self, asked: Asked) -> None:
        """Sends a call; `answer` waits for its answer. Raises SideFailed."""
        self._send(asked.side, asked.method, **asked.arguments)

    def answer(self, asked: Asked, deadline: float, waited: float = 0.0) -> Any:
        """Waits for an answer, at most `deadline` seconds, of which `waited` are over. Raises SideFailed."""
        return self._receive(asked.side, asked.method, deadline, waited)

    def go_to_shape(self, shape: int) -> None:
        """Has all sides run another of the workload's input shapes; `at_shape` waits until they are warmed up."""
        for side in self.workers:
            self._send(side, "use_shape", shape=shape, seconds=WARM_SECONDS)

    def at_shape(self, deadline: float) -> None:
        """Waits until all sides are warm at the new shape. Raises SideFailed, but only once all have answered, so that each takes further calls."""
        failures = []
        for side in self.workers:
            try:
                self.state[side] = record_of(Warmed, self._receive(side, "use_shape", deadline))
            except SideFailed as failure:
                failures.append(failure)
        if failures:
            raise failures[0]

    def witness(self, side: str = "") -> Witness:
        """Runs the checks on a timed block of a side, by default of the last side."""
        side = side or list(self.workers)[-1]
        if self._ask(side, "watch"):
            self._ask(side, "block", count=2)
        began = time.monotonic()
        with self._alone():
            self._send(side, "witness")
            found = record_of(Witness, self._receive(side, "witness", self.limits.prepare))
        progress.debug("checked %s for %.1f s", side, time.monotonic() - began)
        return found

    def profile(self, trace: Path, side: str = "") -> None:
        """Profiles a side, by default the last one. A profile that fails costs the next predictions, but no verdict."""
        worker = self.workers[side or list(self.workers)[-1]]
        # What verifies on the same GPU meanwhile would show in how long its kernels take.
        with quiet(list(self.workers.values())), contextlib.suppress(WorkerFailed):
            worker.call("profile", self.limits.block, path=str(trace), steps=PROFILED_STEPS)

    def _estimates(self) -> Generator[Asked, Any, dict[str, float]]:
        """Nanoseconds of a step, by side. Workloads are timed as they are launched. Functions on a GPU choose a timer, the same one for all
        sides, because a kernel may be far shorter than what the host's clock sees of it."""
        if all(facts.environment.device.kind == "cuda" and facts.mode == "call" for facts in self.facts.values()):
            chosen: dict[str, dict[str, Any]] = {}
            for side in self.workers:
                chosen[side] = yield Asked(side, "timer", {"wanted": "auto", "cold": False})
            name = shared(timer["name"] for timer in chosen.values())
            for side in (side for side in self.workers if chosen[side]["name"] != name):
                chosen[side] = yield Asked(side, "timer", {"wanted": name, "cold": False})
            return {side: timer["sample_ns"] for side, timer in chosen.items()}
        estimates = {}
        for side in self.workers:
            estimates[side] = yield Asked(side, "estimate")
        return estimates

    def _on_gpu(self) -> bool:
        return any(facts.environment.device.kind == "cuda" for facts in self.facts.values())

    def _alone(self) -> contextlib.AbstractContextManager[None]:
        """On a CPU, stops other workers meanwhile. What they compile would take the device itself, and checks would take ten times as long."""
        return contextlib.nullcontext() if self._on_gpu() else quiet(list(self.workers.values()))

    def _ask(self, side: str, method: str, **arguments: Any) -> Any:
        self._send(side, method, **arguments)
        return self._receive(side, method, self.limits.block)

    def _send(self, side: str, method: str, **arguments: Any) -> None:
        try:
            self.workers[side].send(method, **arguments)
        except WorkerFailed as error:
            raise SideFailed(side, error) from error

    def _receive(self, side: str, method: str, deadline: float, waited: float = 0.0) -> Any:
        try:
            return self.workers[side].receive(method, deadline, waited)
        except WorkerFailed as error:
            raise SideFailed(side, error) from error


def _note_block(
    ab_run: ABRun, got: dict[str, list[tuple[float, CoreTime]]], side: str, block: TimedBlock, seconds: float
) -> list[float]:
    """Adds a block to the A/B run, and returns its samples. got: by side, the CPU time a step of each block, and how long its threads ran and
    waited; seconds: how long this process waited for the block."""
    claimed = sum(block.samples) / len(block.samples) * block.calls
    ab_run.blocks.setdefault(side, []).append((seconds * 1e9, claimed))
    ab_run.outside[side] = max(ab_run.outside.get(side, 0.0), block.outside)
    ab_run.compiled[side] = ab_run.compiled.get(side, 0) + block.compiled
    if block.cores:
        got.setdefault(side, []).append((block.cores.ran / block.calls, block.cores))
    return list(block.samples)


def _in_cpu_time(sides: list[str], got: Mapping[str, list[tuple[float, CoreTime]]], rounds: int) -> Restart | None:
    """The rounds of a restart in CPU time a step. Each side was visited twice a round, and in one round before them, which settled it."""
    visits = [[ns for ns, _ in got.get(side, ())][2:] for side in sides]
    if any(len(row) != 2 * rounds or min(row, default=0) <= 0 for row in visits):
        return None
    return Restart(
        tuple((*(v[2 * k] for v in visits), *(v[2 * k + 1] for v in reversed(visits))) for k in range(rounds))
    )


def blocks_seconds(estimates: Sequence[float], gpu: bool, *, briefly: bool = False) -> float:
    """How long the blocks of a restart take, with the first round, which is not counted. estimates: nanoseconds of a step, by side; briefly: in
    the fewest rounds."""
    once = _once(estimates, gpu)
    return (1 + (FEWEST_ROUNDS if briefly else _rounds(once, gpu))) * once


def _rounds(once: float, gpu: bool) -> int:
    return max(FEWEST_ROUNDS, min(10, round(ROUNDS_SECONDS[_kind(gpu)] / once)))


def _once(estimates: Iterable[float], gpu: bool) -> float:
    """Seconds of a round, which has two blocks of each side."""
    return sum(2 * _steps_a_block(ns, gpu) * ns for ns in estimates) / 1e9


def _steps_a_block(estimate: float, gpu: bool) -> int:
    return max(1, min(50, round(1e9 * BLOCK_SECONDS[_kind(gpu)] / max(estimate, 1))))


def _kind(gpu: bool) -> str:
    return "gpu" if gpu else "cpu"
