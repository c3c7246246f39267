"""Sensors of an AMD GPU, as the amdgpu driver shows them in /sys: no library and no rights are needed."""

from __future__ import annotations

import re
import time
from pathlib import Path

from rung.hardware.sensors.reading import Reading

DRM = Path("/sys/class/drm")
AMD = "0x1002"  # PCI vendor


class Sysfs:
    source = "sysfs"

    def __init__(self, bus: str | None, index: int, drm: Path = DRM) -> None:
        """Raises LookupError where there is no such GPU."""
        cards = sorted((p for p in drm.glob("card*") if p.name[4:].isdigit()), key=lambda p: int(p.name[4:]))
        amd = [card / "device" for card in cards if _text(card / "device" / "vendor") == AMD]
        if bus:
            amd, index = [d for d in amd if d.resolve().name.lower() == bus.lower()], 0
        self._device = amd[index]
        self.bus: str | None = bus or self._device.resolve().name
        self._hwmon = next(iter(sorted((self._device / "hwmon").glob("hwmon*"))), None)
        self.limit = self._scaled("power1_cap", 1e6)

    def _scaled(self, name: str, unit: float) -> float | None:
        text = _text(self._hwmon / name) if self._hwmon else ""
        return int(text) / unit if re.fullmatch(r"\d+", text) else None

    def _first(self, names: tuple[str, ...], unit: float) -> float | None:
        return next((v for v in (self._scaled(name, unit) for name in names) if v is not None), None)

    def read(self) -> Reading:
        return Reading(
            time.monotonic(),
            self._scaled("energy1_input", 1e6),  # µJ
            self._first(("power1_input", "power1_average"), 1e6),  # µW: MI300 and later; MI200, Radeon
            self._first(("freq1_input",), 1e6) or self._current("pp_dpm_sclk"),  # Hz
            self._first(("freq2_input",), 1e6) or self._current("pp_dpm_mclk"),
            self._first(("temp2_input", "temp1_input"), 1e3),  # m°C: junction, edge
            (),
            self._whole("mem_info_vram_used"),
            self._whole("mem_info_vram_total"),
            self._percent("gpu_busy_percent"),
            self._percent("mem_busy_percent"),
        )

    def _whole(self, name: str) -> int | None:
        text = _text(self._device / name)
        return int(text) if re.fullmatch(r"\d+", text) else None

    def _percent(self, name: str) -> float | None:
        found = self._whole(name)
        return found / 100 if found is not None else None

    def _current(self, name: str) -> float | None:
        """MHz of the level that is marked as the current one: `1: 2100Mhz *`."""
        found = re.search(r"(\d+)\s*mhz\s*\*", _text(self._device / name), re.IGNORECASE)
        return float(found[1]) if found else None


def _text(path: Path) -> str:
    try:
        return path.read_text("ascii", "replace").strip()
    except OSError:
        return ""
