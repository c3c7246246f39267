"""One workload under one recipe, measured in a fresh worker process until its median is known well enough."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rung.errors import UsageError
from rung.hardware.sensors import Watch, sensor_for
from rung.ladder.duel import Limits, Setup, Side, open_worker
from rung.ladder.function import Function, Here, named
from rung.ladder.rungs import chosen
from rung.launch import Worker, log_folder
from rung.measure import MINIMUM_RUNS, Collected, collect, median_interval
from rung.measure.noise import explain, grows
from rung.measure.stats import effective_count
from rung.measure.summary import summarize

BLOCK_SECONDS = 0.5
WARM_SECONDS = 10.0
NEVER_STEADY = (
    "it never became steady: the machine, or the workload, drifts, so the median is that of this stretch of time and no "
    "more."
)
THROTTLED = 0.1  # share of the readings from which a throttled clock is worth a word


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
    target: str,
    options: Mapping[str, str] | None = None,
    rungs: Sequence[str] = (),
    *,
    env: Mapping[str, str] | None = None,
    call: bool = False,
    preset: str = "proper",
    precision: float = 0.005,
    seconds: float = 30.0,
    device: str | None = None,
    deadline: float | None = None,
    logs: Path | None = None,
    timer: str = "auto",
    cold: bool = False,
) -> dict[str, Any]:
    """Times steps after warming up, at least the workload's own number of them, until the 95 % interval of the
    median lies within `precision` (a share) of it, or for `seconds`.

    env: variables of the process beside those of the rungs. call: the target names a plain function, which is timed itself; timer, cold: `rung.measure.timers`. Returns plain values: `time` (median and its
    interval, nanoseconds a step), `summary` (`rung.measure.summary`), `samples` (ns), `reached` (whether the precision
    was), the first run apart, peak memory in bytes, `work` (FLOP and FLOP/s of a step's matrix products and their share
    of the chip's rate, where known), `timer` (how it was timed), `sensors` (power, energy, clocks and temperature of a
    GPU: `rung.hardware.sensors.Watch`, with `energy_per_step` in joules), and `notes` on what disturbed it. What raises, hangs or dies raises WorkloadError;
    samples taken until then are in its `samples`.
    """
    chosen(rungs)
    how = _preset(preset)
    limit = deadline or how.deadline
    side = Side(target, dict(options or {}), tuple(rungs), dict(env or {}), call=call)
    with log_folder("rung-bench-") as folder, ExitStack() as stack:
        setup = Setup(device, logs or folder, Limits(prepare=limit))
        worker = open_worker(stack, setup, side, "bench")
        facts = worker.receive("open", limit)
        found = _measured(worker, facts, how, precision, seconds, limit, timer, cold)
    return {"target": target, "options": side.options, "rungs": list(rungs), "preset": preset, **found}


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
) -> dict[str, Any]:
    """The same for a callable, in this process; what it raises is raised as it is."""
    how = _preset(preset)
    function = Function(call, name or named(call), device)
    found = _measured(Here(function), function.open(), how, precision, seconds, how.deadline, timer, cold)
    return {"target": function.name, "options": {}, "rungs": [], "preset": preset, **found}


def _preset(name: str) -> Preset:
    if name not in PRESETS:
        raise UsageError(f"there is no preset {name!r}; there are {', '.join(PRESETS)}.")
    return PRESETS[name]


def _measured(
    asked: Worker | Here,
    facts: dict[str, Any],
    how: Preset,
    precision: float,
    seconds: float,
    limit: float,
    timer: str,
    cold: bool,
) -> dict[str, Any]:
    """One process, from its first run to its notes."""
    samples: list[float] = []
    in_use: list[int] = []
    calls: list[int] = []
    timed_by, watch, disturbed = None, Watch(None), dict[str, Any]()
    first = asked.call("first", limit)
    try:
        if how.steps is not None:
            warm = {"runs": how.warm, "steady": False}
            if how.warm:
                asked.call("block", limit, count=how.warm)
            samples += asked.call("block", limit, count=how.steps)["samples"]
            found = Collected(samples, None, False)
        else:
            warm = asked.call("warm", limit, seconds=WARM_SECONDS)
            timed_by = asked.call("timer", limit, wanted=timer, cold=cold)
            watch = Watch(sensor_for(timed_by.pop("gpu")))
            count = max(1, min(1000, round(BLOCK_SECONDS * 1e9 / max(timed_by.pop("sample_ns"), 1))))

            in_use.append(asked.call("in_use", limit))

            def block() -> list[float]:
                with watch:
                    taken = asked.call("block", limit, count=count)
                calls.append(taken["calls"])
                in_use.append(asked.call("in_use", limit))
                return list(taken["samples"])

            found = collect(block, precision=precision, seconds=seconds, at_least=facts["steps"], into=samples)
            disturbed = asked.call("disturbances", limit)
    except Exception as error:
        error.samples = samples  # type: ignore[attr-defined]
        raise
    discarded, samples = samples[: found.begin or 0], found.kept
    steady = found.begin is not None
    # A timer's own graphs and buffers are not the step's: then, what was in use while it warmed up.
    own = timed_by and (timed_by["cold"] or timed_by["name"] in ("graph", "batch"))
    memory = warm["memory"] if own else asked.call("memory", limit)
    work = asked.call("work", limit) if how.steps is None else {}
    sensors = _sensors(watch.summary(), 0 if timed_by and timed_by["cold"] else sum(calls))
    growth = grows(in_use)
    notes = explain(samples, always=how.steps is None and not steady)
    if how.steps is None and not steady:
        notes.insert(0, NEVER_STEADY)
    notes += _said(disturbed)
    if len(discarded) > MINIMUM_RUNS:
        notes.append(f"the first {len(discarded)} steps are left out: the stream settled only after them.")
    if growth:
        notes.append(f"memory in use grew by {growth:.0%} over the steps and did not stop: the workload leaks.")
    notes += _held_down(sensors)
    return {
        "workload": facts["name"],
        "mode": facts["mode"],
        "measured": how.steps is None,
        "time": median_interval(samples).as_dict(),
        "summary": summarize(samples),
        "precision": precision,
        "reached": found.reached,
        "samples": samples,
        "effective_samples": effective_count(samples),
        "first_run_seconds": first,
        "warm_up_runs": warm["runs"],
        "discarded": discarded,
        "steady": steady,
        "memory": memory,
        "timer": timed_by,
        "sensors": sensors,
        "work": _rate(work, median_interval(samples).value),
        "notes": notes,
        "samples_per_step": facts["samples"],
        "tokens_per_step": facts["tokens"],
        "environment": facts["environment"],
    }


def _sensors(seen: dict[str, Any] | None, calls: int) -> dict[str, Any] | None:
    """What was seen of the GPU, with the joules of one call where nothing else ran in between."""
    if not seen or seen["energy"] is None or not calls:
        return seen
    return {**seen, "energy_per_step": seen["energy"] / calls}


def _held_down(sensors: dict[str, Any] | None) -> list[str]:
    return [f"the GPU held its clocks down for its {why} in {share:.0%} of the readings."
            for why, share in (sensors or {}).get("throttled", {}).items() if share > THROTTLED]  # fmt: skip


def _said(disturbed: dict[str, Any]) -> list[str]:
    """What the process itself saw go on while it was timed."""
    shapes, compiled, said = disturbed.get("shapes", []), disturbed.get("compiled", 0), []
    if len(shapes) > 1:
        said.append(
            f"its inputs change their shapes from seed to seed ({', '.join(shapes[:3])}): the samples are of different work."
        )
    if compiled:
        said.append(
            f"{compiled} graph{'s were' if compiled > 1 else ' was'} compiled while it was timed: something that it is compiled for changes."
        )
    return said


def _rate(work: dict[str, Any], step_ns: float) -> dict[str, Any]:
    """FLOP/s and its share of the chip's rate at the precision that the matrix products run in."""
    if not work.get("flops"):
        return work
    rate = work["flops"] / step_ns * 1e9
    return {**work, "flops_per_second": rate, "of_peak": rate / work["peak_flops"] if work["peak_flops"] else None}


def sweep(
    target: str, options: Mapping[str, str], grid: Mapping[str, Sequence[str]], measure: Callable[..., dict[str, Any]]
) -> list[dict[str, Any]]:
    """`measure(target, options)` at every point of a grid of options, the last name varying fastest."""
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    return [{**measure(target, {**options, **point}), "point": point} for point in points]
