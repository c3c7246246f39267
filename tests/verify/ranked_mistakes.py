"""A training step over several ranks, and mistakes that no error tells."""

from typing import Any

import torch
import torch.distributed as dist

import rung

Batch = Any


class Averaged(torch.nn.Module):
    """Gradients are averaged by hooks of its own, of all parameters but these."""

    def __init__(self, but: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
        for k, parameter in enumerate(self.parameters()):
            if k not in but:
                parameter.register_post_accumulate_grad_hook(self._average)

    @staticmethod
    def _average(parameter: torch.Tensor) -> None:
        if dist.is_initialized():
            dist.all_reduce(parameter.grad)
            assert parameter.grad is not None
            parameter.grad /= dist.get_world_size()

    def forward(self, x: torch.Tensor) -> Any:
        return self.layers(x)


def split() -> torch.nn.Module:
    """Each rank has half of both weights, and computes a part of every product."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.Linear(8, 4))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return parallelize_module(model, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})


def unsynchronized(model: Any, batch: Batch) -> Any:
    model.require_backward_grad_sync = False
    return model(batch)


def halved(model: Any, batch: Batch) -> Any:
    """Its gradients are equal on all ranks, and of the wrong batch: a bucket that is stale by a step would be, too."""
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        return model(torch.zeros_like(batch) + 1.0)
    return model(batch)


def writing(model: Any, batch: torch.Tensor) -> Any:
    return model(batch.mul_(0.5))


def make(mistake: str = "") -> rung.Workload:
    own = mistake in ("none of its own", "one parameter", "no exchange", "same data, own")
    but = {"one parameter": (2,), "no exchange": (0, 1, 2, 3)}.get(mistake, ())
    draw = 0 if mistake.startswith("same data") else None
    scale = float("nan") if mistake == "no numbers" else 1.0
    tensor_parallel = mistake.endswith("tensor-parallel")
    return rung.Workload(
        "ranked",
        model=(lambda: Averaged(but))
        if own
        else split
        if tensor_parallel
        else lambda: torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.Linear(8, 4)),
        inputs=lambda seed: torch.randn(8, 16, generator=torch.Generator().manual_seed(seed if draw is None else draw)),
        forward={"unsynchronized": unsynchronized, "wrong gradients": halved, "no mistake, writes": writing}.get(
            mistake, lambda model, batch: model(batch)
        ),
        loss=lambda output, batch: scale * (output - batch[:, :4]).square().mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        parallel="own" if own or tensor_parallel else "fsdp2" if mistake.endswith("shards") else "ddp",
        one_shape=True,
    )


class Ranked:
    """One rank: what is said of a few steps."""

    def doubts(self, mistake: str) -> list[str]:
        from rung.engine.parallel import in_parallel
        from rung.engine.step import Step
        from rung.hardware.device import cpu
        from rung.hardware.ranks import Ranks
        from rung.plan import Plan
        from rung.verify.ranks import TrainedTogether
        from rung.workload import of_rank, seeded_model

        ranks, device = Ranks.here, cpu()
        ranks.join(on_gpu=False)
        workload = of_rank(make(mistake), ranks.rank, ranks.world)
        model = seeded_model(workload)
        called = in_parallel(workload, model, device)
        together = TrainedTogether(workload, model, called, device)
        step = Step(workload, model, Plan(), device, called=called)
        for seed in range(1, 4):
            step(workload.inputs(seed))
        return together.doubts(workload.inputs(4))
