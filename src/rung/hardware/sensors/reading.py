"""One look at a GPU's sensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Reading:
    """at: seconds of time.monotonic; energy: joules since some moment in the past, to be subtracted; power: watts (on
    recent GPUs a mean over about a second); core and memory: clocks in MHz; celsius: of the hottest spot that is
    reported; throttled: why the clocks are held down, in the vendor's words; used and total: bytes of device memory, of all
    processes together; busy and memory_busy: shares of the time, as the driver counts it. None where a GPU does not say."""

    at: float
    energy: float | None = None
    power: float | None = None
    core: float | None = None
    memory: float | None = None
    celsius: float | None = None
    throttled: tuple[str, ...] = ()
    used: int | None = None
    total: int | None = None
    busy: float | None = None
    memory_busy: float | None = None


def joules(before: Reading, after: Reading) -> float | None:
    """What a GPU took between two readings: by its energy counter, else by the power that it says at the end, which is of the time before.
    None where it says neither."""
    if before.energy is not None and after.energy is not None and after.energy > before.energy:
        return after.energy - before.energy
    return None if after.power is None else after.power * (after.at - before.at)


class Sensor(Protocol):
    """Sensors of one GPU. source: nvml, amdsmi, sysfs, amd-smi or rocm-smi; limit: the power limit in watts; bus: the PCI
    address, "0000:05:00.0", which tells the same GPU wherever it is counted; None where they are not known."""

    source: str
    limit: float | None
    bus: str | None

    def read(self) -> Reading:
        """Never raises: what cannot be read is None."""
        ...
