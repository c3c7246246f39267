"""Fresh restarts: workers of all sides in which nothing was timed before. They load side by side in the background."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rung.ladder.climb.state import CONTEXT_BYTES, WARM, OutOfTime, State
from rung.side import Side
from rung.timing.tasks import Task, end_all
from rung.timing.timed import Warmed
from rung.timing.worker_group import SideFailed, WorkerGroup, blocks_seconds


@dataclass
class TaskGroup:
    """The tasks of one restart: a fresh worker of each side. All run on one device, so that each ratio is of one device. place: which device, 0
    for the first."""

    tasks: dict[str, Task]
    place: int = 0

    @property
    def failed(self) -> SideFailed | None:
        """How a side failed before it was warm."""
        return next((SideFailed(side, task.error) for side, task in self.tasks.items() if task.error), None)

    @property
    def memory(self) -> float:
        """Bytes of its GPU that its workers took, at most."""
        peaks = [task.answer("warm", Warmed).memory for task in self.tasks.values() if "warm" in task.answers]
        return sum(max(peak.values()) + CONTEXT_BYTES for peak in peaks)

    def workers(self, state: State) -> WorkerGroup:
        return WorkerGroup.of(state.setup_within(state.left()), self.tasks)


def begin_restarts(
    state: State, sides: Mapping[str, Side], places: Mapping[str, int], *, at_once: bool = False
) -> list[TaskGroup]:
    """Starts to load one restart for each of these names, on its place. `end_restarts` ends them.

    at_once: now, however many other workers there are; else each worker once cores and memory are free for it.
    """
    needs = {n: state.step_bytes() if side.rungs else state.baseline_bytes() for n, side in sides.items()}
    groups = [
        TaskGroup({n: Task(f"{name}-{n}", side, WARM, needs[n]) for n, side in sides.items()}, place)
        for name, place in places.items()
    ]
    state.restart_workers = [task for group in groups for task in group.tasks.values()]
    for task in state.restart_workers:
        task.fresh = True
    for side in [*sides][::-1]:  # the untouched model, which loads fastest, last
        for group in groups:
            group.tasks[side].place = group.place
            state.pool.add(group.tasks[side], at_once=at_once)
    return groups


def load_restarts(
    state: State, sides: Mapping[str, Side], places: Mapping[str, int], *, keep: float = 0.0, at_once: bool = False
) -> list[TaskGroup]:
    """The same, but waits until each restart is warm, or one of its sides failed. keep: seconds of the budget that must be left. Raises
    OutOfTime."""
    groups = begin_restarts(state, sides, places, at_once=at_once)
    state.wait(*state.restart_workers, keep=keep)
    return groups


def wait_until_warm(state: State, groups: Sequence[TaskGroup]) -> list[WorkerGroup]:
    """Waits until restarts that were begun can be timed. Raises OutOfTime, and SideFailed where a side failed."""
    state.wait(*state.restart_workers)
    for group in groups:
        if group.failed:
            raise group.failed
    return [group.workers(state) for group in groups]


def time_for_blocks(state: State, sides: int) -> None:
    """Raises OutOfTime where the time that is left is too short for the blocks of one more restart."""
    times = [state.step_ns] * (sides - 1) + [state.baseline.time.value]
    if blocks_seconds(times, state.facts.gpu) > state.left():
        raise OutOfTime


def end_restarts(state: State) -> None:
    end_all(state.restart_workers)
    state.restart_workers = []
