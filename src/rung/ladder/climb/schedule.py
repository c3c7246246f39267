"""Which candidate is tried next, and when the climb ends.

1. Rungs that the user named are tried in that order, one at a time.
2. A rung is worth a try when it applies and can give 0.5 % or more by the profile. The core of the ladder (compile, capture), and
   rungs that save memory or compile time, are worth it in any case.
3. Within 10 % of the roofline bound, only the core is tried.
4. If the budget is too short to try all of them one at a time, those that combine are tried as one bundle, once for each best. The same
   happens where compiling alone, or capturing alone, made the untouched model much slower: a rewrite may mend that.
5. Otherwise the largest expected gain per second comes first. Seconds of a search for kernels count once more for each of the other
   candidates, because those search as well once it is kept.
6. A candidate is begun only if it should end before the time that confirming the answer takes. A candidate that still fits comes before
   confirming a plain mode of torch.compile, because a verified answer that is faster is worth more. Likewise, a candidate that was timed
   as 2 % faster or more is verified until the end of the budget, and the answer before it stays unconfirmed.
7. A rung that gave nothing is tried once more when the best has changed. A plain mode that adds one rung to the best counts as a try.
8. What the budget cut short is not begun again in the same sitting.
9. As many pairs of workers load side by side as cores and GPU memory allow, three at most on one GPU.
10. What is not clear after eight restarts is decided by up to thirty where they are cheap.

All times are estimated from what this climb has measured: how long the best took to prepare, the untouched model to load, a step to run.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

from rung.hardware.limits import usable_cores
from rung.ladder.climb.answer import PROVISIONAL_GAIN
from rung.ladder.climb.bundles import LEAST_GAIN, NAME, best_bundle, stack_with
from rung.ladder.climb.state import CONTEXT_BYTES, USABLE, State
from rung.measure import CLIMB, PATIENT, Looks
from rung.records.climb import Attempt, Mode, Stopped
from rung.rungs import BY_NAME, Rung, plan_of
from rung.timing.worker_group import blocks_seconds

NEAR = 1.10  # rule 3: times the roofline bound; what is left then is less than most rungs' luck
LATE = (
    1.25  # rule 6: times the time that is left; estimates are rough, and an attempt that is cut off costs nothing else
)
MUCH_SLOWER = 0.8  # rule 4: times as fast as the untouched model
PAIRS = 3  # rule 9, on one GPU
CORES = 4  # rule 9, of the host for each pair: pairs on different GPUs are launched at the same time
PATIENCE, SHARE = 300.0, 0.25  # rule 10: seconds of one rung's restarts, and the share of the time that is left
NAMED = 3  # rungs that a sentence names, the most promising first
PRECISIONS = ("bf16", "tf32")  # rungs, the lowest first, of which one takes the place of the other
# What raises with these raises with other rungs beside them, too.
HOW_IT_RUNS = {"compile", "compile-regions", "capture", "reduce-overhead"}

# A rung's own guess of what preparing takes is for a step of so many kernels. On a CPU, which has no kernels to count, a
# transformer's step has so many operations for each matrix product.
KERNELS, A_PRODUCT = 2000, 5
LEAST_OF_A_GUESS = 0.25
PROFILING = {True: 1.0, False: 4.0}  # seconds of a restart beside its blocks, by whether it is on a GPU
SETTLING = 1.0  # seconds of a restart beside its blocks and its preparation: a shape is warmed up, workers are asked
SEARCH = 90.0  # a rung's guess of what preparing takes, from which on it is a search for kernels that each later candidate repeats
VERIFYING = 1.1  # times as long as preparing: it compiles in another precision, and compares
OTHER_SHAPES = 1.3  # the same of the verification on other shapes, for which it compiles once more
OVERDUE = 0.1  # of what it has taken so far, that preparing takes at the least where it is longer than was guessed
OVER = 0.1  # of the budget, which a verification that runs when it ends may take beyond it, where nothing is kept for confirming
MARGIN = 1.25  # of fresh restarts that confirm: two climbs of seven kept 51 and 78 s for them, which did not suffice (docs/internals/zoo.md)


def next_rung(state: State, rungs: Sequence[Rung]) -> Rung | Stopped:
    """The rung, or the bundle, to try now; or why nothing more is tried."""
    if state.request.rungs is not None:
        return _in_order(state, rungs)
    candidates, stop = _candidates(state, rungs)
    if not candidates:
        return stop
    uncut = [r for r in candidates if r.name not in state.cut]
    bundle = next_bundle(state, rungs)
    in_order = [*([bundle] if bundle else []), *sorted(uncut, key=lambda r: -gain_per_second(state, r, len(uncut) - 1))]
    fitting = [r for r in in_order if fits_budget(state, r)]
    return fitting[0] if fitting else _out_of_budget(state, (uncut or candidates)[0], stop.left or {})


def fits_budget(state: State, rung: Rung, prepared: float = 0.0) -> bool:
    """Whether a rung can be decided in what is left of the budget. prepared: seconds of preparing it that are over."""
    budget = trial_budget(state)
    done = min(prepared, state.prepared_in + _preparation_estimate(state, rung.prepare_seconds))
    # Estimates are rough. One that is a little too long is tolerated where time for confirming can be cut instead, or nothing is kept yet.
    tolerant = rung.improves == "step" and (bool(confirmation_seconds(state)) or not state.kept)
    return budget > 0 and trial_seconds(state, rung) - done < (LATE if tolerant else 1.0) * budget


def may_finish(state: State, rung: Rung, prepared: float, verified: Mapping[str, float]) -> bool:
    """Whether a prefetched rung may be decided in what is left of the budget. One restart is enough where the answer is clear.

    prepared: how many seconds it has been prepared for, infinite once it is ready; verified: the same for each part of its verification."""
    usual = state.prepared_in + _preparation_estimate(state, rung.prepare_seconds)
    overdue = 0.0 if math.isinf(prepared) else OVERDUE * prepared  # nobody knows how much longer it takes
    preparing, restart = max(usual - prepared, overdue), _restart_seconds(state)
    verifying = max((VERIFYING * usual - seconds for seconds in verified.values()), default=0.0)
    over = 0.0 if confirmation_seconds(state) else OVER * (state.request.budget or 0.0)
    budget = trial_budget(state)
    return restart + preparing < budget and restart + max(preparing, verifying) < budget + over


def next_bundle(state: State, rungs: Sequence[Rung]) -> Rung | None:
    """Rule 4: several rungs as one. None where the budget is long enough to try them one at a time, or a bundle was tried against this best."""
    if state.request.rungs is not None:
        return None
    candidates, _ = _candidates(state, rungs)
    earlier = [a for a in state.attempts if a.rung == NAME and (NAME in state.cut or not a.cut)]
    tried = any(a.verdict != "kept" or a.against == state.best_name for a in earlier)
    fits = sum(trial_seconds(state, r) for r in candidates) <= trial_budget(state)
    if tried or (fits and not _slowed_down(state)):
        return None
    ranked = sorted(candidates, key=lambda r: -gain_per_second(state, r))
    if not near_roofline(state):
        # The others may apply, or give something, beside the candidates.
        ranked += [r for r in rungs if r not in candidates and not _own_attempts(state, r)]
    most = 1 if state.numerics == "exact" else 2
    bundle = best_bundle(state.context(), state.kept, ranked, lambda prepares: _decision_seconds(state, prepares, most))
    stack = {*state.kept, *(member.name for member in bundle.members)} if bundle else set()
    return None if stack in [{*m.rungs} for m in _timed_modes(state)] else bundle


def trial_budget(state: State) -> float:
    """Seconds of the budget that a candidate may take: confirming the answer is not given up for the sake of a better one."""
    return state.left() - confirmation_seconds(state)


def confirmation_seconds(state: State) -> float:
    """Seconds that confirming the answer takes; 0 where there is no answer, or it is a plain mode (rule 6).

    It takes three restarts of the untouched model, the best plain mode and the best, on each input shape. Their compiled code is in the
    cache. Before that, the answer is verified on the other shapes."""
    is_plain = state.plain is not None and not state.plain_is_another
    if not state.kept or is_plain or state.request.budget is None:
        return 0.0
    others = 2 if state.plain_is_another else 1
    sides = [state.baseline.time.value, *[state.step_ns] * others]
    rounds = math.ceil(CLIMB[0][0] / most_restarts(state, others))
    shapes = max(1, len(state.facts.shapes or [0]))
    loading = rounds * (state.prepared_again + (shapes - 1) * state.compiled_again)
    timing = shapes * CLIMB[0][0] * (blocks_seconds(sides, state.facts.gpu) + SETTLING)
    return MARGIN * (loading + timing) + _other_shapes_seconds(state, shapes)


def _other_shapes_seconds(state: State, shapes: int) -> float:
    """Seconds that are left of verifying the best on the other shapes."""
    if shapes == 1 or state.on_all_shapes(state.kept):
        return 0.0
    precisions = len(plan_of(state.kept).phases(state.own_precision))
    whole = _verification_rounds(state, precisions) * OTHER_SHAPES * state.prepared_in
    running = [task.running for task in state.shape_checks if list(task.side.rungs) == state.kept]
    return max(0.0, whole - min(running, default=0.0))


def reserve_for_rungs(state: State, rungs: Sequence[Rung]) -> float:
    """Seconds of the budget that are kept for rungs while the answer of an earlier sitting is confirmed: half of what is left, where a rung
    fits into it. On a noisy machine, confirming could take all of it."""
    half = state.left() / 2
    if math.isinf(half) or half <= 0:
        return 0.0
    with state.reserving(half):
        fits = "attempt" in state.unfinished or not isinstance(next_rung(state, rungs), Stopped)
    return half if fits else 0.0


def _verification_rounds(state: State, precisions: int) -> int:
    """How many verifications run one after the other. On a GPU, two precisions run side by side."""
    return math.ceil(precisions / (2 if state.facts.gpu else 1))


def most_restarts(state: State, others: int) -> int:
    """How many restarts of the untouched model and so many others load side by side, where nothing else runs."""
    peaks = [max(state.baseline.memory.values()), *[state.peak] * others]
    return parallel_groups(state, peaks, alone=True)


def trial_seconds(state: State, rung: Rung) -> float:
    """Seconds that deciding a rung takes: preparing it, timing it in three restarts, and verifying it."""
    plan = rung.change(plan_of(state.kept))
    return _decision_seconds(state, rung.prepare_seconds, len(plan.phases(state.own_precision)))


def _decision_seconds(state: State, prepare_seconds: float, precisions: int) -> float:
    """prepare_seconds: the rung's guess of what preparing takes on top of the best so far; precisions: at how many it is verified."""
    more, one = _preparation_estimate(state, prepare_seconds), _restart_seconds(state)
    rounds = math.ceil((CLIMB[0][0] - 1) / parallel_groups(state, [state.peak] * 2))
    verifying = _verification_seconds(state, precisions, state.prepared_in + more)
    further = (CLIMB[0][0] - 1) * one + rounds * state.prepared_again
    # On many cores, further restarts load while it is verified.
    rest = max(verifying, further) if state.many_cores else verifying + further / 2
    return state.prepared_in + more + one + rest


def _restart_seconds(state: State) -> float:
    """Seconds of a restart of the best and a candidate that are both ready."""
    gpu = state.facts.gpu
    return blocks_seconds([state.step_ns] * 2, gpu) + PROFILING[gpu]


def verification_seconds(state: State, stack: Sequence[str], prepared: float) -> float:
    """Seconds that verifying a stack takes. prepared: seconds until its first worker was warm."""
    return _verification_seconds(state, len(plan_of(stack).phases(state.own_precision)), prepared)


def _verification_seconds(state: State, precisions: int, prepared: float) -> float:
    return _verification_rounds(state, precisions) * VERIFYING * prepared


def _preparation_estimate(state: State, guess: float) -> float:
    """A rung's guess of what preparing takes, scaled to this step: by what compiling took here, else by how many kernels the step has."""
    if compiled := _compile_seconds(state):
        return guess * min(1.0, compiled / BY_NAME["compile"].prepare_seconds)
    seen = state.breakdown
    kernels = (seen and (seen.kernels or A_PRODUCT * (seen.gemms or 0.0))) or KERNELS
    return guess * min(1.0, max(LEAST_OF_A_GUESS, kernels / KERNELS))


def _compile_seconds(state: State) -> float:
    """Seconds that preparing a plain mode took which compiles this step without searching for kernels; 0 where there is none."""
    usual = [m for m in _timed_modes(state) if "compile" in m.rungs and "max-autotune" not in m.rungs]
    return max((m.prepared_seconds or 0.0 for m in usual), default=0.0)


def parallel_groups(state: State, peaks: Sequence[float], *, alone: bool = False) -> int:
    """How many groups of workers, one of each side, load side by side on one GPU. peaks: bytes that the steps of one group take; alone: all
    other workers will have ended by then.

    It is one at a time on a CPU, where the device itself compiles, and with the ranks of a job.
    """
    if not state.facts.gpu or state.request.over_ranks:
        return 1
    free = USABLE * state.gpu_bytes if alone else state.free_bytes()
    fit = free // sum(peak + CONTEXT_BYTES for peak in peaks)
    return int(max(1, min(PAIRS, fit, usable_cores() // CORES)))


def most_groups(here: int) -> int:
    """How many groups of workers the cores allow to load, and to be timed, side by side on all GPUs. here: how many on the first one."""
    return max(here, usable_cores() // CORES)


def planned_looks(state: State) -> Looks:
    """Rule 10: the planned looks at the restarts of the next comparison. They are settled before its first restart, so that no result
    influences them."""
    parallel = parallel_groups(state, [state.peak] * 2)
    one = blocks_seconds([state.step_ns] * 2, state.facts.gpu) + SETTLING + state.prepared_again / parallel
    return PATIENT if PATIENT[-1][0] * one <= min(PATIENCE, SHARE * trial_budget(state)) else CLIMB


def gain_per_second(state: State, rung: Rung, others: int = 0) -> float:
    """The logarithm of the expected speedup, per second that deciding the rung should take. others: candidates beside it, which take longer
    after a search. In a climb of eva02_small `coordinate-descent` came before `patch-matmul`, which did not fit in the budget any more
    (docs/internals/zoo.md)."""
    again = (
        _preparation_estimate(state, rung.prepare_seconds)
        if rung.prepare_seconds >= SEARCH and not rung.always_tried
        else 0.0
    )
    return math.log(rung.predict(state.context()).middle) / (trial_seconds(state, rung) + others * again)


def near_roofline(state: State) -> bool:
    floor = state.baseline.floor
    return bool(floor and state.step_ns < NEAR * floor.seconds * 1e9)


def finished_attempts(state: State, rung: Rung) -> list[Attempt]:
    """The attempts at this rung that came to an end: measured or failed.

    Bundles in which it did nothing count, too. The plain modes count where they were slower with it, and where one that adds it to the
    best was not faster, or raised."""
    made = _own_attempts(state, rung)
    plain = [a for a in state.attempts if a.rung == "plain" and a not in made]
    stack = stack_with(state.kept, rung)
    return made + [
        a
        for a in plain
        if _mode_gained_nothing(a.modes or (), state.kept, rung.name) or _modes_raise(a.modes or (), stack, rung.name)
    ]


def _own_attempts(state: State, rung: Rung) -> list[Attempt]:
    """The same, without plain modes that add it alone: with others it may give something."""
    made = [
        a
        for a in state.attempts
        if a.log
        and (
            (rung.name in (a.rung, *(a.without or ())) and not a.cut)
            or _precision_gained_nothing(a.modes or (), rung.name)
        )
    ]
    racing = state.unfinished.get("plain")
    if racing and _precision_gained_nothing(racing.modes.values(), rung.name):
        made.append(Attempt(number=1, rung="plain", against=state.best_name, verdict=""))
    return made


def _precision_gained_nothing(modes: Collection[Mode], precision: str) -> bool:
    """Whether a plain mode was slower at this precision than at another, or none ran at it and some ran at another."""
    timed = [(frozenset(m.rungs), m.speedup) for m in modes if m.speedup]
    failed = [m.failed is True for m in modes if precision in m.rungs]
    at = [(rungs - {*PRECISIONS}, speedup) for rungs, speedup in timed if precision in rungs]
    others = [(rungs - {*PRECISIONS}, speedup) for rungs, speedup in timed if precision not in rungs]
    slower = any(a == b and slow < fast for a, slow in at for b, fast in others)
    return precision in PRECISIONS and (slower or bool(failed and all(failed) and others))


def _mode_gained_nothing(modes: Iterable[Mode], kept: Sequence[str], name: str) -> bool:
    """Whether a plain mode that adds this rung to the best, or to the untouched model, was not faster than that. What all modes have, a
    precision and the fused optimizer, does not count."""
    common = {*PRECISIONS, "fused-optimizer"}
    timed = {frozenset({*m.rungs} - common): m.speedup for m in modes if m.speedup}
    without, with_it = frozenset({*kept} - common), frozenset({*kept, name} - common)
    before = timed.get(without, 0.0 if without else 1.0)
    return name not in common and timed.get(with_it, math.inf) < (1 + LEAST_GAIN) * before


def _modes_raise(modes: Iterable[Mode], stack: Sequence[str], name: str) -> bool:
    """Whether every plain mode that runs as this stack does, with the rung, raised or was refused."""
    like_it = [
        m for m in modes if {*m.rungs} & HOW_IT_RUNS == {*stack} & HOW_IT_RUNS and (m.speedup or m.failed is True)
    ]
    return name in HOW_IT_RUNS and bool(like_it) and not any(m.speedup for m in like_it)


def _slowed_down(state: State) -> bool:
    """Whether nothing is kept, and a plain mode made the untouched model much slower, which no low precision did."""
    return not state.kept and any(much_slower(mode) for mode in _timed_modes(state))


def much_slower(mode: Mode) -> bool:
    """Whether compiling or capturing made the untouched model much slower: what is traced or recorded takes another way through it. Of a
    mode at a low precision, that may be why."""
    return not {*PRECISIONS} & {*mode.rungs} and (mode.speedup or 1.0) < MUCH_SLOWER


def _timed_modes(state: State) -> list[Mode]:
    """The plain modes as they were timed, or why they were not."""
    racing = state.unfinished.get("plain")
    return [*(m for a in state.attempts for m in a.modes or ()), *(racing.modes.values() if racing else ())]


def deserves_retry(state: State, rung: Rung) -> bool:
    """Rule 7: faster matrix products do not show on a GPU that waits for its launches, and do once that is mended."""
    made = finished_attempts(state, rung)
    if len(made) != 1 or made[0].against == state.best_name or rung.name in state.kept:
        return False
    no_gain = made[0].verdict == "inconclusive" or (made[0].verdict == "reverted" and not made[0].verification)
    return no_gain and _applies(state, rung)


def unreported(state: State, rungs: Sequence[Rung]) -> list[Rung]:
    """Rungs that do not apply, and of which no record says so yet."""
    recorded = {a.rung for a in state.attempts} | set(state.kept)
    return [r for r in rungs if r.name not in recorded and not _applies(state, r)]


def _candidates(state: State, rungs: Sequence[Rung]) -> tuple[list[Rung], Stopped]:
    """Rules 2, 3 and 7: the rungs that are worth a try now, and why the climb ends where there are none. Then everything that applies was
    `tried`, the `rest` can give too little, or the step is near its `floor`, the roofline bound."""
    applying = [r for r in rungs if not finished_attempts(state, r) and _applies(state, r)]
    best_case = {r.name: r.predict(state.context()).high for r in applying}
    worth = [r for r in applying if r.always_tried or r.improves != "step" or best_case[r.name] >= 1 + LEAST_GAIN]
    rule, why = "tried", "every rung that applies was tried."
    if len(worth) < len(applying):
        rule, why = "rest", f"by the profile, no remaining rung can gain {LEAST_GAIN:.1%} or more."
    worth = worth or [r for r in rungs if deserves_retry(state, r)]
    if worth and near_roofline(state):
        worth = [r for r in worth if r.always_tried and not finished_attempts(state, r)]
        rule, why = "floor", f"the step takes less than {NEAR:.2f}× its roofline lower bound."  # fmt: skip
    return worth, Stopped(rule=rule, why=why, left=best_case)


def _applies(state: State, rung: Rung) -> bool:
    return rung.name not in state.kept and rung.applies(state.context()) is None


def _in_order(state: State, rungs: Sequence[Rung]) -> Rung | Stopped:
    tried = {a.rung for a in state.attempts if not a.cut}
    todo = [r for r in rungs if r.name not in tried] or [r for r in rungs if deserves_retry(state, r)]
    if not todo:
        return Stopped(rule="tried", why="every requested rung was tried or does not apply.", left={})
    now = [r for r in todo if r.name not in state.cut]
    if not now or trial_budget(state) <= 0:
        return _out_of_budget(state, (now or todo)[0], {r.name: r.predict(state.context()).high for r in todo if _applies(state, r)})  # fmt: skip
    return now[0]


def _out_of_budget(state: State, rung: Rung, best_case: Mapping[str, float]) -> Stopped:
    most = sorted(best_case, key=lambda name: -best_case[name])[:NAMED]
    known = [f"{name} (up to {best_case[name]:.2f}×)" for name in most] or [rung.name]
    more = f" and {len(best_case) - len(most)} more" if len(best_case) > len(most) else ""
    why = f"the budget of {state.request.budget:.0f} s was too short to test {', '.join(known)}{more}"
    if state.answer and state.answer.status == "provisional":
        verified = any(a.stack == list(state.answer.kept) for a in state.kept_attempts)
        what = "fresh restarts confirmed the recipe" if verified else "the recipe was verified"
        why = f"the budget of {state.request.budget:.0f} s ended before {what}"
        return Stopped(rule="budget", why=why, left=best_case)
    if faster := _not_verified(state):
        why = f"the budget of {state.request.budget:.0f} s ended before a faster recipe was verified: {faster.title}, {faster.speedup:.3g}×"
        return Stopped(rule="budget", why=why, left=best_case)
    if (needs := trial_seconds(state, rung)) > state.left():
        why += f"; {rung.name} alone needs about {needs:.0f} s"
    return Stopped(rule="budget", why=why, left=best_case, needs=needs)


def _not_verified(state: State) -> Mode | None:
    """The fastest plain mode, where it is faster than the answer and none of what was verified."""
    if state.answer is None:
        return None
    status = {tuple(moment.kept): moment.status for moment in state.history}  # the last of each
    verified = {kept for kept, last in status.items() if last != "provisional"} | {state.answer.kept}
    verified -= {tuple(taken.kept) for taken in state.taken_back}
    others = [m for m in _timed_modes(state) if m.speedup and tuple(m.rungs) not in verified]
    fastest = max(others, key=lambda m: m.speedup or 0.0, default=None)
    if fastest is None:
        return None
    return fastest if (fastest.speedup or 0.0) > PROVISIONAL_GAIN * state.answer.speedup.value else None
