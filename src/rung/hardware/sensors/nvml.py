"""Sensors of an NVIDIA GPU, through NVML (the package nvidia-ml-py)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rung.hardware.sensors.reading import Reading

# Bits of nvmlDeviceGetCurrentClocksEventReasons that hold clocks down (nvml.h); idle and application settings do not.
REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "temperature",
    0x40: "temperature (hardware)",
    0x80: "power brake",
}


class Nvml:
    source = "nvml"

    def __init__(self, uuid: str | None, bus: str | None, index: int) -> None:
        """Raises whatever pynvml raises where the library or the GPU is not there."""
        import pynvml

        self._nvml = pynvml
        pynvml.nvmlInit()
        if uuid:
            self._gpu = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        elif bus:
            self._gpu = pynvml.nvmlDeviceGetHandleByPciBusId(bus)
        else:
            self._gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
        pci = self._ask("nvmlDeviceGetPciInfo")
        self.bus: str | None = bus or (_bus(pci.busId) if pci is not None else None)
        limit = self._ask("nvmlDeviceGetEnforcedPowerLimit")
        self.limit = limit / 1e3 if limit is not None else None  # mW

    def _ask(self, name: str, *arguments: Any) -> Any:
        try:
            call: Callable[..., Any] = getattr(self._nvml, name)
            return call(self._gpu, *arguments)
        except (AttributeError, self._nvml.NVMLError):
            return None

    def _memory(self) -> Any:
        """As nvidia-smi counts it: the second form has what the driver keeps for itself apart (`reserved`), the first, of
        older drivers, has it among the used."""
        newer = getattr(self._nvml, "nvmlMemory_v2", None)
        found = self._ask("nvmlDeviceGetMemoryInfo", newer) if newer is not None else None
        return found if found is not None else self._ask("nvmlDeviceGetMemoryInfo")

    def _reasons(self) -> int:
        """Drivers before 535 have an older name for these."""
        found = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        return (self._ask("nvmlDeviceGetCurrentClocksThrottleReasons") if found is None else found) or 0

    def settings(self) -> tuple[dict[str, Any], dict[str, Any], list[str] | None]:
        """What stays as it is until somebody changes it, what changes by itself, in the words and units of `rung.hardware.state`, and the
        processes that compute on it; None where the driver does not say which."""
        nvml = self._nvml
        driver = nvml.nvmlSystemGetDriverVersion()
        persistence, mig = self._ask("nvmlDeviceGetPersistenceMode"), self._ask("nvmlDeviceGetMigMode")
        processes = self._ask("nvmlDeviceGetComputeRunningProcesses")
        settings = {
            "gpu_driver": driver.decode() if isinstance(driver, bytes) else driver,
            "gpu_power_cap": self.limit,
            "gpu_clock_most": self._ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM),
            "gpu_persistence": None if persistence is None else "Enabled" if persistence else "Disabled",
            "gpu_mig": None if mig is None else "Enabled" if mig[0] else "Disabled",
        }
        now = {
            "gpu_clock": self._ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
            "gpu_temperature": self._ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
        }
        return settings, now, None if processes is None else [str(process.pid) for process in processes]

    def read(self) -> Reading:
        energy = self._ask("nvmlDeviceGetTotalEnergyConsumption")  # mJ
        power = self._ask("nvmlDeviceGetPowerUsage")  # mW
        bits = self._reasons()
        memory, rates = self._memory(), self._ask("nvmlDeviceGetUtilizationRates")
        return Reading(
            time.monotonic(),
            energy / 1e3 if energy is not None else None,
            power / 1e3 if power is not None else None,
            self._ask("nvmlDeviceGetClockInfo", self._nvml.NVML_CLOCK_SM),
            self._ask("nvmlDeviceGetClockInfo", self._nvml.NVML_CLOCK_MEM),
            self._ask("nvmlDeviceGetTemperature", self._nvml.NVML_TEMPERATURE_GPU),
            tuple(reason for bit, reason in REASONS.items() if bits & bit),
            memory.used if memory is not None else None,
            memory.total if memory is not None else None,
            rates.gpu / 100 if rates is not None else None,
            rates.memory / 100 if rates is not None else None,
        )


def _bus(name: str | bytes) -> str:
    """NVML writes the domain with eight digits and in capitals: 00000000:1B:00.0."""
    text = name.decode() if isinstance(name, bytes) else name
    domain, _, rest = text.lower().partition(":")
    return f"{domain[-4:]}:{rest}"
