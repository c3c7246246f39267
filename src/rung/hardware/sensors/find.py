"""The sensors of the GPU that torch works on, found again from a process that has no torch."""

from __future__ import annotations

from typing import Any

from rung.hardware.device import Device
from rung.hardware.sensors.amdsmi import AmdSmi
from rung.hardware.sensors.nvml import Nvml
from rung.hardware.sensors.reading import Sensor
from rung.hardware.sensors.sysfs import Sysfs


def identity(device: Device) -> dict[str, Any] | None:
    """Plain values that name a GPU outside of torch, where visibility variables renumber; None for a CPU."""
    if not device.is_gpu:
        return None
    import torch

    p = torch.cuda.get_device_properties(device.index)
    uuid = str(getattr(p, "uuid", "")) if device.vendor == "nvidia" else ""
    # pci_bus_id and its kin came with torch 2.9
    numbers = [int(getattr(p, f"pci_{name}_id", -1)) for name in ("domain", "bus", "device")]
    return {
        "vendor": device.vendor,
        "uuid": f"GPU-{uuid.removeprefix('GPU-')}" if uuid else None,
        "bus": "{:04x}:{:02x}:{:02x}.0".format(*numbers) if min(numbers) >= 0 else None,
        "index": device.index,
    }


def sensor_for(gpu: dict[str, Any] | None) -> Sensor | None:
    """Of the GPU with this identity; None where nothing on this machine can read it."""
    if gpu is None:
        return None
    bus, index = gpu["bus"], gpu["index"]
    ways = {
        "nvidia": (lambda: Nvml(gpu["uuid"], bus, index),),
        "amd": (lambda: AmdSmi(bus, index), lambda: Sysfs(bus, index)),
    }
    for way in ways.get(gpu["vendor"], ()):
        try:
            return way()
        except Exception:  # no package, no library, no permission, no such GPU: each in a type of its own
            continue
    return None
