"""Which rung is next, and when it is enough."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rung.ladder.climb.state import State
from rung.ladder.climb.together import LEAST_GAIN, NAME, together
from rung.ladder.rungs import Rung, plan_of
from rung.measure import CLIMB

NEAR = 1.10  # times the floor: what is left then is less than most rungs' luck
TIMING = 8.0  # seconds that a restart takes for its blocks, as a guess before one was seen: 2 on a GPU, 4 on a CPU, and a profile
VERIFYING = 60  # steps of the baseline, a float64 reference's among them, that verifying at one precision takes as long as, as a guess
# Of what preparing takes at first, how much comes again: in each further restart, which finds compiled code in a cache, and in verification
# at each precision, which compiles for two shapes and finds nothing. Seen on one H100 for compile and capture: 36, 13 and 47 s.
CACHED, ANEW = 0.4, 1.3
NAMED = 3  # rungs that a budget left undecided, the most promising first
KERNELS = 2000  # of a step, for which the rungs' guesses of what preparing takes are
A_PRODUCT = 5  # kernels of a transformer's step for each matrix product: where the step runs on a CPU, which has no kernels to count
LEAST = 0.25  # of such a guess, however few kernels there are
OVER = 1.25  # times what is left that a rung may take with verification, which the budget does not cut off
UNSEEN = 1.5  # times such guesses, to be sure of something


@dataclass(frozen=True)
class Stop:
    """Why the climb ends. rule: `tried` (everything that applies was), `rest`, `floor` or `budget`; left: the rungs
    that apply and were not tried, with what they were expected to give at best."""

    rule: str
    why: str
    left: dict[str, float]

    def as_dict(self) -> dict[str, Any]:
        return {"rule": self.rule, "why": self.why, "left": self.left}


def next_rung(state: State, rungs: Sequence[Rung]) -> Rung | Stop:
    """The best expected gain per second of budget, or why nothing is tried any more.

    Rungs that the user named are tried in that order, whatever they promise.
    """
    if state.request.rungs is not None:
        return _in_order(state, rungs)
    applying = [r for r in rungs if not tries(state, r) and _applies(state, r)]
    best_case = {r.name: r.predict(state.context()).high for r in applying}
    worth = [r for r in applying if r.core or r.spares != "step" or best_case[r.name] >= 1 + LEAST_GAIN]
    rule, why = "tried", "every rung that applies was tried."
    if len(worth) < len(applying):
        rule, why = "rest", f"none of the rungs left can give {LEAST_GAIN:.1%} or more, by the profile."
    worth = worth or [r for r in rungs if worth_another(state, r)]
    if worth and near_floor(state):
        worth = [r for r in worth if r.core and not tries(state, r)]
        rule, why = "floor", f"the step takes less than {NEAR:.2f} times the least that its arithmetic and its weights take."  # fmt: skip
    if not worth:
        return Stop(rule, why, best_case)
    beside = () if near_floor(state) else rungs
    fitting = [r for r in worth if _fits(state, r)]
    if fitting:
        return _best(state, worth, fitting, beside)
    # A guess alone does not end a climb that has room for a look.
    begun = [r for r in worth if restart(state) + _preparing(state, r.prepares) < state.left()]
    if begun and not state.pace:
        several = _at_once(state, worth, beside, ())
        return max([*begun, *([several] if several else [])], key=lambda r: gain_per_second(state, r))
    return _out_of_budget(state, min(worth, key=lambda r: seconds(state, r)), best_case)


def _best(state: State, worth: Sequence[Rung], fitting: Sequence[Rung], beside: Sequence[Rung]) -> Rung:
    """The most expected gain per second, of one or of several at once, that leaves time for the core of the ladder; where nothing
    does, several with the core among them, or what fits of the core, but for several others where all of it does not fit."""
    core = [r for r in worth if r.core and not tries(state, r)]
    ranked = sorted(fitting, key=lambda r: -gain_per_second(state, r))
    several = _at_once(state, worth, beside, ())
    most = [several] if several and _fits(state, several) else []
    most = sorted([*most, ranked[0]], key=lambda r: -gain_per_second(state, r))
    for rung in most:
        if _spares(state, rung, core):
            return rung
    with_core = _at_once(state, worth, beside, core)
    if with_core and _fits(state, with_core) and _spares(state, with_core, core):
        return with_core
    alone = [r for r in ranked if r in core]
    whole = sum(seconds(state, r) for r in core) <= state.left()
    return alone[0] if alone and (whole or most[0] is ranked[0]) else most[0]


def _fits(state: State, rung: Rung) -> bool:
    """Whether the budget decides it: it cuts off the timing of a rung, and verification may end somewhat later."""
    return seconds(state, rung) < OVER * state.left() and _timed(state, rung.prepares) < state.left()


def _spares(state: State, rung: Rung, core: Sequence[Rung]) -> bool:
    """Whether there is time for the core of the ladder after it, which is not given up for the sake of what promises more."""
    reserved = sum(seconds(state, r) for r in core if r not in (rung, *rung.members))
    reserved *= 1.0 if state.pace else UNSEEN
    return not reserved or state.left() - seconds(state, rung) >= reserved


def _at_once(state: State, worth: Sequence[Rung], beside: Sequence[Rung], must: Sequence[Rung]) -> Rung | None:
    """Several rungs as one, where the budget does not decide them one by one; not after one of them spoiled it once.
    beside: those that may come in beside the ones that are worth a try, because they apply there alone; must: those that are
    among them whatever they promise."""
    made = [a for a in state.attempts if a["rung"] == NAME and not a.get("cut")]
    if any(a["verdict"] != "kept" or a["against"] == state.best_name for a in made):
        return None
    if sum(seconds(state, r) for r in worth) <= state.left():
        return None
    ranked = sorted(worth, key=lambda r: -gain_per_second(state, r))
    ranked += [r for r in beside if r not in worth and not tries(state, r)]
    most = 1 if state.numerics == "exact" else 2
    return together(state.context(), state.kept, ranked, lambda prepares: _decided(state, prepares, most), must)


def gain_per_second(state: State, rung: Rung) -> float:
    """The logarithm of the speedup that is expected, per second that deciding it should take."""
    return math.log(rung.predict(state.context()).value) / seconds(state, rung)


def seconds(state: State, rung: Rung) -> float:
    """What a comparison takes to its first look, and verification, as far as can be told."""
    plan = rung.change(plan_of(state.kept))
    return _decided(state, rung.prepares, len(plan.phases(state.facts.get("own_precision", "exact"))))


def _decided(state: State, prepares: float, precisions: int) -> float:
    """precisions: at how many it is verified."""
    loaded = _loading(state) + VERIFYING * state.baseline["time"]["value"] / 1e9
    verified = (0.0 if state.pace else loaded) + ANEW * _preparing(state, prepares)
    return _timed(state, prepares) + precisions * verified


def _timed(state: State, prepares: float) -> float:
    """What it takes without verification, which the budget does not cut off."""
    restarts = CLIMB[0][0]
    return restarts * restart(state) + (1 + CACHED * (restarts - 1)) * _preparing(state, prepares)


def _preparing(state: State, guess: float) -> float:
    seen = state.breakdown or {}
    kernels = seen.get("kernels") or A_PRODUCT * seen.get("gemms", 0.0) or KERNELS
    return guess * min(1.0, max(LEAST, kernels / KERNELS))


def restart(state: State) -> float:
    """Seconds of a restart: as the last ones took, with verification; before the first, the baseline tells, for both sides of
    a restart load and warm up at once, as it did."""
    return state.pace or _loading(state) + TIMING


def _loading(state: State) -> float:
    return float(state.baseline.get("loading_seconds", state.baseline["first_run_seconds"]))


def near_floor(state: State) -> bool:
    floor = state.baseline.get("floor")
    return bool(floor and state.step_ns < NEAR * floor["seconds"] * 1e9)


def tries(state: State, rung: Rung) -> list[dict[str, Any]]:
    """The attempts at this rung that were measured, or failed, and came to an end; those with others where it did nothing, too."""
    return [
        a
        for a in state.attempts
        if rung.name in (a["rung"], *a.get("without", ())) and not a.get("cut") and a.get("log")
    ]


def worth_another(state: State, rung: Rung) -> bool:
    """A rung that gave nothing while something else held the step up is tried once more, when that is gone:
    faster matrix products do not show on a GPU that waits for its launches."""
    made = tries(state, rung)
    if len(made) != 1 or made[0]["against"] == state.best_name or rung.name in state.kept:
        return False
    no_gain = made[0]["verdict"] == "inconclusive" or (
        made[0]["verdict"] == "reverted" and "verification" not in made[0]
    )
    return no_gain and _applies(state, rung)


def untold(state: State, rungs: Sequence[Rung]) -> list[Rung]:
    """Those that do not apply and have not said so yet."""
    told = {a["rung"] for a in state.attempts} | set(state.kept)
    return [r for r in rungs if r.name not in told and not _applies(state, r)]


def _applies(state: State, rung: Rung) -> bool:
    return rung.name not in state.kept and rung.applies(state.context()) is None


def _in_order(state: State, rungs: Sequence[Rung]) -> Rung | Stop:
    told = {a["rung"] for a in state.attempts if not a.get("cut")}
    todo = [r for r in rungs if r.name not in told] or [r for r in rungs if worth_another(state, r)]
    if not todo:
        return Stop("tried", "every rung that was asked for was tried, or does not apply.", {})
    if state.left() <= CLIMB[0][0] * state.pace:
        return _out_of_budget(state, todo[0], {r.name: r.predict(state.context()).high for r in todo if _applies(state, r)})  # fmt: skip
    return todo[0]


def _out_of_budget(state: State, rung: Rung, best_case: dict[str, float]) -> Stop:
    most = sorted(best_case, key=lambda name: -best_case[name])[:NAMED]
    known = [f"{name} (up to {best_case[name]:.3g}×)" for name in most] or [rung.name]
    more = f" and {len(best_case) - len(most)} more" if len(best_case) > len(most) else ""
    why = f"the budget of {state.request.budget:.0f} s left too little time to decide {', '.join(known)}{more}"
    if (needs := seconds(state, rung)) > state.left():
        why += f"; {rung.name} alone takes some {needs:.0f} s"
    return Stop("budget", why, best_case)
