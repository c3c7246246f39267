"""From the plan of a recording to its trace, with what the recording cost."""

from __future__ import annotations

import contextlib
import json
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl

from rung.errors import InputError, UsageError
from rung.profilers import collect, run
from rung.profilers.plan import ANSWER, PLAN, SAMPLES, Plan
from rung.profilers.samples import energy, summary
from rung.profilers.sampling import Sampling
from rung.runs import to_json, write_whole
from rung.trace import Trace


def carried_out(
    plan: Plan, deadline: float, said: Callable[[str], None] = lambda _: None, sample: float = 0.0
) -> tuple[Trace, dict[str, Any]]:
    """Runs a plan and reads what it wrote. Returns the trace, and plain values: the plan, its folder, `overhead` (of the
    recorded steps against unrecorded ones, where a workload was recorded), `sensors`, notes.

    sample: how often a second the sensors of every GPU are read during the first recorded run; 0: not at all.
    """
    folder = plan.folder.parent
    with _writing(folder):
        plan.folder.mkdir(parents=True)
    write_whole(folder / PLAN, to_json(plan.as_dict()))
    sampling, told = _sampling(folder / SAMPLES, sample) if sample else (None, [])
    try:
        with _writing(folder):
            logs, notes = run.run(plan, deadline, said, sampling)
    except run.ProfilerFailed as error:
        # A workload of ours that was refused says why itself, with the exit code of that.
        if error.code in (2, 3) and error.log and (refused := _refusal(error.log)):
            again = UsageError(refused)
            again.exit_code = error.code
            raise again from None
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
    record = {
        "kind": "profile",
        "folder": str(folder),
        "recording": str(plan.folder),
        "plan": plan.as_dict(),
        "logs": [str(log) for log in logs],
        "overhead": overhead(folder),
        "sensors": _sensed(sampling, folder) if sampling else None,
        "notes": [*plan.notes, *told, *notes],
    }
    write_whole(folder / ANSWER, to_json(record))
    return trace, record


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"{error.filename or folder} could not be written: {error.strerror}; free some space or choose "
                         "another --out.") from None  # fmt: skip


def _sampling(folder: Path, rate: float) -> tuple[Sampling | None, list[str]]:
    """What samples beside a run, or why nothing does."""
    try:
        return Sampling(folder, rate), []
    except UsageError as error:
        return None, [f"sensors are not sampled: {error}"]


def _sensed(sampling: Sampling, folder: Path) -> dict[str, Any]:
    return {
        "gpus": summary(sampling.table()).to_dicts(),
        "step": _step(sampling, folder),
        "overhead": sampling.overhead._asdict(),
        "paths": [str(path) for path in sampling.paths],
    }


def _step(sampling: Sampling, folder: Path) -> dict[str, Any] | None:
    """Energy of a step without the profiler: `energy_j` of one and mean power `mean_w` on `gpu`, over `steps` steps in
    `seconds`; without energy where too few of the `samples` fell into that time. None where no workload was run."""
    for name, times, span in (("steps-0.json", "steps_ns", "span"), ("steps-1.json", "bare_ns", "bare_span")):
        if not (folder / name).is_file():
            continue
        said = json.loads((folder / name).read_text())
        if span not in said:
            continue
        (begin, end), steps = said[span], len(said[times])
        found = energy(sampling.table(), begin, end)
        # Sensors are counted whatever is visible: the address tells which GPU it was.
        mine = found.filter(pl.col("bus") == said["bus"]) if said["bus"] else found
        if mine.height != 1:
            return None
        row, seconds = mine.row(0, named=True), (end - begin) / 1e9
        spent = row["energy_j"]
        return {
            "gpu": row["gpu"],
            "energy_j": spent / steps if spent is not None else None,
            "mean_w": spent / seconds if spent is not None else None,
            "steps": steps,
            "seconds": seconds,
            "samples": row["samples"],
        }
    return None


def _refusal(log: Path) -> str:
    return next((line.removeprefix("rung: ") for line in run.tail(log) if line.startswith("rung: ")), "")


def overhead(folder: Path) -> dict[str, Any] | None:
    """Medians of the steps in ns, `bare` and `recorded`, and by what share the second is longer."""
    found: dict[str, list[int]] = {}
    for name in ("steps-0.json", "steps-1.json"):
        if (folder / name).is_file():
            times = json.loads((folder / name).read_text())
            found["recorded" if name == "steps-1.json" else "bare"] = times["steps_ns"]
            found |= {"bare": times["bare_ns"]} if "bare_ns" in times else {}
    if not (found.get("bare") and found.get("recorded")):
        return None
    bare, recorded = (statistics.median(found[key]) for key in ("bare", "recorded"))
    return {"bare_ns": bare, "recorded_ns": recorded, "share": recorded / bare - 1, "steps": len(found["recorded"])}
