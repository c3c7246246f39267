"""The beginning of a climb: what the workload is, whether it can be verified, and how long it takes as it is."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from rung.errors import RungError, UsageError
from rung.hardware.state import crowded
from rung.ladder.aiter import list_untuned
from rung.ladder.climb.state import State
from rung.ladder.floor import floor
from rung.ladder.plan import CONTRACTS
from rung.ladder.rungs import Rung
from rung.ladder.timing.duel import PROFILED_STEPS
from rung.ladder.timing.workers import open_worker
from rung.measure import median_interval

progress = logging.getLogger(__name__)


def survey(state: State, rungs: Sequence[Rung]) -> None:
    """Fills in the facts, from the manifest of a climb that goes on or from a worker, and writes the manifest."""
    manifest = state.run.maybe("manifest.json")
    if manifest and manifest.get("facts"):
        state.facts, state.numerics = manifest["facts"], manifest["numerics"]
        state.status("running", "")
        return
    request = state.request
    state.say("survey", {"target": request.target})
    with ExitStack() as stack:
        worker = open_worker(stack, state.setup, state.side([]), "survey")
        progress.info("loading %s", request.target)
        worker.receive("open", state.setup.limits.prepare)
        progress.info("running it, and looking at its graph")
        facts = worker.call("survey", state.setup.limits.prepare)
    state.facts = {k: v for k, v in facts.items() if k not in ("workload", "environment")}
    state.numerics = request.numerics or ("tf32" if facts["gpu"] else "exact")
    if state.numerics not in CONTRACTS:
        raise UsageError(f"--numerics is {state.numerics!r}; it must be one of {', '.join(CONTRACTS)}.")
    aiter = state.facts.get("aiter") or {}
    if command := list_untuned(aiter, state.run.directory):
        aiter["command"] = command
    state.run.write(
        "manifest.json",
        {
            "schema": 1,
            "kind": "climb",
            "status": "running",
            "why": "",
            "target": request.target,
            "options": request.options,
            "numerics": state.numerics,
            "command": request.command,
            "created": facts["environment"]["time"],
            "request": request.as_dict(),
            "rungs": [r.name for r in rungs],
            "workload": facts["workload"],
            "environment": facts["environment"],
            "facts": state.facts,
        },
    )
    state.say("workload", state.run.data())
    if said := crowded(facts["environment"]["now"].get("load", ()), os.cpu_count() or 1):
        state.say("warning", {"text": said})
    if command:
        state.say("warning", {"text": f"{len(aiter['untuned'])} shapes of linear layers are not in aiter's tables; to tune them: {command}"})  # fmt: skip


def measure_baseline(state: State) -> None:
    """The untouched workload: time, memory, a profile of a few steps."""
    known = state.run.maybe("baseline.json")
    if known is None:
        known = _measured(state)
        state.run.write("baseline.json", known)
    state.baseline = known
    if known["breakdown"]:
        state.take(*state.profiled("baseline", known["time"]["value"]))
    state.say("measured", state.run.data())


def _measured(state: State) -> dict[str, Any]:
    state.say("baseline", {})
    limits, began = state.setup.limits, time.monotonic()
    with ExitStack() as stack:
        worker = open_worker(stack, state.setup, state.side([]), "baseline")
        progress.info("loading %s", state.request.target)
        worker.receive("open", limits.prepare)
        progress.info("warming up")
        warm = worker.call("warm", limits.prepare, seconds=10.0)
        loading = time.monotonic() - began
        progress.info("timing")
        steps = int(max(5, min(50, 5e9 / max(worker.call("estimate", limits.block), 1))))
        block = worker.call("block", limits.prepare, count=steps)
        time_ = median_interval(block["samples"]).as_dict()
        memory = worker.call("memory", limits.block)
        parts = None
        try:
            progress.info("recording a profile")
            path = str(state.trace("baseline"))
            worker.call("profile", limits.prepare, path=path, steps=PROFILED_STEPS)
            parts, _ = state.profiled("baseline", time_["value"])
        except RungError as error:
            state.say("warning", {"text": f"no profile of baseline: {error}"})
    return {
        "time": time_,
        "samples": block["samples"],
        "first_run_seconds": warm["first_run_seconds"],
        "loading_seconds": loading,
        "warm_up_runs": warm["runs"],
        "steady": warm["steady"],
        "memory": memory,
        "floor": _floor(state, time_["value"]),
        "breakdown": parts,
        "without_gradient": state.facts["without_gradient"],
        "trace": "traces/baseline.json.gz",
    }


def _floor(state: State, step_ns: float) -> dict[str, Any] | None:
    found = floor(state.run.read("manifest.json")["workload"], state.facts, state.numerics)
    return found and {**found, "share": found["seconds"] * 1e9 / step_ns}
