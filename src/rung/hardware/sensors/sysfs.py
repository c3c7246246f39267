"""Sensors of an AMD GPU, as the amdgpu driver shows them in /sys: no library and no rights are needed."""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path

from rung.hardware.sensors.gpu_metrics import GpuMetrics
from rung.hardware.sensors.reading import Reading

DRM = Path("/sys/class/drm")
AMD = "0x1002"  # PCI vendor


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
