"""The climb: baseline, profile, then rung after rung: predict, measure, verify, keep or revert."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rung.analysis.breakdown import breakdown
from rung.errors import InputError, RungError, UsageError, WorkloadError
from rung.ladder.duel import PROFILED_STEPS, Duel, Limits, Setup, Side, SideFailed, fight, open_worker
from rung.ladder.plan import CONTRACTS, Numerics
from rung.ladder.recipe import Recipe
from rung.ladder.rungs import LADDER, Context, Prediction, Rung, chosen, plan_of
from rung.ladder.verification import joined
from rung.launch import WorkerFailed
from rung.measure import CLIMB, FINAL, median_interval
from rung.runs import Run, write_whole
from rung.trace import read

MOST_TOGETHER = 3
FINAL_SECONDS = 120.0  # that the final comparison may take, however little the budget left
CONTEXT_BYTES = 2 << 30  # of a process on a GPU: its context, its libraries' workspaces

Say = Callable[[str, dict[str, Any]], None]  # an event's name and what belongs to it


@dataclass(frozen=True)
class Request:
    """What to climb. numerics: None takes the default of the device (tf32 on a GPU, exact on a CPU);
    rungs: None tries the whole ladder; budget: seconds after which no further rung is begun."""

    target: str
    options: dict[str, str] = field(default_factory=dict)
    numerics: Numerics | None = None
    rungs: tuple[str, ...] | None = None
    device: str | None = None
    budget: float | None = None
    deadline: float = 900.0
    command: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {k: getattr(self, k) for k in self.__dataclass_fields__}


class Climb:
    """One climb in one run directory. `say` is told of every event and may print it."""

    def __init__(self, run: Run, request: Request, say: Say) -> None:
        self.run, self.request, self.say = run, request, say
        self.started = time.monotonic()
        self.setup = Setup(
            request.device,
            run.directory / "workers",
            Limits(prepare=request.deadline, block=max(60.0, request.deadline / 4)),
        )
        self.pace = 0.0  # seconds a restart
        self.kept: list[str] = []
        self.baseline: dict[str, Any] = {}
        self.parts: dict[str, float] = {}
        self.breakdown: dict[str, Any] | None = None
        self.facts: dict[str, Any] = {}
        self.numerics: Numerics = "exact"

    def climb(self, *, dry: bool = False) -> dict[str, Any]:
        """Climbs, going on from whatever the directory already holds; returns the run's data."""
        self.run.lock()
        try:
            try:
                self._climb(dry)
            except KeyboardInterrupt:
                self._status("interrupted", "stopped by Ctrl-C")
                raise
            except RungError as error:
                self._status("interrupted", str(error))
                raise
        finally:
            self.run.unlock()
        return self.run.data()

    def _climb(self, dry: bool) -> None:
        rungs = chosen(self.request.rungs) if self.request.rungs is not None else list(LADDER)
        self._survey(rungs)
        self._measure_baseline()
        for attempt in self.run.attempts():
            if attempt["verdict"] == "kept":
                self.kept.append(attempt["rung"])
                self._take(attempt.get("breakdown"))
        why, planned = "", []
        for again in (False, True):
            for rung in rungs:
                if not (self._worth_another(rung) if again else self._last_try(rung) is None):
                    continue
                if dry:
                    planned.append(self._open_attempt(rung))
                    self.say("plan", planned[-1])
                elif self._left() <= self._needed():
                    why = why or f"the budget of {self.request.budget:.0f} s left too little time to decide {rung.name}"
                else:
                    self._try(rung)
        if dry:
            self.run.write("plan.json", {"rungs": planned})
            self._status("planned", "a dry run measures the baseline only")
        else:
            self._finish(why)

    def _needed(self) -> float:
        """Seconds to the first look of a comparison, as far as the last one tells: fewer decide nothing."""
        return CLIMB[0][0] * self.pace

    def _last_try(self, rung: Rung) -> dict[str, Any] | None:
        return next((a for a in reversed(self._tries(rung)) if not a.get("cut")), None)

    def _tries(self, rung: Rung) -> list[dict[str, Any]]:
        return [a for a in self.run.attempts() if a["rung"] == rung.name]

    def _worth_another(self, rung: Rung) -> bool:
        """A rung that gave nothing while something else held the step up is tried once more, when that is gone:
        faster matrix products do not show on a GPU that waits for its launches."""
        tries = [a for a in self._tries(rung) if not a.get("cut")]
        if len(tries) != 1 or tries[0]["against"] == self._best_name():
            return False
        no_gain = tries[0]["verdict"] == "inconclusive" or (
            tries[0]["verdict"] == "reverted" and "verification" not in tries[0]
        )
        return no_gain and rung.applies(self._context()) is None

    # -- the baseline --------------------------------------------------------------------------------------

    def _survey(self, rungs: Sequence[Rung]) -> None:
        manifest = self.run.maybe("manifest.json")
        if manifest and manifest.get("facts"):
            self.facts, self.numerics = manifest["facts"], manifest["numerics"]
            self._status("running", "")
            return
        self.say("survey", {"target": self.request.target})
        with ExitStack() as stack:
            worker = open_worker(stack, self.setup, self._side([]), "survey")
            worker.receive("open", self.setup.limits.prepare)
            facts = worker.call("survey", self.setup.limits.prepare)
        self.facts = {k: v for k, v in facts.items() if k not in ("workload", "environment")}
        self.numerics = self.request.numerics or ("tf32" if facts["gpu"] else "exact")
        if self.numerics not in CONTRACTS:
            raise UsageError(f"--numerics is {self.numerics!r}; it must be one of {', '.join(CONTRACTS)}.")
        self.run.write(
            "manifest.json",
            {
                "schema": 1,
                "kind": "climb",
                "status": "running",
                "why": "",
                "target": self.request.target,
                "options": self.request.options,
                "numerics": self.numerics,
                "command": self.request.command,
                "created": facts["environment"]["time"],
                "request": self.request.as_dict(),
                "rungs": [r.name for r in rungs],
                "workload": facts["workload"],
                "environment": facts["environment"],
                "facts": self.facts,
            },
        )
        self.say("workload", self.run.data())

    def _measure_baseline(self) -> None:
        known = self.run.maybe("baseline.json")
        if known is None:
            self.say("baseline", {})
            with ExitStack() as stack:
                worker = open_worker(stack, self.setup, self._side([]), "baseline")
                worker.receive("open", self.setup.limits.prepare)
                warm = worker.call("warm", self.setup.limits.prepare, seconds=10.0)
                steps = int(max(5, min(50, 5e9 / max(worker.call("estimate", self.setup.limits.block), 1))))
                block = worker.call("block", self.setup.limits.prepare, count=steps)
                time_ = median_interval(block["samples"]).as_dict()
                memory = worker.call("memory", self.setup.limits.block)
                parts = self._profile(worker, "baseline", time_["value"])
            known = {
                "time": time_,
                "samples": block["samples"],
                "first_run_seconds": warm["first_run_seconds"],
                "warm_up_runs": warm["runs"],
                "steady": warm["steady"],
                "memory": memory,
                "breakdown": parts,
                "without_gradient": self.facts["without_gradient"],
                "trace": "traces/baseline.json.gz",
            }
            self.run.write("baseline.json", known)
        self.baseline = known
        self.setup = replace(self.setup, together=self._together())
        self._take(known["breakdown"])
        self.say("measured", self.run.data())

    def _together(self) -> int:
        """How many pairs of workers may be loaded at once: compiling side by side saves minutes on a GPU whose
        machine has cores and memory to spare. On a CPU the device is what compiles, so one pair at a time."""
        if not self.facts["gpu"]:
            return 1
        each = 1.3 * max(self.baseline["memory"].values()) + CONTEXT_BYTES
        total = self.run.read("manifest.json")["environment"]["device"]["memory"]
        return int(max(1, min(MOST_TOGETHER, total // (2 * each), (os.cpu_count() or 1) // 4)))

    def _profile(self, worker: Any, name: str, step_ns: float) -> dict[str, Any] | None:
        """The breakdown of a few steps; a profile that fails costs the predictions, not the climb."""
        try:
            worker.call("profile", self.setup.limits.prepare, path=str(self._trace(name)), steps=PROFILED_STEPS)
        except RungError as error:
            self.say("warning", {"text": f"no profile of {name}: {error}"})
            return None
        return self._broken_down(self._trace(name), step_ns)

    def _trace(self, name: str) -> Path:
        return self.run.directory / "traces" / f"{name}.json.gz"

    def _broken_down(self, path: Path, step_ns: float) -> dict[str, Any] | None:
        try:
            return breakdown(read(path), steps=PROFILED_STEPS, step_ns=step_ns).as_dict()
        except RungError as error:
            self.say("warning", {"text": f"no breakdown: {error}"})
            return None

    def _take(self, parts: dict[str, Any] | None) -> None:
        if parts:
            self.breakdown, self.parts = parts, parts["parts"]

    # -- one rung ------------------------------------------------------------------------------------------

    def _context(self) -> Context:
        rates = self.facts["rates"]
        return Context(plan_of(self.kept), self.numerics, self.facts, self.parts, rates)

    def _best_name(self) -> str:
        return " + ".join(self.kept) or "baseline"

    def _open_attempt(self, rung: Rung) -> dict[str, Any]:
        context = self._context()
        no = rung.applies(context)
        prediction = None if no else rung.predict(context)
        return {
            "schema": 1,
            "number": len(self.run.attempts()) + 1,
            "rung": rung.name,
            "level": rung.level,
            "title": rung.title,
            "contract": rung.contract,
            "changes": rung.changes,
            "against": self._best_name(),
            "prediction": prediction.as_dict() if prediction else None,
            "graph_breaks": self.facts["graph_breaks"] if rung.name == "compile" else [],
            "verdict": no.verdict if no else "",
            "why": no.why if no else "",
        }

    def _try(self, rung: Rung) -> None:
        began = time.monotonic()
        attempt = self._open_attempt(rung)
        if not attempt["verdict"]:
            self.say("try", attempt)
            name = f"{attempt['number']:02d}-{rung.name}"
            candidate = [*self.kept, rung.name]
            attempt["log"] = f"workers/{name}-1-candidate.log"
            try:
                duel = self._fight(candidate, name)
                self.pace = (time.monotonic() - began) / len(duel.restarts)
                attempt |= duel.as_dict()
                self._judge(attempt, duel, candidate, name)
            except SideFailed as failure:
                attempt["verdict"], attempt["why"] = "failed", f"{failure.error.kind}: {failure}"
            except WorkerFailed as failure:
                attempt["verdict"], attempt["why"] = "failed", f"{failure.kind}: {failure}"
        attempt["seconds"] = time.monotonic() - began
        if attempt["verdict"] == "kept":
            self.kept.append(rung.name)
            self._take(attempt.get("breakdown"))
        self.run.add_attempt(attempt)
        self.say("verdict", attempt)

    def _fight(self, candidate: Sequence[str], name: str) -> Duel:
        sides, trace = {"best": self._side(self.kept), "candidate": self._side(candidate)}, self._trace(name)
        try:
            return fight(self.setup, sides, log=name, left=self._left, trace=trace)
        except SideFailed as failure:
            if failure.side == "candidate":
                raise
            # The best so far has run before: what hit it is chance (an out-of-memory killer), so once more.
            self.say("warning", {"text": f"the best so far failed ({failure}); both sides are started again"})
            return fight(self.setup, sides, log=f"{name}-again", left=self._left, trace=trace)

    def _judge(self, attempt: dict[str, Any], duel: Duel, candidate: Sequence[str], name: str) -> None:
        assert duel.comparison is not None
        speedup = duel.comparison.speedup
        prediction = attempt["prediction"]
        # A budget that ended before a planned look leaves the question open; resuming asks it again.
        attempt["cut"] = duel.comparison.cut
        if not attempt["cut"]:
            attempt["forecast"] = Prediction(**prediction).judge(speedup.value)
        if duel.comparison.answer != "faster":
            slower = duel.comparison.answer == "slower"
            attempt["verdict"] = "reverted" if slower else "inconclusive"
            attempt["why"] = (
                "it is slower than the best so far."
                if slower
                else f"cut short by the budget after {duel.comparison.restarts} restart(s); `--resume` decides it."
                if attempt["cut"]
                else "the interval includes 1: no gain was shown, so it is not kept."
            )
            return
        self.say("verify", attempt)
        attempt["verification"] = self._verified(candidate, name)
        if not attempt["verification"]["passed"]:
            attempt["verdict"] = "reverted"
            attempt["why"] = (
                f"it does not compute what the baseline computes: {attempt['verification']['failures'][0]}."
            )
            return
        attempt["verdict"], attempt["why"] = "kept", "verified, and faster with confidence."
        attempt["breakdown"] = self._broken_down(self._trace(name), attempt["times"]["candidate"]["value"])

    def _verified(self, candidate: Sequence[str], name: str) -> dict[str, Any]:
        """Every precision in a worker of its own; side by side where the machine has room for it."""
        found: list[dict[str, Any]] = []
        todo = list(plan_of(candidate).phases(self.facts["own_precision"]))
        while todo and all(f["passed"] for f in found):
            now, todo = todo[: self.setup.together], todo[self.setup.together :]
            with ExitStack() as stack:
                workers = [open_worker(stack, self.setup, self._side(candidate), f"{name}-verify-{n}") for n in now]
                for worker, numerics in zip(workers, now, strict=True):
                    worker.send("verify", numerics=numerics)
                for worker in workers:
                    worker.receive("open", self.setup.limits.prepare)
                    found.append(worker.receive("verify", self.setup.limits.prepare))
        return joined(found)

    # -- the end -------------------------------------------------------------------------------------------

    def _finish(self, why: str) -> None:
        result: dict[str, Any] = {"kept": self.kept, "speedup": None, "confidence": None, "times": None, "memory": None,
                                  "breakdown": self.breakdown, "recipe": None, "recipe_text": ""}  # fmt: skip
        manifest = self.run.read("manifest.json")
        if self.kept:
            self.say("final", {"kept": self.kept})
            try:
                end = time.monotonic() + max(self._left(), FINAL_SECONDS)
                duel = fight(
                    self.setup,
                    {"best": self._side([]), "candidate": self._side(self.kept)},
                    log="final",
                    left=lambda: end - time.monotonic(),
                    looks=FINAL if self.setup.together > 1 else CLIMB,
                    at_least=CLIMB[0][0],
                )
                seen = duel.as_dict()
                assert duel.comparison is not None
                result |= {
                    "speedup": duel.comparison.speedup.as_dict(),
                    "confidence": duel.comparison.confidence,
                    # Cut short, it says only how much the kept rungs give together; each has its own proof.
                    "confirmed": duel.comparison.answer == "faster" or duel.comparison.cut,
                    "times": {"baseline": seen["times"]["best"], "best": seen["times"]["candidate"]},
                    "memory": {"baseline": seen["memory"]["best"], "best": seen["memory"]["candidate"]},
                    "restarts": duel.samples,
                }
            except SideFailed as failure:
                raise WorkloadError(f"the final comparison failed: {failure}; `--resume` tries it again.") from failure
            environment = manifest["environment"]
            recipe = Recipe(
                tuple(self.kept),
                self.request.target,
                self.request.options,
                self.facts["mode"],
                self.numerics,
                {"device": environment["device"]["name"], "arch": environment["device"]["arch"], "torch": environment["torch"]},
                {"speedup": round(result["speedup"]["value"], 4), "low": round(result["speedup"]["low"], 4),
                 "high": round(result["speedup"]["high"], 4), "confidence": result["confidence"]},
            )  # fmt: skip
            result |= {"recipe": "recipe.toml", "recipe_text": recipe.text()}
            write_whole(self.run.directory / "recipe.toml", recipe.text())
        result["seconds"] = time.monotonic() - self.started
        self.run.write("result.json", result)
        self._status("complete", why)

    def _side(self, rungs: Sequence[str]) -> Side:
        return Side(self.request.target, self.request.options, tuple(rungs))

    def _left(self) -> float:
        if self.request.budget is None:
            return float("inf")
        return self.request.budget - (time.monotonic() - self.started)

    def _status(self, status: str, why: str) -> None:
        manifest = self.run.maybe("manifest.json")
        if manifest:
            self.run.write("manifest.json", {**manifest, "status": status, "why": why})


def start(request: Request, root: Path, out: Path | None, say: Say) -> Climb:
    """A new climb in a new run directory."""
    name = request.target.rpartition("/")[2].replace(".py:", "-").replace(":", "-")
    return Climb(Run.create(root, name, out), request, say)


def resume(directory: Path, say: Say, budget: float | None = None) -> Climb:
    """The climb of a run directory, to go on with; budget: seconds from now, if not the first one again."""
    run = Run.open_(directory)
    manifest = run.data()["manifest"]  # all of it is read, so that a damaged file is found before anything is measured
    if manifest["status"] == "complete" and not manifest["why"]:
        raise UsageError(f"{directory} is complete; `rung report {directory}` shows it.")
    told = dict(manifest["request"])
    told["rungs"] = tuple(told["rungs"]) if told.get("rungs") is not None else None
    if budget is not None:
        told["budget"] = budget
    try:
        climb = Climb(run, Request(**told), say)
    except TypeError as error:
        raise InputError(f"{directory} is damaged: its request is not one of this version; climb again.") from error
    _warn_of_another_machine(climb, manifest["environment"])
    return climb


def _warn_of_another_machine(climb: Climb, before: dict[str, Any]) -> None:
    """Says so when what was measured so far ran on something else. A worker is asked: it may load torch."""
    climb.run.lock()  # another process may be climbing here, and its logs are not ours
    try:
        with ExitStack() as stack:
            worker = open_worker(stack, climb.setup, climb._side([]), "resume")
            now = worker.receive("open", climb.setup.limits.prepare)["environment"]
        was, here = (f"{e['device']['name']} with torch {e['torch']}" for e in (before, now))
        if was != here:
            text = f"begun on {was}, now on {here}: this run mixes the two; a new climb would be of one."
            climb.say("warning", {"text": text})
    except KeyboardInterrupt:
        climb._status("interrupted", "stopped by Ctrl-C")
        raise
    except RungError:
        pass  # what keeps a worker from starting is the climb's to say
    finally:
        climb.run.unlock()
