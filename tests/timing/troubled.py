"""Workloads that misbehave, each in one way or in several."""

import time
from collections.abc import Iterator

import torch
from torch import nn

import rung

kept: list[torch.Tensor] = []


class Counting(nn.Module):
    """Reads how often it was called, for which it is compiled each time."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.calls = nn.Linear(8, 8), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.linear(x) * self.calls


def counting() -> rung.Workload:
    return rung.Workload("counting", Counting, lambda seed: torch.randn(4, 8), steps=5)


def never_finite(mode: str = "train") -> rung.Workload:
    """A model whose results are no numbers, in training or in inference."""
    train = mode == "train"
    return rung.Workload(
        "never-finite",
        lambda: nn.Linear(4, 4),
        lambda seed: (
            torch.randn(3, 4, generator=torch.Generator().manual_seed(seed)) * (float("nan") if train else float("inf"))
        ),
        loss=(lambda output, batch: output.sum()) if train else None,
        optimizer=(lambda parameters: torch.optim.SGD(parameters, lr=0.0)) if train else None,
        steps=5,
    )


class Yields(nn.Module):
    """Works when its results are asked for, and nobody asks."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Iterator[torch.Tensor]:
        for _ in range(3):
            x = self.linear(x)
            yield x


def yields() -> rung.Workload:
    return rung.Workload("yields", Yields, lambda seed: torch.randn(3, 4))


class Leaky(nn.Module):
    """Keeps memory in every call, and is compiled anew every 100 calls. It mostly sleeps: a second then has about as many
    calls on every machine, and memory for all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.calls = nn.Linear(64, 64), 0
        self.scaled = torch.compile(lambda x, n: x * n, backend="eager", dynamic=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        time.sleep(0.005)
        kept.append(torch.ones(100_000, device=x.device))
        out: torch.Tensor = self.scaled(self.linear(x), 1 + self.calls // 100)
        return out


def leaky() -> rung.Workload:
    def inputs(seed: int) -> torch.Tensor:
        return torch.randn(16 + seed % 3 * 16, 64, generator=torch.Generator().manual_seed(seed))

    return rung.Workload("leaky", Leaky, inputs, other_shapes=(inputs,))


def grows() -> rung.Workload:
    """What it writes to its input is there the next time: it overflows after hundreds of steps."""
    return rung.Workload(
        "grows",
        torch.nn.Identity,
        lambda seed: torch.ones(4, 4) * (1 + seed),
        forward=lambda model, batch: model(batch.mul_(1.5)),
        one_shape=True,
    )
