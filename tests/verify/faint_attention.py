"""Attention by hand whose keys have biases, in training: some of its gradients are rounding alone."""

from collections.abc import Callable

import torch
from torch import nn

from rung.workload import Workload

WIDTH = 32


class Attention(nn.Module):
    """No score depends on the key's bias: its gradient, a third of that of the joined bias, is rounding alone."""

    def __init__(self, joined: bool) -> None:
        super().__init__()
        self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.parts = nn.ModuleList(
            [nn.Linear(WIDTH, 3 * WIDTH)] if joined else [nn.Linear(WIDTH, WIDTH) for _ in "qkv"]
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = torch.cat([part(self.norm(x)) for part in self.parts], -1).chunk(3, -1)
        q, k, v = (t.unflatten(-1, (4, 8)).transpose(1, 2) for t in made)
        mixed = (q @ k.mT / 8**0.5).softmax(-1) @ v
        out: torch.Tensor = x + self.out(mixed.transpose(1, 2).flatten(2))
        return out


def workload(joined: bool = False) -> Workload:
    def inputs(tokens: int) -> Callable[[int], torch.Tensor]:
        return lambda seed: torch.randn(2, tokens, WIDTH, generator=torch.Generator().manual_seed(seed))

    return Workload(
        "attention", lambda: nn.Sequential(*(Attention(joined) for _ in range(3))), inputs(9), mode="train",
        loss=lambda y, _: (y * y.detach().sin()).mean(), optimizer=lambda p: torch.optim.AdamW(p, lr=1e-3),
        other_shapes=(inputs(7),),
    )  # fmt: skip
