"""Steps of a rank that train another model than one process would on the batches of all ranks, and some that do not."""

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives

import rung

Batch = Any
DDP = torch.nn.parallel.DistributedDataParallel


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(16, 16), norm(16), torch.nn.GELU())
            for norm in (torch.nn.BatchNorm1d, torch.nn.LayerNorm, torch.nn.LayerNorm)
        )
        self.last = torch.nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> Any:
        for layer in self.layers:
            x = layer(x)
        return self.last(x)


def make(parallel: Any = "ddp") -> rung.Workload:
    return rung.Workload(
        "ranked",
        model=Block,
        inputs=lambda seed: torch.randn(8, 16, generator=torch.Generator().manual_seed(seed)),
        loss=lambda output, batch: (output - batch[:, :4]).square().mean(),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
        parallel=parallel,
        one_shape=True,
    )


def writing(model: Any, batch: torch.Tensor) -> Any:
    return model(batch.mul_(0.5))


class Split(torch.nn.Sequential):
    """Where there are ranks, each has a part of every weight, and computes a part of every product."""

    def __init__(self) -> None:
        super().__init__(torch.nn.Linear(16, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
        if dist.is_initialized():
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

            mesh = init_device_mesh("cpu", (dist.get_world_size(),))
            parallelize_module(self, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def split() -> rung.Workload:
    """A tensor-parallel model, whose ranks take one batch."""

    def inputs(seed: int, rank: int = 0, world: int = 1) -> torch.Tensor:
        return torch.randn(8, 16, generator=torch.Generator().manual_seed(seed))

    return replace(make("own"), model=Split, inputs=inputs)


def stale() -> Any:
    """A hook of DistributedDataParallel that hands out what was exchanged in the step before."""
    before: dict[int, torch.Tensor] = {}

    def hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        now = bucket.buffer().clone()
        dist.all_reduce(now)
        now /= dist.get_world_size()
        future = torch.futures.Future[torch.Tensor]()
        future.set_result(before.get(bucket.index(), now))
        before[bucket.index()] = now
        return future

    return hook


def summed(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0])


def mistaken(step: Any, mistake: str) -> Any:
    """The step of a rank with a mistake in it."""
    called = step.step._called
    if mistake == "no all-reduce" and isinstance(called, DDP):
        called.require_backward_grad_sync = False
    elif mistake == "no all-reduce":
        called.set_requires_gradient_sync(False)
    elif mistake == "stale bucket":
        called.register_comm_hook(None, stale())
    elif mistake == "sum":
        called.register_comm_hook(None, summed)
    elif mistake == "one rank's raises" and dist.get_rank() == 1:

        def failing(batch: Batch) -> Any:
            raise ValueError("no step today")

        step.step._run = failing
    elif mistake == "unwritten input":
        run = step.step._run
        step.step._run = lambda batch: run(batch.clone())
    elif mistake == "same data":
        run = step.step._run
        step.step._run = lambda _: run(step.first)
        usual = type(step).__call__

        class First(type(step)):  # type: ignore[misc]
            def __call__(self, batches: Any) -> Any:
                self.first = batches[0]
                return usual(self, batches)

        step.__class__ = First
    return step


def mistaken_part(step: Any, mistake: str) -> Any:
    """The same of a tensor-parallel model."""
    usual, weight = type(step).__call__, step.model[0].weight

    class Unsummed(type(step)):  # type: ignore[misc]
        def __call__(self, batch: Batch) -> Any:
            with patch.object(_functional_collectives, "all_reduce", lambda tensor, *arguments, **options: tensor):
                return usual(self, batch)

    class Unstepped(type(step)):  # type: ignore[misc]
        def __call__(self, batch: Batch) -> Any:
            before = weight.detach().to_local().clone()
            result = usual(self, batch)
            if dist.get_rank() == 1:
                weight.detach().to_local().copy_(before)
            return result

    step.__class__ = {"unsummed": Unsummed, "unstepped part": Unstepped}.get(mistake, type(step))
    return step


class Verified:
    """One rank: what is found of a candidate."""

    def verify_parts(self, mistake: str = "", rungs: Any = ()) -> Any:
        """In full precision, of a tensor-parallel model."""
        from rung.hardware.device import cpu
        from rung.hardware.ranks import Ranks
        from rung.records.record import plain
        from rung.rungs import plan_of
        from rung.verify.over_ranks import step_of_parts, verify_over_ranks

        device, workload = cpu(), split()
        Ranks.here.join(on_gpu=False)

        def build(model: Any, plan: Any) -> Any:
            return mistaken_part(step_of_parts(workload, model, plan, device), mistake)

        return plain(verify_over_ranks(workload, plan_of(rungs), device, "exact", build).record())

    def verify(
        self,
        numerics: str,
        mistake: str = "",
        parallel: str = "ddp",
        rungs: Any = (),
        most: float | None = None,
        writes: bool = False,
    ) -> Any:
        """most: the norm that gradients are clipped to; writes: whether the forward writes to its batch."""
        from gloo_memory import gloo_shares

        from rung.hardware.device import cpu
        from rung.hardware.ranks import Ranks
        from rung.records.record import plain
        from rung.rungs import plan_of
        from rung.verify.over_ranks import step_of_rank, verify_over_ranks

        ranks, device = Ranks.here, cpu()
        ranks.join(on_gpu=False)
        workload = replace(make(parallel), max_grad_norm=most)
        if writes:
            workload = replace(workload, forward=writing)

        def build(model: Any, plan: Any) -> Any:
            return mistaken(step_of_rank(workload, model, plan, device), mistake)

        with gloo_shares(mistake):
            found = verify_over_ranks(workload, plan_of(rungs), device, numerics, build)  # type: ignore[arg-type]
        return {**plain(found.record()), "memory": {}}
