"""Prerequisites: which other rungs a rung needs, where it does not apply without them."""

from __future__ import annotations

from dataclasses import replace

from rung.ladder.climb.state import State
from rung.rungs import LADDER, Context, Inapplicable, Rung

MOST_NEEDED = 3  # rungs that one may need, as int8 weights do: bf16, compile and max-autotune


def name_missing(state: State, rung: Rung, no: Inapplicable, planned: bool) -> Inapplicable:
    """The reason why a rung does not apply: the rungs that it lacks, or else `no`. planned: nothing was tried yet, so they may still be kept."""
    needs = prerequisites(state.context(), rung) if no.verdict == "inapplicable" else ()
    if not needs:
        return no
    it_needs, were = f"it needs {' and '.join(needs)}", "were" if len(needs) > 1 else "was"
    order = state.request.rungs
    if order and rung.name in order and not {*needs} <= {*order[: order.index(rung.name)]}:
        return replace(no, why=f"{it_needs}: name {'them' if len(needs) > 1 else 'it'} before it in --rungs.")
    if planned:
        return replace(no, verdict="not yet", why=f"{it_needs}.")
    if state.answer and {*needs} <= {*state.answer.kept}:  # provisional, or more would have been tried with it
        return replace(no, why=f"{it_needs}, and the recipe with {'them' if len(needs) > 1 else 'it'} is not verified.")
    tried = {name for a in state.attempts if a.log for name in (a.rung, *(a.members or ()))}
    return replace(no, why=f"{it_needs}, which {were} not {'kept' if tried & {*needs} else 'tried'}.")


def prerequisites(context: Context, rung: Rung) -> tuple[str, ...]:
    """The fewest other rungs that make this one apply, in an order in which each of them applies; empty where none do.

    A rung gives one reason at a time. The search follows only rungs that change the present reason, so it stays small.
    """
    stacks: list[tuple[Context, tuple[str, ...]]] = [(context, ())]
    for _ in range(MOST_NEEDED):
        further = []
        for at, names in stacks:
            no = rung.applies(at)
            for other in LADDER:
                if other.name in (rung.name, *names) or _exclusive(rung, other) or other.applies(at):
                    continue
                beside = replace(at, plan=other.change(at.plan))
                then = rung.applies(beside)
                if then is None:
                    return (*names, other.name)
                if no and then != no and then.verdict == no.verdict:
                    further.append((beside, (*names, other.name)))
        stacks = further
    return ()


def _exclusive(rung: Rung, other: Rung) -> bool:
    """Whether one replaces the other."""
    return rung.name in other.replaces or other.name in rung.replaces
