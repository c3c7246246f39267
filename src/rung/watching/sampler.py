"""What a rank says of itself while it trains: steps, exchange of gradients, memory and the GPU's sensors, a line every few seconds.

A thread of its own reads the sensors and writes the lines. The training loop itself only makes marks (`pace.py`). Whatever fails here is
warned of once, and the training goes on.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import statistics
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import torch

from rung.errors import UsageError, first_line, line_of
from rung.hardware.device import Device, memory_in_use, pick
from rung.hardware.ranks import Ranks
from rung.hardware.sensors import Reading, Sensor, identity, sensor_for
from rung.launch.rank import placed
from rung.records.watch import Sample
from rung.watching.files import RankFile, folder_for
from rung.watching.pace import Pace, Taken, data_parallel

log = logging.getLogger(__name__)
EVERY = 5.0  # seconds between two lines
RESTING = 50  # times as long as a look at the sensors takes there is none: a command may take tenths of a second
LONG = 10.0  # seconds without a step after which it is said where the loop stands
ENDING = 3.0  # seconds that the last line may take


class Watching:
    """A training loop that is watched: `step` is called once a step, `close` or the end of a `with` ends it. `folder` is where it writes."""

    def __init__(
        self, model: torch.nn.Module | None, folder: Path, every: float, averaged: bool, broadcasts: bool
    ) -> None:
        """averaged: DDP averages the gradients of the model; broadcasts: and, before a forward, it broadcasts buffers."""
        self.folder, self._every = folder, every
        self._failed = False
        self._over = threading.Event()
        try:
            self._begin(model, averaged, broadcasts)
        except Exception as error:  # the current folder was deleted, or no thread is to be had
            self._over.set()
            self._warn(error)

    def _begin(self, model: torch.nn.Module | None, averaged: bool, broadcasts: bool) -> None:
        self._broadcasts = averaged and broadcasts and model is not None and any(True for _ in model.buffers())
        self.folder = self.folder.absolute()
        self._ranks = _ranks()
        self._device = _device(model, self._ranks.local)
        self._alone = self._ranks.world == 1
        self._file = RankFile(self.folder, self._ranks.rank)
        self._began, self._stepped, self._steps = time.time(), time.monotonic(), 0
        self._loop = threading.get_ident()
        self._costs = (time.monotonic_ns(), 0)
        self._sensor: Sensor | None = None
        self._gpu = identity(self._device)
        self._rest_until, self._reading = 0.0, None
        self._pace = Pace(self._device, model if averaged else None)
        self._thread = threading.Thread(target=self._run, name="rung-watch", daemon=True)
        try:
            self._thread.start()
        except Exception:
            self._pace.close()
            raise
        atexit.register(self.close)

    _reading: Reading | None

    def step(self) -> None:
        """A step has ended. It never raises and never waits for the GPU."""
        if self._over.is_set():
            return
        try:
            self._pace.step()
        except Exception as error:
            self._warn(error)
        self._steps += 1
        self._stepped = time.monotonic()

    def close(self) -> None:
        """Writes the last line. What was closed is not opened again."""
        atexit.unregister(self.close)
        if self._over.is_set():
            return
        self._pace.close()
        self._over.set()
        self._thread.join(ENDING)

    def __enter__(self) -> Watching:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        try:
            self._sensor = sensor_for(self._gpu)
        except Exception as error:
            self._warn(error)
        over = False
        while not over:
            try:
                self._file.append(self._sample())
            except Exception as error:  # a full disk, a folder that may not be written to
                self._warn(error)
            over = self._over.wait(self._every)
        try:
            self._file.append(self._sample(ended=True))
        except Exception as error:
            self._warn(error)

    def _sample(self, ended: bool = False) -> Sample:
        taken, seen = self._pace.take(), self._look()
        idle = time.monotonic() - self._stepped
        gpu = self._device.index if self._device.is_gpu else None
        return Sample(
            at=time.time(), began=self._began, every=self._every,
            rank=self._ranks.rank, world=self._ranks.world, local=self._ranks.local, host=socket.gethostname(),
            gpu=self._device.name if gpu is not None else "",
            step=self._steps, steps=len(taken),
            step_ns=_median([one.step for one in taken]),
            own_ns=_median(self._own(taken)),
            exchange_ns=_median([one.exchange for one in taken if one.exchange is not None]),
            idle=idle, stands=self._standing() if idle > LONG and not ended else "",
            allocated=torch.cuda.max_memory_allocated(gpu) if gpu is not None else None,
            reserved=torch.cuda.max_memory_reserved(gpu) if gpu is not None else None,
            resident=memory_in_use(CPU),
            used=seen.used, total=seen.total, power=seen.power, limit=self._sensor.limit if self._sensor else None,
            core=seen.core, celsius=None if seen.celsius is None else max(0.0, seen.celsius), throttled=seen.throttled,
            cost=self._cost(), broadcasts=self._broadcasts, ended=ended,
        )  # fmt: skip

    def _own(self, taken: Sequence[Taken]) -> list[float]:
        """What this rank took by itself; one that waits for no other took all of a step."""
        if self._alone:
            return [one.step for one in taken]
        return [max(0.0, one.step - one.exchange) for one in taken if one.exchange is not None]

    def _look(self) -> Reading:
        """At the sensors, or what they said lately."""
        if self._sensor is not None and time.monotonic() >= self._rest_until:
            begun = time.monotonic()
            self._reading = self._sensor.read()
            now = time.monotonic()
            self._rest_until = now + RESTING * (now - begun)
        return self._reading or Reading(time.monotonic())

    def _cost(self) -> float:
        """The share of the time since the last line: in the training loop, and of this thread."""
        before, spent_before = self._costs
        now, spent = time.monotonic_ns(), self._pace.cost_ns + time.thread_time_ns()
        self._costs = now, spent
        return (spent - spent_before) / max(1, now - before)

    def _standing(self) -> str:
        frame = sys._current_frames().get(self._loop)
        return line_of(frame) if frame else ""

    def _warn(self, error: Exception) -> None:
        if self._failed:
            return
        self._failed = True
        text = f"the training goes on, but rung watch may not see it: {first_line(error) or type(error).__name__}"
        try:
            warnings.warn(text, stacklevel=3)
        except Warning:  # where Python makes errors of warnings (-W error), this one would end the training
            log.warning(text)


CPU = Device("cpu", 0, "cpu", "", "", 0, 0)


def watch(
    model: torch.nn.Module | None = None,
    *,
    folder: str | Path | None = None,
    every: float = EVERY,
) -> Watching:
    """Has `rung watch` see a training loop while it runs::

        with rung.watch(model) as watching:
            for batch in data:
                ...
                optimizer.step()
                watching.step()

    Every rank calls it. Each writes a line every few seconds: its steps, memory, power and clocks. It waits for no GPU, and whatever fails
    is warned of once while the training goes on.

    Args:
        model: what is trained. Where DistributedDataParallel wraps it, each rank's own pace and the exposed exchange of gradients are known,
            so that a straggler can be named.
        folder: where the ranks write, the same for all; by default that of the variable RUNG_WATCH, else one of `.rung/watch`, by the name
            of the script and the number of the job.
        every: seconds between two lines.

    Returns:
        An object with `step()`, to be called once a step, `close()` and `folder`.

    Raises:
        UsageError: `every` is no time.
    """
    _check(every)
    ddp = data_parallel(model) if model is not None else None
    return Watching(model, _where(folder), every, ddp is not None, ddp is not None and ddp.broadcast_buffers)


class WatchedTraining:
    """Trainings of a trainer that somebody else wrote, one after another. `begin` is called where one starts, as `Watching` is made; `step` after each step, `close` when it ends. `folder` is None before the first."""

    def __init__(self, folder: str | Path | None, every: float) -> None:
        """As of `watch`. Raises UsageError where `every` is no time."""
        _check(every)
        self._folder, self._every = folder, every
        self._watching: Watching | None = None

    @property
    def folder(self) -> Path | None:
        return self._watching.folder if self._watching else None

    def begin(self, model: torch.nn.Module, averaged: bool, broadcasts: bool) -> None:
        self.close()  # of a training that was broken off
        self._watching = Watching(model, _where(self._folder), self._every, averaged, broadcasts)

    def step(self) -> None:
        if self._watching:
            self._watching.step()

    def close(self) -> None:
        if self._watching:
            self._watching.close()


def _check(every: float) -> None:
    if not 0.05 <= every <= 3600:
        raise UsageError(f"every={every!r} must lie between 0.05 and 3600 seconds.")


def _where(folder: str | Path | None) -> Path:
    return Path(folder) if folder is not None else folder_for(os.environ, sys.argv[0] if sys.argv else "")


def _ranks() -> Ranks:
    """Which rank this process is: by torch's process group, else by its launcher, else it is alone."""
    try:
        told = placed(os.environ)
    except (UsageError, ValueError):
        told = Ranks()
    dist = torch.distributed
    if dist.is_available() and dist.is_initialized():
        return Ranks(dist.get_rank(), dist.get_world_size(), told.local)
    return told


def _device(model: torch.nn.Module | None, local: int) -> Device:
    """That of the model's weights; without a model, the GPU that this rank works on by custom, where there is one."""
    first = next(model.parameters(), None) if model is not None else None
    if first is not None:
        return pick(str(first.device)) if first.device.type == "cuda" else CPU
    if not torch.cuda.is_available():
        return CPU
    # Asking torch for the current GPU before it was chosen would have every rank of a host begin to use the first.
    index = torch.cuda.current_device() if torch.cuda.is_initialized() else local
    return pick(f"cuda:{index if index < torch.cuda.device_count() else 0}")


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None
