"""Which rank of a job this process is, and what the ranks tell each other. A process that no job started is alone."""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rung.errors import WorkloadError


@dataclass(frozen=True)
class Ranks:
    """rank: from 0 on; world: how many there are; local: the number on this host."""

    rank: int = 0
    world: int = 1
    local: int = 0

    here: ClassVar[Ranks]  # of this process; whoever starts a process as a rank sets it (rung.launch.rank)

    def join(self, on_gpu: bool) -> None:
        """Joins torch's process group, by MASTER_ADDR and MASTER_PORT of the environment: NCCL or RCCL between GPUs, gloo between CPUs.

        Raises WorkloadError where this torch cannot, or where the ranks do not meet.
        """
        import torch.distributed as dist

        if self.world == 1 or (dist.is_available() and dist.is_initialized()):
            return
        if not dist.is_available():
            raise WorkloadError("this torch was built without torch.distributed, so it cannot run several ranks.")
        try:
            dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo", rank=self.rank, world_size=self.world)
        except (RuntimeError, ValueError) as error:
            raise WorkloadError(f"rank {self.rank} could not join the others: {error}") from error
        if not on_gpu:
            atexit.register(_leave)

    def most(self, values: Sequence[float]) -> list[float]:
        """The largest of all ranks, element by element. Every rank has to ask."""
        if self.world == 1:
            return list(values)
        import torch
        import torch.distributed as dist

        shared = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(shared, dist.ReduceOp.MAX)
        return [float(value) for value in shared]

    def all(self, values: Sequence[float]) -> list[list[float]]:
        """The values of every rank, as many of each, in the order of the ranks. Every rank has to ask."""
        if self.world == 1:
            return [list(values)]
        import torch
        import torch.distributed as dist

        mine = torch.tensor(values, dtype=torch.float64)
        everywhere = [torch.empty_like(mine) for _ in range(self.world)]
        dist.all_gather(everywhere, mine)
        return [[float(value) for value in of_one] for of_one in everywhere]

    def meet(self) -> None:
        """Goes on once every rank is here. What a GPU was given may still run."""
        self.most([0.0])

    def device(self, wanted: str | None, gpus: int) -> str | None:
        """The name of this rank's own device. wanted: what the user asked for; gpus: how many this process sees.

        Raises WorkloadError where there is no GPU for this rank.
        """
        if self.world == 1 or wanted == "cpu" or (wanted is None and not gpus):
            return wanted
        if gpus == 1 or self.local < gpus:  # a launcher may show each rank its own GPU alone
            return f"cuda:{0 if gpus == 1 else self.local}"
        raise WorkloadError(
            f"rank {self.rank} has no GPU of its own: it is number {self.local + 1} on its host, which has {gpus} GPU{'s' * (gpus != 1)}; start "
            "fewer ranks a host, or add --device cpu."
        )


def _leave() -> None:
    """Ends gloo's threads while Python still runs: a tensor that one of them lets go later aborts the process (pytorch#179291). NCCL's
    groups stay, because ending one waits for every CUDA graph that it was recorded in."""
    import torch.distributed as dist

    if dist.is_initialized():
        with contextlib.suppress(RuntimeError):  # another rank has died
            dist.destroy_process_group()


Ranks.here = Ranks()
