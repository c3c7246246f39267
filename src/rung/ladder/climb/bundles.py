"""Bundles: several rungs are tried as one where the budget is too short to test them one at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce

from rung.plan import CONTRACTS, Plan
from rung.rungs import BY_NAME, Context, Evidence, Proof, Rung, TimeFactors, with_rung

NAME = "together"  # of a bundle
IN_WORDS = "several rungs together"
LEAST_GAIN = 0.005  # of a step: what can give less is not worth a try
STRONGER = (CONTRACTS[0], "reassociated", *CONTRACTS[1:])  # what a rung may do to numbers, the least first


def in_words(rung: str) -> str:
    """The name of a rung in a line of progress."""
    return IN_WORDS if rung == NAME else rung


def best_bundle(
    context: Context, kept: Sequence[str], rungs: Sequence[Rung], seconds: Callable[[float], float]
) -> Rung | None:
    """The bundle with the largest expected gain per second; None where fewer than two rungs would be in it.

    A step is compiled, timed and verified once for all members. So their gains add up at the cost of one, but the gain of each is not known.
    rungs: the most promising first; seconds: of deciding a bundle, from the seconds of preparing it on top of the best.
    """
    members: list[Rung] = []
    worth = 0.0
    # Twice, because some apply only once another one is in effect.
    for rung in (*rungs, *rungs):
        at, stack = _with_members(context, members), [*(BY_NAME[name] for name in kept), *members]
        if rung in stack or not _can_join(rung, stack) or rung.applies(at):
            continue
        if not rung.always_tried and rung.predict(at).high < 1 + LEAST_GAIN:
            continue
        # One that comes in later may leave those before it nothing to do (bf16 after tf32).
        found = [*members, rung]
        found = [
            m for m in found if not m.applies(_with_members(context, [other for other in found if other is not m]))
        ]
        whole = bundle_of(context, found)
        gain = math.log(whole.predict(context).middle) / seconds(whole.prepare_seconds)
        if rung in found and (gain > worth or rung.always_tried):
            members, worth = found, gain
    return bundle_of(context, members) if len(members) > 1 else None


def ineffective_members(rung: Rung, e: Evidence) -> list[str]:
    """Members of a bundle that did nothing, by what the candidate's worker reports and by the names of kernels. The number of kernels does not
    count, because it depends on all members."""
    alone = Evidence(None, e.after, e.worker)
    return [member.name for member in rung.members if member.proof(alone).shown is False]


def effective_stack(rung: Rung, stack: Sequence[str], e: Evidence) -> list[str]:
    """The stack without those members of a bundle that did nothing."""
    without = ineffective_members(rung, e)
    return [name for name in stack if name not in without]


def stack_with(kept: Sequence[str], rung: Rung) -> list[str]:
    """The rungs of the best so far with this one, or with all members of this bundle, added."""
    return reduce(with_rung, rung.members or (rung,), list(kept))


def _can_join(rung: Rung, others: Sequence[Rung]) -> bool:
    """Whether a rung can be a member of a bundle: it speeds up the step and replaces no other. Settings of the environment, of Inductor or of the
    exchange between ranks slow a step down as often as not, so they are tried alone."""
    apart = any(rung.name in other.replaces or other.name in rung.replaces for other in others)
    change = rung.change(Plan())
    alone = rung.tuning_env or change.env or change.inductor or change.exchange.is_setting or apart
    return rung.improves == "step" and not alone


def _with_members(context: Context, members: Sequence[Rung]) -> Context:
    return replace(context, plan=reduce(lambda plan, rung: rung.change(plan), members, context.plan))


def bundle_of(context: Context, members: Sequence[Rung]) -> Rung:
    factors: TimeFactors = {}
    for k, member in enumerate(members):
        for part, (best, worst) in member.remaining(_with_members(context, members[:k])).items():
            so_far = factors.get(part, (1.0, 1.0))
            factors[part] = (so_far[0] * best, so_far[1] * worst)

    def proof(e: Evidence) -> Proof:
        without = ineffective_members(whole, e)
        spoilt = [member.name for member in members if member.name in without and not _changed_nothing(member, e)]
        but = f", not {', '.join(without)}" if without else ""
        says = f"{len(members) - len(without)} of {len(members)} are{but}"
        return Proof(len(without) < len(members) and not spoilt, says)

    count = f"{len(members)} more" if context.plan != Plan() else f"{len(members)}"
    whole = Rung(
        name=NAME,
        level=max(r.level for r in members),
        title=f"a bundle of {count} rungs, because the budget is too short to test them one at a time",
        contract=max((r.contract for r in members), key=STRONGER.index),
        changes=", ".join(r.name for r in members),
        remaining=lambda c: factors,
        change=lambda p: reduce(lambda plan, r: r.change(plan), members, p),
        effect="each of them is in effect",
        proof=proof,
        prepare_seconds=max(r.prepare_seconds for r in members),
        members=tuple(members),
    )
    return whole


def _changed_nothing(rung: Rung, e: Evidence) -> bool:
    """Whether the rung only adds graph passes, none of which found anything. Then the step without it is the one that was timed."""
    change = rung.change(Plan())
    found = e.worker.get("matches", {})
    passes_alone = change == Plan(passes=change.passes, inductor_passes=change.inductor_passes)
    return passes_alone and not any(found.get(name) for name in change.passes if name != rung.name)
