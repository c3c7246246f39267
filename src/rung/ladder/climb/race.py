"""The plain modes of torch.compile side by side: each is prepared in a worker of its own and timed as soon as it is ready.

Each runs at the lowest precision that the climb's numeric contract permits, with the fused optimizer. Where one of them is slower so
than the untouched model, as convolutions in bfloat16 may be, or none of them runs, they are prepared at the next higher precision, too. They need a few
facts of the workload, not its survey, and all of them prepare side by side.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence

from rung.ladder.answers import Untouched
from rung.ladder.climb.answer import PROVISIONAL_GAIN
from rung.ladder.climb.begin import audited, surveyed
from rung.ladder.climb.bundles import LEAST_GAIN
from rung.ladder.climb.checks import end_checks, may_pass, peak_of
from rung.ladder.climb.mode_checks import (
    LIKELY,
    give_up_ahead,
    prepare_after,
    use_the_time,
    verifies_beside,
    verify_ahead,
    verify_at_its_own,
    withdraw_wrong,
)
from rung.ladder.climb.mode_timing import Race, time_modes, untouched_worker
from rung.ladder.climb.modes import (
    BLOCKS,
    LAID_OUT,
    MODES,
    NAME,
    SLOW,
    mode_of,
    mode_of_task,
    modes,
    rounded,
    title,
)
from rung.ladder.climb.schedule import PRECISIONS, much_slower, verifying_seconds
from rung.ladder.climb.state import CONTEXT_BYTES, UNSEEN, WARM, OutOfTime, State
from rung.records.climb import Mode
from rung.records.progress import Raced, Warned
from rung.rungs import BY_NAME
from rung.timing.tasks import Task, end_all

progress = logging.getLogger(__name__)

# Seconds that must be left of the budget, where there is one, for modes that take minutes to be begun; and on a GPU times what another mode
# took to compile. On H100 and H200, max-autotune took 7.1 and 9.0 times as long where it was ready in time (hrnet_w18, estuary in training).
SLOW_SECONDS, SLOW_TIMES = 240.0, 10.0
# Of the time that is left, and seconds: how long those are waited for when all others are timed.
SLOW_SHARE, SLOW_MOST = 0.25, 300.0
ANEW = ("reduce-overhead",)  # finds little of its code in the cache: compiled once the best mode so far is verified
# How long further modes are waited for once the best is verified: times as long as the best took to prepare, and seconds.
PATIENCE, PATIENCE_SECONDS = 1.0, 15.0
# Of a step, after which the host has launched it all: with less, no graph of launches can save anything, even if the step got ten times as
# fast by torch.compile or a lower precision.
BUSY_GPU = 0.05
# With more, the host's launches decide, and a mode that leaves them all to it gives nothing; or compiled code is worth its overhead.
UNCOMPILED = {LAID_OUT: 0.5, "eager": 0.1}
# Times the untouched model's peak, of a training step at a lower precision than its own, which holds less: 0.3 to 0.7 was seen of compiled
# modes and 0.7 to 0.9 of a graph of the model as it is (convnextv2_tiny, deberta-v3-base and tiny-transformer medium).
LOWER, LOWER_COMPILED = 1.0, 0.8
SLOWER = 0.98  # times as fast as the untouched model: a precision is given up for less


def start_modes(state: State, warm: Untouched) -> None:
    """Has workers prepare the first modes: the graph of the model as it is, and one that compiles. The others wait until that one
    is ready, for they find its code in the cache. warm: what the untouched workload's worker said."""
    peak = float(max(warm.memory.values()))
    state.mode_bytes = UNSEEN * peak + CONTEXT_BYTES if state.facts.gpu else 0.0
    state.launching = warm.launching
    wanted = _modes(state, slow=False)
    state.racing = {name: prepared_mode(state, name, rungs) for name, rungs in wanted.items()}
    timed = _timed_before(state)
    for name in _first(state):
        if name not in timed:
            state.pool.add(state.racing[name])
    if not timed:
        _verify_likely(state, _first(state))


def _verify_likely(state: State, names: Sequence[str]) -> None:
    """Has the first of these modes that may become the answer verified while it compiles, where there is room for that; beside a model's
    blocks the whole, which takes longer and is a little faster."""
    likely = [name for name in names if mode_of(name) in LIKELY]
    for name in likely[: 2 if likely and mode_of(likely[0]) == BLOCKS else 1]:
        if verifies_beside(state, state.racing[name].memory):
            verify_ahead(state, name)


def _modes(state: State, slow: bool, without: Sequence[str] = ()) -> dict[str, tuple[str, ...]]:
    """The modes, the one first that is to compile first. Where the GPU is busy, a graph of launches only adds a copy of the inputs: the one
    of the model as it is is left out, and compiled code comes without one first."""
    found = modes(state.context(), slow, without)
    if not state.many_cores:
        found = {name: rungs for name, rungs in found.items() if mode_of(name) != BLOCKS}
    found = {name: rungs for name, rungs in found.items() if state.launching < UNCOMPILED.get(mode_of(name), math.inf)}
    if state.launching >= BUSY_GPU:
        return found
    compiled = {name: rungs for name, rungs in found.items() if mode_of(name) != "cuda-graph"}
    return dict(sorted(compiled.items(), key=lambda mode: mode_of(mode[0]) != "default"))


def _timed_before(state: State) -> dict[str, Mode]:
    """The modes that an earlier sitting timed before it was killed, the best among them."""
    begun = state.begun.get("plain")
    timed = {name: mode for name, mode in begun.modes.items() if mode.speedup} if begun else {}
    return timed if begun and begun.name in timed else {}


def prepared_mode(state: State, name: str, rungs: Sequence[str], again: str = "") -> Task:
    """A worker that is to prepare a mode, not started yet. again: what its log's name ends with where it is not the mode's first."""
    memory = state.mode_bytes if again else _bytes_of(state, rungs)
    return Task(f"01-{NAME}-{name}{again}", state.side(rungs), WARM, memory)


def _bytes_of(state: State, rungs: Sequence[str]) -> float:
    """Bytes of the GPU that a mode is taken to need."""
    if state.facts.mode == "infer" or "bf16" not in rungs or state.own_precision == "bf16":
        return state.mode_bytes
    compiled = not {"compile", "compile-regions"}.isdisjoint(rungs)
    return min(state.mode_bytes, (LOWER_COMPILED if compiled else LOWER) * peak_of(state) + CONTEXT_BYTES)


def _first(state: State) -> list[str]:
    """One mode that compiles, and those that do not."""
    compile_first = next((name for name in state.racing if "compile" in MODES[name]), None)
    return [name for name in state.racing if name == compile_first or "compile" not in MODES[name]]


def race(state: State) -> Race:
    """Times each mode as soon as it is ready, against the untouched model and the best mode so far, in one restart."""
    if state.untouched is None:  # an earlier sitting measured it
        untouched_worker(state)
        assert state.untouched is not None
        start_modes(state, state.untouched.answer("warm", Untouched))
    result = Race()
    if timed := _timed_before(state):
        begun = state.begun["plain"]
        result = Race(timed, begun.name, begun.duel)
    open_ = {name: state.racing[name] for name in _first(state) if name not in result.modes}
    later = {name: task for name, task in state.racing.items() if name not in open_ and name not in result.modes}
    tried_again: set[str] = set()

    def start_later(leave: Sequence[str] = ()) -> None:
        """The others find in the cache what the first mode compiled. What is verified has the memory first. leave: modes that wait."""
        nonlocal later
        if not result.asked:
            result.asked = True
            audited(state)
            later = _all_modes(state, result, later)
        for name in [name for name in later if mode_of(name) not in leave and not _waits(state, name)]:
            open_[name] = later.pop(name)
            open_[name].yielding = True
            state.pool.add(open_[name])

    open_ |= at_higher_precision(state, result)
    while open_ or later or not result.asked:
        if result.asked or not any("compile" in task.side.rungs for task in open_.values()):
            start_later()
        waited = {name: task for name, task in open_.items() if mode_of(name) not in SLOW or not result.best}
        if not waited and open_:  # those that take minutes are left
            result.until = min(result.until, time.monotonic() + min(SLOW_MOST, SLOW_SHARE * state.left()))
            waited = dict(open_)
        if not waited and not later:
            break
        if _can_wait(state, result, {**open_, **later}):
            _leave(state, open_, later)
            break
        progress.info("preparing %s", "; ".join(map(title, waited or later)))
        if not _something_new(state, result, list(waited.values())):
            if not result.best:
                raise OutOfTime
            if _patience_is_over(state, result):
                _leave(state, open_, later)
                break
            for name, task in {**open_, **later}.items():
                if name in result.modes and result.modes[name].speedup:  # it was to be timed again
                    continue
                result.modes[name] = mode_of_task(name, task, error="it was not ready in time")
                state.say(Raced(result.modes[name]))
            break
        surveyed(state, wait=False)  # what refuses the workload ends the climb
        done = {name: open_.pop(name) for name, task in waited.items() if task.done}
        for name, task in list(done.items()):
            if task.error and may_pass(task.error) and name not in tried_again:  # beside others: once more later
                tried_again.add(name)
                later[name] = state.racing[name] = prepared_mode(state, name, task.side.rungs, "-again")
                del done[name]
        _note_likely(state, done, open_)
        open_ |= without_graph(state, done)
        known = state.surveying is None or "audit" in state.surveying.answers
        if known and any("compile" in task.side.rungs for task in done.values()):
            start_later(ANEW)  # the others compile while this one is timed and checked
        time_modes(state, result, done)
        _give_up(state, result, open_, later)
        if withdraw_wrong(state, result):
            _give_up_refused(result, open_, later)
            open_ |= rounded_anew(state, result)
        if result.dropped and (name := _fastest_left(result)) and name not in open_:
            result.dropped = False
            open_[name] = state.racing[name] = prepared_mode(state, name, result.modes[name].rungs, "-again")
            state.pool.add(open_[name], first=True)
        use_the_time(state, result)
        open_ |= at_higher_precision(state, result)
    end_all(open_.values())
    if state.untouched and result.best:
        state.untouched.end()  # its memory is for others now
    return result


def _note_likely(state: State, done: Mapping[str, Task], open_: Mapping[str, Task]) -> None:
    """Once a mode that is verified ahead is ready, it is likely no more. Where it failed, the next one is verified in its place."""
    for name in [name for name in state.likely if name in done]:
        state.likely.remove(name)
        if done[name].error:
            give_up_ahead(state, name)
            if not state.likely:
                _verify_likely(state, list(open_))
        else:
            verify_at_its_own(state, name)


def without_graph(state: State, done: Mapping[str, Task]) -> dict[str, Task]:
    """The model as it is in the place of its graph, where none can be captured: what a lower precision and the fused optimizer give is
    ready long before anything that compiles, and may be all that comes in time."""
    tasks = {}
    for name, task in done.items():
        if mode_of(name) != "cuda-graph" or not task.error or task.error.lacked_memory:
            continue
        other, rungs = name.replace("cuda-graph", "eager"), [rung for rung in task.side.rungs if rung != "capture"]
        if rungs and other not in state.racing:
            tasks[other] = state.racing[other] = state.pool.add(prepared_mode(state, other, rungs))
    return tasks


def _give_up(state: State, result: Race, open_: dict[str, Task], later: dict[str, Task]) -> None:
    """Waits no longer for modes that add to one which made the untouched model much slower: they take the same way through it."""
    timed = [mode for mode in result.modes.values() if mode.speedup and much_slower(mode)]
    for name, task in {**open_, **later}.items():
        slow = next((mode for mode in timed if {*mode.rungs} < {*task.side.rungs}), None)
        if slow is None:
            continue
        open_.pop(name, None)
        later.pop(name, None)
        task.end()
        give_up_ahead(state, name)
        why = f"skipped, because it builds on a mode that is slower than the untouched model: {slow.title}, {slow.speedup:.2f}×"
        result.modes[name] = mode_of_task(name, task, error=why)
        state.say(Raced(result.modes[name]))


def _tells(state: State, name: str) -> bool:
    """Whether a mode that is slow says something of its rungs. Where the host's launches decide, a lower precision has more of them."""
    return mode_of(name) != "eager" or state.launching < UNCOMPILED["eager"]


def _leave(state: State, open_: dict[str, Task], later: dict[str, Task]) -> None:
    """Has modes timed later (`rung.ladder.climb.late`), as far as nobody else needs their room meanwhile."""
    state.late = {**open_, **later}
    for task in state.late.values():
        task.spare = task.yielding = True
    for task in later.values():
        state.pool.add(task)
    open_.clear()


def _give_up_refused(result: Race, open_: dict[str, Task], later: dict[str, Task]) -> None:
    """Ends what is prepared of modes that the verification refused."""
    for name, task in {**open_, **later}.items():
        if list(task.side.rungs) in result.refused:
            open_.pop(name, None)
            later.pop(name, None)
            task.end()


def rounded_anew(state: State, result: Race) -> dict[str, Task]:
    """A mode in the place of the first that was refused in 16 bits, and not in full precision: it rounds where eager rounds, and is verified
    while it compiles.

    On an H200, a gradient of deberta-v3-base in bfloat16 was off by 0.88 with torch.compile, by 0.11 in eager, and by 0.08 with this rounding
    (docs/zoo.md, "Rounding")."""
    for name in result.rounding:
        if found := rounded(state.context(), name, result.modes[name].rungs, {*state.racing, *result.modes}):
            other, rungs = found
            task = state.racing[other] = state.pool.add(prepared_mode(state, other, rungs), first=True)
            if verifies_beside(state, task.memory):
                verify_ahead(state, other)
            return {other: task}
    return {}


def _fastest_left(result: Race) -> str:
    """The name of the fastest mode where the best was withdrawn, which is timed anew, because its worker is gone; empty where there is none,
    or what is the best now is as fast."""
    timed = {name: mode.speedup for name, mode in result.modes.items() if mode.speedup}
    fastest = max(timed, key=lambda name: timed[name], default="")
    worth = fastest not in ("", result.best) and timed[fastest] >= PROVISIONAL_GAIN
    return fastest if worth and timed[fastest] > timed.get(result.best, 0.0) else ""


def _can_wait(state: State, result: Race, tasks: Mapping[str, Task]) -> bool:
    """Whether these modes may be timed later (`rung.ladder.climb.late`): the best is verified, the candidate after it is ready, and
    they compile for long, or add nothing to the best."""
    verified = state.answer is not None and state.answer.status != "provisional"
    ready = state.next is not None and state.next.ready
    best = {*result.modes[result.best].rungs} if result.best else set()

    def may_wait(name: str, task: Task) -> bool:
        rungs = {"compile" if rung == "compile-regions" else rung for rung in task.side.rungs}
        return mode_of(name) in (*ANEW, *SLOW) or rungs <= best

    return (
        verified
        and ready
        and bool(result.best)
        and bool(tasks)
        and all(may_wait(name, task) for name, task in tasks.items())
    )


def _waits(state: State, name: str) -> bool:
    """Whether a mode's compilation would take cores from the verification that was begun ahead."""
    checking = bool(state.likely) or not all(task.done for task in state.ahead)
    return checking and mode_of(name) in ANEW


def _all_modes(state: State, result: Race, later: Mapping[str, Task]) -> dict[str, Task]:
    """The modes that are still to be prepared, once the audit has told what the workload permits."""
    best = result.modes[result.best].rungs if result.best else []
    without = [name for name in result.without if name not in best]
    compiled = [task.since_open("warm") for task in state.racing.values() if _compiles(task) and state.facts.gpu]
    new = _modes(state, state.left() > max(SLOW_SECONDS, SLOW_TIMES * max(compiled, default=0.0)), without)
    wanted = {name: task for name, task in later.items() if name in new}
    seen = {*state.racing, *result.modes}
    wanted |= {name: prepared_mode(state, name, new[name]) for name in new if name not in seen}
    state.racing |= wanted
    return wanted


def _compiles(task: Task) -> bool:
    """Whether it is ready and compiled the model as a whole."""
    return "compile" in task.side.rungs and "warm" in task.took


def at_higher_precision(state: State, result: Race) -> dict[str, Task]:
    """The first modes at the next higher precision, where the lowest so far made the untouched model slower, or raises in it: they compile
    before what is still to be verified. A mode that leaves the launches to the host may be slow for their sake, so the graph tells where there is one.
    Convolutions may be slow for their layout, which compiled code chooses itself, so the mode with channels innermost is asked, too."""
    used = {name for mode in result.modes.values() for name in mode.rungs}
    lowest = next((p for p in PRECISIONS if p in used and p not in result.without), "")
    if not lowest:
        return {}
    if why := _raises_at(state, result, lowest):
        return _without(state, result, lowest, f"no plain mode runs with {lowest}: {why}")
    timed = {n: m.speedup for n, m in result.modes.items() if lowest in m.rungs and m.speedup and _tells(state, n)}
    graph = next((timed[n] for n in timed if mode_of(n) == "cuda-graph"), None)
    gain = graph if graph is not None else max(timed.values(), default=1.0)
    if gain >= SLOWER or not _does_something(state, lowest):
        return {}
    laid_out = next((n for n in state.racing if mode_of(n) == LAID_OUT and lowest in state.racing[n].side.rungs), None)
    if laid_out and (laid_out not in result.modes or timed.get(laid_out, 0.0) >= SLOWER):
        return {}
    return _without(state, result, lowest, f"the untouched model is slower with {lowest}")


def _raises_at(state: State, result: Race, precision: str) -> str:
    """Why nothing runs at this precision, as a clause; empty where something does, or may. The model as it is tells, which is a mode once its
    graph has failed. Where neither is there, as on a CPU or where the step cannot be a graph, compiled code tells."""
    tried = {name: mode for name, mode in result.modes.items() if precision in mode.rungs}
    if not all(mode.failed is True for mode in tried.values()):
        return ""
    if any(mode_of(name) in ("cuda-graph", "eager") for name in (*state.racing, *tried)):
        tried = {name: mode for name, mode in tried.items() if mode_of(name) == "eager"}
    return next((str(mode.error).rstrip(".") for mode in tried.values()), "")


def _without(state: State, result: Race, lowest: str, why: str) -> dict[str, Task]:
    """The first modes, prepared without this precision. why: as the beginning of a sentence."""
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
        state.ahead, state.likely = [], []
    for name in sorted(tasks, key=lambda name: name != first):
        state.pool.add(tasks[name])
    if first in tasks and verified:
        verify_ahead(state, first)
    if tasks:
        state.say(Warned(f"{why}; the plain modes are also prepared without it."))
    return tasks


def _does_something(state: State, precision: str) -> bool:
    """Whether a precision changes any part of the untouched step, by its profile: where it does not, it made nothing slower."""
    context = state.context()
    return not context.parts or BY_NAME[precision].predict(context).high >= 1 + LEAST_GAIN


def _something_new(state: State, result: Race, tasks: Sequence[Task]) -> bool:
    """Waits until a mode is ready, or the survey or the verification ahead has answered; False where the time is over, or where the
    modes that are left take much longer than the best did while that is verified already."""
    began = time.monotonic()

    def others() -> tuple[bool, int, bool]:
        known = state.surveying is None or state.surveying.done
        return known, sum(task.done for task in state.ahead), state.next is not None and state.next.ready

    before = (state.surveying is None, *others()[1:])

    def new() -> bool:
        prepare_after(state, result)
        return others() != before or any(task.done for task in tasks)

    def left() -> float:
        best = result.modes.get(result.best)
        until = state.left() - (_unverified_seconds(state, best) if best else 0.0)
        if result.until < math.inf:
            return min(until, result.until - time.monotonic())
        if not _is_patient(state, best):
            return until
        assert best is not None
        patience = PATIENCE * (best.prepared_seconds or 0.0) + PATIENCE_SECONDS
        return min(until, began + patience - time.monotonic())

    return state.pool.wait(new, left)


def _is_patient(state: State, best: Mode | None) -> bool:
    """Whether further modes are waited for only for a while: the best is verified, and compiled as a whole, which takes far longer than
    its blocks."""
    return bool(state.answer and state.answer.status != "provisional" and best and "compile" in best.rungs)


def _patience_is_over(state: State, result: Race) -> bool:
    """Whether that, and not the budget, is why nobody waits any more, and others have room beside the modes: on a CPU they do not."""
    patient = _is_patient(state, result.modes.get(result.best))
    return bool(state.facts.gpu) and result.until == math.inf and state.left() > 0 and patient


def _unverified_seconds(state: State, best: Mode) -> float:
    """What the verification of the best mode takes of the time that is left, where it could not begin beside the others; 0 where it is not to
    be verified."""
    begun = any(list(task.side.rungs) == best.rungs for task in state.ahead)
    if begun or (best.speedup or 0.0) < PROVISIONAL_GAIN or (state.answer and state.answer.status != "provisional"):
        return 0.0
    needed = verifying_seconds(state, best.rungs, best.prepared_seconds or 0.0)
    return needed if needed < state.left() else 0.0  # else it is in vain
