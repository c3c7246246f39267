"""Whether a recorded graph writes to memory beside its own, found by what its replays leave there.

A replay that writes nothing but its results can run while the host still checks the guards: what it computed for a model that has
changed is thrown away. Which addresses a kernel writes to cannot be read from a graph, so the memory is compared before and after.
"""

from __future__ import annotations

from typing import Any

import torch

CHUNK = 1 << 22  # 8-byte words that are summed at a time, which takes twice 32 MiB beside
# 2^64 over the golden ratio, as a signed number: weights that keep all 64 bits in use.
ODD = 0x9E3779B97F4A7C15 - (1 << 64)


class OutsideMemory:
    """All memory that torch has handed out on a GPU, but for a graph's own pool: weights, buffers, inputs, what others hold.

    graph: a recorded `torch.cuda.CUDAGraph`; index: of the GPU. What was handed out is listed once, here.
    """

    def __init__(self, graph: Any, index: int) -> None:
        self._index, own = index, tuple(graph.pool())
        self._runs: list[tuple[int, int]] = []
        self._before: tuple[torch.Tensor, int] | None = None
        try:
            segments = [segment for segment in torch.cuda.memory_snapshot() if segment["device"] == index]
        except RuntimeError:  # cudaMallocAsync, or an allocator of the user's, does not tell what it handed out
            return
        # Where this torch does not tell whose a segment is, the graph's results count as writes.
        outside = [segment for segment in segments if tuple(segment.get("segment_pool_id", ())) != own]
        self._runs = [run for segment in outside for run in in_use(segment)]
        self._before = self._now()

    def unchanged(self) -> bool:
        """Whether it holds what it held, and the GPU's generator has drawn nothing; False where that cannot be told. Waits for the GPU. A
        write of what was there already does not show."""
        after = self._now() if self._before else None
        if self._before is None or after is None:
            return False
        return self._before[1] == after[1] and torch.equal(self._before[0], after[0])

    def _now(self) -> tuple[torch.Tensor, int] | None:
        """A sum for each chunk, int64 [chunks], and the generator's offset; None where the GPU has no memory left for that."""
        where = torch.device("cuda", self._index)
        try:
            weights = torch.arange(1, CHUNK + 1, device=where, dtype=torch.int64).mul_(ODD)
            chunks = [words for run in self._runs for words in _words(*run, where).split(CHUNK)]
            sums = torch.stack([torch.zeros_like(weights[0]), *((w * weights[: len(w)]).sum() for w in chunks)])
        except torch.OutOfMemoryError:
            return None
        return sums, torch.cuda.default_generators[self._index].get_offset()


def in_use(segment: dict[str, Any]) -> list[tuple[int, int]]:
    """(address, bytes) of each run of neighbouring blocks that are in use, of a segment as `torch.cuda.memory_snapshot` gives it."""
    runs: list[tuple[int, int]] = []
    at = segment["address"]
    for block in segment["blocks"]:
        if block["state"] == "active_allocated":
            if runs and sum(runs[-1]) == at:
                runs[-1] = runs[-1][0], runs[-1][1] + block["size"]
            else:
                runs.append((at, block["size"]))
        at += block["size"]
    return runs


class _Memory:
    """Bytes at an address as int64 [bytes / 8]; blocks are multiples of 512 bytes."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size // 8,),
            "typestr": "<i8",
            "data": (address, False),
            "version": 2,
        }


def _words(address: int, size: int, where: torch.device) -> torch.Tensor:
    return torch.as_tensor(_Memory(address, size), device=where)
