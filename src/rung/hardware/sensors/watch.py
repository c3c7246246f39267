"""A GPU's sensors, read beside the work and from another process than the one that is timed."""

from __future__ import annotations

import statistics
import threading
from collections import Counter
from itertools import pairwise
from types import TracebackType

from rung.hardware.sensors.reading import Reading, Sensor
from rung.records.measured import Course, Range, Sensors

EVERY = 0.1  # seconds: sensors are refreshed every 1 to 100 ms


class Watch:
    """Reads while it is entered, any number of times; what lies between two entries is not counted."""

    def __init__(self, sensor: Sensor | None, every: float = EVERY) -> None:
        self._sensor, self._every = sensor, every
        self._spans: list[list[Reading]] = []

    def __enter__(self) -> Watch:
        if self._sensor is None:  # on a CPU, say: no thread beside what is timed
            return self
        self._end = threading.Event()
        self._spans.append([])
        self._thread = threading.Thread(target=self._run, args=(self._sensor, self._spans[-1]), daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._sensor is not None:
            self._end.set()
            self._thread.join()

    def _run(self, sensor: Sensor, span: list[Reading]) -> None:
        span.append(sensor.read())
        while not self._end.wait(self._every):
            span.append(sensor.read())
        span.append(sensor.read())

    def summary(self) -> Sensors | None:
        """None where nothing was read: `seconds` watched; `energy` (J) in them and mean `power` (W), from
        the energy counter where there is one, else from the power readings; `core` and `memory` clocks (MHz: median,
        lowest, highest), `celsius` (first, last, highest), `throttled` (share of the readings by reason), `limit` (W).
        """
        spans = [s for s in self._spans if len(s) > 1]
        if self._sensor is None or not spans:
            return None
        seen = [r for span in spans for r in span]
        seconds = sum(s[-1].at - s[0].at for s in spans)
        counted = [b.energy - a.energy for a, b in ((s[0], s[-1]) for s in spans)
                   if a.energy is not None and b.energy is not None]  # fmt: skip
        energy = sum(counted) if len(counted) == len(spans) and sum(counted) > 0 else _integral(spans)
        reasons = Counter(reason for r in seen for reason in r.throttled)
        return Sensors(
            source=self._sensor.source,
            seconds=seconds,
            energy=energy,
            power=energy / seconds if energy is not None and seconds > 0 else None,
            limit=self._sensor.limit,
            core=_range([r.core for r in seen]),
            memory=_range([r.memory for r in seen]),
            celsius=_course([r.celsius for r in seen]),
            throttled={reason: n / len(seen) for reason, n in reasons.most_common()},
        )


def _integral(spans: list[list[Reading]]) -> float | None:
    """Joules from readings of power, by trapezoids."""
    known = [[(r.at, r.power) for r in span if r.power is not None] for span in spans]
    if any(len(span) < 2 for span in known):
        return None
    return sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for span in known for a, b in pairwise(span))


def _range(values: list[float | None]) -> Range | None:
    known = [float(v) for v in values if v is not None]
    return Range(median=statistics.median(known), low=min(known), high=max(known)) if known else None


def _course(values: list[float | None]) -> Course | None:
    known = [float(v) for v in values if v is not None]
    return Course(first=known[0], last=known[-1], high=max(known)) if known else None
