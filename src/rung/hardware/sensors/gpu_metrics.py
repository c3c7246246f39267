"""The table of figures that an AMD GPU's controller keeps, `gpu_metrics` in /sys: energy, and what holds the clocks down.

Layouts by version: kgd_pp_interface.h of the amdgpu driver, gpu_metrics_v1_3 (MI200, Radeon) to v1_8 (MI300, MI350); bits
of the throttle status: amdgpu_smu.h.
"""

from __future__ import annotations

import struct

# Of v1_3: bits of indep_throttle_status.
BITS = {
    0x0000_0000_0000_00FF: "power cap",
    0x0000_0000_00FF_0000: "current",
    0x0000_0C3B_0000_0000: "temperature",
    0x0000_0004_0000_0000: "temperature of the memory",
    0x0000_33C0_0000_0000: "temperature of the voltage regulators",
    0x0000_C000_0000_0000: "temperature (processor hot)",
}
STATUS = 112  # where they are, in bytes
# From v1_6 on: for each reason, in this order, in how many of the controller's cycles it held the clocks down so far.
RESIDENCIES = ("temperature (processor hot)", "power cap", "temperature", "temperature of the voltage regulators",
               "temperature of the memory")  # fmt: skip
COUNTED = {(1, 6): 36, (1, 7): 44, (1, 8): 44}  # where they are
ENERGY = {(1, 4): 24, (1, 5): 88, (1, 6): 16, (1, 7): 24, (1, 8): 24}  # units of 2^-16 J
ABSENT_32, ABSENT_64 = 2**32 - 1, 2**64 - 1  # what the GPU does not count


class GpuMetrics:
    """One GPU's tables, read one after another: a count says that clocks were held down since the one before."""

    def __init__(self) -> None:
        self._before: tuple[int, ...] | None = None

    def read(self, table: bytes) -> tuple[float | None, tuple[str, ...]]:
        """Energy in joules since some moment, and the reasons; None and () of a table that is not known or not whole."""
        if len(table) < 4:
            return None, ()
        version = struct.unpack_from("<HBB", table)[1:]
        energy = self._energy(table, version)
        if version == (1, 3) and len(table) >= STATUS + 8:
            (status,) = struct.unpack_from("<Q", table, STATUS)
            return energy, () if status == ABSENT_64 else tuple(says for bits, says in BITS.items() if status & bits)
        return energy, self._since(table, version)

    def _energy(self, table: bytes, version: tuple[int, int]) -> float | None:
        at = ENERGY.get(version)
        if at is None or len(table) < at + 8:
            return None
        (counted,) = struct.unpack_from("<Q", table, at)
        return None if counted == ABSENT_64 else float(counted) / 2**16

    def _since(self, table: bytes, version: tuple[int, int]) -> tuple[str, ...]:
        at = COUNTED.get(version)
        if at is None or len(table) < at + 4 * len(RESIDENCIES):
            return ()
        now = struct.unpack_from(f"<{len(RESIDENCIES)}I", table, at)
        before, self._before = self._before or now, now
        return tuple(
            says
            for says, old, new in zip(RESIDENCIES, before, now, strict=True)
            if new != old and ABSENT_32 not in (old, new)
        )
