"""The sensors of the GPU that torch works on, found again from a process that has no torch."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

from rung.hardware.device import Device
from rung.hardware.sensors.amdsmi import AmdSmi
from rung.hardware.sensors.commands import AmdSmiCommand, RocmSmiCommand
from rung.hardware.sensors.kfd import bus_of
from rung.hardware.sensors.nvml import Nvml
from rung.hardware.sensors.reading import Sensor
from rung.hardware.sensors.sysfs import Sysfs


def identity(device: Device) -> dict[str, Any] | None:
    """Plain values that name a GPU outside of torch, which numbers only those that it is shown; None for a CPU.

    vendor; uuid, of NVIDIA alone, and bus, the PCI address, each None where it is not known.
    """
    if not device.is_gpu:
        return None
    import torch

    p = torch.cuda.get_device_properties(device.index)
    uuid = str(getattr(p, "uuid", "")) if device.vendor == "nvidia" else ""
    # pci_bus_id and its kin came with torch 2.9
    numbers = [int(getattr(p, f"pci_{name}_id", -1)) for name in ("domain", "bus", "device")]
    bus = "{:04x}:{:02x}:{:02x}.0".format(*numbers) if min(numbers) >= 0 else None
    if bus is None and device.vendor == "amd":
        bus = bus_of(device.index, torch.cuda.device_count(), os.environ)
    return {
        "vendor": device.vendor,
        "uuid": f"GPU-{uuid.removeprefix('GPU-')}" if uuid else None,
        "bus": bus,
    }


def sensor_for(gpu: dict[str, Any] | None) -> Sensor | None:
    """Of the GPU with this identity; None where nothing on this machine can read it, or where it is not known which it is."""
    if gpu is None or not (gpu["uuid"] or gpu["bus"]):
        return None
    bus, unused = gpu["bus"], 0  # a number says which GPU it is only where there is no address
    if gpu["vendor"] == "nvidia":
        return _made(lambda: Nvml(gpu["uuid"], bus, unused))
    ways = _AMD if gpu["vendor"] == "amd" else ()
    blind = None  # there, and without power: as in a container that lacks part of /sys
    for way in ways:
        sensor = _made(partial(way, bus, unused))
        if sensor and sensor.read().power is not None:
            return sensor
        blind = blind or sensor
    return blind


def sensors_here() -> list[Sensor]:
    """Of every GPU of the machine, as the vendors' tools number them, whatever is visible to torch."""
    nvidia = _all(lambda index: Nvml(None, None, index))
    blind: list[Sensor] = []
    for way in _AMD:
        found = _all(partial(way, None))
        if any(sensor.read().power is not None for sensor in found):
            return nvidia + found
        blind = blind or found
    return nvidia + blind


_MOST = 256  # GPUs of a machine
# The package reads most, the driver's files need nothing, a command takes long.
_AMD: tuple[Callable[[str | None, int], Sensor], ...] = (AmdSmi, Sysfs, AmdSmiCommand, RocmSmiCommand)


def _made(make: Callable[[], Sensor]) -> Sensor | None:
    try:
        return make()
    except Exception:  # no package, no library, no permission, no such GPU: each in a type of its own
        return None


def _all(make: Callable[[int], Sensor]) -> list[Sensor]:
    found: list[Sensor] = []
    while len(found) < _MOST and (sensor := _made(partial(make, len(found)))):
        found.append(sensor)
    return found
