"""Sides against each other: fresh processes of all of them, alternating blocks, until the answer is clear."""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec import UNSET

from rung.engine.disturbed import compiled_anew, left_to_the_original
from rung.launch import Caller, WorkerFailed, quiet
from rung.measure import (
    CLIMB,
    Comparison,
    Looks,
    Ranking,
    Restart,
    decide,
    judge,
    median_interval,
    rank,
    until_next_look,
)
from rung.measure.core_time import BUSY, CoreTime, total, waiting
from rung.measure.interleave import turns
from rung.records.compare import Interleaved, Ranked, WarmUp
from rung.records.measured import Compared, Environment, Interval, Witness
from rung.records.record import record_of
from rung.side import Setup, Side
from rung.timing.other_gpus import other_gpus
from rung.timing.tasks import Task
from rung.timing.timed import Opened, TimedBlock, Warmed
from rung.timing.workers import open_side

progress = logging.getLogger(__name__)

PROFILED_STEPS = 3
DELAY = 2e6  # nanoseconds of a block that pipes and the scheduler may take on a busy machine
ROUNDS_SECONDS = {"gpu": 2.0, "cpu": 4.0}  # of a restart, unless these are more than 10 rounds or fewer than the fewest
FEWEST_ROUNDS = 4
WARM_SECONDS = 8.0  # the most that is spent on finding the steady state
# Where the sides wait for cores that others have: times as many rounds, as long as they take no longer than so many times the usual.
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


@dataclass
class Duel:
    """What was seen of the sides. comparison: of the second with the first, where there are two; ranking: of all,
    where there are more; samples: nanoseconds a step, per restart and side; blocks: by side, of each
    block the nanoseconds that this process waited for it, by its own clock, and those that its samples account for: what a
    side reports of itself is not taken on trust; compiled: graphs, by side, while it was timed; witness: of the last side, where
    it was profiled (`rung.ladder.candidate.Candidate.witness`). On a CPU, cpu_restarts: the restarts again, in CPU time a step, and
    cores: by side, what its threads ran and waited in all. ranks: of each side, 0 where it is one process. elsewhere: by their place in
    `restarts`, those that ran on another GPU than the first, with its name."""

    comparison: Comparison | None = None
    ranking: Ranking | None = None
    restarts: list[Restart] = field(default_factory=list)
    samples: list[dict[str, list[float]]] = field(default_factory=list)
    warm: list[dict[str, Warmed]] = field(default_factory=list)
    environments: dict[str, Environment] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    outside: dict[str, float] = field(default_factory=dict)
    blocks: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    compiled: dict[str, int] = field(default_factory=dict)
    witness: Witness = field(default_factory=Witness)
    cpu_restarts: list[Restart] = field(default_factory=list)
    cores: dict[str, CoreTime] = field(default_factory=dict)
    ranks: int = 0
    elsewhere: dict[int, str] = field(default_factory=dict)

    def add(self, other: Duel, gpu: str = "") -> None:
        """Takes in what was seen of the same sides in one more restart. gpu: on which it ran, empty for the first."""
        if gpu:
            self.elsewhere[len(self.restarts)] = gpu
        self.restarts += other.restarts
        self.cpu_restarts += other.cpu_restarts
        self.samples += other.samples
        self.warm += other.warm
        self.warnings += other.warnings
        if not gpu:
            self.environments = other.environments
        for side, blocks in other.blocks.items():
            self.blocks.setdefault(side, []).extend(blocks)
            self.outside[side] = max(self.outside.get(side, 0.0), other.outside[side])
            self.compiled[side] = self.compiled.get(side, 0) + other.compiled[side]
        for side, cores in other.cores.items():
            self.cores[side] = total([self.cores.get(side, CoreTime(0, 0)), cores])

    @property
    def waited(self) -> dict[str, float]:
        """By side, the share of the time that its threads could have run in which they waited for a core."""
        return {side: got.share_waited for side, got in self.cores.items()}

    def by_cpu_time(self, a: int = 0, b: int = 1, looks: Looks = CLIMB) -> Comparison | None:
        """Side b against side a in CPU time, at the confidence of the next planned look; None where it is not known."""
        ratios = [restart.log_ratio(a, b) for restart in self.cpu_restarts]
        return judge(ratios, looks=looks, last=True) if ratios else None

    @property
    def hidden(self) -> dict[str, float]:
        """By side, the share of the time of its blocks that its samples leave out: of the best explained block, or, beyond what
        pipes and schedulers may take, of three in four. What is told wrongly in fewer hardly moves the comparison, which is a
        Hodges-Lehmann estimate."""
        return {side: _hidden(blocks) for side, blocks in self.blocks.items()}

    def record(self) -> Interleaved:
        """All that restarts gave, of which there is at least one."""
        firsts = self.warm[0]
        anew = [f"{side}: {compiled_anew(count)}" for side, count in self.compiled.items() if count]
        waited = {side: f"{side}: {said}" for side, share in self.waited.items() if (said := waiting(share))}
        sides = list(firsts)
        cpu = self.by_cpu_time() if len(sides) == 2 else None
        applied = firsts[sides[-1]].applied
        of_first = [row for k, row in enumerate(self.samples) if k not in self.elsewhere]
        return Interleaved(
            comparison=record_of(Compared, self.comparison) if self.comparison else None,
            ranking=record_of(Ranked, self.ranking) if self.ranking else None,
            restarts=self.samples,
            times={
                s: record_of(Interval, median_interval([x for r in of_first for x in r[s]])) for s in sides if of_first
            },
            memory={s: max((w[s].memory for w in self.warm), key=lambda m: max(m.values())) for s in sides},
            first_run_seconds={s: firsts[s].first_run_seconds for s in sides},
            warm_up=[{s: WarmUp(runs=w[s].runs, steady=w[s].steady) for s in sides} for w in self.warm],
            applied=applied,
            matches=applied.get("matches", {}),
            hidden=self.hidden,
            witness=self.witness,
            compiled_while_timed=self.compiled,
            waited=self.waited,
            cpu_time=record_of(Compared, cpu) if cpu else None,
            warnings=sorted({*self.warnings, *unexplained(self.outside), *anew, *waited.values()}),
            other_gpus=other_gpus(self.samples, self.elsewhere) or UNSET,
        )


def between(duel: Duel, name: str) -> Duel:
    """What was seen of the untouched model and one of the others, as a comparison of two."""
    sides = {"best": "best", "candidate": name}
    found = Duel(warnings=duel.warnings, environments=duel.environments)
    found.samples = [{new: row[old] for new, old in sides.items()} for row in duel.samples]
    found.warm = [{new: row[old] for new, old in sides.items()} for row in duel.warm]
    for of in ("outside", "blocks", "compiled", "cores"):
        setattr(found, of, {new: getattr(duel, of)[old] for new, old in sides.items() if old in getattr(duel, of)})
    order = list(duel.warm[-1])
    k, n = order.index(name), len(order)
    found.restarts = [_of_two(duel.restarts[-1], k, n)]
    found.cpu_restarts = [_of_two(restart, k, n) for restart in duel.cpu_restarts[-1:]]
    return found


def _of_two(restart: Restart, k: int, n: int) -> Restart:
    """The first and the k-th of n sides. A round visits all sides and then all again in reverse."""
    return Restart(tuple((r[0], r[k], r[2 * n - 1 - k], r[2 * n - 1]) for r in restart.rounds))


def fight(
    setup: Setup,
    sides: Mapping[str, Side],
    *,
    log: str,
    left: Callable[[], float],
    looks: Looks = CLIMB,
    margin: float | None = None,
    seen: Callable[[Duel], None] = lambda duel: None,
) -> Duel:
    """Restarts all sides, named, until the comparison is decided, or until `left()` seconds are gone.

    looks, margin: as in `rung.measure.decide`; seen: is told after every restart.
    Raises SideFailed when a worker of one side raises, hangs or dies.
    """
    duel = Duel()
    took: list[float] = []  # by each round of restarts
    while True:
        began = time.monotonic()
        with ExitStack() as stack:
            count = min(setup.together, until_next_look(len(duel.restarts), looks))
            first = len(duel.restarts) + 1
            which = f"restart {first}" if count == 1 else f"restarts {first} to {first + count - 1}"
            progress.info("%s: loading, compiling and warming up", which)
            starts = [Start(setup, sides, f"{log}-{first + k}", stack) for k in range(count)]
            for start in starts:
                start.warm(setup.limits.prepare)
            for start in starts:
                progress.info("restart %d: timing", len(duel.restarts) + 1)
                duel.restarts.append(start.timed(duel))
                if setup.launcher:
                    duel.ranks = max(len(worker.hosts) for worker in start.workers.values())
                seen(duel)
        took.append(time.monotonic() - began)
        # The first round compiles what the next ones find in a cache: it tells only until another was seen.
        last = left() < 1.2 * max(took[1:] or took)
        if len(sides) == 2:
            duel.comparison = decide(duel.restarts, looks=looks, margin=margin, last=last)
        else:
            duel.ranking = rank(log_ratios(list(sides), duel.restarts), looks=looks, margin=margin, last=last)
        said = duel.comparison or duel.ranking
        if said and said.final:
            return duel


def unexplained(outside: Mapping[str, float]) -> list[str]:
    """What to say of sides whose samples leave out much of the wall time of a block."""
    return [
        f"{side}: up to {share:.0%} of a block's wall time is not in its samples"
        for side, share in outside.items()
        if share > 0.25
    ]


def log_ratios(names: list[str], restarts: list[Restart]) -> dict[tuple[str, str], list[float]]:
    """Of every pair of sides, the answer of each restart."""
    pairs = itertools.combinations(enumerate(names), 2)
    return {(a, b): [r.log_ratio(i, j) for r in restarts] for (i, a), (j, b) in pairs}


class Start:
    """One restart: a fresh worker of each side. All of them begin to load when they are made, and compile and warm
    up at once, the longest parts of a restart; nothing of that is timed."""

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
    def of(cls, setup: Setup, tasks: Mapping[str, Task]) -> Start:
        """Of workers that were opened and warmed up already."""
        start = cls.__new__(cls)
        start.limits = setup.limits
        start.workers = {name: task.worker for name, task in tasks.items() if task.worker is not None}
        start.facts = {name: task.answer("open", Opened) for name, task in tasks.items()}
        start.state = {name: task.answer("warm", Warmed) for name, task in tasks.items()}
        return start

    def warm(self, deadline: float) -> None:
        """Waits until all sides have loaded and warmed up."""
        for side in self.workers:
            self.ready(side, deadline)

    def ready(self, side: str, deadline: float) -> None:
        """Waits for one side."""
        self.facts[side] = record_of(Opened, self._receive(side, "open", deadline))
        self.state[side] = record_of(Warmed, self._receive(side, "warm", deadline))

    def drop(self, side: str) -> None:
        """Goes on without a side."""
        self.workers.pop(side).kill()
        self.facts.pop(side, None)
        self.state.pop(side, None)

    def timed(self, duel: Duel, *, briefly: bool = False) -> Restart:
        """Alternates blocks of all sides. briefly: in the fewest rounds, for a first answer."""
        timing = self.timing(duel, briefly=briefly)
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

    def timing(self, duel: Duel, *, briefly: bool = False) -> Timing:
        """The same as questions to the sides, one after the other, so that several restarts may be timed at once, each on a device of its
        own (`rung.timing.side_by_side`)."""
        duel.warm.append(self.state)
        duel.environments = {side: facts.environment for side, facts in self.facts.items()}
        gpu = self._on_gpu()
        duel.warnings += [
            f"{s}: the step time did not settle during warm-up" for s, w in self.state.items() if not w.steady
        ]
        duel.warnings += [f"{s}: {left_to_the_original(n)}" for s, w in self.state.items() if (n := w.original)]
        duel.warnings += [f"{s}: {doubt}" for s, w in self.state.items() for doubt in w.doubts]
        estimates = {}
        for side in self.workers:
            estimates[side] = yield Asked(side, "estimate")
        counts = {side: _steps_a_block(ns, gpu) for side, ns in estimates.items()}
        rounds = FEWEST_ROUNDS if briefly else _rounds(_once(estimates.values(), gpu), gpu)
        got: dict[str, list[tuple[float, CoreTime]]] = {}
        sides = list(self.workers)
        began = time.monotonic()
        until = began + HARDER * ROUNDS_SECONDS["gpu" if gpu else "cpu"]

        def more(so_far: Restart) -> bool:
            busy = any(total(g for _, g in of_blocks).share_waited > BUSY for of_blocks in got.values())
            return busy and len(so_far.rounds) < HARDER * rounds and time.monotonic() < until

        order = turns(len(sides), rounds, more)
        turn = next(order)
        while True:
            side = sides[turn]
            asked = time.monotonic()
            answer = yield Asked(side, "block", {"count": counts[side]})
            taken = _note_block(duel, got, side, record_of(TimedBlock, answer), time.monotonic() - asked)
            try:
                turn = order.send(taken)
            except StopIteration as end:
                found: tuple[Restart, list[list[float]]] = end.value
                break
        restart, samples = found
        if in_cpu_time := _in_cpu_time(sides, got, len(restart.rounds)):
            duel.cpu_restarts.append(in_cpu_time)
        for side, of_blocks in got.items():
            duel.cores[side] = total([duel.cores.get(side, CoreTime(0, 0)), *(g for _, g in of_blocks)])
        progress.debug("timed %s for %.1f s", ", ".join(sides), time.monotonic() - began)
        duel.samples.append(dict(zip(sides, samples, strict=True)))
        for side in sides:
            self.state[side].memory = yield Asked(side, "memory")
        return restart

    def ask(self, asked: Asked) -> None:
        """Begins a call; `answer` waits for it. Raises SideFailed."""
        self._send(asked.side, asked.method, **asked.arguments)

    def answer(self, asked: Asked, deadline: float, waited: float = 0.0) -> Any:
        """Raises SideFailed, also where it took longer than so many seconds, of which some are over."""
        return self._receive(asked.side, asked.method, deadline, waited)

    def go_to_shape(self, shape: int) -> None:
        """Has all sides run another of the workload's input shapes; `at_shape` waits until they are warmed up."""
        for side in self.workers:
            self._send(side, "use_shape", shape=shape, seconds=WARM_SECONDS)

    def at_shape(self, deadline: float) -> None:
        """Raises SideFailed once all sides have answered, so that each of them can be asked more."""
        failures = []
        for side in self.workers:
            try:
                self.state[side] = record_of(Warmed, self._receive(side, "use_shape", deadline))
            except SideFailed as failure:
                failures.append(failure)
        if failures:
            raise failures[0]

    def witness(self, side: str = "") -> Witness:
        """Looks at a block of a side as it was timed, the last one unless another is named."""
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
        """Records a side, the last one unless another is named. A profile that fails costs the next predictions, and no verdict."""
        worker = self.workers[side or list(self.workers)[-1]]
        with self._alone(), contextlib.suppress(WorkerFailed):
            worker.call("profile", self.limits.block, path=str(trace), steps=PROFILED_STEPS)

    def _on_gpu(self) -> bool:
        return any(facts.environment.device.kind == "cuda" for facts in self.facts.values())

    def _alone(self) -> contextlib.AbstractContextManager[None]:
        """On a CPU, what compiles in the background would take the device itself: a look at a step would take ten times as long."""
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
    duel: Duel, got: dict[str, list[tuple[float, CoreTime]]], side: str, block: TimedBlock, seconds: float
) -> list[float]:
    """Writes down what a block told beside its samples, which it returns. got: by side, of each block its CPU time a step, and what its
    threads got of the cores; seconds: that this process waited for it."""
    claimed = sum(block.samples) / len(block.samples) * block.calls
    duel.blocks.setdefault(side, []).append((seconds * 1e9, claimed))
    duel.outside[side] = max(duel.outside.get(side, 0.0), block.outside)
    duel.compiled[side] = duel.compiled.get(side, 0) + block.compiled
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


def _hidden(blocks: Sequence[tuple[float, float]]) -> float:
    least = min(1 - claimed / waited for waited, claimed in blocks)
    beyond = sorted(1 - (claimed + DELAY) / waited for waited, claimed in blocks)
    return max(0.0, least, beyond[3 * len(beyond) // 4])


def blocks_seconds(estimates: Sequence[float], gpu: bool) -> float:
    """What the blocks of a restart take; estimates: nanoseconds of a step, by side."""
    once = _once(estimates, gpu)
    return _rounds(once, gpu) * once


def _rounds(once: float, gpu: bool) -> int:
    return max(FEWEST_ROUNDS, min(10, round(ROUNDS_SECONDS["gpu" if gpu else "cpu"] / once)))


def _once(estimates: Iterable[float], gpu: bool) -> float:
    """Seconds of a round, which has two blocks of each side."""
    return sum(2 * _steps_a_block(ns, gpu) * ns for ns in estimates) / 1e9


def _steps_a_block(estimate: float, gpu: bool) -> int:
    """Blocks of about 60 ms on a GPU and 150 ms on a CPU: long against the switch, short against drift."""
    return max(1, min(50, round((60e6 if gpu else 150e6) / max(estimate, 1))))
