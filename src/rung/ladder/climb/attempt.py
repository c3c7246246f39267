"""One rung: predict, measure in fresh pairs of processes, prove that it is in effect, verify, keep or revert."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from rung.ladder.climb import predictions
from rung.ladder.climb.room import beside_the_best, of_verifying
from rung.ladder.climb.spared import over_shapes, spared
from rung.ladder.climb.state import State
from rung.ladder.climb.together import idle, stacked
from rung.ladder.climb.trust import distrusted
from rung.ladder.climb.waiting import waiting
from rung.ladder.execution.disturbed import compiled_anew
from rung.ladder.rungs import Counters, Evidence, Prediction, Rung, plan_of
from rung.ladder.rungs.environment import FILES
from rung.ladder.timing.duel import Duel, SideFailed, fight
from rung.ladder.timing.workers import open_worker
from rung.ladder.verification.verdict import joined
from rung.launch import WorkerFailed
from rung.measure import Comparison

progress = logging.getLogger(__name__)

DISTURBED = 1.5  # times, between two measurements of the untouched workload


def opened(state: State, rung: Rung, planned: bool = False) -> dict[str, Any]:
    """The record of an attempt before anything is measured; with a verdict where the rung does not apply. planned: of a plan, in
    which nothing was tried yet."""
    context = state.context()
    no = rung.applies(context)
    no = waiting(state, rung, no, planned) if no else None
    prediction = None if no else rung.predict(context)
    stack, members = stacked(state.kept, rung), [member.name for member in rung.members]
    return {
        "schema": 1,
        "number": len(state.attempts) + 1,
        "rung": rung.name,
        "level": rung.level,
        "title": rung.title,
        "contract": rung.contract,
        "changes": rung.changes,
        "against": state.best_name,
        "stack": stack,
        "replaces": [name for name in state.kept if name not in stack],
        "prediction": prediction.as_dict() if prediction else None,
        "clock": (state.breakdown or {}).get("clock"),
        "graph_breaks": state.facts["graph_breaks"] if "compile" in (rung.name, *members) else [],
        **({"members": members} if members else {}),
        "verdict": no.verdict if no else "",
        "why": no.why if no else "",
        **({"group": no.group} if no else {}),
    }


def attempt(state: State, rung: Rung) -> None:
    """Tries a rung and writes down how it went; what is kept becomes the best so far."""
    began = time.monotonic()
    record = opened(state, rung)
    seen: tuple[dict[str, Any] | None, Counters | None] = None, None
    if not record["verdict"]:
        state.say("try", record)
        name = f"{record['number']:02d}-{rung.name}"
        record["log"] = f"workers/{name}-1-candidate.log"
        try:
            _rehearse(state, rung, record["stack"], name)
            duel = _fight(state, record["stack"], name)
            record |= duel.as_dict()
            if not state.kept and (
                said := disturbed(state.baseline["time"]["value"], record["times"]["best"]["value"])
            ):
                record["warnings"] = [*record.get("warnings", ()), said]
                state.say("warning", {"text": said})
            seen = state.profiled(name, record["times"]["candidate"]["value"]) if state.trace(name).exists() else seen
            _judge(state, rung, record, duel, name, seen[1])
        except SideFailed as failure:
            record["verdict"], record["why"] = "failed", f"{failure.error.kind}: {failure}"
        except WorkerFailed as failure:
            record["verdict"], record["why"] = "failed", f"{failure.kind}: {failure}"
    record["seconds"] = time.monotonic() - began
    if rung.members:
        record["why"] = f"{', '.join(name for name in record['stack'] if name not in state.kept)}: {record['why']}"
    if record["verdict"] == "kept":
        state.kept = list(record["stack"])
        record["breakdown"] = seen[0]
        state.take(*seen)
    state.add(record)
    state.say("verdict", record)


def taken_up(state: State) -> None:
    """Goes on from what the attempts in the run directory kept."""
    for record in state.attempts:
        if record["verdict"] == "kept":
            state.kept = list(record.get("stack") or [*state.kept, record["rung"]])
            name = f"{record['number']:02d}-{record['rung']}"
            if record.get("breakdown") and state.trace(name).exists():
                state.take(*state.profiled(name, record["times"]["candidate"]["value"]))


def _rehearse(state: State, rung: Rung, candidate: Sequence[str], name: str) -> None:
    """The run that comes before, in a worker of its own with its own variables; what it finds is left in files."""
    if not rung.first:
        return
    env = {key: value.replace(FILES, str(state.setup.files.resolve())) for key, value in rung.first}
    with ExitStack() as stack:
        worker = open_worker(stack, state.setup, state.side(candidate, env), f"{name}-first")
        worker.receive("open", state.setup.limits.prepare)
        progress.info("a run that comes before, which leaves its results in files")
        worker.call("rehearse", state.setup.limits.prepare)


def _fight(state: State, candidate: Sequence[str], name: str) -> Duel:
    sides, trace = {"best": state.side(state.kept), "candidate": state.side(candidate)}, state.trace(name)
    try:
        return fight(beside_the_best(state), sides, log=name, left=state.left, trace=trace)
    except SideFailed as failure:
        if failure.side == "candidate":
            raise
        # The best so far has run before: what hit it is chance (an out-of-memory killer), so once more.
        state.say("warning", {"text": f"the best so far failed ({failure}); both sides are started again"})
        return fight(state.setup, sides, log=f"{name}-again", left=state.left, trace=trace)


def _judge(state: State, rung: Rung, record: dict[str, Any], duel: Duel, name: str, after: Counters | None) -> None:
    """Three gates: faster with confidence, the effect that it should have, and the same results."""
    assert duel.comparison is not None
    speedup = duel.comparison.speedup
    # A budget that ended before a planned look leaves the question open; resuming asks it again.
    record["cut"] = duel.comparison.cut
    if not record["cut"]:
        record["forecast"] = Prediction(**record["prediction"]).judge(speedup.value)
        record["prediction_error"] = predictions.error(record)
    record["pay_back"] = pay_back(record)
    if rung.spares == "graphs" and (
        duel.comparison.answer == "faster" or speedup.low > 1 - state.request.slower_at_most
    ):
        record["over_shapes"] = over_shapes(state, record["stack"], name)
    told = {**record["applied"], "over_shapes": record.get("over_shapes"), "memory": record.get("memory", {})}
    evidence = Evidence(state.counters, after, told)
    proof = rung.proof(evidence)
    record["effect"] = {"should": rung.effect, "shown": proof.shown, "says": proof.says}
    if why := no_gain(record, rung, duel.comparison, state.request.slower_at_most):
        record["verdict"], record["why"] = why
        return
    if proof.shown is False:
        record["verdict"], record["why"] = "no-op", f"it should show as: {rung.effect}; but {proof.says}."
        return
    if without := idle(rung, evidence):
        record["without"] = without
        record["stack"] = [name for name in record["stack"] if name not in without]
    state.say("verify", record)
    record["verification"] = _verified(state, record["stack"], name)
    if not record["verification"]["passed"]:
        failure = record["verification"]["failures"][0]
        record["verdict"] = "reverted"
        record["why"] = f"it does not compute what the baseline computes: {failure}."
        return
    record["verdict"], record["why"] = "kept", "verified, and faster with confidence."
    if duel.comparison.answer != "faster":
        pace = f"{1 - speedup.value:.1%} slower" if speedup.high < 1 else "as fast"
        record["why"] = f"verified, {pace}, and {spared(record, rung)}."


def disturbed(alone: float, beside: float) -> str:
    """What to say where the untouched workload takes another time beside a candidate than it took alone; empty where it does not."""
    ratio = alone / beside
    if max(ratio, 1 / ratio) < DISTURBED:
        return ""
    times = f"{alone / 1e6:.3g} ms a step when it was measured by itself, and {beside / 1e6:.3g} ms beside a candidate"
    return (
        f"the baseline took {times}: something disturbed the one or the other, "
        "and parts and predictions rest on the first."
    )


def pay_back(record: dict[str, Any]) -> dict[str, Any]:
    """What preparing the candidate takes longer (`seconds`, of the first run), and after how many `steps` its faster
    steps have made up for it; None where they never do."""
    firsts, times = record["first_run_seconds"], record["times"]
    longer = firsts["candidate"] - firsts["best"]
    gain = (times["best"]["value"] - times["candidate"]["value"]) / 1e9
    steps = 0 if longer <= 0 else math.ceil(longer / gain) if gain > 0 else None
    return {"seconds": longer, "steps": steps}


def no_gain(
    record: dict[str, Any], rung: Rung, comparison: Comparison, slower_at_most: float
) -> tuple[str, str] | None:
    """The verdict and its reason where neither the times speak for the rung, nor what it spares at a step that is slower
    by no more than this share."""
    answer, speedup = comparison.answer, comparison.speedup
    if answer == "faster":
        why = distrusted(record, speedup.value)
        return ("reverted", why) if why else None
    if speedup.low > 1 - slower_at_most and spared(record, rung):
        return None
    anew = (record.get("compiled_while_timed") or {}).get("candidate", 0)
    but = f" ({compiled_anew(anew)})" if anew else ""
    if answer == "slower":
        return "reverted", f"it is slower than the best so far{but}."
    if record["cut"]:
        times = f"{comparison.restarts} restart{'' if comparison.restarts == 1 else 's'}"
        return "inconclusive", f"cut short by the budget after {times}; `--resume` tries it anew."
    return "inconclusive", f"the interval includes 1: no gain was shown, so it is not kept{but}."


def _verified(state: State, candidate: Sequence[str], name: str) -> dict[str, Any]:
    """Every precision in a worker of its own; side by side where the machine has room for it."""
    found: list[dict[str, Any]] = []
    todo = list(plan_of(candidate).phases(state.facts["own_precision"]))
    limit, room = state.setup.limits.prepare, of_verifying(state).together
    while todo and all(f["passed"] for f in found):
        now, todo = todo[:room], todo[room:]
        progress.info("verifying: %s", " and ".join(now))
        with ExitStack() as stack:
            workers = [open_worker(stack, state.setup, state.side(candidate), f"{name}-verify-{n}") for n in now]
            for worker, numerics in zip(workers, now, strict=True):
                worker.send("verify", numerics=numerics)
            for worker in workers:
                worker.receive("open", limit)
                found.append(worker.receive("verify", limit))
    return joined(found)
