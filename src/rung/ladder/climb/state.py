"""What a climb is asked for, and what it knows at any moment."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from rung.analysis.breakdown import breakdown
from rung.errors import RungError
from rung.ladder.climb.evidence import counters
from rung.ladder.plan import Numerics
from rung.ladder.rungs import Context, Counters, plan_of
from rung.ladder.side import Limits, Setup, Side
from rung.ladder.timing.duel import PROFILED_STEPS
from rung.runs import Run
from rung.trace import read

Say = Callable[[str, dict[str, Any]], None]  # an event's name and what belongs to it


@dataclass(frozen=True)
class Request:
    """What to climb. numerics: None takes the default of the device (tf32 on a GPU, exact on a CPU);
    rungs: None tries the whole ladder, in the order that the profile suggests; names are tried in the order given;
    budget: seconds after which no further rung is begun; slower_at_most: the share of its time that a step may lose for
    what a rung spares beside it (`Rung.spares`)."""

    target: str
    options: dict[str, str] = field(default_factory=dict)
    numerics: Numerics | None = None
    rungs: tuple[str, ...] | None = None
    device: str | None = None
    budget: float | None = None
    deadline: float = 900.0
    slower_at_most: float = 0.01
    command: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {k: getattr(self, k) for k in self.__dataclass_fields__}


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
        )
        self.kept: list[str] = []
        self.baseline: dict[str, Any] = {}
        self.breakdown: dict[str, Any] | None = None
        self.counters: Counters | None = None
        self.facts: dict[str, Any] = {}
        self.numerics: Numerics = "exact"
        self.cut: set[str] = set()  # rungs that the budget cut short in this sitting: only more time would tell more

    @cached_property
    def attempts(self) -> list[dict[str, Any]]:
        """All so far, those of an earlier sitting included."""
        return self.run.attempts()

    @cached_property
    def gpu_bytes(self) -> int:
        """Of the GPU's memory, by the manifest."""
        return int(self.run.read("manifest.json")["environment"]["device"]["memory"])

    @cached_property
    def _earlier(self) -> float:
        """Seconds of the sittings before this one; one that was killed counts up to its last attempt."""
        told = [self.run.maybe("manifest.json") or {}, *self.attempts]
        return max(float(record.get("spent_seconds") or 0.0) for record in told)

    def spent(self) -> float:
        """Seconds that the climb took so far, in all its sittings."""
        return self._earlier + time.monotonic() - self.started

    def add(self, attempt: dict[str, Any]) -> None:
        attempt["spent_seconds"] = self.spent()
        self.run.add_attempt(attempt)
        self.attempts.append(attempt)
        if attempt.get("cut") and attempt["verdict"] == "inconclusive":
            self.cut.add(attempt["rung"])

    @property
    def best_name(self) -> str:
        return " + ".join(self.kept) or "baseline"

    @property
    def step_ns(self) -> float:
        """Of the best so far: as the last attempt that was kept measured it, else the baseline's."""
        kept = [a for a in self.attempts if a["verdict"] == "kept" and a.get("times")]
        return float(kept[-1]["times"]["candidate"]["value"] if kept else self.baseline["time"]["value"])

    @property
    def peak(self) -> float:
        """Bytes that the best so far has in use, at most: as the last attempt that was kept measured it, else the baseline's."""
        kept = [a["memory"]["candidate"] for a in self.attempts if a["verdict"] == "kept" and a.get("memory")]
        return float(max((kept[-1] if kept else self.baseline["memory"]).values()))

    @property
    def pace(self) -> float:
        """Seconds that a restart took in the last attempt that was measured, what its rung took to prepare apart; 0 before the
        first."""
        made = [a for a in self.attempts if a.get("restarts")]
        if not made:
            return 0.0
        last = made[-1]
        prepared = max(0.0, (last.get("pay_back") or {}).get("seconds", 0.0))
        return float(max(last["seconds"] - prepared, 0.0) / len(last["restarts"]))

    def context(self) -> Context:
        parts = self.breakdown["parts"] if self.breakdown else {}
        attempts = self.attempts
        firsts = [f["candidate"] for a in attempts if a["verdict"] == "kept" and (f := a.get("first_run_seconds"))]
        failed = tuple(a["rung"] for a in attempts if a["verdict"] == "failed")
        first = firsts[-1] if firsts else self.baseline.get("first_run_seconds", 0.0)
        peaks = [m["candidate"] for a in attempts if a["verdict"] == "kept" and (m := a.get("memory"))]
        memory = peaks[-1] if peaks else self.baseline.get("memory", {})
        return Context(plan_of(self.kept), self.numerics, self.facts, parts, self.facts["rates"], first, failed, memory)

    def side(self, rungs: Sequence[str], env: Mapping[str, str] | None = None, shape: int = 0) -> Side:
        return Side(self.request.target, self.request.options, tuple(rungs), dict(env or {}), shape=shape)

    def left(self) -> float:
        if self.request.budget is None:
            return float("inf")
        return self.request.budget - (time.monotonic() - self.started)

    def status(self, status: str, why: str) -> None:
        manifest = self.run.maybe("manifest.json")
        if manifest:
            self.run.write("manifest.json", {**manifest, "status": status, "why": why, "spent_seconds": self.spent()})

    def trace(self, name: str) -> Path:
        return self.run.directory / "traces" / f"{name}.json.gz"

    def profiled(self, name: str, step_ns: float) -> tuple[dict[str, Any] | None, Counters | None]:
        """What a recorded trace shows of a step of this length; a profile that failed costs the predictions, not
        the climb."""
        try:
            trace = read(self.trace(name))
            parts = breakdown(trace, steps=PROFILED_STEPS, step_ns=step_ns).as_dict()
        except RungError as error:
            self.say("warning", {"text": f"no breakdown: {error}"})
            return None, None
        return parts, counters(trace, parts, PROFILED_STEPS)

    def take(self, parts: dict[str, Any] | None, counted: Counters | None) -> None:
        """What was seen of the new best; what could not be seen stays as it was."""
        self.breakdown = parts or self.breakdown
        self.counters = counted
