"""Further restarts of an attempt, on all free GPUs.

A restart runs the best so far and a candidate on one GPU, so each ratio is of one GPU. How many restarts there are, and when they are looked at, does not
depend on the GPUs: they are spread over those that nobody has, and what fails elsewhere is repeated on the first.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from rung.ladder.climb.busy_cpu import with_solo_baseline
from rung.ladder.climb.restarts import TaskGroup, end_restarts, load_restarts, time_for_blocks
from rung.ladder.climb.schedule import confirmation_seconds, most_groups, parallel_groups
from rung.ladder.climb.state import UNSEEN, OutOfTime, State
from rung.ladder.climb.unfinished import Unfinished, save
from rung.measure import Restart, until_next_look
from rung.records.climb import Attempt
from rung.records.progress import Warned
from rung.side import Side
from rung.timing.ab_run import ABRun
from rung.timing.other_gpus import differs
from rung.timing.side_by_side import Taken, alone, side_by_side
from rung.timing.worker_group import SideFailed

progress = logging.getLogger(__name__)


def further_restarts(state: State, sides: Mapping[str, Side], unfinished: Unfinished, name: str) -> None:
    """Runs as many restarts as load at once, but at most up to the next planned look. Each is saved as soon as it was timed.

    Raises OutOfTime, and SideFailed where one failed on the first GPU.
    """
    here = parallel_groups(state, [state.peak, UNSEEN * state.peak])
    wanted = until_next_look(len(unfinished.ab_run.restarts), unfinished.looks)
    most = min(wanted, most_groups(here))
    places = state.pool.reserve(most - 1)
    try:
        lost = _load_and_time(state, sides, unfinished, name, spread(most, here, places))
    finally:
        end_restarts(state)
        state.pool.release(places)
    while lost:
        again = min(lost, here)
        try:
            _load_and_time(state, sides, unfinished, f"{name}-again", [0] * again)
        finally:
            end_restarts(state)
        lost -= again


def spread(most: int, here: int, places: Sequence[int]) -> list[int]:
    """The place of each of at most `most` restarts: equally many on each GPU, where they are timed one after the other. here: how many the first
    GPU has room for. The others are empty and have room for as many."""
    devices = [0, *places]
    turns = min(here, -(-most // len(devices)))
    return (devices * turns)[:most]


def _load_and_time(
    state: State, sides: Mapping[str, Side], unfinished: Unfinished, name: str, places: Sequence[int]
) -> int:
    """Loads all of these at once, and times those of different GPUs at the same time. Returns how many failed on other GPUs than the first."""
    first = len(unfinished.ab_run.restarts) + 1
    progress.info("loading %s%s", _numbers(first, len(places)), _over(places))
    names = {f"{name}-{first + k}": place for k, place in enumerate(places)}
    groups = load_restarts(state, sides, names, keep=confirmation_seconds(state), at_once=True)
    for group in groups:
        if group.failed:
            _give_up(state, group, group.failed)
    left = groups
    while turn := _first_of_each_gpu(state, left):
        time_for_blocks(state, len(sides))
        now = len(unfinished.ab_run.restarts) + 1
        progress.info("timing %s%s", _numbers(now, len(turn)), _over([group.place for group in turn]))
        _time_together(state, turn, unfinished, groups)
        left = [group for group in left if group not in turn]
    return len(places) + first - 1 - len(unfinished.ab_run.restarts)


def _first_of_each_gpu(state: State, groups: Sequence[TaskGroup]) -> list[TaskGroup]:
    """The first group of each GPU."""
    first: dict[int, TaskGroup] = {}
    for group in groups:
        if group.place not in state.pool.unfit:
            first.setdefault(group.place, group)
    return list(first.values())


def _time_together(
    state: State, groups: Sequence[TaskGroup], unfinished: Unfinished, there: Sequence[TaskGroup]
) -> None:
    """Times restarts, each on another GPU. Those that fail on other GPUs than the first are left out. there: all groups that are loaded."""
    workers = [group.workers(state) for group in groups]
    if len(groups) == 1 and not groups[0].place:
        unfinished.ab_run.restarts.append(with_solo_baseline(state, workers[0].timed(unfinished.ab_run), state.kept))
        save(state, "attempt", unfinished)
        return
    ab_runs = [ABRun() for _ in groups]
    timings = [
        alone(timed, ab_run, _other_bytes(group, there)) if group.place else timed.timing(ab_run)
        for group, timed, ab_run in zip(groups, workers, ab_runs, strict=True)
    ]
    failed: list[tuple[TaskGroup, SideFailed | Taken]] = []
    for group, ab_run, found in zip(groups, ab_runs, side_by_side(workers, timings), strict=True):
        if isinstance(found, Restart):
            ab_run.restarts.append(found)
            unfinished.ab_run.add(ab_run, _gpu(state, group))
        else:
            failed.append((group, found))
    save(state, "attempt", unfinished)
    for group, why in failed:  # once those that ended well are kept
        _give_up(state, group, why)


def _other_bytes(group: TaskGroup, there: Sequence[TaskGroup]) -> float:
    """Bytes that other restarts hold on the GPU of this group."""
    return sum(other.memory for other in there if other.place == group.place and other is not group)


def _give_up(state: State, group: TaskGroup, why: SideFailed | Taken) -> None:
    """Gives up a GPU after a failure, and warns that its restart is repeated on the first GPU. Raises a failure on the first GPU."""
    if not group.place:
        raise why
    if state.left() <= 1:  # it was stopped because the budget was over
        raise OutOfTime from why
    if group.place not in state.pool.unfit:
        state.pool.unfit.add(group.place)
        state.say(Warned(f"a restart on {_gpu(state, group)} is repeated on the first GPU: {why}"))


def report_gpu_differences(state: State, record: Attempt) -> None:
    """Warns once for each GPU whose speed differs from the first. The records of all attempts have the figures."""
    for gpu in record.other_gpus or ():
        if differs(gpu) and gpu.gpu not in state.reported_gpus:
            state.reported_gpus.add(gpu.gpu)
            state.say(
                Warned(
                    f"a step of the best so far takes {gpu.step:.2f}× as long on {gpu.gpu} as on the first GPU; this is in no comparison"
                )
            )


def _gpu(state: State, group: TaskGroup) -> str:
    return state.pool.elsewhere[group.place - 1].name if group.place else ""


def _numbers(first: int, count: int) -> str:
    return f"restart {first}" if count == 1 else f"restarts {first} to {first + count - 1}"


def _over(places: Sequence[int]) -> str:
    devices = len({*places})
    return f" on {devices} GPUs" if devices > 1 else ""
