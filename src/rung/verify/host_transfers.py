"""Tensors of a large model on their way between a GPU and the host's memory, through two small page-locked buffers.

Left to itself, CUDA copies to memory that is new to the process with one core, which also takes each page's first fault: 1.1 to 1.3 GB/s on a
host with an H200, and 6 GB/s the other way. The GPU fills one buffer while all cores empty the other: 8 to 16 GB/s
(benchmarks/measurement/host_copies.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import torch

CHUNK = 64 << 20  # bytes of a buffer
SMALL = 4 << 20  # bytes, up to which the buffers are not worth their waits


def to_host(t: torch.Tensor) -> torch.Tensor:
    """A copy in the host's memory, contiguous where the tensor is a large one of a GPU."""
    if not _through_buffers(t, t.device):
        return t.to("cpu", copy=True)
    source, made = t.contiguous(), torch.empty(t.shape, dtype=t.dtype)
    parts = zip(_chunks(source), _chunks(made), strict=True)
    began: list[tuple[torch.Tensor, torch.Tensor, torch.cuda.Event]] = []
    with torch.cuda.device(t.device):
        for (there, here), (buffer, free) in zip(parts, _in_turns(t.device.index), strict=False):
            if len(began) == 2:
                _arrived(*began.pop(0))
            locked = buffer[: there.numel()]
            locked.copy_(there, non_blocking=True)
            free.record()
            began.append((here, locked, free))
    for one in began:
        _arrived(*one)
    return made


def to_device(t: torch.Tensor, device: str) -> torch.Tensor:
    """The tensor on a device: itself where it is there."""
    where = torch.device(device)
    if t.device.type != "cpu" or not _through_buffers(t, where):
        return t.to(where)
    source, made = t.contiguous(), torch.empty(t.shape, dtype=t.dtype, device=where)
    parts = zip(_chunks(source), _chunks(made), strict=True)
    with torch.cuda.device(where):
        for (here, there), (buffer, free) in zip(parts, _in_turns(made.device.index), strict=False):
            locked = buffer[: here.numel()].copy_(here)
            there.copy_(locked, non_blocking=True)
            free.record()
    return made


def _through_buffers(t: torch.Tensor, gpu: torch.device) -> bool:
    return gpu.type == "cuda" and t.layout == torch.strided and t.nbytes > SMALL and bool(_buffers(_index(gpu)))


def _index(gpu: torch.device) -> int:
    return int(torch.cuda.current_device() if gpu.index is None else gpu.index)


def _chunks(t: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The bytes of a contiguous tensor, so many at a time as a buffer takes."""
    return tuple(t.view(-1).view(torch.uint8).split(CHUNK))


def _arrived(here: torch.Tensor, locked: torch.Tensor, event: torch.cuda.Event) -> None:
    event.synchronize()
    here.copy_(locked)


def _in_turns(index: int) -> Iterator[tuple[torch.Tensor, torch.cuda.Event]]:
    while True:
        for buffer, free in _buffers(index):
            free.synchronize()  # whatever the GPU did with it before
            yield buffer, free


@cache
def _buffers(index: int) -> tuple[tuple[torch.Tensor, torch.cuda.Event], ...]:
    """Two, each with the event after which it may be written to; none where the host locks no pages."""
    try:
        return tuple((torch.empty(CHUNK, dtype=torch.uint8, pin_memory=True), torch.cuda.Event()) for _ in range(2))
    except RuntimeError:
        return ()
