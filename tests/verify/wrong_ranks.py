"""Steps of a rank that train another model than one process would on the batches of all ranks, and some that do not."""

from typing import Any

import torch
import torch.distributed as dist

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


class Verified:
    """One rank: what is found of a candidate."""

    def verify(self, numerics: str, mistake: str = "", parallel: str = "ddp", rungs: Any = ()) -> Any:
        from gloo_memory import gloo_shares

        from rung.hardware.device import cpu
        from rung.hardware.ranks import Ranks
        from rung.records.record import plain
        from rung.rungs import plan_of
        from rung.verify.over_ranks import step_of_rank, verify_over_ranks

        ranks, device = Ranks.here, cpu()
        ranks.join(on_gpu=False)
        workload = make(parallel)

        def build(model: Any, plan: Any) -> Any:
            return mistaken(step_of_rank(workload, model, plan, device), mistake)

        with gloo_shares(mistake):
            found = verify_over_ranks(workload, plan_of(rungs), device, numerics, build)  # type: ignore[arg-type]
        return {**plain(found.record()), "memory": {}}
