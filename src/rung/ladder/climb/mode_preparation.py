"""Which plain modes of torch.compile are prepared, when, and at which precision: each in a worker of its own.

Each runs at the lowest precision that the climb's numeric contract permits, with the fused optimizer. Where one of them is slower so
than the untouched model, as convolutions in bfloat16 may be, or none of them runs, they are prepared at the next higher precision, too. They need a few
facts of the workload, not its survey, and all of them prepare side by side.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rung.ladder.answers import Untouched
from rung.ladder.climb.bundles import LEAST_GAIN
from rung.ladder.climb.checks import end_checks, peak_of
from rung.ladder.climb.mode_checks import can_verify_now, end_mode_checks, verify_likely, verify_mode_early
from rung.ladder.climb.mode_timing import Race
from rung.ladder.climb.modes import (
    BLOCKS,
    LAID_OUT,
    MODES,
    NAME,
    bias_kernel_variant,
    eager_rounding_variant,
    mode_of,
    modes,
)
from rung.ladder.climb.schedule import PRECISIONS
from rung.ladder.climb.state import CONTEXT_BYTES, UNSEEN, WARM, State
from rung.records.climb import Mode
from rung.records.progress import Warned
from rung.rungs import BY_NAME
from rung.timing.tasks import Task

# Seconds that must be left of the budget, where there is one, for modes that take minutes to be begun; and on a GPU times what another mode
# took to compile. On H100 and H200, max-autotune took 7.1 and 9.0 times as long where it was ready in time (hrnet_w18, estuary in training).
SLOW_SECONDS, SLOW_TIMES = 240.0, 10.0
ANEW = ("reduce-overhead",)  # finds little of its code in the cache: compiled once the best mode so far is verified
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
    state.launch_share = warm.launching
    wanted = permitted_modes(state, slow=False)
    state.mode_workers = {name: prepared_mode(state, name, rungs) for name, rungs in wanted.items()}
    timed = timed_before(state)
    for name in first_modes(state):
        if name not in timed:
            state.pool.add(state.mode_workers[name])
    if not timed:
        verify_likely(state, first_modes(state))


def first_modes(state: State) -> list[str]:
    """One mode that compiles, and those that do not."""
    compile_first = next((name for name in state.mode_workers if "compile" in MODES[name]), None)
    return [name for name in state.mode_workers if name == compile_first or "compile" not in MODES[name]]


def permitted_modes(state: State, slow: bool, without: Sequence[str] = ()) -> dict[str, tuple[str, ...]]:
    """The modes, the one first that is to compile first. Where the GPU is busy, a graph of launches only adds a copy of the inputs: the one
    of the model as it is is left out, and compiled code comes without one first."""
    found = modes(state.context(), slow, without)
    if not state.many_cores:
        found = {name: rungs for name, rungs in found.items() if mode_of(name) != BLOCKS}
    found = {
        name: rungs for name, rungs in found.items() if state.launch_share < UNCOMPILED.get(mode_of(name), math.inf)
    }
    if state.launch_share >= BUSY_GPU:
        return found
    compiled = {name: rungs for name, rungs in found.items() if mode_of(name) != "cuda-graph"}
    return dict(sorted(compiled.items(), key=lambda mode: mode_of(mode[0]) != "default"))


def timed_before(state: State) -> dict[str, Mode]:
    """The modes that an earlier sitting timed before it was killed, the best among them."""
    unfinished = state.unfinished.get("plain")
    timed = {name: mode for name, mode in unfinished.modes.items() if mode.speedup} if unfinished else {}
    return timed if unfinished and unfinished.name in timed else {}


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


def later_modes(state: State, result: Race, later: Mapping[str, Task]) -> dict[str, Task]:
    """The modes that are still to be prepared, once the audit has told what the workload permits."""
    best = result.modes[result.best].rungs if result.best else []
    without = [name for name in result.without if name not in best]
    compiled = [task.since_open("warm") for task in state.mode_workers.values() if _compiles(task) and state.facts.gpu]
    new = permitted_modes(state, state.left() > max(SLOW_SECONDS, SLOW_TIMES * max(compiled, default=0.0)), without)
    wanted = {name: task for name, task in later.items() if name in new}
    seen = {*state.mode_workers, *result.modes}
    wanted |= {name: prepared_mode(state, name, new[name]) for name in new if name not in seen}
    state.mode_workers |= wanted
    return wanted


def _compiles(task: Task) -> bool:
    """Whether it is ready and compiled the model as a whole."""
    return "compile" in task.side.rungs and "warm" in task.took


def waits_for_cores(state: State, name: str) -> bool:
    """Whether a mode's compilation would take cores from the verification that was begun ahead."""
    checking = bool(state.likely_modes) or not all(task.done for task in state.mode_checks)
    return checking and mode_of(name) in ANEW


def without_graph(state: State, done: Mapping[str, Task]) -> dict[str, Task]:
    """The model as it is in the place of its graph, where none can be captured: what a lower precision and the fused optimizer give is
    ready long before anything that compiles, and may be all that comes in time."""
    tasks = {}
    for name, task in done.items():
        if mode_of(name) != "cuda-graph" or not task.error or task.error.lacked_memory:
            continue
        other, rungs = name.replace("cuda-graph", "eager"), [rung for rung in task.side.rungs if rung != "capture"]
        if rungs and other not in state.mode_workers:
            tasks[other] = state.mode_workers[other] = state.pool.add(prepared_mode(state, other, rungs))
    return tasks


def at_higher_precision(state: State, result: Race) -> dict[str, Task]:
    """The first modes at the next higher precision, where the lowest so far made the untouched model slower, or raises in it: they compile
    before what is still to be verified. A mode that leaves the launches to the host may be slow for their sake, so the graph tells where there is one.
    Convolutions may be slow for their layout, which compiled code chooses itself, so the mode with channels innermost is asked, too."""
    used = {name for mode in result.modes.values() for name in mode.rungs}
    lowest = next((p for p in PRECISIONS if p in used and p not in result.without), "")
    if not lowest:
        return {}
    if why := _raises_at(state, result, lowest):
        return _prepare_without(state, result, lowest, f"no plain mode runs with {lowest}: {why}")
    timed = {n: m.speedup for n, m in result.modes.items() if lowest in m.rungs and m.speedup and _tells(state, n)}
    graph = next((timed[n] for n in timed if mode_of(n) == "cuda-graph"), None)
    gain = graph if graph is not None else max(timed.values(), default=1.0)
    if gain >= SLOWER or not _does_something(state, lowest):
        return {}
    laid_out = next(
        (n for n in state.mode_workers if mode_of(n) == LAID_OUT and lowest in state.mode_workers[n].side.rungs), None
    )
    if laid_out and (laid_out not in result.modes or timed.get(laid_out, 0.0) >= SLOWER):
        return {}
    return _prepare_without(state, result, lowest, f"the untouched model is slower with {lowest}")


def _raises_at(state: State, result: Race, precision: str) -> str:
    """Why nothing runs at this precision, as a clause; empty where something does, or may. The model as it is tells, which is a mode once its
    graph has failed. Where neither is there, as on a CPU or where the step cannot be a graph, compiled code tells."""
    tried = {name: mode for name, mode in result.modes.items() if precision in mode.rungs}
    if not all(mode.failed is True for mode in tried.values()):
        return ""
    if any(mode_of(name) in ("cuda-graph", "eager") for name in (*state.mode_workers, *tried)):
        tried = {name: mode for name, mode in tried.items() if mode_of(name) == "eager"}
    return next((str(mode.error).rstrip(".") for mode in tried.values()), "")


def _tells(state: State, name: str) -> bool:
    """Whether a mode that is slow says something of its rungs. Where the host's launches decide, a lower precision has more of them."""
    return mode_of(name) != "eager" or state.launch_share < UNCOMPILED["eager"]


def _does_something(state: State, precision: str) -> bool:
    """Whether a precision changes any part of the untouched step, by its profile: where it does not, it made nothing slower."""
    context = state.context()
    return not context.parts or BY_NAME[precision].predict(context).high >= 1 + LEAST_GAIN


def _prepare_without(state: State, result: Race, lowest: str, why: str) -> dict[str, Task]:
    """The first modes, prepared without this precision. why: as the beginning of a sentence."""
    result.without = (*result.without, lowest)
    wanted = permitted_modes(state, False, result.without)
    first = next((name for name in wanted if "compile" in wanted[name]), "")
    tasks = {
        name: prepared_mode(state, name, rungs)
        for name, rungs in wanted.items()
        if name not in result.modes and (name == first or "compile" not in rungs)
    }
    state.mode_workers |= tasks
    verified = bool(state.mode_checks or state.likely_modes)
    if first in tasks and verified:  # what is verified is not the fastest, by all that is seen
        end_checks(state)
        state.mode_checks, state.likely_modes = [], []
    for name in sorted(tasks, key=lambda name: name != first):
        state.pool.add(tasks[name])
    if first in tasks and verified:
        verify_mode_early(state, first)
    if tasks:
        state.say(Warned(f"{why}; the plain modes are also prepared without it."))
    return tasks


def with_eager_rounding(state: State, result: Race) -> dict[str, Task]:
    """A mode in the place of the first that was refused in 16 bits, and not in full precision: it rounds where eager rounds, and is verified
    while it compiles.

    On an H200, a gradient of deberta-v3-base in bfloat16 was off by 0.88 with torch.compile, by 0.11 in eager, and by 0.08 with this rounding
    (docs/internals/zoo.md, "Rounding")."""
    for name in result.rounding:
        if found := eager_rounding_variant(
            state.context(), name, result.modes[name].rungs, {*state.mode_workers, *result.modes}
        ):
            other, rungs = found
            return {other: _prepare_and_verify(state, other, rungs)}
    return {}


def compiled_code_raises(result: Race) -> bool:
    """Whether every mode so far that compiled the model, as a whole or its blocks, raised."""
    compiled = [mode for mode in result.modes.values() if not {"compile", "compile-regions"}.isdisjoint(mode.rungs)]
    return bool(compiled) and all(mode.failed is True for mode in compiled)


def with_bias_kernel(state: State, result: Race) -> dict[str, Task]:
    """The first mode that compiles the model as a whole, with a kernel for attention with a bias that takes the bias as it lies: where what was
    compiled so far raised. What the survey found tells whether there is such attention.

    With torch 2.11, every mode of torch.compile raises "(*bias): last dimension must be contiguous" in training coatnet_0_rw_224 and
    maxvit_tiny_rw_224: compiled code lays the bias out otherwise, and torch's memory-efficient attention refuses it. Blocks raise first."""
    for name, task in list(state.mode_workers.items()):
        if found := bias_kernel_variant(state.context(), name, task.side.rungs, {*state.mode_workers, *result.modes}):
            other, rungs = found
            # What is verified already raises, too, by all that is seen, and would take cores from this one.
            for likely in list(state.likely_modes):
                end_mode_checks(state, likely)
            return {other: _prepare_and_verify(state, other, rungs)}
    return {}


def _prepare_and_verify(state: State, name: str, rungs: Sequence[str]) -> Task:
    """A worker that prepares a mode now, and what verifies it meanwhile, where there is room for that."""
    task = state.mode_workers[name] = state.pool.add(prepared_mode(state, name, rungs), first=True)
    if can_verify_now(state, task.memory):
        verify_mode_early(state, name)
    return task
