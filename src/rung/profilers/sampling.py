"""Power, memory, clocks, temperature and throttling of every GPU, sampled beside a run."""

from __future__ import annotations

import contextlib
import csv
import io
import statistics
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import polars as pl

from rung.errors import UsageError
from rung.hardware.sensors import Sensor, sensors_here
from rung.profilers.samples import ROWS, SCHEMA, TABLE, summary

FASTEST = 1000.0  # samples a second; sensors are refreshed every 1 to 100 ms
PATIENCE = 10.0  # seconds that the first look may take before it is not waited for


class Overhead(NamedTuple):
    """What sampling cost: cpu_share of one core; read_seconds, the median of a round over all GPUs; rate, rounds a second
    that were reached, of `asked`; late: rounds that began after the next one was due, which is then left out.
    """

    cpu_share: float
    read_seconds: float
    rate: float
    asked: float
    late: int

    def __str__(self) -> str:
        late = f", {self.late} left out" if self.late else ""
        return (
            f"sampling took {self.cpu_share:.2%} of one core, {self.read_seconds * 1e3:.2g} ms a round; "
            f"{self.rate:.3g} of {self.asked:g} rounds a second{late}"
        )


class Sampling:
    """Samples from when it is entered until it is left, both included, in a thread of its own; for numbers that are to be trusted, beside another process.

    folder: gets samples.csv, a row as soon as it is read (so a run that is killed loses none), and samples.parquet at the end.
    rate: rounds a second. sensors: by default those of every GPU of this machine, which are counted from `first` on.
    Raises UsageError where there is no sensor, and for a rate that is none.
    """

    def __init__(
        self, folder: Path, rate: float = 10.0, sensors: Sequence[Sensor] | None = None, first: int = 0
    ) -> None:
        if not 0 < rate <= FASTEST:
            raise UsageError(f"{rate:g} samples a second: choose a rate above 0 and up to {FASTEST:g}.")
        self._sensors = sensors_here() if sensors is None else list(sensors)
        if not self._sensors:
            raise UsageError(
                "no GPU's sensors can be read here: neither NVML nor amdsmi, /sys, amd-smi or rocm-smi answers "
                "(`rung doctor` shows what is there)."
            )
        self.folder, self.rate, self._first = folder, rate, first
        self._rows: list[tuple[Any, ...]] = []
        self._rounds: list[float] = []
        self._cpu = self._wall = 0.0
        self._late = 0
        self._scheduled = (
            0.0,
            0.0,
            0,
        )  # begin of the first and the last round of the schedule, and how many there were

    def __enter__(self) -> Sampling:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._file = open(self.folder / ROWS, "w", newline="", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{self.folder} cannot be written ({error.strerror}): choose another folder.") from None
        self._end, self._begun = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._begun.wait(PATIENCE)  # energy is told between two samples
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()
        with contextlib.suppress(OSError):  # rows that a full disk did not take are written once more
            self._file.close()
        try:
            self.table().write_parquet(self.folder / TABLE)
        except (
            OSError,
            pl.exceptions.PolarsError,
        ):  # nor a full disk what was recorded: the rows until then are in the CSV
            with contextlib.suppress(OSError):
                (self.folder / TABLE).unlink()

    @property
    def paths(self) -> list[Path]:
        """The table's files, those that could be written."""
        both = (self.folder / TABLE, self.folder / ROWS)
        return [path for path in both if path.is_file()]

    def table(self) -> pl.DataFrame:
        """One row a GPU and round, columns as in SCHEMA."""
        return pl.DataFrame(self._rows, schema=SCHEMA, orient="row")

    @property
    def overhead(self) -> Overhead:
        first, last, count = self._scheduled
        return Overhead(
            self._cpu / self._wall if self._wall else 0.0,
            statistics.median(self._rounds) if self._rounds else 0.0,
            (count - 1) / (last - first) if last > first else 0.0,
            self.rate,
            self._late,
        )

    def _run(self) -> None:
        begun, cpu = time.monotonic(), time.thread_time()
        every, due = 1 / self.rate, begun
        self._write([tuple(SCHEMA)])
        while True:
            self._scheduled = (begun, time.monotonic(), self._scheduled[2] + 1)
            self._round()
            self._begun.set()
            due += every
            wait = due - time.monotonic()
            if wait < 0:  # a slow sensor must not turn into a burst of readings
                missed = int(-wait / every) + 1
                self._late, due = self._late + missed, due + missed * every
                wait = due - time.monotonic()
            if self._end.wait(max(wait, 0.0)):
                break
        self._round()  # whatever the rate: an energy counter then covers the whole run
        self._cpu, self._wall = time.thread_time() - cpu, time.monotonic() - begun

    def _round(self) -> None:
        begun = time.monotonic()
        rows = [_row(index, sensor) for index, sensor in enumerate(self._sensors, self._first)]
        self._rows += rows
        self._write(rows)
        self._rounds.append(time.monotonic() - begun)

    def _write(self, rows: list[tuple[Any, ...]]) -> None:
        text = io.StringIO()
        csv.writer(text).writerows(rows)
        with contextlib.suppress(OSError):  # a full disk must not end the sampling of a run
            self._file.write(text.getvalue())
            self._file.flush()


def _row(index: int, sensor: Sensor) -> tuple[Any, ...]:
    before = time.monotonic_ns()
    seen = sensor.read()
    took = time.monotonic_ns() - before
    # The three clocks one right after the other, moved back to the middle of the reading.
    clocks = time.time_ns(), time.monotonic_ns(), time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    back = clocks[1] - (before + took // 2)
    return (
        *(index, sensor.bus, *(clock - back for clock in clocks), took),
        *(seen.power, seen.energy, seen.used, seen.total, seen.core, seen.memory, seen.celsius),
        *(seen.busy, seen.memory_busy, "; ".join(seen.throttled)),
    )


class Sampled(NamedTuple):
    """exit_code: of the command; paths: of the samples; gpus: their summary; overhead: what sampling cost."""

    exit_code: int
    paths: list[Path]
    gpus: pl.DataFrame
    overhead: Overhead


def sample_beside(
    command: Sequence[str],
    folder: Path,
    rate: float = 10.0,
    *,
    sensors: Sequence[Sensor] | None = None,
    env: Mapping[str, str] | None = None,
) -> Sampled:
    """Runs a command to its end and samples meanwhile; the command has this process's input and outputs.

    Raises UsageError where there is nothing to sample, or where the command cannot be started.
    """
    sampling = Sampling(folder, rate, sensors)
    with sampling:
        try:
            done = subprocess.run(list(command), env=env, check=False)
        except OSError as error:
            raise UsageError(f"{command[0]} cannot be started: {error.strerror}.") from None
    return Sampled(done.returncode, sampling.paths, summary(sampling.table()), sampling.overhead)
