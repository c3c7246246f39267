"""DistributedDataParallel's buckets of gradients, summed in a memory that all ranks share, in the place of an all-reduce by NCCL or RCCL."""

# DistributedDataParallel compares the annotations of a hook with types: here they are no texts.
import contextlib
from typing import Any, Protocol

import torch
import torch.distributed as dist

from rung.engine.symmetric_memory import shared_by_all_ranks


class SharedMemory(Protocol):
    """Where ranks put what is to be summed. dtypes: of what it can sum."""

    @property
    def dtypes(self) -> frozenset[torch.dtype]: ...

    def room(self, dtype: torch.dtype) -> torch.Tensor:
        """What this rank writes to, one-dimensional."""

    def sum(self, dtype: torch.dtype, count: int) -> torch.Tensor:
        """Over all ranks, of the first `count` elements of their rooms."""


class SummedBuckets:
    """A communication hook. Each bucket is divided by the number of ranks on its way into the memory, summed there and copied back, on a stream
    of its own, so that the rest of backward goes on meanwhile. A bucket that is larger than the memory goes through it in pieces. One of
    a dtype that the memory cannot sum takes torch's usual way.

    exchanged: the dtype in which gradients are summed, None for their own. count: how many buckets were summed so far."""

    def __init__(self, memory: SharedMemory, group: dist.ProcessGroup, exchanged: torch.dtype | None = None) -> None:
        self.exchanged, self.count = exchanged, 0
        self._memory, self._group = memory, group
        self._stream: torch.cuda.Stream | None = None

    def hook(self, state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        gradients = bucket.buffer()
        if (self.exchanged or gradients.dtype) not in self._memory.dtypes:
            return _all_reduced(self._group, bucket)
        self.count += 1
        done = torch.futures.Future[torch.Tensor](devices=[gradients.device] if gradients.is_cuda else [])
        with self._beside_backward(gradients):
            self._sum(gradients)
            done.set_result(gradients)  # of what was given to this stream so far: whoever waits for it, waits for that
        return done

    def _sum(self, gradients: torch.Tensor) -> None:
        """In place, over all ranks, divided by their number."""
        dtype = self.exchanged or gradients.dtype
        room = self._memory.room(dtype)
        for piece in gradients.split(room.numel()):
            torch.div(piece, self._group.size(), out=room[: piece.numel()])
            piece.copy_(self._memory.sum(dtype, piece.numel()))

    def _beside_backward(self, gradients: torch.Tensor) -> contextlib.AbstractContextManager[Any]:
        """Inside of it, work of a GPU follows what has computed these gradients, and runs beside what comes after them."""
        if not gradients.is_cuda:
            return contextlib.nullcontext()
        self._stream = self._stream or torch.cuda.Stream(gradients.device)
        self._stream.wait_stream(torch.cuda.current_stream(gradients.device))
        beside: contextlib.AbstractContextManager[Any] = torch.cuda.stream(self._stream)
        return beside


def sum_in_symmetric_memory(
    called: torch.nn.parallel.DistributedDataParallel, exchanged: torch.dtype | None = None
) -> None:
    """From now on this model's gradients are exchanged so. Every rank has to call it.

    Raises WorkloadError, in every rank, where one of them cannot share its memory.
    """
    group, device = called.process_group, next(called.parameters()).device
    called.register_comm_hook(None, SummedBuckets(shared_by_all_ranks(device, group), group, exchanged).hook)


def registered(called: torch.nn.parallel.DistributedDataParallel) -> SummedBuckets | None:
    """The hook of this model, if it has been given one."""
    owners = [
        getattr(hook, "__self__", None) for hook, _ in getattr(called, "_comm_hooks", ())
    ]  # torch tells nobody else
    return next((owner for owner in owners if isinstance(owner, SummedBuckets)), None)


def _all_reduced(group: dist.ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    found: torch.futures.Future[torch.Tensor] = allreduce_hook(group, bucket)
    return found
