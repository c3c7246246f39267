"""From the plan of a recording to its trace, with what the recording cost."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
from msgspec import UNSET

from rung.errors import UsageError, not_written
from rung.launch.gather import Gathering
from rung.profilers import collect, rank_sensors, run
from rung.profilers.plan import ANSWER, PLAN, SAMPLES, Plan
from rung.profilers.samples import step_energy, summary
from rung.profilers.sampling import Sampling
from rung.profilers.steps import Times, failure
from rung.records.profile import Overhead, Profile, Sampled, SampledGpu, SamplingCost, StepEnergy
from rung.records.record import plain, record_of
from rung.runs import to_json, write_whole
from rung.trace import Trace


def carried_out(
    plan: Plan, deadline: float, said: Callable[[str], None] = lambda _: None, sample: float = 0.0
) -> tuple[Trace, Profile]:
    """Runs a plan and reads what it wrote. Returns the trace, and what belongs to it.

    sample: how often a second the sensors of every GPU are read during the first recorded run; 0: not at all. Ranks read those of their
    own GPUs, as the plan asks.
    """
    folder = plan.folder.parent
    with _writing(folder):
        plan.folder.mkdir(parents=True)
    write_whole(folder / PLAN, to_json(plain(plan.record())))
    sampling, told = _sampling(folder / SAMPLES, sample) if sample and not plan.ranks else (None, [])
    try:
        with _writing(folder):
            logs, notes = _run(plan, deadline, said, sampling)
    except run.ProfilerFailed as error:
        if error.log and (raised := failure(error.log)):
            raised.logs = str(error.log)
            raise raised from None
        if all(collect.collect(plan.profiler, one.output) for one in plan.runs if one.recorded):
            raise run.ProfilerFailed(
                f"{error}\nWhat it had recorded until then may be whole: `rung analyze {folder}`.",
                error.code,
                error.log,
            ) from None
        raise
    trace = collect.read_all(folder, plan.profiler, plan.runs, logs, steps_only=plan.steps_only)
    if plan.steps_only and not trace.events.filter(kind="annotation").height:
        told.append(
            "the steps are not marked in it (no roctx or NVTX): the program's start and warm-up are counted, too."
        )
    ranks = rank_sensors.gathered(folder / SAMPLES)
    told += rank_sensors.silent(ranks)
    record = Profile(
        folder=str(folder),
        recording=str(plan.folder),
        plan=plan.record(),
        logs=[str(log) for log in logs],
        overhead=overhead(folder),
        sensors=_sensed(sampling, folder) if sampling else None,
        ranks=ranks or UNSET,
        notes=[*plan.notes, *told, *notes],
    )
    write_whole(folder / ANSWER, to_json(plain(record)))
    return trace, record


def _run(
    plan: Plan, deadline: float, said: Callable[[str], None], sampling: Sampling | None
) -> tuple[list[Path], list[str]]:
    """As `run.run`; of ranks, with a note about each file that did not come."""
    if not plan.ranks:
        return run.run(plan, deadline, said, sampling)
    with Gathering(plan.folder.parent, plan.ranks == "here") as gathering:
        runs = tuple(replace(one, env={**one.env, **gathering.variables}) for one in plan.runs)
        logs, notes = run.run(replace(plan, runs=runs), deadline, said, sampling)
    return logs, [*notes, *gathering.lacking()]


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise not_written(error.filename or folder, error, "choose another --out") from None


def _sampling(folder: Path, rate: float) -> tuple[Sampling | None, list[str]]:
    """What samples beside a run, or why nothing does."""
    try:
        return Sampling(folder, rate), []
    except UsageError as error:
        return None, [f"sensors are not sampled: {error}"]


def _sensed(sampling: Sampling, folder: Path) -> Sampled:
    return Sampled(
        gpus=record_of(list[SampledGpu], summary(sampling.table()).to_dicts()),
        step=_step(sampling, folder),
        overhead=record_of(SamplingCost, sampling.overhead._asdict()),
        paths=[str(path) for path in sampling.paths],
    )


def _step(sampling: Sampling, folder: Path) -> StepEnergy | None:
    """Of the steps without the profiler; None where no workload was run."""
    alone, recorded = _times(folder / "steps-0.json"), _times(folder / "steps-1.json")
    if alone and alone.span:
        span, count, bus = alone.span, len(alone.steps_ns), alone.bus
    elif recorded and recorded.bare_span and recorded.bare_ns:
        span, count, bus = recorded.bare_span, len(recorded.bare_ns), recorded.bus
    else:
        return None
    return step_energy(sampling.table(), span, count, bus)


def _times(path: Path) -> Times | None:
    return msgspec.json.decode(path.read_bytes(), type=Times) if path.is_file() else None


def overhead(folder: Path) -> Overhead | None:
    """Of the steps that were recorded, against those without the profiler; None where no workload was run."""
    alone, recorded = _times(folder / "steps-0.json"), _times(folder / "steps-1.json")
    bare = (recorded.bare_ns if recorded else None) or (alone.steps_ns if alone else None)
    if not (recorded and recorded.steps_ns and bare):
        return None
    before, after = statistics.median(bare), statistics.median(recorded.steps_ns)
    return Overhead(bare_ns=before, recorded_ns=after, share=after / before - 1, steps=len(recorded.steps_ns))
