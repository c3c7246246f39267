"""One rung: predict, measure in fresh pairs of processes, prove that it is in effect, verify, keep or revert."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rung.ladder.climb import predictions
from rung.ladder.climb.answer import PROVISIONAL_GAIN, Answer, offer, take_back
from rung.ladder.climb.begin import audited, surveyed
from rung.ladder.climb.plain import NAME as PLAIN
from rung.ladder.climb.plain import UNSEEN, WARM, race, verifying
from rung.ladder.climb.schedule import (
    confirming,
    next_rung,
    pairs_at_once,
    room,
    stacked,
    without_effect,
)
from rung.ladder.climb.spared import over_shapes, spared
from rung.ladder.climb.state import CONTEXT_BYTES, OutOfTime, State
from rung.ladder.climb.trust import distrusted
from rung.ladder.climb.waiting import waiting
from rung.ladder.execution.disturbed import compiled_anew
from rung.ladder.recipes.recipe import Status
from rung.ladder.rungs import LADDER, Counters, Evidence, Prediction, Rung, plan_of
from rung.ladder.rungs.environment import FILES
from rung.ladder.timing.duel import Duel, SideFailed, Start, fight
from rung.ladder.timing.tasks import Task
from rung.ladder.verification.verdict import joined
from rung.launch import WorkerFailed
from rung.measure import CLIMB, Comparison, judge

progress = logging.getLogger(__name__)

# Of one restart: processes of one program differ by 1 to 3 % (docs/measurement.md), so the one is given up and the other needs no more.
GIVE_UP, CLEAR = 0.97, 1.20
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
    seen: Seen = None, None
    if not record["verdict"]:
        state.say("try", record)
        name = f"{record['number']:02d}-{rung.name}"
        record["log"] = f"workers/{name}-1-candidate.log"
        try:
            _rehearse(state, rung, record["stack"], name)
            duel = _compared(state, rung, record, name)
            record |= duel.as_dict()
            if not state.kept and (
                said := disturbed(state.baseline["time"]["value"], record["times"]["best"]["value"])
            ):
                record["warnings"] = [*record.get("warnings", ()), said]
                state.say("warning", {"text": said})
            seen = state.profiled(name, record["times"]["candidate"]["value"]) if state.trace(name).exists() else seen
            _judge(state, rung, record, duel, name, seen)
        except SideFailed as failure:
            _failed(state, record, failure.error, str(failure))
        except WorkerFailed as failure:
            _failed(state, record, failure, str(failure))
        except OutOfTime:
            _cut(record)
        _let_go(state)
    record["seconds"] = time.monotonic() - began
    if rung.members:
        record["why"] = f"{', '.join(name for name in record['stack'] if name not in state.kept)}: {record['why']}"
    _concluded(state, record, seen)


def attempt_plain(state: State) -> None:
    """The plain modes as the first attempt, of which the fastest is kept where it computes the same. Where it does not, the ladder's
    rungs are tried one at a time. An earlier sitting that timed them and had no time to verify is gone on with."""
    began = time.monotonic()
    seen: Seen = None, None
    name = f"01-{PLAIN}"
    record = next((a for a in state.attempts if a["rung"] == PLAIN), {})
    state.attempts = [a for a in state.attempts if a["rung"] != PLAIN]
    try:
        if not record.get("stack"):
            record = _raced(state)
        if not record["verdict"] or record.get("cut"):
            record |= {"verdict": "", "why": "", "cut": False}
            state.plain = record["plain"]
            audited(state)
            checks = _ahead(state, record["stack"]) or _verifying(state, record["stack"], name)
            champion = _champion_of(state, record["stack"], name)
            state.wait(champion)
            if champion.error:
                raise champion.error
            Start.of(state.setup, {"candidate": champion}).profile(state.trace(name))
            seen = state.profiled(name, record["times"]["candidate"]["value"])
            _conclude(state, record, checks, record["comparison"]["speedup"]["value"], seen)
    except WorkerFailed as failure:
        _failed(state, record, failure, str(failure))
    except OutOfTime:
        if not record:
            raise
        _cut(record)
    if record["verdict"] in ("reverted", "failed"):
        state.plain = record["plain"] = {}
    record["seconds"] = time.monotonic() - began
    _concluded(state, record, seen)


def _raced(state: State) -> dict[str, Any]:
    """The record of the plain modes, timed and not verified; with a verdict where none is fast enough."""
    found = race(state)
    timed = [mode for mode in found.modes.values() if "speedup" in mode]
    found_modes = list(found.modes.values())
    state.plain = {**max(timed, key=lambda mode: mode["speedup"]), "modes": found_modes} if timed else {}
    record: dict[str, Any] = {
        "schema": 1, "number": 1, "rung": PLAIN, "level": 2, "title": "plain torch.compile, in its modes",
        "contract": "reassociated", "changes": "", "against": "baseline", "stack": [], "replaces": [], "prediction": None,
        "clock": None, "graph_breaks": [], "verdict": "", "why": "", "modes": found_modes, "plain": state.plain,
    }  # fmt: skip
    if not found.best:
        errors = [m["error"] for m in found.modes.values() if "error" in m]
        record["verdict"] = "failed" if errors else "inapplicable"
        record["why"] = f"no mode ran: {errors[0]}" if errors else "this device and workload permit no plain mode."
        return record
    mode = found.modes[found.best]
    record |= {"stack": mode["rungs"], "members": mode["rungs"], "title": mode["title"]}
    record["log"] = f"workers/01-{PLAIN}-{found.best}.log"
    record["prepared_seconds"] = mode["prepared_seconds"]
    found.duel.comparison = judge([r.log_ratio() for r in found.duel.restarts], looks=CLIMB, last=True)
    record |= found.duel.as_dict()
    if mode["speedup"] < PROVISIONAL_GAIN:
        record["verdict"] = "inconclusive"
        record["why"] = f"no plain mode was more than {PROVISIONAL_GAIN - 1:.0%} faster in one restart."
    elif why := distrusted(record, mode["speedup"]):
        record["verdict"], record["why"] = "reverted", why
    return record


def _let_go(state: State) -> None:
    """Ends what an attempt had started and nobody needs any more."""
    for task in (*state.verifying, *([state.challenger] if state.challenger else [])):
        task.end()
    state.verifying, state.challenger = [], None


Seen = tuple[dict[str, Any] | None, Counters | None]  # a breakdown, and what a trace counts


def _ahead(state: State, stack: Sequence[str]) -> list[Task]:
    """The verification that was begun before it was known which mode is the fastest, if it is of this one and did not fail."""
    tasks, state.ahead = state.ahead, []
    of_this = all(list(task.side.rungs) == list(stack) and not task.error for task in tasks)
    if of_this and not state.facts.get("one_shape"):
        return tasks
    for task in tasks:
        task.end()
    return []


def _failed(state: State, record: dict[str, Any], error: WorkerFailed, text: str) -> None:
    """A worker that was stopped because the budget was over did not fail."""
    if error.kind == "hung" and room(state) <= 1:
        _cut(record)
    else:
        record["verdict"], record["why"] = "failed", f"{error.kind}: {text}"


def _cut(record: dict[str, Any]) -> None:
    record["verdict"], record["cut"] = "inconclusive", True
    record["why"] = "the budget ended before it was decided; `--resume` goes on with it."


def _concluded(state: State, record: dict[str, Any], seen: Seen) -> None:
    if record["verdict"] == "kept":
        state.kept = list(record["stack"])
        record["breakdown"] = seen[0]
        state.take(*seen)
        state.add(record)
        over = state.over_untouched()
        offer(state, _answer(state, state.kept, "verified", over, record))
        state.earlier = [a for a in state.earlier if a.status != "provisional"]
    else:
        state.add(record)
        if not record.get("cut"):  # where it was only cut short, what was seen of it still holds
            take_back(state, state.offered or record["stack"], record["why"].rstrip("."))
    state.offered = []
    state.say("verdict", record)


def _answer(state: State, stack: Sequence[str], status: Status, over: float, record: Mapping[str, Any]) -> Answer:
    """What an attempt found, before it is confirmed. over: the untouched model's time over the candidate's, through all that was kept
    before; record: of the attempt."""
    best = record["times"]["candidate"]
    return Answer(
        tuple(stack), status, {"value": over}, _over_plain(state, over),
        times={"baseline": {"value": over * best["value"]}, "best": best},
        memory={"baseline": state.baseline["memory"], "best": record["memory"]["candidate"]},
        first_run_seconds={"baseline": state.baseline["first_run_seconds"], "best": record["first_run_seconds"]["candidate"]},
    )  # fmt: skip


def _over_plain(state: State, over: float) -> dict[str, float] | None:
    return {"value": over / state.plain["speedup"]} if state.plain else None


def taken_up(state: State) -> None:
    """Goes on from what the attempts in the run directory kept."""
    for record in state.attempts:
        if record.get("plain"):
            state.plain = record["plain"]
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
    progress.info("a run that comes before, which leaves its results in files")
    task = state.pool.add(Task(f"{name}-first", state.side(candidate, env), [("rehearse", {})], _bytes_for(state)))
    state.wait(task, keep=confirming(state))
    task.end()
    if task.error:
        raise task.error


def _compared(state: State, rung: Rung, record: dict[str, Any], name: str) -> Duel:
    """The best so far and the candidate, interleaved. The first restart uses the worker of the best that is warm already, and
    decides alone where the answer is clear; then fresh pairs follow."""
    stack = record["stack"]
    sides = {"best": state.side(state.kept), "candidate": state.side(stack)}
    memory = _bytes_for(state)
    task = state.prefetched(stack) or state.pool.add(Task(f"{name}-1-candidate", sides["candidate"], WARM, memory))
    best = _champion_of(state, state.kept, name)
    progress.info("compiling %s", record["rung"])
    state.wait(task, best, keep=confirming(state))
    if best.error:
        # It has run before: what hit it is chance (an out-of-memory killer), so once more.
        state.say("warning", {"text": f"the best so far failed ({best.error}); it is started again"})
        best = _champion_of(state, state.kept, f"{name}-again")
        state.wait(best, keep=confirming(state))
    for failed in (best, task):
        if failed.error:
            task.end()
            raise failed.error
    record["prepared_seconds"] = task.since_open("warm")
    state.challenger = task
    duel = Duel()
    start = Start.of(state.setup_within(room(state)), {"best": best, "candidate": task})
    progress.info("timing %s", record["rung"])
    duel.restarts.append(start.timed(duel))
    duel.witness = start.witness()
    start.profile(state.trace(name))
    duel.comparison = judge([duel.restarts[0].log_ratio()], looks=CLIMB, last=True)
    assert duel.comparison is not None
    gain = duel.comparison.speedup.value
    if rung.spares == "step" and gain < GIVE_UP:
        duel.comparison = replace(duel.comparison, answer="slower", cut=False)
        return duel
    if rung.spares == "step" and gain >= PROVISIONAL_GAIN and not distrusted(duel.as_dict(), gain):
        _offer_provisional(state, stack, duel)
        state.verifying = _verifying(state, stack, name)
    if rung.spares == "step" and gain >= CLEAR:
        duel.comparison = replace(duel.comparison, answer="faster", cut=False)
        return duel
    setup = state.setup_within(room(state), pairs_at_once(state, [state.peak, UNSEEN * state.peak]))
    return fight(setup, sides, log=name, left=lambda: room(state), duel=duel)


def _champion_of(state: State, rungs: Sequence[str], name: str) -> Task:
    """A worker of the best so far, or of what it will be: the one that is there, or a new one that is not warm yet."""
    now = state.champion
    if now is not None and now.ready and list(now.side.rungs) == list(rungs):
        return now
    if now is not None:
        now.end()
    state.champion = state.pool.add(Task(f"{name}-1-best", state.side(rungs), WARM, _bytes_for(state)))
    return state.champion


def _bytes_for(state: State, times: float = UNSEEN) -> float:
    return times * state.peak + CONTEXT_BYTES if state.facts["gpu"] else 0.0


def _offer_provisional(state: State, stack: Sequence[str], duel: Duel) -> None:
    assert duel.comparison is not None
    over = state.over_untouched() * duel.comparison.speedup.value
    state.offered = list(stack)
    offer(state, _answer(state, stack, "provisional", over, duel.as_dict()))


def _judge(state: State, rung: Rung, record: dict[str, Any], duel: Duel, name: str, seen: Seen) -> None:
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
    evidence = Evidence(state.counters, seen[1], told)
    proof = rung.proof(evidence)
    record["effect"] = {"should": rung.effect, "shown": proof.shown, "says": proof.says}
    if why := no_gain(record, rung, duel.comparison, state.request.slower_at_most):
        record["verdict"], record["why"] = why
        return
    if proof.shown is False:
        record["verdict"], record["why"] = "no-op", f"it should show as: {rung.effect}; but {proof.says}."
        return
    if without := without_effect(rung, evidence):
        record["without"] = without
        record["stack"] = [name for name in record["stack"] if name not in without]
        if state.verifying:
            for task in state.verifying:
                task.end()
            state.verifying = []
    state.say("verify", record)
    checks = state.verifying or _verifying(state, record["stack"], name)
    state.verifying = []
    _conclude(state, record, checks, speedup.value, seen)
    if record["verdict"] == "kept" and duel.comparison.answer != "faster":
        pace = f"{1 - speedup.value:.1%} slower" if speedup.high < 1 else "as fast"
        record["why"] = f"verified, {pace}, and {spared(record, rung)}."
    if record["verdict"] == "kept" and state.challenger and list(state.challenger.side.rungs) == record["stack"]:
        if state.champion:
            state.champion.end()
        state.champion, state.challenger = state.challenger, None


def _conclude(state: State, record: dict[str, Any], checks: Sequence[Task], gain: float, seen: Seen) -> None:
    """Waits for the verification, and gives the verdict on a candidate that is faster."""
    began = time.monotonic()
    if state.surveying:
        state.pool.wait(lambda: surveyed(state, wait=False) or all(task.done for task in checks), state.left)
    prepare_next(state, record["stack"], seen)
    progress.info("verifying: %s", " and ".join(task.name.rpartition("-")[2] for task in checks))
    state.wait(*checks, keep=confirming(state))
    record["verified_seconds"] = max(
        t.since_open("verify") if "verify" in t.took else time.monotonic() - began for t in checks
    )
    for task in checks:
        task.end()
    if any(task.error and "out of memory" in f"{task.error.kind} {task.error}".lower() for task in checks):
        checks = _one_at_a_time(state, checks)
    if failed := next((task.error for task in checks if task.error), None):
        record["verdict"], record["why"] = "failed", f"{failed.kind}: {failed}"
        return
    record["verification"] = joined([task.answers["verify"] for task in checks])
    record["gain"] = gain
    if not record["verification"]["passed"]:
        failure = record["verification"]["failures"][0]
        record["verdict"] = "reverted"
        record["why"] = f"it does not compute what the baseline computes: {failure}."
        return
    record["verdict"], record["why"] = "kept", "verified, and faster with confidence."
    if len(record.get("restarts") or ()) == 1:
        record["why"] = "verified, and faster in one restart by more than processes differ."


def _one_at_a_time(state: State, checks: Sequence[Task]) -> list[Task]:
    """The verification once more, with the GPU's memory for each of its workers alone."""
    for held in (state.champion, state.challenger, state.untouched, state.next):
        if held:
            held.end()
    again = []
    for task in checks:
        again.append(
            state.pool.add(
                Task(f"{task.name}-again", task.side, [("verify", {"numerics": task.name.rpartition("-")[2]})])
            )
        )
        state.wait(again[-1], keep=confirming(state))
        again[-1].end()
    return again


def prepare_next(state: State, stack: Sequence[str], seen: Seen) -> None:
    """While a candidate is verified, the one that would come after it compiles, if cores are idle. seen: of the candidate."""
    if state.next or state.pool.idle() < 1 or state.request.rungs is not None or state.surveying:
        return
    before = state.kept, state.breakdown, state.counters
    state.kept = list(stack)
    state.take(*seen)
    try:
        rung = next_rung(state, LADDER)
        if isinstance(rung, Rung) and rung.spares == "step" and not rung.first:
            number, after = 2 + max([0, *(a["number"] for a in state.attempts)]), stacked(stack, rung)
            name = f"{number:02d}-{rung.name}-1-candidate"
            state.next = state.pool.add(Task(name, state.side(after), WARM, _bytes_for(state)))
            state.next_rung = rung
            if 2 * state.pool.idle() > state.pool.most and rung.predict(state.context()).value >= PROVISIONAL_GAIN:
                state.next_ahead = verifying(state, after, ["exact"], name.removesuffix("-1-candidate"))
    finally:
        state.kept, state.breakdown, state.counters = before


def prepared_rung(state: State) -> Rung | None:
    """The rung whose candidate compiled while the one before it was verified, if that was kept and there is time to decide it."""
    if state.next is None or state.next_rung is None:
        return None
    rung, state.next_rung = state.next_rung, None
    fits = stacked(state.kept, rung) == list(state.next.side.rungs) and rung.applies(state.context()) is None
    if fits and not state.next.error and room(state) > 0:
        return rung
    state.prefetched([])
    return None


def _verifying(state: State, stack: Sequence[str], name: str) -> list[Task]:
    """The verification of a candidate at each precision, of which some may have begun ahead."""
    begun, state.next_ahead = state.next_ahead, []
    if any(list(task.side.rungs) != list(stack) or task.error for task in begun):
        for task in begun:
            task.end()
        begun = []
    there = {task.name.rpartition("-")[2] for task in begun}
    return [
        *begun,
        *verifying(
            state, stack, [n for n in plan_of(stack).phases(state.facts["own_precision"]) if n not in there], name
        ),
    ]


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
