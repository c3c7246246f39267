"""Workers that load, compile or verify in the background while the coordinator times others.

A task is one worker and the calls that it is sent. A pool starts tasks in the order in which they were added, as far as cores,
the GPU's memory and the host's memory allow.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import psutil

from rung.hardware.limits import free_memory
from rung.launch import Caller, ForkServer, Worker, WorkerFailed, first_answer, kill_all
from rung.records.record import record_of
from rung.side import Setup, Side
from rung.timing.workers import load_ahead, open_side, open_worker, planned_variables, spare_worker

progress = logging.getLogger(__name__)

TICK = 0.5  # seconds between two looks at the time that is left
LEAST_BYTES = 1 << 30  # of the host's memory, that a worker takes at the least: torch and its libraries

T = TypeVar("T")
Call = tuple[str, Mapping[str, Any]]  # a method's name and its arguments


@dataclass(frozen=True)
class Place:
    """Another device for workers, and the variables of their processes. name: in sentences."""

    device: str
    variables: Mapping[str, str]
    name: str = "another GPU"


class Task:
    """One side in a worker of its own, and the calls that it answers one after the other, after `open`.

    Args:
        memory: bytes of the GPU that it needs.
        in_turns: further bytes that it needs at times, but never while another task needs its own.

    Attributes:
        answers: so far, by method.
        took: seconds from the start of the worker to each answer, by method.
        error: why no more answers come.
        ended: whether it was given up.
        reclaimable: its worker is kept for later use, and is ended where another task needs its memory.
        ends_when_done: its worker is ended once it has answered everything.
        low_priority: it starts only where tasks of normal priority still find room beside it.
        untimed: nothing of it is timed, so it may run beside others, on another GPU.
        single_process: it runs in one process even where several ranks are timed.
        fresh: its process must be a sample of its own, and no fork.
        reports_machine: its worker says how the machine is set up, which takes calls of other programs.
        place: 0 for the first GPU, from 1 on for the pool's other places.
    """

    def __init__(
        self, name: str, side: Side, calls: Sequence[Call], memory: float = 0.0, in_turns: float = 0.0
    ) -> None:
        self.name, self.side, self.memory, self.in_turns = name, side, memory, in_turns
        self._calls = list(calls)
        self.worker: Caller | None = None
        self.answers: dict[str, Any] = {}
        self.took: dict[str, float] = {}
        self.error: WorkerFailed | None = None
        self._began = self._since = 0.0
        self._waiting: list[str] = []
        self.ended = False
        self.reclaimable = False
        self.ends_when_done = False
        self.low_priority = False
        self.untimed = False
        self.single_process = False
        self.fresh = False
        self.reports_machine = False
        self.place = 0

    @property
    def done(self) -> bool:
        """Whether no more answers come: it has answered everything, failed, or was given up."""
        return self.ended or self.error is not None or (self.worker is not None and not self._waiting)

    @property
    def ready(self) -> bool:
        """Whether it has answered everything, and its worker takes further calls."""
        there = self.worker is not None and self.worker.alive()  # ranks of which one failed at a call were ended
        return there and not self.ended and self.error is None and not self._waiting

    def answer(self, method: str, kind: type[T]) -> T:
        """What it said, as a record."""
        return record_of(kind, self.answers[method])

    @property
    def running(self) -> float:
        """Seconds since its worker was started; 0 where none was."""
        return time.monotonic() - self._began if self.worker is not None else 0.0

    def since_open(self, method: str) -> float:
        """Seconds from the answer to `open` to that of a later call. This leaves out imports, which a spare worker did before."""
        return self.took[method] - self.took["open"]

    def start(self, worker: Caller, already: Sequence[str] = ()) -> None:
        """already: calls that the worker was sent before."""
        self.worker, self._began, self._since = worker, time.monotonic(), time.monotonic()
        self._waiting = [*already, *(method for method, _ in self._calls)]
        try:
            for method, arguments in self._calls:
                worker.send(method, **arguments)
        except WorkerFailed as error:
            self.error = error

    def take(self, limit: float) -> None:
        """Receives the answers that are there. limit: seconds for one answer, after which the worker is killed."""
        assert self.worker is not None
        while self._waiting and self.error is None:
            waited = time.monotonic() - self._since
            if waited <= limit and not self.worker.answered():
                return
            method = self._waiting[0]
            try:
                self.answers[method] = self.worker.receive(method, limit, waited)
            except WorkerFailed as error:
                self.error = error
                self.worker.kill()
                return
            self._waiting.pop(0)
            self._since = time.monotonic()
            self.took[method] = self._since - self._began
            progress.debug(
                "%s: %s after %.1f s (%.1f s in the worker, %.1f s of the CPU)",
                *(self.name, method, self.took[method], *self.worker.spent),
            )

    def end(self) -> None:
        """Ends its worker, whether it is done or not."""
        self.ended = True
        if self.worker is not None:
            self.worker.kill()


def end_all(tasks: Iterable[Task]) -> None:
    """Ends several at once, because each worker takes a moment to end."""
    given_up = list(tasks)
    kill_all(task.worker for task in given_up if task.worker is not None)
    for task in given_up:
        task.end()


@dataclass(frozen=True)
class _Spare:
    """A worker that was started ahead of its use. asked: calls that it was sent before; it answers them first."""

    worker: Worker
    asked: list[str]


class Pool:
    """Runs tasks side by side.

    Args:
        most: how many tasks may be at work at once.
        memory: bytes of the GPU that all tasks may hold together. A task that is done still counts while it holds its worker.
        forks: forks workers that need not be fresh.

    Attributes:
        elsewhere: other GPUs of the same kind, for tasks that are not timed. While one is reserved, only what is timed there runs on it.
        unfit: places that are not reserved again.
    """

    def __init__(self, setup: Setup, most: int, memory: float = float("inf"), forks: ForkServer | None = None) -> None:
        self.setup, self.most, self.memory, self.forks = setup, most, memory, forks
        self.elsewhere: tuple[Place, ...] = ()
        self._reserved: set[int] = set()  # places on which nothing starts but what was sent there
        self.unfit: set[int] = set()  # places that are not reserved again
        self._tasks: list[Task] = []
        self._stack = ExitStack()
        self._wanted_spares = 0
        self._spares: list[_Spare] = []
        self._spare_for: Side | None = None
        self._load_spares = False
        self._count = 0

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        kill_all(spare.worker for spare in self._spares)
        end_all(self._tasks)
        self._stack.close()

    @property
    def importing(self) -> float:
        """Seconds that a worker which is not forked imports, where others are."""
        return self.forks.imported_in if self.forks else 0.0

    def add(self, task: Task, *, at_once: bool = False, first: bool = False) -> Task:
        """Starts a task as soon as there is room. at_once: now in any case, because everything else waits for it; first: ahead of all
        tasks that wait."""
        self._tasks.insert(0 if first else len(self._tasks), task)
        if at_once:
            self.start_now([task])
        self.pump()
        return task

    def start_now(self, tasks: Iterable[Task]) -> None:
        """Starts these tasks, even without room, because everything else waits for them."""
        for task in tasks:
            if task in self._unstarted():
                self._reclaim_memory_for(task)
                self._start(task, task.place)

    def reserve(self, most: int) -> list[int]:
        """Reserves at most so many idle places elsewhere. Until `release`, only tasks start there that are added at once with that place.
        One place stays free for each untimed task that waits."""
        self.pump()
        taken = {task.place for task in self._tasks if task.worker is not None and not task.ended}
        places = range(1, len(self.elsewhere) + 1)
        free = [place for place in places if place not in taken | self._reserved | self.unfit]
        waiting = sum(task.untimed and not task.low_priority for task in self._unstarted())
        found = free[: max(0, min(most, len(free) - waiting))]
        self._reserved.update(found)
        return found

    def release(self, places: Iterable[int]) -> None:
        self._reserved.difference_update(places)

    def pump(self) -> None:
        """Receives answers, and starts the tasks that there is room for."""
        for task in self._tasks:
            if task.worker is not None and not task.done:
                task.take(self.setup.limits.prepare)
                if self.forks and task.answers.get("open", {}).get("too_late"):
                    self._fork_no_more()
            if task.ends_when_done and task.done:
                task.end()
        self._tasks = [task for task in self._tasks if not (task.ended or task.error)]
        largest: Task | None = None  # of those that still wait for the GPU that is timed
        for task in sorted(self._unstarted(), key=lambda task: task.low_priority):
            if not task.low_priority:
                self._reclaim_memory_for(task)
            place = self._place_for(task, largest if task.low_priority else None)
            if place is not None:
                self._start(task, place)
            elif not self._goes_elsewhere(task) and (largest is None or _needs(task) > _needs(largest)):
                largest = task
        if self._unstarted() and all(task.done for task in self._tasks if task.worker is not None):
            self._make_room()
        self._top_up()

    def _fork_no_more(self) -> None:
        """Starts forked tasks anew in fresh processes. The target sets variables that a fork has read too early."""
        self.forks = None
        for task in self._tasks:
            if task.worker is not None and not task.ended and not task.fresh:
                task.worker.kill()
                task.answers, task.took = {}, {}
                self._start(task, task.place)

    def _reclaim_memory_for(self, task: Task) -> None:
        """Ends reclaimable workers where their memory is all that a task lacks. Those that are ready go first, because they would be ready
        again soon; of these the latest."""
        if self.idle() <= 0 or self._goes_elsewhere(task) or not self.fits(task):
            return
        for reclaimed in sorted(self._reclaimable(), key=lambda task: not task.done):
            if self.held(waiting=[task]) <= self.memory:
                return
            reclaimed.end()

    def _reclaimable(self) -> list[Task]:
        """Tasks whose memory others may take, the latest first."""
        return [
            task for task in reversed(self._tasks) if task.reclaimable and task.worker is not None and not task.ended
        ]

    def _make_room(self) -> None:
        """Ends all reclaimable workers, where nothing else runs that would make room, and starts a task."""
        first = min(self._unstarted(), key=lambda task: task.low_priority)
        if self._goes_elsewhere(first):
            if place := next(iter(self._open_places()), 0):
                self._start(first, place)
            return
        end_all(self._reclaimable())
        self._tasks = [task for task in self._tasks if not task.ended]
        self._start(first)

    def wait(self, until: Callable[[], bool], left: Callable[[], float]) -> bool:
        """Runs tasks until `until()` is true. False where `left()` seconds are over before."""
        while True:
            self.pump()
            if until():
                return True
            remaining = left()
            if remaining <= 0:
                return False
            busy = [task.worker for task in self._tasks if task.worker is not None and not task.done]
            if busy:
                first_answer(busy, min(TICK, remaining))
            else:
                time.sleep(min(0.01, remaining))

    def waiting(self, *, low_priority: bool = True) -> list[str]:
        """The names of tasks that wait for room. low_priority: also of those of low priority."""
        return [task.name for task in self._unstarted() if low_priority or not task.low_priority]

    def _unstarted(self) -> list[Task]:
        """Those that wait for room; not those whose start failed."""
        return [task for task in list(self._tasks) if task.worker is None and not task.ended and not task.error]

    def lacks_memory(self) -> bool:
        """Whether tasks wait for the GPU's memory."""
        waiting = [task for task in self._unstarted() if not self._goes_elsewhere(task)]
        return self.held(waiting=waiting) > self.memory

    def busy(self) -> list[str]:
        """The names of tasks that load, compile or verify now."""
        return [task.name for task in list(self._tasks) if task.worker is not None and not task.done]

    def held(self, place: int = 0, waiting: Sequence[Task] = (), without: Sequence[Task] = ()) -> float:
        """Bytes of a GPU that tasks hold, by default of the one that is timed. waiting: those who would hold some, too; without: those
        who would hold none any more."""
        there = [task for task in self._tasks if task.worker is not None and not task.ended and task.place == place]
        there = [task for task in there if task not in without] + [*waiting]
        return sum(task.memory for task in there) + max((task.in_turns for task in there), default=0.0)

    def fits(self, task: Task) -> bool:
        """Whether there is memory for a task, that of workers included which are kept for later use."""
        return self._goes_elsewhere(task) or self.held(waiting=[task], without=self._reclaimable()) <= self.memory

    def _goes_elsewhere(self, task: Task) -> bool:
        """Whether a task never runs on the first GPU."""
        return bool(task.place) or (task.untimed and bool(self.elsewhere))

    def _open_places(self) -> list[int]:
        """Places elsewhere that are not reserved, the emptiest first."""
        places = range(1, len(self.elsewhere) + 1)
        return sorted((place for place in places if place not in self._reserved), key=self.held)

    def _leaves_room(self, task: Task, waits: Task) -> bool:
        """Whether another task that waits would find memory beside this one, once tasks that end by themselves have done so."""
        leaving = [t for t in self._tasks if t.ends_when_done and not t.low_priority]
        return self.held(waiting=[task, waits], without=leaving) <= self.memory

    def idle(self) -> int:
        """How many tasks could be started now, as far as cores go."""
        return self.most - sum(task.worker is not None and not task.done for task in self._tasks)

    def _place_for(self, task: Task, waits: Task | None) -> int | None:
        """The place where a task fits now, None where there is none. waits: one that is to find room, too."""
        running = [t for t in self._tasks if t.worker is not None and not t.ended]
        if running and (self.idle() <= 0 or free_memory() < _host_bytes()):
            return None
        if self._goes_elsewhere(task):  # never beside what is timed: what it takes is a guess, and others would lack it
            fits = [p for p in self._open_places() if self.held(p, [task]) <= self.memory or not self.held(p)]
            return next(iter(fits), None)
        if running and (self.held(waiting=[task]) > self.memory or (waits and not self._leaves_room(task, waits))):
            return None
        return 0

    def _start(self, task: Task, place: int = 0) -> None:
        task.place = place
        if place:
            there = self.elsewhere[place - 1]
            setup = replace(self.setup, device=there.device, variables={**self.setup.variables, **there.variables})
            task.start(
                open_worker(self._stack, setup, task.side, task.name, briefly=not task.reports_machine), ["open"]
            )
            return
        if self.setup.launcher and not task.single_process:
            try:
                ranks = open_side(self._stack, self.setup, task.side, task.name, briefly=not task.reports_machine)
                task.start(ranks, ["open"])
            except WorkerFailed as error:  # not all ranks came
                task.error = error
            return
        open_here = partial(
            open_worker, self._stack, self.setup, task.side, task.name, briefly=not task.reports_machine
        )
        if spare := self._take_spare(task.side, self.setup.logs / f"{task.name}.log"):
            with contextlib.suppress(WorkerFailed):  # one that died meanwhile says nothing of this task
                open_here(spare=spare.worker)
                task.start(spare.worker, [*spare.asked, "open"])
                return
        forks = None if task.fresh else self.forks
        task.start(open_here(forks=forks), ["open"])

    def _take_spare(self, side: Side, log: Path) -> _Spare | None:
        """A worker that was started ahead, if there is one and this side sets no variables. It ends with the pool, unless it is killed
        before."""
        apart = side.env or planned_variables(side, self.setup.files) or side.cwd is not None or side.call
        if apart or not self._spares:
            return None
        spare = self._spares.pop(0)
        with contextlib.suppress(OSError):
            spare.worker.log = spare.worker.log.replace(log)
        return spare

    def keep_spares(self, side: Side, most: int, *, load: bool = False) -> None:
        """From now on, at most so many workers are started before they are needed, and import what this side will. None where workers are
        forked. load: they call the target's function, too."""
        self._spare_for, self._wanted_spares, self._load_spares = side, 0 if self.forks else most, load
        self._top_up()

    def _top_up(self) -> None:
        if self._spare_for is None or self._wanted_spares == 0:
            return
        # Twice: a spare is not worth the memory that a task may need.
        while len(self._spares) < self._wanted_spares and self.idle() > 0 and free_memory() >= 2 * _host_bytes():
            self._count += 1
            log: Path = self.setup.logs / f"spare-{self._count}.log"
            self._spares.append(_Spare(spare_worker(self._stack, self.setup, self._spare_for, log), ["preload"]))
        for spare in self._spares:
            if self._load_spares and "load_ahead" not in spare.asked:
                with contextlib.suppress(WorkerFailed):  # who takes it will see that it died
                    load_ahead(spare.worker, self.setup, self._spare_for)
                spare.asked.append("load_ahead")


def _needs(task: Task) -> float:
    """Bytes of the GPU, at most."""
    return task.memory + task.in_turns


def _host_bytes() -> int:
    """What one more worker is taken to need of the host's memory: as much as the largest that there is."""
    sizes = [LEAST_BYTES]
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            sizes.append(process.memory_info().rss)
    return max(sizes)
