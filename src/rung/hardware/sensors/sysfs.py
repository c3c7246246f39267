"""Sensors of an AMD GPU, as the amdgpu driver shows them in /sys: no library and no rights are needed."""

from __future__ import annotations

import contextlib
import os
import re
import struct
import time
from pathlib import Path

from rung.hardware.sensors.reading import Reading

DRM = Path("/sys/class/drm")
AMD = "0x1002"  # PCI vendor
# Of v1_3 of gpu_metrics: bits of indep_throttle_status.
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
    """The tables of figures that a GPU's controller keeps, `gpu_metrics` in /sys (energy, and what holds the clocks down), read one after
    another: a count says that clocks were held down since the one before.

    Layouts by version: kgd_pp_interface.h of the amdgpu driver, gpu_metrics_v1_3 (MI200, Radeon) to v1_8 (MI300, MI350); bits of the
    throttle status: amdgpu_smu.h.
    """

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


class Sysfs:
    source = "sysfs"

    def __init__(self, bus: str | None, index: int, drm: Path = DRM) -> None:
        """Raises LookupError where there is no such GPU."""
        cards = sorted((p for p in drm.glob("card*") if p.name[4:].isdigit()), key=lambda p: int(p.name[4:]))
        amd = [card / "device" for card in cards if _Files(card / "device").text("vendor") == AMD]
        if bus:
            amd, index = [d for d in amd if d.resolve().name.lower() == bus.lower()], 0
        folder = amd[index]
        monitor = next(iter(sorted((folder / "hwmon").glob("hwmon*"))), None)
        self._device, self._hwmon = _Files(folder), _Files(monitor) if monitor else None
        self.bus: str | None = bus or folder.resolve().name
        self._metrics = GpuMetrics()
        self.limit = self._scaled("power1_cap", 1e6)

    def _scaled(self, name: str, unit: float) -> float | None:
        text = self._hwmon.text(name) if self._hwmon else ""
        return int(text) / unit if re.fullmatch(r"\d+", text) else None

    def _first(self, names: tuple[str, ...], unit: float) -> float | None:
        return next((v for v in (self._scaled(name, unit) for name in names) if v is not None), None)

    def read(self) -> Reading:
        counted = self._scaled("energy1_input", 1e6)  # µJ
        energy, throttled = self._metrics.read(self._device.data("gpu_metrics"))
        return Reading(
            time.monotonic(),
            counted if counted is not None else energy,
            self._first(("power1_input", "power1_average"), 1e6),  # µW: MI300 and later; MI200, Radeon
            self._first(("freq1_input",), 1e6) or self._current("pp_dpm_sclk"),  # Hz
            self._first(("freq2_input",), 1e6) or self._current("pp_dpm_mclk"),
            self._first(("temp2_input", "temp1_input"), 1e3),  # m°C: junction, edge
            throttled,
            self._whole("mem_info_vram_used"),
            self._whole("mem_info_vram_total"),
            self._percent("gpu_busy_percent"),
            self._percent("mem_busy_percent"),
        )

    def _whole(self, name: str) -> int | None:
        text = self._device.text(name)
        return int(text) if re.fullmatch(r"\d+", text) else None

    def _percent(self, name: str) -> float | None:
        found = self._whole(name)
        return found / 100 if found is not None else None

    def _current(self, name: str) -> float | None:
        """MHz of the level that is marked as the current one: `1: 2100Mhz *`."""
        found = re.search(r"(\d+)\s*mhz\s*\*", self._device.text(name), re.IGNORECASE)
        return float(found[1]) if found else None


class _Files:
    """Files of one folder, each opened once and read again and again: the driver answers anew at every read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[str, int | None] = {}

    def text(self, name: str) -> str:
        """The stripped text; "" where the file is not there, or the driver refuses just now."""
        return self.data(name).decode("ascii", "replace").strip()

    def data(self, name: str) -> bytes:
        """The first 4096 bytes, as they are."""
        if name not in self._open:
            try:
                self._open[name] = os.open(self._folder / name, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                self._open[name] = None
        file = self._open[name]
        if file is None:
            return b""
        try:
            return os.pread(file, 4096, 0)
        except OSError:
            return b""

    def __del__(self) -> None:
        for file in self._open.values():
            if file is not None:
                with contextlib.suppress(OSError):
                    os.close(file)
