"""The plain modes of torch.compile side by side: each is prepared in a worker of its own and timed as soon as it is ready.

Each runs at the lowest precision that the climb's numeric contract permits, with the fused optimizer. Where one of them is slower so
than the untouched model, as convolutions in bfloat16 may be, they are prepared at the next higher precision, too. They need a few
facts of the workload, not its survey, and all of them prepare side by side.
"""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rung.hardware.limits import MANY_CORES, usable_cores
from rung.ladder.climb.ahead import note_memory, prepare_next
from rung.ladder.climb.answer import PROVISIONAL_GAIN, VERIFIED_GAIN, Answer, offer
from rung.ladder.climb.begin import audited, surveyed
from rung.ladder.climb.begun import Begun, keep
from rung.ladder.climb.checks import (
    checks_of,
    end_checks,
    precision_of,
    verifying,
    verifying_bytes,
)
from rung.ladder.climb.modes import MODES, SLOW, mode_of, modes, title
from rung.ladder.climb.restarts import time_for_blocks
from rung.ladder.climb.schedule import LEAST_GAIN, PRECISIONS, much_slower
from rung.ladder.climb.state import CONTEXT_BYTES, UNSEEN, WARM, OutOfTime, State
from rung.ladder.climb.trust import distrusted
from rung.rungs import BY_NAME, plan_of
from rung.timing.duel import Duel, SideFailed, Start, between
from rung.timing.tasks import Task, end_all

progress = logging.getLogger(__name__)

NAME = "plain"  # of the attempt
SLOW_SECONDS = 240.0  # of the budget, or none, from which modes that take minutes are begun
# Of the time that is left, and seconds: how long those are waited for when all others are timed.
SLOW_SHARE, SLOW_MOST = 0.25, 300.0
BLOCKS = "blocks-and-graph"  # ready long before the model compiled as a whole, where there are cores for both
# To be the answer for a while, or for good: verified while it is compiled, where there are many cores.
LIKELY = (BLOCKS, "compile-and-graph", "default", "channels-last", "eager")
ANEW = ("reduce-overhead",)  # finds little of its code in the cache: compiled once the best mode so far is verified
# How long further modes are waited for once the best is verified: times as long as the best took to prepare, and seconds.
PATIENCE, PATIENCE_SECONDS = 1.0, 15.0
# Of a step, after which the host has launched it all: with less, no graph of launches can save anything, even if the step got ten times as
# fast by torch.compile or a lower precision.
BUSY_GPU = 0.05
# With more, the host's launches decide, and a mode that leaves them all to it gives nothing; or compiled code is worth its overhead.
UNCOMPILED = {"channels-last": 0.5, "eager": 0.1}
SLOWER = 0.98  # times as fast as the untouched model: a precision is given up for less
BRIEFLY = (
    45.0  # seconds that are left, below which modes are timed in the fewest rounds: each costs twice as much otherwise
)
ALIKE = 1.01  # times as fast: of modes that differ by less, the first to be ready stays the best
WHOLE = 1.02  # so much faster have compiled blocks to be than the model compiled as a whole, which rungs can go on from


@dataclass
class Race:
    """What was seen of the modes, one record each: `name`, `title`, `rungs`, `ready_seconds` since the climb began, `step_ns` and
    `speedup` over the untouched model in one restart; or `error`. best: the name of the fastest; duel: with the best as candidate."""

    modes: dict[str, dict[str, Any]] = field(default_factory=dict)
    best: str = ""
    duel: Duel = field(default_factory=Duel)
    task: Task | None = None
    asked: bool = False  # whether the audit has told which further modes there are
    until: float = math.inf  # when modes that take minutes are given up, by the monotonic clock
    without: tuple[str, ...] = ()  # precisions at which a mode was slower than the untouched model
    # Of the modes that were the best for a while, as they were timed.
    answers: list[Answer] = field(default_factory=list)


def start_modes(state: State, warm: Mapping[str, Any]) -> None:
    """Has workers prepare the first modes: the graph of the model as it is, and one that compiles. The others wait until that one
    is ready, for they find its code in the cache. warm: what the untouched workload's worker said."""
    peak = float(max(warm["memory"].values()))
    state.mode_bytes = UNSEEN * peak + CONTEXT_BYTES if state.facts["gpu"] else 0.0
    state.launching = warm.get("launching", 1.0)
    wanted = _modes(state, slow=False)
    state.racing = {name: prepared_mode(state, name, rungs) for name, rungs in wanted.items()}
    timed = _timed_before(state)
    for name in _first(state):
        if name not in timed:
            state.pool.add(state.racing[name])
    likely = next((name for name in state.racing if name in LIKELY and not timed), "")
    if likely and _verifies_beside(state, peak):
        state.likely = likely
        _verified_ahead(state, wanted[likely], f"01-{NAME}")


def _modes(state: State, slow: bool, without: Sequence[str] = ()) -> dict[str, tuple[str, ...]]:
    """The modes, the one first that is to compile first. Where the GPU is busy, a graph of launches only adds a copy of the inputs: the one
    of the model as it is is left out, and compiled code comes without one first."""
    found = modes(state.context(), slow, without)
    if usable_cores() < MANY_CORES:
        found = {name: rungs for name, rungs in found.items() if mode_of(name) != BLOCKS}
    found = {name: rungs for name, rungs in found.items() if state.launching < UNCOMPILED.get(mode_of(name), math.inf)}
    if state.launching >= BUSY_GPU:
        return found
    compiled = {name: rungs for name, rungs in found.items() if mode_of(name) != "cuda-graph"}
    return dict(sorted(compiled.items(), key=lambda mode: mode_of(mode[0]) != "default"))


def _verifies_beside(state: State, peak: float) -> bool:
    """Whether a mode can be verified while others compile: there are cores, and the GPU has room for it beside the untouched workload and
    one mode. The pool starts it when there is room. peak: bytes of the untouched workload."""
    needed = peak + CONTEXT_BYTES + state.mode_bytes + verifying_bytes(state, peak)
    return usable_cores() >= MANY_CORES and (not state.facts["gpu"] or needed <= state.pool.memory)


def _timed_before(state: State) -> dict[str, dict[str, Any]]:
    """The modes that an earlier sitting timed before it was killed, the best among them."""
    begun = state.begun.get("plain")
    timed = {name: mode for name, mode in begun.modes.items() if "speedup" in mode} if begun else {}
    return timed if begun and begun.name in timed else {}


def _verified_ahead(state: State, rungs: Sequence[str], name: str) -> None:
    """Begins to verify the mode that is likely to be the fastest, while it compiles."""
    state.ahead = verifying(state, rungs, plan_of(rungs).phases(state.facts["own_precision"]), name)


def prepared_mode(state: State, name: str, rungs: Sequence[str], again: str = "") -> Task:
    """A worker that is to prepare a mode, not started yet. again: what its log's name ends with where it is not the mode's first."""
    return Task(f"01-{NAME}-{name}{again}", state.side(rungs), WARM, state.mode_bytes)


def _first(state: State) -> list[str]:
    """One mode that compiles, and those that do not."""
    compile_first = next((name for name in state.racing if "compile" in MODES[name]), None)
    return [name for name in state.racing if name == compile_first or "compile" not in MODES[name]]


def race(state: State) -> Race:
    """Times each mode as soon as it is ready, against the untouched model and the best mode so far, in one restart."""
    if state.untouched is None:  # an earlier sitting measured it
        untouched_worker(state)
        assert state.untouched is not None
        start_modes(state, state.untouched.answers["warm"])
    result = Race()
    if timed := _timed_before(state):
        begun = state.begun["plain"]
        result = Race(timed, begun.name, begun.duel)
    open_ = {name: state.racing[name] for name in _first(state) if name not in result.modes}
    later = {name: task for name, task in state.racing.items() if name not in open_ and name not in result.modes}
    tried_again: set[str] = set()

    def start_later() -> None:
        """The others find in the cache what the first mode compiled."""
        nonlocal later
        if not result.asked:
            result.asked = True
            audited(state)
            later = _all_modes(state, result, later)
        now = [name for name in later if not _waits(state, name)]
        open_.update({name: state.pool.add(later.pop(name)) for name in now})

    while open_ or later or not result.asked:
        open_ |= at_higher_precision(state, result)
        if result.asked or not any("compile" in task.side.rungs for task in open_.values()):
            start_later()
        waited = {name: task for name, task in open_.items() if mode_of(name) not in SLOW or not result.best}
        if not waited and open_:  # those that take minutes are left
            result.until = min(result.until, time.monotonic() + min(SLOW_MOST, SLOW_SHARE * state.left()))
            waited = dict(open_)
        if not waited and not later:
            break
        if _can_wait(state, [*open_, *later]):
            state.late = {
                name: state.pool.add(task) if name in later else task for name, task in {**open_, **later}.items()
            }
            for task in state.late.values():
                task.spare = True
            open_ = {}
            break
        progress.info("compiling: %s", ", ".join(waited or later))
        if not _something_new(state, result, list(waited.values())):
            if not result.best:
                raise OutOfTime
            for name, task in {**waited, **later}.items():
                result.modes[name] = {"name": name, "title": title(name), "rungs": list(task.side.rungs), "error": "it was not ready in time"}  # fmt: skip
                state.say("mode", result.modes[name])
            break
        surveyed(state, wait=False)  # what refuses the workload ends the climb
        done = {name: open_.pop(name) for name, task in waited.items() if task.done}
        for name, task in list(done.items()):
            if task.error and task.error.lacked_memory and name not in tried_again:  # beside others: once more later
                tried_again.add(name)
                later[name] = state.racing[name] = prepared_mode(state, name, task.side.rungs, "-again")
                del done[name]
        if state.likely in done:
            state.likely = ""
        known = state.surveying is None or "audit" in state.surveying.answers
        if known and any("compile" in task.side.rungs for task in done.values()):
            start_later()  # they compile while this one is timed and checked
        time_modes(state, result, done)
        _give_up(state, result, open_, later)
        _use_the_time(state, result)
    end_all(open_.values())
    if state.untouched and result.best:
        state.untouched.end()  # its memory is for others now
    return result


def _give_up(state: State, result: Race, open_: dict[str, Task], later: dict[str, Task]) -> None:
    """Waits no longer for modes that add to one which made the untouched model much slower: they take the same way through it."""
    for name, task in {**open_, **later}.items():
        timed = [mode for mode in result.modes.values() if "speedup" in mode and much_slower(mode)]
        slow = next((mode for mode in timed if {*mode["rungs"]} < {*task.side.rungs}), None)
        if slow is None:
            continue
        open_.pop(name, None)
        later.pop(name, None)
        task.end()
        if name == state.likely:
            state.likely = ""
            end_checks(state)
            state.ahead = []
        why = f"given up, since it adds to what is slower than the untouched model: {slow['title']}, {slow['speedup']:.2f}×"
        result.modes[name] = {"name": name, "title": title(name), "rungs": list(task.side.rungs), "error": why}
        state.say("mode", result.modes[name])


def untouched_worker(state: State) -> None:
    """A warm worker of the untouched model: the one that is there, or a new one."""
    if state.untouched is None or not state.untouched.ready:
        state.untouched = state.pool.add(Task(f"01-{NAME}-untouched-{time.monotonic_ns()}", state.side([]), WARM))
        state.wait(state.untouched)
        if state.untouched.error:
            raise state.untouched.error


def _can_wait(state: State, names: Sequence[str]) -> bool:
    """Whether these modes may be timed later (`rung.ladder.climb.late`): the best is verified, the candidate after it is ready, and
    they compile for long."""
    verified = state.answer is not None and state.answer.status != "provisional"
    ready = state.next is not None and state.next.ready
    return verified and ready and bool(names) and all(mode_of(name) in (*ANEW, *SLOW) for name in names)


def _waits(state: State, name: str) -> bool:
    """Whether a mode's compilation would take cores from the verification that was begun ahead."""
    checking = bool(state.likely) or not all(task.done for task in state.ahead)
    return checking and mode_of(name) in ANEW


def _all_modes(state: State, result: Race, later: Mapping[str, Task]) -> dict[str, Task]:
    """The modes that are still to be prepared, once the audit has told what the workload permits."""
    best = result.modes.get(result.best, {"rungs": ()})
    without = [name for name in result.without if name not in best["rungs"]]
    new = _modes(state, state.left() > SLOW_SECONDS, without)
    wanted = {name: task for name, task in later.items() if name in new}
    seen = {*state.racing, *result.modes}
    wanted |= {name: prepared_mode(state, name, new[name]) for name in new if name not in seen}
    state.racing |= wanted
    return wanted


def at_higher_precision(state: State, result: Race) -> dict[str, Task]:
    """The first modes at the next higher precision, where the lowest so far made the untouched model slower: they compile before what is
    still to be verified. A mode that leaves the launches to the host may be slow for their sake, so the graph tells where there is one."""
    used = {name for mode in result.modes.values() for name in mode["rungs"]}
    lowest = next((p for p in PRECISIONS if p in used and p not in result.without), "")
    timed = {n: m["speedup"] for n, m in result.modes.items() if lowest in m["rungs"] and "speedup" in m}
    graph = next((timed[n] for n in timed if mode_of(n) == "cuda-graph"), None)
    gain = graph if graph is not None else max(timed.values(), default=1.0)
    if not lowest or gain >= SLOWER or not _does_something(state, lowest):
        return {}
    result.without = (*result.without, lowest)
    wanted = _modes(state, False, result.without)
    first = next((name for name in wanted if "compile" in wanted[name]), "")
    tasks = {
        name: prepared_mode(state, name, rungs)
        for name, rungs in wanted.items()
        if name not in result.modes and (name == first or "compile" not in rungs)
    }
    state.racing |= tasks
    verified = bool(state.ahead or state.likely)
    if first in tasks and verified:  # what is verified is not the fastest, by all that is seen
        end_checks(state)
        state.ahead = []
    for name in sorted(tasks, key=lambda name: name != first):
        state.pool.add(tasks[name])
    if first in tasks and verified:
        state.likely = first
        _verified_ahead(state, wanted[first], f"01-{NAME}-{first}")
    if tasks:
        text = f"the untouched model is slower with {lowest}; the plain modes are prepared without it, too."
        state.say("warning", {"text": text})
    return tasks


def _does_something(state: State, precision: str) -> bool:
    """Whether a precision changes any part of the untouched step, by its profile: where it does not, it made nothing slower."""
    context = state.context()
    return not context.parts or BY_NAME[precision].predict(context).high >= 1 + LEAST_GAIN


def _something_new(state: State, result: Race, tasks: Sequence[Task]) -> bool:
    """Waits until a mode is ready, or the survey or the verification ahead has answered; False where the time is over, or where the
    modes that are left take much longer than the best did while that is verified already."""
    began = time.monotonic()

    def others() -> tuple[bool, bool, bool]:
        known = state.surveying is None or state.surveying.done
        return known, all(task.done for task in state.ahead), state.next is not None and state.next.ready

    before = (state.surveying is None, *others()[1:])

    def new() -> bool:
        _prepare_after(state, result)
        return others() != before or any(task.done for task in tasks)

    def left() -> float:
        if result.until < math.inf:
            return min(state.left(), result.until - time.monotonic())
        best = result.modes.get(result.best)
        # The model as a whole takes far longer to compile than its blocks.
        if state.answer is None or state.answer.status == "provisional" or not best or "compile" not in best["rungs"]:
            return state.left()
        patience = PATIENCE * best["prepared_seconds"] + PATIENCE_SECONDS
        return min(state.left(), began + patience - time.monotonic())

    return state.pool.wait(new, left)


def _use_the_time(state: State, result: Race) -> None:
    """While further modes compile: what is verified is said, then the best is verified; the candidate after it is begun."""
    _offer_verified(state, result)
    best = result.modes.get(result.best)
    if best is None or mode_of(result.best) not in LIKELY or best["speedup"] < PROVISIONAL_GAIN:
        return
    of_best = [task for task in state.ahead if list(task.side.rungs) == best["rungs"]]
    fits = _verifies_beside(state, max(state.baseline["memory"].values()))
    if not of_best and not state.likely and state.audited and fits and not _nearly_verified(state, result):
        end_checks(state, keep=state.next_ahead)
        state.ahead = checks_of(state, best["rungs"], f"01-{NAME}-{result.best}")
    _prepare_after(state, result)


def _offer_verified(state: State, result: Race) -> None:
    """Offers the best mode once all checks of it have passed; one that was the best for a while, too, as long as nothing else is verified:
    that is worth more than a faster answer which is not."""
    answer = _answer_checked(state, result)
    if answer is None or answer.status != "provisional" or not state.audited or state.facts.get("one_shape"):
        return
    kept, timed = list(answer.kept), [mode for mode in result.modes.values() if "speedup" in mode]
    if kept not in [mode["rungs"] for mode in timed]:  # it failed when it was timed once more
        return
    if _is_verified(state) and kept != result.modes.get(result.best, {}).get("rungs"):
        return
    phases = plan_of(answer.kept).phases(state.facts["own_precision"])
    complete = {precision_of(task) for task in state.ahead} == {*phases}
    passed = all(task.answers.get("verify", {}).get("passed") for task in state.ahead)
    if complete and passed and answer.speedup["value"] >= VERIFIED_GAIN:
        over_plain = answer.speedup["value"] / max(mode["speedup"] for mode in timed)
        offer(state, replace(answer, status="verified", over_plain={"value": over_plain}))


def _is_verified(state: State) -> bool:
    return state.answer is not None and state.answer.status != "provisional"


def _nearly_verified(state: State, result: Race) -> bool:
    """Whether an answer is being checked, and there is none yet that was: it comes first, even where another is faster by now."""
    checking = any(not task.done for task in state.ahead)
    return checking and not _is_verified(state) and _answer_checked(state, result) is not None


def _answer_checked(state: State, result: Race) -> Answer | None:
    """The answer, or what might have become one, that the verification which is under way is of."""
    answers = [*([state.answer] if state.answer else []), *result.answers]
    stacks = {tuple(task.side.rungs) for task in state.ahead}
    return next((a for a in answers if {a.kept} == stacks), None)


def _prepare_after(state: State, result: Race) -> None:
    """Begins the candidate after the best mode, and its verification."""
    best = result.modes.get(result.best)
    if best is None or "compile" not in best["rungs"] or best["speedup"] < PROVISIONAL_GAIN:
        return
    if state.next or (not state.pool.waiting() and surveyed(state, wait=False)):
        prepare_next(state, best["rungs"], (None, None))


def time_modes(state: State, result: Race, done: dict[str, Task]) -> None:
    for name, task in done.items():
        record = {"name": name, "title": title(name), "rungs": list(task.side.rungs), "ready_seconds": state.spent()}
        result.modes[name] = record
        if task.error:
            record["error"] = f"{task.error.kind}: {task.error}"
            state.say("mode", record)
    ready = {name: task for name, task in done.items() if not task.error}
    if not ready:
        return
    untouched = state.untouched
    assert untouched is not None
    sides = {"best": untouched, **({result.best: result.task} if result.task and result.task.ready else {}), **ready}
    if result.best:
        time_for_blocks(state, len(sides))
    progress.info("timing %s", ", ".join(ready))
    duel = Duel()
    start = Start.of(state.setup_within(state.left()), sides)
    try:
        restart = start.timed(duel, briefly=state.left() < BRIEFLY)
        duel.restarts.append(restart)
    except SideFailed as failure:
        failed = failure.side
        if failed == "best":
            raise OutOfTime from failure
        result.modes[failed]["error"] = f"{failure.error.kind}: {failure}"
        result.modes[failed].pop("speedup", None)
        state.say("mode", result.modes[failed])
        sides[failed].end()
        if failed == result.best:
            result.best, result.task = "", None
        time_modes(state, result, {name: task for name, task in ready.items() if name != failed})
        return
    names = list(sides)
    for task in ready.values():
        note_memory(state, task)
    state.mode_bytes = min(state.mode_bytes, UNSEEN * max(task.memory for task in ready.values()))
    for task in state.racing.values():  # those that still wait or compile
        if not task.done:
            task.memory = min(task.memory, state.mode_bytes)
    for k, name in enumerate(names[1:], start=1):
        record = result.modes[name]
        record["speedup"] = math.exp(restart.log_ratio(0, k))
        record["step_ns"] = statistics.median_high(duel.samples[-1][name])
        record["prepared_seconds"] = sides[name].since_open("warm")
        if name in ready:
            state.say("mode", record)
    fastest = max([*names[1:], *([result.best] if result.best else [])], key=lambda name: _merit(result.modes[name]))
    if result.best and not _replaces(result.modes[fastest], result.modes[result.best]):
        fastest = result.best
    if fastest != result.best:
        _take(state, result, fastest, duel, start, beat=result.best in sides)
    elif fastest in sides:  # so that its gain and that of the others are of the same blocks
        again = between(duel, fastest)
        again.witness, result.duel = result.duel.witness, again
    for name, task in ready.items():
        if name != result.best:
            task.end()
    if result.best:
        stack = list(result.modes[result.best]["rungs"])
        keep(state, "plain", Begun(result.best, stack, "baseline", result.duel, modes=result.modes))
    if result.task and _needs_memory(state, result):
        result.task.end()


def _merit(mode: Mapping[str, Any]) -> float:
    """Its speedup, in which blocks compiled one by one have to be ahead of the whole by more than a little."""
    return float(mode["speedup"]) / (WHOLE if "compile-regions" in mode["rungs"] else 1.0)


def _replaces(mode: Mapping[str, Any], best: Mapping[str, Any]) -> bool:
    of_blocks = "compile-regions" in best["rungs"] and "compile" in mode["rungs"]
    return _merit(mode) >= (1.0 if of_blocks else ALIKE) * _merit(best)


def _needs_memory(state: State, result: Race) -> bool:
    """Whether the next mode has no room beside the best so far; or what verifies the mode that should replace it has none."""
    replaced = bool(state.likely) and result.best != state.likely
    return state.pool.held() + state.mode_bytes > state.pool.memory or (replaced and state.pool.lacks_memory())


def _take(state: State, result: Race, name: str, duel: Duel, start: Start, beat: bool) -> None:
    """Makes a mode the best so far: its outputs are checked in the process that was timed. beat: the best took turns with it."""
    task, of_two = state.racing[name], between(duel, name)
    record = result.modes[name]
    try:
        of_two.witness = start.witness(name)
    except SideFailed as failure:
        record["error"] = f"{failure.error.kind}: {failure}"
        record.pop("speedup", None)
        task.end()
        return
    if result.task:
        result.task.end()
    result.best, result.task, result.duel = name, task, of_two
    state.champion = task
    seen = result.duel.as_dict()
    if record["speedup"] >= PROVISIONAL_GAIN and not distrusted(seen, record["speedup"]):
        answer = Answer(
            tuple(record["rungs"]), "provisional", {"value": record["speedup"]}, {"value": 1.0},
            times={"baseline": seen["times"]["best"], "best": seen["times"]["candidate"]},
            memory={"baseline": seen["memory"]["best"], "best": seen["memory"]["candidate"]},
            first_run_seconds={"baseline": seen["first_run_seconds"]["best"], "best": seen["first_run_seconds"]["candidate"]},
        )  # fmt: skip
        result.answers.append(answer)
        offer(state, answer, beat)
