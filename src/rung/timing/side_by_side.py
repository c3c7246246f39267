"""Restarts that are timed at the same time, each on a device of its own.

One process collects for all of them. It waits until any worker has answered, and then asks that restart's next one. That takes it about 0.05 ms
a block (benchmarks/climb/side_by_side.py), and a block about 60 ms. A worker reads its own clock, so what it waits in between is in no sample.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from typing import Any

from rung.hardware.neighbours import IDLE_BYTES
from rung.launch import Caller, first_answer, quiet
from rung.measure import Restart
from rung.records.record import record_of
from rung.timing.ab_run import ABRun
from rung.timing.timed import Occupied
from rung.timing.worker_group import Asked, SideFailed, Timing, WorkerGroup

OWN_BYTES = 1 << 30  # of a GPU, that one of our processes takes beside what its allocator holds, at most
CAME = 1 << 28  # bytes of a GPU, by which what others hold changes when a process comes or goes: a context takes more


class Taken(Exception):
    """Another process used the GPU."""


def alone(group: WorkerGroup, ab_run: ABRun, ours: float = 0.0) -> Timing:
    """Times a restart on a GPU that is to have nobody else. Raises Taken where it had, by its memory. ours: bytes that further workers of
    ours are taken to hold there, which stand still."""
    before = yield from _of_others(group)
    if (theirs := before - ours - len(group.workers) * OWN_BYTES) > IDLE_BYTES:
        raise Taken(f"other processes hold {theirs / 2**30:.1f} GiB of it")
    restart = yield from group.timing(ab_run)
    if abs((yield from _of_others(group)) - before) > CAME:
        raise Taken("another process came or went")
    return restart


def _of_others(group: WorkerGroup) -> Generator[Asked, Any, int]:
    """Bytes of the GPU that no allocator of these workers holds."""
    used, held = 0, 0
    for side in group.workers:
        found = record_of(Occupied, (yield Asked(side, "occupied")))
        used, held = found.used, held + found.held
    return used - held


def side_by_side(groups: Sequence[WorkerGroup], timings: Sequence[Timing]) -> list[Restart | SideFailed | Taken]:
    """What each of these restarts gave, or how it failed; one that fails leaves the others as they are. All other workers stand still.

    timings: one for each group, which is on a device of its own.
    """
    with quiet([worker for group in groups for worker in group.workers.values()]):
        lanes = [_Lane(group, timing) for group, timing in zip(groups, timings, strict=True)]
        while waiting := {lane.worker: lane for lane in lanes if lane.worker is not None}:
            left = min(lane.until for lane in waiting.values()) - time.monotonic()
            for worker in first_answer(list(waiting), max(0.0, left)):
                waiting[worker].go_on()
            for lane in lanes:
                lane.end_if_late()
    return [lane.result for lane in lanes]


class _Lane:
    """One restart on its way. worker: whose answer it waits for, None once it has ended; until: when that is late; result: of the
    restart, or how it failed."""

    result: Restart | SideFailed | Taken

    def __init__(self, group: WorkerGroup, timing: Timing) -> None:
        self._group, self._timing = group, timing
        self.worker: Caller | None = None
        self._asked_at = self.until = 0.0
        self._answered(None)

    def end_if_late(self) -> None:
        if self.worker is not None and time.monotonic() > self.until:
            self.go_on()

    def go_on(self) -> None:
        """Takes the answer that is there, and asks what comes next."""
        try:
            waited = time.monotonic() - self._asked_at
            answer = self._group.answer(self._asked, self._group.limits.block, waited)
        except SideFailed as failure:
            self._end(failure)
            return
        self._answered(answer)

    def _answered(self, answer: object) -> None:
        try:
            self._asked = self._timing.send(answer)
            self._group.ask(self._asked)
        except StopIteration as end:
            self._end(end.value)
        except (SideFailed, Taken) as failure:
            self._end(failure)
        else:
            self.worker = self._group.workers[self._asked.side]
            self._asked_at = time.monotonic()
            self.until = self._asked_at + self._group.limits.block

    def _end(self, result: Restart | SideFailed | Taken) -> None:
        self.worker, self.result = None, result
        self._timing.close()
