"""Other GPUs of this host than the one that is timed: which are idle, and how a process is shown one of them alone."""

from __future__ import annotations

from collections.abc import Mapping

from rung.hardware.device import Device

IDLE_BYTES = 1 << 30  # of an idle GPU: contexts of monitors and display servers
# By vendor, variables that number the GPUs which a process sees; the first that is set is the one that counts.
SHOWN = {"nvidia": ("CUDA_VISIBLE_DEVICES",), "amd": ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")}


def idle_like(device: Device) -> list[int]:
    """The numbers, as torch counts, of GPUs of the same kind that nobody uses now; the device itself is none of them."""
    import torch

    if not device.is_gpu:
        return []
    return [
        index
        for index in range(torch.cuda.device_count())
        if index != device.index and torch.cuda.get_device_name(index) == device.name and _used(index) < IDLE_BYTES
    ]


def _used(index: int) -> int:
    """Bytes of a GPU that are in use, by whom ever."""
    import torch

    try:
        return int(torch.cuda.device_memory_used(index))  # without a context of its own there
    except Exception:  # an older torch, or no library that tells
        free, total = torch.cuda.mem_get_info(index)
        return int(total - free)


def shown_alone(index: int, vendor: str, variables: Mapping[str, str]) -> dict[str, str]:
    """The variables by which a process sees one GPU alone, as its first: what is compiled for a GPU holds its number. index: as torch counts
    now; variables: that are set now, which may show a part of the GPUs already."""
    names = SHOWN.get(vendor, SHOWN["nvidia"])
    name = next((name for name in names if variables.get(name)), names[0])
    shown = [number.strip() for number in variables.get(name, "").split(",") if number.strip()]
    return {name: shown[index] if index < len(shown) else str(index)}
