"""One workload under one recipe, measured in a fresh worker process until its median is known well enough."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from rung.engine.disturbed import gpu_warnings, process_warnings, sample_warnings
from rung.errors import UsageError
from rung.hardware.sensors import Watch, sensor_for
from rung.launch import Caller, Team, log_folder
from rung.measure import Collected, collect, median_interval
from rung.measure.core_time import total, waiting
from rung.measure.noise import explain
from rung.measure.stats import effective_count, trend
from rung.measure.steady import TELLING
from rung.measure.summary import summarize
from rung.records.bench import Bench, OverRanks, TimerFacts, Work
from rung.records.measured import Interval, Sensors
from rung.records.record import record_of
from rung.rungs import rungs_named
from rung.side import Launcher, Limits, Setup, Side
from rung.timing.compile_cache import compiled_code
from rung.timing.function import Function, Here, named
from rung.timing.over_ranks import RanksSeen
from rung.timing.saved import held_beside, measured_by_the_climb
from rung.timing.timed import Opened, TimedBlock, Warmed
from rung.timing.work import NOTHING_SUPPLIED, SuppliedWork, achieved
from rung.timing.workers import open_side

progress = logging.getLogger(__name__)

BLOCK_SECONDS = 0.5
WARM_SECONDS = 10.0
# Of the record's figures, for who reads only the file; a time is that of one step.
UNITS = {"time": "ns", "summary": "ns", "samples": "ns", "discarded": "ns", "first_run_seconds": "s", "memory": "bytes"}


@dataclass(frozen=True)
class Preset:
    """warm, steps: how many of each, or None for what is found to be needed; deadline: seconds for compiling."""

    says: str
    warm: int | None = None
    steps: int | None = None
    deadline: float = 900.0


PRESETS = {
    "sanity": Preset("one run, no warm-up: does it run? Not a measurement.", 0, 1),
    "quick": Preset("3 + 5 runs: for trying A and B by hand, not for a report.", 3, 5),
    "proper": Preset("warm-up found, steps until the median is known to --target."),
    "compile": Preset("as proper, with an hour for the first compilation.", deadline=3600.0),
}


def bench(
    side: Side,
    *,
    preset: str = "proper",
    precision: float = 0.005,
    seconds: float = 30.0,
    device: str | None = None,
    deadline: float | None = None,
    logs: Path | None = None,
    timer: str = "auto",
    cold: bool = False,
    work: SuppliedWork = NOTHING_SUPPLIED,
    recipe: Path | None = None,
    launcher: Launcher | None = None,
) -> Bench:
    """Times steps after warming up, at least the workload's own number of them, until the 95 % interval of the
    median lies within `precision` (a share) of it, or for `seconds`; to warm up takes no longer than that, either.

    launcher: of the ranks of a job, where it is to be more than one process; timer, cold: `rung.measure.timers`; work: FLOP and bytes of a step that the user supplies; FLOP of a workload's step are counted otherwise; recipe:
    the file that the side came from, whose climb's figures are held beside these (`rung.timing.saved`). With a `trend` the interval is
    wider than 95 %. What raises, hangs or dies raises WorkloadError; samples taken until then are in its `samples`.
    """
    rungs_named(side.rungs)
    limit = deadline or _preset(preset).deadline
    with log_folder("rung-bench-") as folder, ExitStack() as stack:
        # What Inductor tunes it chooses anew where nothing is kept, and code of another choice takes another time.
        variables = stack.enter_context(compiled_code()) if recipe else {}
        setup = Setup(device, logs or folder, Limits(prepare=limit), variables=variables, launcher=launcher)
        worker = open_side(stack, setup, side, "bench")
        progress.info("loading %s", side.target)
        facts = worker.receive("open", limit)
        found = _measured(worker, facts, side, _Wanted(preset, precision, seconds, limit, timer, cold, work))
    # A climb times steps as they are launched, with warm caches: nothing else can be held beside it.
    alike = found.timer and found.timer.name in ("clock", "events") and not found.timer.cold
    climb = measured_by_the_climb(recipe, side) if recipe and alike else None
    return replace(found, climb=held_beside(climb, found.time) if climb else None)


def bench_here(
    call: Callable[[], object],
    name: str | None = None,
    *,
    preset: str = "proper",
    precision: float = 0.005,
    seconds: float = 30.0,
    device: str | None = None,
    timer: str = "auto",
    cold: bool = False,
    work: SuppliedWork = NOTHING_SUPPLIED,
) -> Bench:
    """The same for a callable, in this process; what it raises is raised as it is."""
    limit = _preset(preset).deadline
    function = Function(call, name or named(call), device)
    wanted = _Wanted(preset, precision, seconds, limit, timer, cold, work)
    return _measured(Here(function), function.open(), Side(function.name), wanted)


def _preset(name: str) -> Preset:
    if name not in PRESETS:
        raise UsageError(f"there is no preset {name!r}; there are {', '.join(PRESETS)}.")
    return PRESETS[name]


def too_few(count: int) -> str:
    """What to say of so few samples that nobody can tell whether they drift."""
    return f"only {count} sample{'' if count == 1 else 's'}: too few to tell whether it was warm; raise --time."


@dataclass(frozen=True)
class _Wanted:
    """What was asked for; deadline: the seconds that any one answer may take."""

    preset: str
    precision: float
    seconds: float
    deadline: float
    timer: str
    cold: bool
    work: SuppliedWork


@dataclass(frozen=True)
class _Seen:
    """What one process showed after its first run. warm_up: runs before it was taken to be warm; the rest is None or empty where it
    was not looked at."""

    found: Collected
    warm_up: int | None
    memory: dict[str, int]
    timer: TimerFacts | None = None
    sensors: Sensors | None = None
    work: Work = field(default_factory=Work)
    trend: float | None = None
    notes: list[str] = field(default_factory=list)
    over_ranks: OverRanks | None = None


def _measured(process: Caller | Here, answer: Any, side: Side, wanted: _Wanted) -> Bench:
    """One process, from its first run to its notes. What it raises carries the samples that were taken until then."""
    samples: list[float] = []
    facts = record_of(Opened, answer)
    ask = partial(process.call, deadline=wanted.deadline)
    progress.info("first run (may compile)")
    first = ask("first")
    if isinstance(process, Team) and ask("one_batch"):  # facts count a batch for each rank
        ranks = len(process.hosts)
        facts = replace(
            facts, samples=facts.samples and facts.samples // ranks, tokens=facts.tokens and facts.tokens // ranks
        )
    team = RanksSeen(process, facts.parallel) if isinstance(process, Team) else None
    try:
        seen = (
            _enough(ask, facts.steps, wanted, samples, team)
            if PRESETS[wanted.preset].steps is None
            else _few(ask, PRESETS[wanted.preset], samples)
        )
    except BaseException as error:
        error.samples = samples  # type: ignore[attr-defined]
        raise
    return _record(facts, side, wanted, first, seen)


def _few(ask: Callable[..., Any], preset: Preset, samples: list[float]) -> _Seen:
    """As many steps as the preset says."""
    if preset.warm:
        ask("block", count=preset.warm)
    samples += record_of(TimedBlock, ask("block", count=preset.steps)).samples
    found, memory = Collected(samples, None, False), ask("memory")
    notes = [*explain(samples), *ask("doubts")]
    return _Seen(found, preset.warm, memory, notes=notes)


def _enough(
    ask: Callable[..., Any], at_least: int, wanted: _Wanted, samples: list[float], team: RanksSeen | None
) -> _Seen:
    """Steps until the answer is good enough, and all that can be seen beside them."""
    progress.info("warming up")
    warm = record_of(Warmed, ask("warm", seconds=min(WARM_SECONDS, wanted.seconds)))
    chosen_timer = ask("timer", wanted=wanted.timer, cold=wanted.cold)
    timer, gpu, sample_ns = record_of(TimerFacts, chosen_timer), chosen_timer["gpu"], chosen_timer["sample_ns"]
    watch = Watch(sensor_for(gpu) if team is None or team.begins_here else None)
    count = max(1, min(1000, round(BLOCK_SECONDS * 1e9 / max(sample_ns, 1))))
    in_use: list[int] = [ask("in_use")]
    calls, cores = 0, []

    def block() -> list[float]:
        nonlocal calls
        with watch:
            taken = record_of(TimedBlock, ask("block", count=count, **({"drawn": True} if team else {})))
        if team:
            team.block()
        if taken.cores:
            cores.append(taken.cores)
        calls += taken.calls
        in_use.append(ask("in_use"))
        progress.info("timing: %d samples", len(samples) + len(taken.samples))
        return list(taken.samples)

    found = collect(block, precision=wanted.precision, seconds=wanted.seconds, at_least=at_least, into=samples)
    disturbed = ask("disturbances")
    # A timer's own graphs and buffers are not the step's: then, what was in use while it warmed up.
    own = timer.cold or timer.name in ("graph", "batch")
    memory = warm.memory if own else ask("memory")
    sensors = _with_energy(watch.summary(), 0 if timer.cold else calls)
    # Once more: what a step writes to its inputs, or a model that diverges, overflows after hundreds of steps.
    doubts = warm.doubts if team else dict.fromkeys([*warm.doubts, *ask("doubts")])
    moved = trend(found.kept)
    waited = waiting(total(cores).share_waited)
    notes = [
        *doubts,
        *([too_few(len(found.samples))] if len(found.samples) < TELLING else sample_warnings(found, moved)),
        *([f"{waited}."] if waited else []),
        *process_warnings(disturbed, in_use, len(samples)),
        *gpu_warnings(sensors),
    ]
    # Last, because the ranks' weights go apart.
    over_ranks = team.summary(ask, count, median_interval(found.kept), found.begin or 0) if team else None
    work = record_of(Work, ask("work", flops_in=wanted.work.flops_in))
    return _Seen(found, warm.runs, memory, timer, sensors, work, moved, notes, over_ranks)


def _record(facts: Opened, side: Side, wanted: _Wanted, first: float, seen: _Seen) -> Bench:
    samples = seen.found.kept
    time = median_interval(samples)
    return Bench(
        target=side.target,
        options=side.options,
        rungs=list(side.rungs),
        preset=wanted.preset,
        units=UNITS,
        workload=facts.name,
        mode=facts.mode,
        status="complete",
        measured=PRESETS[wanted.preset].steps is None,
        time=record_of(Interval, time),
        summary=summarize(samples),
        precision=wanted.precision,
        reached=seen.found.reached,
        samples=samples,
        effective_samples=effective_count(samples),
        first_run_seconds=first,
        warm_up_runs=seen.warm_up,
        discarded=seen.found.samples[: seen.found.begin or 0],
        steady=seen.found.begin is not None,
        trend=seen.trend,
        memory=seen.memory,
        timer=seen.timer,
        sensors=seen.sensors,
        work=achieved(seen.work, wanted.work, time.value),
        notes=seen.notes,
        samples_per_step=facts.samples,
        tokens_per_step=facts.tokens,
        environment=facts.environment,
        over_ranks=seen.over_ranks or UNSET,
    )


def _with_energy(seen: Sensors | None, calls: int) -> Sensors | None:
    """What was seen of the GPU, with the joules of one call where nothing else ran in between."""
    if not seen or seen.energy is None or not calls:
        return seen
    return replace(seen, energy_per_step=seen.energy / calls)
