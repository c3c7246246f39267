"""A tensor-parallel model with sequence parallelism, which one process makes whole."""

from typing import Any

import torch
import torch.distributed as dist

import rung

WIDTH = 64


class MLP(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = torch.nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> Any:
        return self.down(self.up(x).relu())


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(MLP() for _ in range(2))

    def forward(self, x: torch.Tensor) -> Any:
        for block in self.blocks:
            x = x + block(x)
        return x


def split() -> torch.nn.Module:
    model = Net()
    if not dist.is_initialized():
        return model
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        PrepareModuleOutput,
        RowwiseParallel,
        parallelize_module,
    )

    kind = "cuda" if torch.cuda.device_count() >= dist.get_world_size() else "cpu"
    mesh = init_device_mesh(kind, (dist.get_world_size(),))
    gathered = PrepareModuleInput(input_layouts=(Shard(0),), desired_input_layouts=(Replicate(),))
    for block in model.to(kind).blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel(output_layouts=Shard(0))})
        parallelize_module(block, mesh, gathered)
    split_up = PrepareModuleInput(
        input_layouts=(Replicate(),), desired_input_layouts=(Shard(0),), use_local_output=True
    )
    parallelize_module(model, mesh, split_up)
    parallelize_module(
        model, mesh, PrepareModuleOutput(output_layouts=(Shard(0),), desired_output_layouts=(Replicate(),))
    )
    return model


def inputs(seed: int, rank: int = 0, world: int = 1) -> torch.Tensor:
    """The same for all ranks."""
    return torch.randn(32, WIDTH, generator=torch.Generator().manual_seed(seed))


def make() -> rung.Workload:
    return rung.Workload(
        "split",
        model=split,
        inputs=inputs,
        loss=lambda output, batch: (output - 2 * batch).square().mean(),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
        parallel="own",
        one_shape=True,
    )
