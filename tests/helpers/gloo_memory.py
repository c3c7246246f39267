"""What stands in for memory that GPUs share where there are none: each rank has memory of its own, and gloo sums."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
import torch.distributed as dist

from rung.engine import summed_buckets

BYTES = 1024  # less than the largest buckets of the tests


class GlooMemory:
    """mistake: `stale memory` hands out the sum before, `unawaited memory` what this rank has put there."""

    dtypes = frozenset({torch.float32, torch.bfloat16})

    def __init__(self, mistake: str = "") -> None:
        self._whole = torch.zeros(BYTES, dtype=torch.uint8)
        self._mistake = mistake
        self._before: torch.Tensor | None = None

    def room(self, dtype: torch.dtype) -> torch.Tensor:
        return self._whole.view(dtype)

    def sum(self, dtype: torch.dtype, count: int) -> torch.Tensor:
        part = self.room(dtype)[:count]
        own = part.clone()
        dist.all_reduce(part)
        if self._mistake == "unawaited memory":
            return own
        before, self._before = self._before, part.clone()
        if self._mistake == "stale memory" and before is not None and before.numel() >= count:
            return before[:count]
        return part


@contextmanager
def gloo_shares(mistake: str = "") -> Iterator[None]:
    """Models that are given the hook inside of it exchange their gradients so."""
    with patch.object(summed_buckets, "shared_by_all_ranks", lambda device, group: GlooMemory(mistake)):
        yield
