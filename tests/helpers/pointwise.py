"""A workload that torch.compile fuses into one loop, and that nothing else makes much faster on a CPU."""

import torch
from torch import nn

from rung import Workload

torch.set_num_threads(1)  # two threads that wait for each other on a core that others use take a hundred times as long


class Chain(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for k in range(8):
            x = x * self.scale + torch.relu(x - 0.1 * k) * 0.5
        return x


def make(rows: int = 400, width: int = 256) -> Workload:
    def inputs(seed: int) -> torch.Tensor:
        return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)).clamp(-1, 1)

    return Workload(name="pointwise", model=lambda: Chain(width), inputs=inputs)
