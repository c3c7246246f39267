"""A simulated machine whose speed is a function of simulated time, so that the truth about two programs is known.

Every stream has one difficulty of real machines; `combined` has them all. A call takes 1 ms, a fresh process 0.2 s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy.signal import lfilter

CALL = 1e6  # ns
FRESH_PROCESS = 0.2  # s


@dataclass(frozen=True)
class Stream:
    """Sizes are log-standard deviations or shares; times are seconds."""

    jitter: float = 0.003
    spikes: float = 0.0  # share of the calls
    spike: float = 0.3  # mean of the exponential by which they are longer
    wander: float = 0.0  # Ornstein-Uhlenbeck, time constant 0.1 s
    clocks: float = 0.0  # distance of two clocks, exponential dwell of 0.3 s
    drift: float = 0.0  # approached with a time constant of 3 s of load
    layout: float = 0.0  # a factor for each process
    first: float = 1.0  # the first call of a process takes this many times as long
    ramp: float = 0.0  # decays over 40 calls


STREAMS = {
    "quiet": Stream(),
    "spiky": Stream(jitter=0.005, spikes=0.02),
    "autocorr": Stream(wander=0.01),
    "bimodal": Stream(clocks=0.05),
    "drift": Stream(drift=0.04),
    "layout": Stream(layout=0.01),
    "warmup": Stream(first=200.0, ramp=0.3),
    "combined": Stream(0.005, 0.01, 0.3, 0.005, 0.02, 0.02, 0.005, 50.0, 0.1),
}
WARM = {name: replace(s, first=1.0, ramp=0.0) for name, s in STREAMS.items()}


class Machine:
    """One machine, from cold. `process(factor)` starts a program on it."""

    def __init__(self, stream: Stream, seed: int) -> None:
        self.stream, self.random = stream, np.random.default_rng(seed)
        self.now = self.load = self.measured = 0.0  # seconds
        self._wander = self.random.normal(0, stream.wander) if stream.wander else 0.0
        self._fast = bool(self.random.random() < 0.5)
        self._until = float(self.random.exponential(0.3))

    def process(self, factor: float = 1.0) -> Process:
        self.now += FRESH_PROCESS
        luck = math.exp(self.random.normal(0, self.stream.layout)) if self.stream.layout else 1.0
        return Process(self, factor * luck)

    def speed(self, count: int) -> np.ndarray:
        """log of how much longer each of the next `count` calls takes because of the machine's state."""
        s, out = self.stream, np.zeros(count)
        step = CALL / 1e9
        if s.wander:
            keep = math.exp(-step / 0.1)
            noise = self.random.normal(0, s.wander * math.sqrt(1 - keep**2), count)
            path, _ = lfilter([1.0], [1.0, -keep], noise, zi=[keep * self._wander])
            self._wander = float(path[-1])
            out += path
        if s.clocks:
            times = self.now + step * np.arange(count)
            state = np.empty(count, dtype=bool)
            begin = 0
            while begin < count:
                end = int(np.searchsorted(times, self._until))
                state[begin:end] = self._fast
                begin = max(begin, end)
                if begin < count:
                    self._fast = not self._fast
                    self._until += float(self.random.exponential(0.3))
            out += np.where(state, 0.0, s.clocks)
        if s.drift:
            out += s.drift * (1 - np.exp(-(self.load + step * np.arange(count)) / 3.0))
        return out


@dataclass
class Process:
    machine: Machine
    factor: float
    calls: int = 0

    def run(self, count: int = 1) -> list[int]:
        """The nanoseconds of the next calls."""
        m, s = self.machine, self.machine.stream
        log = m.speed(count) + m.random.normal(0, s.jitter, count)
        times = CALL * self.factor * np.exp(log)
        if s.spikes:
            hit = m.random.random(count) < s.spikes
            times[hit] *= 1 + m.random.exponential(s.spike, int(hit.sum()))
        if s.ramp:
            times *= 1 + s.ramp * np.exp(-(self.calls + np.arange(count)) / 40)
        if self.calls == 0:
            times[0] *= s.first
        self.calls += count
        took = float(times.sum()) / 1e9
        m.now += took
        m.load += took
        m.measured += took
        return [int(t) for t in times]
