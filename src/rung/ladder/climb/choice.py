"""Which rung is next, and when it is enough."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rung.ladder.climb.cost import decided, preparing, restart, seconds, timed
from rung.ladder.climb.state import State
from rung.ladder.climb.together import LEAST_GAIN, NAME, together
from rung.ladder.rungs import Rung
from rung.measure import CLIMB

NEAR = 1.10  # times the floor: what is left then is less than most rungs' luck
NAMED = 3  # rungs that a budget left undecided, the most promising first
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
    worth, stop = _worth(state, rungs)
    if not worth:
        return stop
    if not _uncut(state, worth):
        return _out_of_budget(state, worth[0], stop.left)
    worth = _uncut(state, worth)
    beside = _beside(state, rungs)
    fitting = [r for r in worth if _fits(state, r)]
    if fitting:
        return _best(state, worth, fitting, beside)
    # A guess alone does not end a climb that has room for a look.
    begun = [r for r in worth if restart(state) + preparing(state, r.prepares) < state.left()]
    if begun and not state.pace:
        several = _at_once(state, worth, beside, ())
        return max([*begun, *([several] if several else [])], key=lambda r: gain_per_second(state, r))
    return _out_of_budget(state, min(worth, key=lambda r: seconds(state, r)), stop.left)


def at_once(state: State, rungs: Sequence[Rung]) -> Rung | None:
    """Several rungs as one, where the budget has them compete with those tried one by one as things stand; None where it does not."""
    if state.request.rungs is not None:
        return None
    worth, beside = _worth(state, rungs)[0], _beside(state, rungs)
    return _with_the_core(state, worth, beside) or _at_once(state, worth, beside, ())


def _worth(state: State, rungs: Sequence[Rung]) -> tuple[list[Rung], Stop]:
    """The rungs that are worth a try now, and why the climb ends where there are none."""
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
    return worth, Stop(rule, why, best_case)


def _beside(state: State, rungs: Sequence[Rung]) -> Sequence[Rung]:
    """Those that may come in beside the ones that are worth a try."""
    return () if near_floor(state) else rungs


def _best(state: State, worth: Sequence[Rung], fitting: Sequence[Rung], beside: Sequence[Rung]) -> Rung:
    """The most expected gain per second, of one or of several at once, that leaves time for the core of the ladder; where nothing
    does, several with the core among them, or what fits of the core, but for several others where all of it does not fit.

    Where several are tried at once the core is among them if it can be: it is tried anyway, and takes longer after them."""
    core = _core(state, worth)
    ranked = sorted(fitting, key=lambda r: -gain_per_second(state, r))
    several, with_core = _at_once(state, worth, beside, ()), _with_the_core(state, worth, beside)
    most = [several] if several and _fits(state, several) else []
    most = sorted([*most, ranked[0]], key=lambda r: -gain_per_second(state, r))
    for rung in most:
        if _spares(state, rung, core):
            return with_core if with_core and rung is several else rung
    if with_core:
        return with_core
    alone = [r for r in ranked if r in core]
    whole = sum(seconds(state, r) for r in core) <= state.left()
    return alone[0] if alone and (whole or most[0] is ranked[0]) else most[0]


def _core(state: State, worth: Sequence[Rung]) -> list[Rung]:
    return [r for r in worth if r.core and not tries(state, r)]


def _with_the_core(state: State, worth: Sequence[Rung], beside: Sequence[Rung]) -> Rung | None:
    """Several at once with the core among them, as far as it can be; None where the budget does not decide that."""
    core = _core(state, worth)
    several = _at_once(state, worth, beside, core)
    return several if several and _fits(state, several) and _spares(state, several, core) else None


def _fits(state: State, rung: Rung) -> bool:
    """Whether the budget decides it: it cuts off the timing of a rung, and verification may end somewhat later."""
    return seconds(state, rung) < OVER * state.left() and timed(state, rung.prepares) < state.left()


def _spares(state: State, rung: Rung, core: Sequence[Rung]) -> bool:
    """Whether there is time for the core of the ladder after it, which is not given up for the sake of what promises more."""
    reserved = sum(seconds(state, r) for r in core if r not in (rung, *rung.members))
    reserved *= 1.0 if state.pace else UNSEEN
    return not reserved or state.left() - seconds(state, rung) >= reserved


def _at_once(state: State, worth: Sequence[Rung], beside: Sequence[Rung], must: Sequence[Rung]) -> Rung | None:
    """Several rungs as one, where the budget does not decide them one by one; not after one of them spoiled it once.
    beside: those that may come in beside the ones that are worth a try, because they apply there alone; must: those that are
    among them whatever they promise."""
    made = [a for a in state.attempts if a["rung"] == NAME and (NAME in state.cut or not a.get("cut"))]
    if any(a["verdict"] != "kept" or a["against"] == state.best_name for a in made):
        return None
    if sum(seconds(state, r) for r in worth) <= state.left():
        return None
    ranked = sorted(worth, key=lambda r: -gain_per_second(state, r))
    ranked += [r for r in beside if r not in worth and not tries(state, r)]
    most = 1 if state.numerics == "exact" else 2
    return together(state.context(), state.kept, ranked, lambda prepares: decided(state, prepares, most), must)


def gain_per_second(state: State, rung: Rung) -> float:
    """The logarithm of the speedup that is expected, per second that deciding it should take."""
    return math.log(rung.predict(state.context()).value) / seconds(state, rung)


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
    now = _uncut(state, todo)
    if not now or state.left() <= CLIMB[0][0] * state.pace:
        return _out_of_budget(state, (now or todo)[0], {r.name: r.predict(state.context()).high for r in todo if _applies(state, r)})  # fmt: skip
    return now[0]


def _uncut(state: State, rungs: Sequence[Rung]) -> list[Rung]:
    """Those that the budget did not cut short in this sitting."""
    return [r for r in rungs if r.name not in state.cut]


def _out_of_budget(state: State, rung: Rung, best_case: dict[str, float]) -> Stop:
    most = sorted(best_case, key=lambda name: -best_case[name])[:NAMED]
    known = [f"{name} (up to {best_case[name]:.3g}×)" for name in most] or [rung.name]
    more = f" and {len(best_case) - len(most)} more" if len(best_case) > len(most) else ""
    why = f"the budget of {state.request.budget:.0f} s left too little time to decide {', '.join(known)}{more}"
    if (needs := seconds(state, rung)) > state.left():
        why += f"; {rung.name} alone takes some {needs:.0f} s"
    return Stop("budget", why, best_case)
