"""A tensor-parallel model with sequence parallelism, which one process makes whole: blocks of two products, split between the ranks.

rung bench benchmarks/ladder/split.py:make --nproc-per-node 2 --rungs compile --time 5
rung bench benchmarks/ladder/split.py:make --nproc-per-node 2 --rungs compile,async-tensor-parallel --time 5
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

import rung

BLOCKS = 2


class MLP(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = torch.nn.Linear(width, 4 * width, bias=False)
        self.down = torch.nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> Any:
        return self.down(self.up(x).relu())


class Net(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(MLP(width) for _ in range(BLOCKS))

    def forward(self, x: torch.Tensor) -> Any:
        for block in self.blocks:
            x = x + block(x)
        return x


def split(model: Net) -> torch.nn.Module:
    """The model, its weights and its activations between products shared out where there are ranks."""
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

    kind = "cuda" if "nccl" in dist.get_backend_config() else "cpu"
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


def make(width: int = 4096, rows: int = 16384, dtype: str = "bfloat16") -> rung.Workload:
    """width: of a block's input, whose inner layer has four times of it; rows: of a batch; dtype: of weights and inputs, by torch's name."""
    kind = getattr(torch, dtype)

    def inputs(seed: int, rank: int = 0, world: int = 1) -> torch.Tensor:
        """The same for all ranks."""
        return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)).to(kind)

    return rung.Workload(
        "split",
        model=lambda: split(Net(width).to(kind)),
        inputs=inputs,
        loss=lambda output, batch: (output - 2 * batch).square().mean(),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
        parallel="own",
        samples=rows,
        one_shape=True,
    )
