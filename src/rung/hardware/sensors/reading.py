"""One look at a GPU's sensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Reading:
    """at: seconds of time.monotonic; energy: joules since some moment in the past, to be subtracted; power: watts (on
    recent GPUs a mean over about a second); core and memory: clocks in MHz; celsius: of the hottest spot that is
    reported; throttled: why the clocks are held down, in the vendor's words. None where a GPU does not say."""

    at: float
    energy: float | None = None
    power: float | None = None
    core: float | None = None
    memory: float | None = None
    celsius: float | None = None
    throttled: tuple[str, ...] = ()


class Sensor(Protocol):
    """Sensors of one GPU. source: nvml, amdsmi or sysfs; limit: the power limit in watts, where there is one."""

    source: str
    limit: float | None

    def read(self) -> Reading:
        """Never raises: what cannot be read is None."""
        ...
