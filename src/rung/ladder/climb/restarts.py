"""Fresh restarts: workers of all sides in which nothing was timed before, loaded side by side in the background."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rung.ladder.climb.state import WARM, OutOfTime, State
from rung.side import Side
from rung.timing.duel import SideFailed, Start, blocks_seconds
from rung.timing.tasks import Task, end_all


def fresh_restarts(
    state: State, sides: Mapping[str, Side], names: Sequence[str], *, keep: float = 0.0, at_once: bool = False
) -> list[Start]:
    """One restart for each of these names, warm; its logs are named after it. `end_restarts` ends them.

    keep: seconds of the budget that must be left; at_once: however many other workers there are. Raises OutOfTime, also where the time
    left is too short for the blocks of one restart, and SideFailed.
    """
    needs = {n: state.step_bytes() if side.rungs else state.untouched_bytes() for n, side in sides.items()}
    groups = [{n: Task(f"{name}-{n}", side, WARM, needs[n]) for n, side in sides.items()} for name in names]
    state.restarting = [task for group in groups for task in group.values()]
    for side in [*sides][::-1]:  # the untouched model, which loads fastest, last
        for group in groups:
            state.pool.add(group[side], at_once=at_once)
    state.wait(*state.restarting, keep=keep)
    for group in groups:
        for side, task in group.items():
            if task.error:
                raise SideFailed(side, task.error)
    return [Start.of(state.setup_within(state.left()), group) for group in groups]


def time_for_blocks(state: State, sides: int) -> None:
    """Raises OutOfTime where the time that is left is too short for the blocks of one more restart."""
    times = [state.step_ns] * (sides - 1) + [state.baseline.time.value]
    if blocks_seconds(times, state.facts.gpu) > state.left():
        raise OutOfTime


def end_restarts(state: State) -> None:
    end_all(state.restarting)
    state.restarting = []
