"""Several rungs tried as one, where the budget does not decide them one by one.

A step is compiled, timed and verified once for all of them, which takes little more than once for any: their gains add
up at the price of one. What each of them gives alone is not known then; that it is in effect is. One that is not leaves
the stack before that is verified.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

from rung.ladder.plan import Plan
from rung.ladder.rungs import BY_NAME, Context, Evidence, Proof, Rung, added

NAME = "together"
LEAST_GAIN = 0.005  # what a rung must be able to give, at best, for it to be tried
CONTRACTS = ("exact", "reassociated", "tf32", "bf16", "fp8")  # what a rung may do to numbers, the least first


def together(
    context: Context, kept: Sequence[str], rungs: Sequence[Rung], seconds: Callable[[float], float]
) -> Rung | None:
    """Those of the rungs that raise the expected gain per second of deciding them all at once, as one rung; None where fewer
    than two do.

    rungs: the most promising first; seconds: what deciding takes, by what preparing takes on top of a restart.
    """
    made: Rung | None = None
    members: tuple[Rung, ...] = ()
    at, worth = context, 0.0
    # Twice, because some apply only once another one is in effect.
    for rung in (*rungs, *rungs):
        others = [*(BY_NAME[name] for name in kept), *members]
        if rung in others or not _joins(rung, others) or rung.applies(at) is not None:
            continue
        if not rung.core and rung.predict(at).high < 1 + LEAST_GAIN:
            continue
        with_it = _joined(made, rung, at)
        gain = math.log(with_it.predict(context).value) / seconds(with_it.prepares)
        if gain > worth:
            made, members, worth = with_it, with_it.members, gain
            at = replace(at, plan=rung.change(at.plan))
    return made if len(members) > 1 else None


def idle(rung: Rung, worker: Mapping[str, Any]) -> list[str]:
    """Its members that are not in effect, by what the candidate's worker says of itself: a trace shows the work of all."""
    told = Evidence(None, None, worker)
    return [member.name for member in rung.members if member.proof(told).shown is False]


def stacked(kept: Sequence[str], rung: Rung) -> list[str]:
    """The best so far with the rung, or with all its members, in it."""
    return reduce(added, rung.members or (rung,), list(kept))


def _joins(rung: Rung, others: Sequence[Rung]) -> bool:
    """Whether it can be one of several: it is for the step and takes the place of none. A setting, of the environment or of
    Inductor, as often costs as it gives, and is tried alone."""
    apart = any(rung.name in other.replaces or other.name in rung.replaces for other in others)
    change = rung.change(Plan())
    return rung.spares == "step" and not (rung.first or change.env or change.inductor or apart)


def _joined(made: Rung | None, rung: Rung, context: Context) -> Rung:
    """One more member. context: with the members before it in effect."""
    before = [made] if made else []
    members = (*(made.members if made else ()), rung)
    shrinks: dict[str, tuple[float, float]] = {}
    for found in (*(m.shrinks(context) for m in before), rung.shrinks(context)):
        for part, (best, worst) in found.items():
            so_far = shrinks.get(part, (1.0, 1.0))
            shrinks[part] = (so_far[0] * best, so_far[1] * worst)

    def proof(e: Evidence) -> Proof:
        without = idle(whole, e.worker)
        but = f", not {', '.join(without)}" if without else ""
        return Proof(len(without) < len(members), f"{len(members) - len(without)} of {len(members)} are{but}")

    whole = Rung(
        NAME, max(r.level for r in members), f"{len(members)} rungs at once, which the budget does not decide one by one",
        max((r.contract for r in members), key=CONTRACTS.index), ", ".join(r.name for r in members), lambda c: None,
        lambda c: shrinks, lambda p: reduce(lambda plan, r: r.change(plan), members, p), "each of them is in effect", proof,
        prepares=max(r.prepares for r in members), members=members,
    )  # fmt: skip
    return whole
