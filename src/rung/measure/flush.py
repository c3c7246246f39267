"""Cold caches: what is written between two calls so that the second finds nothing of the first."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from rung.hardware import Device, peaks_of

TIMES = 2  # the cache's size once is not enough where its replacement is not strict; 2x to 20x agree on an H100
LEAST = 64 << 20  # bytes, where nothing is known of the caches


@dataclass(frozen=True)
class Flush:
    """Calling it writes `size` bytes on the device."""

    size: int
    write: Callable[[], object]

    def __call__(self) -> None:
        self.write()


def flush_for(device: Device) -> Flush:
    """Twice the last cache before the memory: of a GPU as peaks.toml has it (an MI300 reports its L2, not the 256 MiB
    behind it), or as the device reports it; of a CPU as the system does."""
    import torch

    size = max(LEAST, TIMES * last_level_cache(device))
    buffer = torch.empty(size // 4, dtype=torch.float32, device=device.torch_name)
    return Flush(size, buffer.zero_)


def last_level_cache(device: Device) -> int:
    """Bytes of the last cache before the memory; 0 where it is not known."""
    import torch

    if device.is_gpu:
        peaks = peaks_of(device)
        reported = getattr(torch.cuda.get_device_properties(device.index), "L2_cache_size", 0)
        return int(max(reported, (peaks.cache or 0) if peaks else 0))
    try:
        return max(0, os.sysconf("SC_LEVEL3_CACHE_SIZE"))
    except (ValueError, OSError):
        return 0
