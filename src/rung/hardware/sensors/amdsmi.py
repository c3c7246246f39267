"""Sensors of an AMD GPU, through the amdsmi package that comes with ROCm."""

from __future__ import annotations

import time
from typing import Any

from rung.hardware.sensors.reading import Reading

# Power by generation: MI300 and later report the first, MI200 and Radeon the last; what a GPU lacks is "N/A".
POWER = ("current_socket_power", "socket_power", "average_socket_power")
VIOLATIONS = {
    "active_ppt_pwr": "power cap",
    "active_socket_thrm": "temperature",
    "active_hbm_thrm": "temperature of the memory",
    "active_vr_thrm": "temperature of the voltage regulators",
    "active_prochot_thrm": "temperature (processor hot)",
}


class AmdSmi:
    source = "amdsmi"

    def __init__(self, bus: str | None, index: int) -> None:
        """Raises whatever amdsmi raises where the library or the GPU is not there: a KeyError, too."""
        import amdsmi

        self._smi = amdsmi
        amdsmi.amdsmi_init()
        handles = amdsmi.amdsmi_get_processor_handles()
        # HIP_VISIBLE_DEVICES renumbers the GPUs for torch and not for amdsmi: the bus address names one in both.
        by_bus = {str(amdsmi.amdsmi_get_gpu_device_bdf(h)).lower(): h for h in handles} if bus else {}
        self._gpu = by_bus[bus.lower()] if bus else handles[index]
        self.bus: str | None = bus or self._ask("amdsmi_get_gpu_device_bdf")
        limit = _number(self._ask("amdsmi_get_power_info"), "power_limit")
        self.limit = limit / 1e6 if limit is not None and limit > 1e5 else limit  # W, and µW in some versions

    def _ask(self, name: str, *arguments: Any) -> Any:
        try:
            return getattr(self._smi, name)(self._gpu, *arguments)
        except Exception:  # AmdSmiException, or a name that this version does not have
            return None

    def read(self) -> Reading:
        power = self._ask("amdsmi_get_power_info")
        energy = self._ask("amdsmi_get_energy_count")
        violations = self._ask("amdsmi_get_violation_status") or {}
        activity, vram = self._ask("amdsmi_get_gpu_activity"), self._ask("amdsmi_get_gpu_vram_usage")
        used, total = (_number(vram, key) for key in ("vram_used", "vram_total"))  # MB of 2**20
        busy, memory_busy = (_number(activity, key) for key in ("gfx_activity", "umc_activity"))
        count, unit = _number(energy, "energy_accumulator", "power"), _number(energy, "counter_resolution")
        return Reading(
            time.monotonic(),
            count * unit / 1e6 if count is not None and unit is not None else None,  # counts of so many µJ
            _number(power, *POWER),
            self._clock("GFX"),
            self._clock("MEM"),
            self._celsius(),
            tuple(reason for key, reason in VIOLATIONS.items() if violations.get(key) in (True, 1, "ACTIVE")),
            int(used * 2**20) if used is not None else None,
            int(total * 2**20) if total is not None else None,
            busy / 100 if busy is not None else None,
            memory_busy / 100 if memory_busy is not None else None,
        )

    def _clock(self, kind: str) -> float | None:
        kinds = getattr(self._smi, "AmdSmiClkType", None)
        return _number(self._ask("amdsmi_get_clock_info", getattr(kinds, kind, None)), "clk", "cur_clk")

    def _celsius(self) -> float | None:
        types, metrics = (getattr(self._smi, n, None) for n in ("AmdSmiTemperatureType", "AmdSmiTemperatureMetric"))
        for spot in ("HOTSPOT", "JUNCTION", "EDGE"):
            found = self._ask("amdsmi_get_temp_metric", getattr(types, spot, None), getattr(metrics, "CURRENT", None))
            if isinstance(found, int | float):
                return float(found)
        return None


def _number(record: Any, *keys: str) -> float | None:
    """The first of these keys that holds a number: what is not supported holds "N/A"."""
    for key in keys:
        value = record.get(key) if isinstance(record, dict) else None
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
    return None
