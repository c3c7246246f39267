"""Workers that are ready before they are needed: one of the best so far, and one of the candidate that may be next."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rung.ladder.climb.answer import PROVISIONAL_GAIN
from rung.ladder.climb.checks import end_checks, verifying
from rung.ladder.climb.schedule import next_rung, room, stacked, with_effect
from rung.ladder.climb.state import CONTEXT_BYTES, WARM, State
from rung.records.analyze import Breakdown
from rung.rungs import LADDER, Counters, Evidence, Rung, plan_of
from rung.timing.tasks import Task
from rung.timing.timed import Warmed

Seen = tuple[Breakdown | None, Counters | None]  # a breakdown, and what a trace counts


def champion_of(state: State, rungs: Sequence[str], name: str) -> Task:
    """A worker of the best so far, or of what it will be: the one that is there, or a new one that is not warm yet."""
    now = state.champion
    if now is not None and now.ready and list(now.side.rungs) == list(rungs):
        now.spare = False
        return now
    if now is not None:
        now.end()
    champion = Task(f"{name}-1-best", state.side(rungs), WARM, state.step_bytes())
    state.champion = state.pool.add(champion, first=True)  # what is timed waits for it
    return state.champion


def note_memory(state: State, task: Task) -> None:
    """Counts for a warm worker the GPU memory that it took, in the place of a guess."""
    if state.facts.gpu:
        task.memory = max(task.answer("warm", Warmed).memory.values()) + CONTEXT_BYTES


def prepare_next(state: State, stack: Sequence[str], seen: Seen, without: Collection[str] = ()) -> None:
    """While a candidate is verified, the one that would come after it compiles, if cores are idle. Once that is warm, its verification
    begins. May be called again and again. seen: of the candidate; without: its members that did nothing, which are not tried after it."""
    if state.next is not None:
        _verify_next(state)
        return
    if state.pool.idle() < 1 or state.request.rungs is not None or state.request.over_ranks or state.surveying:
        return
    before = state.kept, state.breakdown, state.counters
    state.kept = list(stack)
    state.take(*seen)
    try:
        rung = next_rung(state, [rung for rung in LADDER if rung.name not in without])
        if isinstance(rung, Rung) and rung.spares == "step" and not rung.first:
            number, after = 2 + max([0, *(a.number for a in state.attempts)]), stacked(stack, rung)
            name = f"{number:02d}-{rung.name}-1-candidate"
            state.next = Task(name, state.side(after), WARM, state.step_bytes())
            state.next.yielding = True
            state.pool.add(state.next, first=True)  # before plain modes that add nothing
            state.next_rung = rung
            state.next_gain = rung.predict(state.context()).middle
    finally:
        state.kept, state.breakdown, state.counters = before


def _verify_next(state: State) -> None:
    """Begins to verify the next candidate while it compiles, where it should be faster and cores are idle. Once it is warm, its worker
    has told which members of a bundle did nothing; the verification begins anew without them."""
    task, rung = state.next, state.next_rung
    if task is None or rung is None or task.ended or task.error or state.next_gain < PROVISIONAL_GAIN:
        return
    if state.pool.idle() < 2 or state.pool.waiting(yielding=False):
        return
    stack, name = list(task.side.rungs), task.name.removesuffix("-1-candidate")
    if task.ready:
        note_memory(state, task)
        found = with_effect(rung, stack, Evidence(None, None, task.answer("warm", Warmed).applied))
        if rung.members and not {member.name for member in rung.members} & {*found}:
            return  # it is the best so far
        if found != stack:
            stack, name = found, f"{name}-fewer"
    elif not all(check.done for check in state.checking if list(check.side.rungs) != stack):
        return  # what is verified before it has the cores to itself
    if state.next_ahead and list(state.next_ahead[0].side.rungs) != stack:
        end_checks(state, keep=[check for check in state.checking if check.side.rungs != task.side.rungs])
        state.next_ahead = []
    if not state.next_ahead:
        state.next_ahead = verifying(state, stack, plan_of(stack).phases(state.own_precision), name)


def prepared_rung(state: State) -> Rung | None:
    """The rung whose candidate compiled while the one before it was verified, if that was kept and there is time to decide it."""
    if state.next is None or state.next_rung is None:
        return None
    rung, state.next_rung = state.next_rung, None
    fits = stacked(state.kept, rung) == list(state.next.side.rungs) and rung.applies(state.context()) is None
    if fits and not state.next.error and not state.next.ended and room(state) > 0:
        return rung
    state.prefetched([])
    return None
