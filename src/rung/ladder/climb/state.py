"""What a climb is asked for, and what it knows at any moment."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from rung.analysis import breakdown as analysis
from rung.errors import RungError
from rung.hardware.limits import MANY_CORES, usable_cores
from rung.ladder.answers import Untouched
from rung.ladder.climb.unfinished import Unfinished, read_unfinished
from rung.launch import launcher, torchrun
from rung.plan import Numerics, contract
from rung.records.analyze import Breakdown
from rung.records.climb import Attempt, Baseline, Moment, Plain, TakenBack
from rung.records.progress import Event, Now, Warned
from rung.records.record import record_of
from rung.records.workload import Facts
from rung.rungs import Context, Counters, Rung, plan_of
from rung.runs import Run
from rung.side import Launcher, Limits, Setup, Side
from rung.timing.tasks import Pool, Task
from rung.timing.timed import Warmed
from rung.timing.worker_group import PROFILED_STEPS
from rung.trace import read
from rung.trace.table import Trace

if TYPE_CHECKING:
    from rung.ladder.climb.answer import Answer

Say = Callable[[Event], None]

USABLE = 0.95  # of the GPU's memory
CONTEXT_BYTES = 1 << 30  # of a process on a GPU: its context, its libraries' workspaces
WARM_SECONDS = (
    3.0  # the most that a worker runs to become steady: others compile meanwhile, and blocks settle by themselves
)
WARM = [("warm", {"seconds": WARM_SECONDS})]  # what a worker is asked before it is timed
UNSEEN = 1.3  # times the best so far's memory, for a step whose peak is not known
# Of what preparing took at first, in a restart that finds compiled code in the cache: 0.4 to 0.6 were seen on CPUs, 0.1 to 0.4 on an H100.
AGAIN, AGAIN_GPU = 0.5, 0.3
LOADED = 0.5  # of what loading takes, where workers are started ahead: 0.1 to 0.4 were seen


class OutOfTime(Exception):
    """The budget, or the part of it that something may take, is gone."""


class Profile(NamedTuple):
    """What a recorded trace shows of a step; None where it was not recorded, or could not be read."""

    breakdown: Breakdown | None = None
    counters: Counters | None = None


@dataclass(frozen=True)
class Request:
    """What to climb. numerics: None takes the default of the device (tf32 on a GPU, exact on a CPU);
    rungs: None tries the whole ladder, in the order that the profile suggests; names are tried in the order given;
    budget: seconds after which the climb ends; jobs: workers that may prepare side by side, None for what the cores allow;
    devices: GPUs as torch counts them, the first of which is timed, and the others verify; or `auto` for all of its kind that are idle;
    ranks, launcher: what is timed is a job of so many ranks of this host, or of those that a command starts;
    slurm: the options with which the job of SLURM was asked for in which it began; slower_at_most: the share of its time that a step may lose for
    what else a rung improves (`Rung.improves`)."""

    target: str
    options: dict[str, str] = field(default_factory=dict)
    numerics: Numerics | None = None
    rungs: tuple[str, ...] | None = None
    device: str | None = None
    budget: float | None = None
    deadline: float = 900.0
    slower_at_most: float = 0.01
    command: str = ""
    jobs: int | None = None
    devices: str = ""
    ranks: int = 0
    launcher: str = ""
    slurm: str = ""

    @property
    def over_ranks(self) -> bool:
        """Whether a job of several ranks is timed, and not one process."""
        return bool(self.ranks or self.launcher)


def gained(kept: Sequence[Attempt]) -> float:
    """The product of what each of these attempts gave over the one before."""
    return math.prod(a.comparison.speedup.value for a in kept if a.comparison)


def counters(trace: Trace, parts: analysis.Breakdown, steps: int) -> Counters:
    """What a trace of a few steps counts, per step, for a rung to be shown in effect. parts: the breakdown of the same trace."""
    seen = trace.events.filter(pl.col("kind").is_in(["kernel", "cpu_op", "runtime"]))
    names = {str(name): count / steps for name, count in seen.group_by("name").len().iter_rows()}
    return Counters(parts.launches, parts.kernels, parts.gemms, names)


def _launcher(request: Request) -> Launcher | None:
    if request.launcher:
        return launcher(request.launcher)
    return torchrun(request.ranks) if request.ranks else None


def _short(name: str) -> str:
    """A task's name without the numbers of the attempt and the restart."""
    return "-".join(part for part in name.split("-") if not part.isdigit()).removesuffix("-candidate")


class State:
    """One climb in one run directory, as far as it has come. `say` is told of every event and may print it."""

    def __init__(self, run: Run, request: Request, say: Say) -> None:
        self.run, self.request, self.say = run, request, say
        self.started = time.monotonic()
        self.setup = Setup(
            request.device,
            run.directory / "workers",
            Limits(prepare=request.deadline, block=max(60.0, request.deadline / 4)),
            files=run.directory,
            launcher=_launcher(request),
            until=math.inf if request.budget is None else self.started + request.budget,
        )
        self.pool: Pool  # of this sitting
        # The budget.
        self.reserved = 0.0  # seconds that are kept for something other than what runs now
        self.cut: set[str] = set()  # rungs that the budget cut short in this sitting: only more time would tell more
        # The workload.
        self.known: Facts | None = None
        self.audited = False  # whether it is known that the workload can be verified
        self.numerics: Numerics = "exact"
        self.measured: Baseline | None = None  # the untouched workload
        self.launch_share = 1.0  # of an untouched step, until the host has launched all of it
        self.on_ready: Callable[[Untouched], None] | None = None  # called once the untouched workload is warm
        self.model_file = run.directory / "model.pt"  # this climb's own, gone when it ends
        self.saved_model = ""  # a file that holds the model, where making it takes long
        # The best so far.
        self.kept: list[str] = []
        self.plain: Plain | None = None  # the best plain mode
        self.breakdown: Breakdown | None = None
        self.counters: Counters | None = None
        # The answer.
        self.answer: Answer | None = None
        self.replaced_answers: list[Answer] = []  # those that the answer took the place of, the latest last
        self.provisional_stack: list[str] = []  # that the attempt of now offered, with all members of a bundle
        self.history: list[Moment] = []
        self.taken_back: list[TakenBack] = []
        self.verified_on_all_shapes: set[tuple[str, ...]] = set()  # recipes
        self.failed_on_other_shapes: set[tuple[str, ...]] = (
            set()
        )  # recipes that could not be verified in the background
        self.unfinished: dict[str, Unfinished] = read_unfinished(run)  # what has no verdict yet
        self.reported_gpus: set[str] = set()  # GPUs that were reported to differ from the first
        # Tasks in the background: workers that are timed.
        self.baseline_worker: Task | None = None  # of the untouched workload
        self.best_worker: Task | None = None  # of the best so far
        self.candidate_worker: Task | None = None  # of what is tried
        self.next_worker: Task | None = None  # of the candidate that may be next
        self.next_rung: Rung | None = None  # its rung
        self.next_gain = 1.0  # its predicted speedup
        self.mode_workers: dict[str, Task] = {}  # of the plain modes
        self.deferred_modes: dict[str, Task] = {}  # of plain modes that are compiled while rungs are tried
        self.restart_workers: list[Task] = []  # of fresh restarts
        self.resume_worker: Task | None = None  # the first worker of a climb that is resumed
        self.confirmed_restarts = 0  # how many fresh restarts were begun to confirm an answer
        # Tasks in the background: the survey and verifications.
        self.survey_task: Task | None = None
        self.all_checks: list[Task] = []  # all that verifies, and what compiles for it
        self.candidate_checks: list[Task] = []  # the verification of what is tried
        self.next_checks: list[Task] = []  # that of the next candidate, as far as it was begun
        self.mode_checks: list[Task] = []  # that of plain modes that are likely to be the fastest
        self.likely_modes: list[str] = []  # plain modes that are verified while they are compiled for the first time
        self.shape_checks: list[Task] = []  # the verification of the answer on other shapes
        self.shape_check_rounds = 0  # how often that was begun
        # Memory of the GPU, in bytes.
        self.mode_bytes = 0.0  # that a plain mode is taken to need
        self.verified_bytes = (0.0, 0.0)  # that a verification took at most: outside of its turns, and more in them

    @cached_property
    def attempts(self) -> list[Attempt]:
        """All so far, those of an earlier sitting included."""
        return self.run.attempts()

    @cached_property
    def gpu_bytes(self) -> int:
        """Of the GPU's memory, by the manifest."""
        return self.run.manifest().environment.device.memory

    @cached_property
    def _earlier(self) -> float:
        """Seconds of the sittings before this one; one that was killed counts up to its last attempt."""
        manifest = self.run.manifest().spent_seconds if self.run.has("manifest.json") else None
        return max([manifest or 0.0, *(attempt.spent_seconds or 0.0 for attempt in self.attempts)])

    def spent(self) -> float:
        """Seconds that the climb took so far, in all its sittings."""
        return self._earlier + time.monotonic() - self.started

    def add(self, attempt: Attempt) -> None:
        attempt.spent_seconds = self.spent()
        self.run.add_attempt(attempt)
        self.attempts.append(attempt)
        if attempt.cut and attempt.verdict == "inconclusive":
            self.cut.add(attempt.rung)

    @property
    def facts(self) -> Facts:
        """Of the workload, once it was loaded."""
        assert self.known is not None
        return self.known

    @property
    def many_cores(self) -> bool:
        """Whether others work while something is timed or compiles. Beside the ranks of a job nobody does: they take the cores and the GPUs."""
        return usable_cores() >= MANY_CORES and not self.request.over_ranks

    @property
    def own_precision(self) -> Numerics:
        """At which the workload computes by itself."""
        return contract(self.facts.own_precision) or "exact"

    @property
    def baseline(self) -> Baseline:
        """The untouched workload, once it was measured."""
        assert self.measured is not None
        return self.measured

    @property
    def kept_attempts(self) -> list[Attempt]:
        return [a for a in self.attempts if a.verdict == "kept"]

    @property
    def best_name(self) -> str:
        return " + ".join(self.kept) or "baseline"

    @property
    def random(self) -> bool:
        """Whether a step draws dropout or other random numbers: what is verified is compiled anew then, without dropout or on equal numbers."""
        return self.facts.dropout is True or self.facts.draws is True

    @property
    def step_ns(self) -> float:
        """Of the best so far: as the last attempt that was kept measured it, else the baseline's."""
        times = [a.times["candidate"].value for a in self.kept_attempts if a.times]
        return times[-1] if times else self.baseline.time.value

    @property
    def peak(self) -> float:
        """Bytes that the best so far has in use, at most: as the last attempt that was kept measured it, else its warm worker, else the
        baseline's."""
        seen = [a.memory["candidate"] for a in self.kept_attempts if a.memory]
        if not seen and self.best_worker and "warm" in self.best_worker.answers:
            seen = [self.best_worker.answer("warm", Warmed).memory]
        return float(max((seen[-1] if seen else self.baseline.memory).values()))

    def step_bytes(self) -> float:
        """Bytes of the GPU that a worker is taken to need whose step nobody has run yet."""
        return UNSEEN * self.peak + CONTEXT_BYTES if self.facts.gpu else 0.0

    def baseline_bytes(self) -> float:
        """Bytes of the GPU that a worker of the untouched workload needs."""
        return max(self.baseline.memory.values()) + CONTEXT_BYTES if self.facts.gpu else 0.0

    @property
    def plain_is_another(self) -> bool:
        """Whether the best so far is more than a plain mode of torch.compile."""
        return self.plain is not None and self.plain.rungs != self.kept

    @property
    def prepared_in(self) -> float:
        """Seconds that a worker of the best so far took until it was warm, when it was compiled for the first time."""
        if not self._compiled_first:
            return self.loading
        return self._compiled_first + (self.baseline.opening_seconds or 0.0)

    @property
    def prepared_again(self) -> float:
        """The same for workers that find the compiled code in the cache, many at once."""
        ahead = self.many_cores and self.facts.gpu  # on a CPU workers are forked, and fresh ones are not started ahead
        return self.loading * (LOADED if ahead else 1.0) + self.compiled_again

    @property
    def compiled_again(self) -> float:
        """Seconds that the best so far takes on an input shape whose compiled code is in the cache."""
        return (AGAIN_GPU if self.facts.gpu else AGAIN) * self._compiled_first

    @property
    def _compiled_first(self) -> float:
        """Seconds from the answer to `open` until the best so far was warm, when it was compiled for the first time; 0 where nothing was
        kept."""
        made = [a.prepared_seconds for a in self.kept_attempts if a.prepared_seconds]
        return made[-1] if made else 0.0

    @property
    def loading(self) -> float:
        """Seconds that a worker of the untouched workload took until it was warm."""
        loading = self.baseline.loading_seconds
        return self.baseline.first_run_seconds if loading is None else loading

    def on_all_shapes(self, kept: Sequence[str]) -> bool:
        """Whether what was verified of this recipe is verified on all shapes that the workload names, or that are derived."""
        return bool(self.facts.one_shape or self.facts.same_size_shapes) or tuple(kept) in self.verified_on_all_shapes

    def gain_over_baseline(self) -> float:
        """How many times as fast as the untouched model the best so far is."""
        return gained(self.kept_attempts)

    def take_next_worker(self, stack: Sequence[str]) -> Task | None:
        """The candidate that was prepared ahead, if it is this one; another one is given up."""
        task, self.next_worker, self.next_rung = self.next_worker, None, None
        if task is not None and (task.ended or list(task.side.rungs) != list(stack)):
            for other in (task, *self.next_checks):
                other.end()
            self.next_checks = []
            return None
        if task is not None:
            task.low_priority = False  # it is what the climb waits for now
        return task

    def now(self) -> Now:
        """May be asked by another thread."""
        pool = getattr(self, "pool", None)
        background, later = (pool.busy(), pool.waiting()) if pool else ([], [])
        rung = self.next_rung
        following = [*({rung.name: None} if rung else {}), *(_short(name) for name in later)]
        answer, written = self.answer, self.history[-1].seconds if self.history else 0.0
        best = f"{answer.speedup.value:.2f}× {answer.status}" if answer else ""
        return Now(best, max(0.0, self.spent() - written), tuple(map(_short, background)), tuple(following))

    def free_bytes(self) -> float:
        """Of the GPU's memory, what no worker of this climb holds; others may use it, too."""
        held = self.pool.held() if hasattr(self, "pool") else 0.0
        return USABLE * self.gpu_bytes - held

    def context(self) -> Context:
        parts = self.breakdown.parts if self.breakdown else {}
        failed = tuple(a.rung for a in self.attempts if a.verdict == "failed")
        firsts = [a.first_run_seconds["candidate"] for a in self.kept_attempts if a.first_run_seconds]
        first = firsts[-1] if firsts else self.measured.first_run_seconds if self.measured else 0.0
        peaks = [a.memory["candidate"] for a in self.kept_attempts if a.memory]
        memory = peaks[-1] if peaks else self.measured.memory if self.measured else {}
        return Context(plan_of(self.kept), self.numerics, self.facts, parts, self.facts.rates, first, failed, memory)

    def side(self, rungs: Sequence[str], env: Mapping[str, str] | None = None, shape: int = 0) -> Side:
        one = bool(self.known and self.known.one_shape)
        return Side(
            self.request.target, self.request.options, tuple(rungs), dict(env or {}), shape=shape, one_shape=one,
            saved_model=self.saved_model, gpu_draws=True,
        )  # fmt: skip

    def left(self) -> float:
        if self.request.budget is None:
            return float("inf")
        return self.request.budget - (time.monotonic() - self.started) - self.reserved

    @contextlib.contextmanager
    def reserving(self, seconds: float) -> Iterator[None]:
        """Inside of it the budget ends so many seconds sooner."""
        before, self.reserved = self.reserved, seconds
        try:
            yield
        finally:
            self.reserved = before

    def wait(self, *tasks: Task, keep: float = 0.0) -> None:
        """Until all of these have answered or failed. Raises OutOfTime where only `keep` seconds of the budget are left."""
        if not self.pool.wait(lambda: all(task.done for task in tasks), lambda: self.left() - keep):
            raise OutOfTime

    def setup_within(self, seconds: float, setup: Setup | None = None) -> Setup:
        """How workers run that must answer within so many seconds."""
        setup = setup or self.setup
        limits = Limits(min(setup.limits.prepare, max(1.0, seconds)), min(setup.limits.block, max(1.0, seconds)))
        return replace(setup, limits=limits)

    def status(self, status: str, why: str) -> None:
        if self.run.has("manifest.json"):
            manifest = self.run.manifest()
            manifest.status, manifest.why, manifest.spent_seconds = status, why, self.spent()
            self.run.write("manifest.json", manifest)

    def trace(self, name: str) -> Path:
        return self.run.directory / "traces" / f"{name}.json.gz"

    def read_profile(self, name: str, step_ns: float) -> Profile:
        """Reads a recorded trace of a step of this length. A profile that failed costs the predictions, not the climb."""
        try:
            trace = read(self.trace(name))
            parts = analysis.breakdown(trace, steps=PROFILED_STEPS, step_ns=step_ns)
        except RungError as error:
            self.say(Warned(f"no breakdown: {error}"))
            return Profile()
        return Profile(record_of(Breakdown, parts), counters(trace, parts, PROFILED_STEPS))

    def set_profile(self, profile: Profile) -> None:
        """Sets the profile of the best so far. Without a breakdown, the one before is kept."""
        self.breakdown = profile.breakdown or self.breakdown
        self.counters = profile.counters
