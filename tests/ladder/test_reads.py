"""What a step reads of its weights: what products read whole, and nothing that is looked up, routed around or not stepped."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rung.hardware import pick
from rung.ladder.reads import MemoryRead, memory_read
from rung.ladder.survey import survey
from rung.workload import Workload

TOKENS = torch.tensor([[1, 2, 3]])


def read(model: nn.Module, given: Any, gradients: bool = False) -> dict[str, int]:
    with torch.set_grad_enabled(gradients):
        found: dict[str, int] = memory_read(model.parameters(), lambda: model(given)).weights_read
    return found


class Language(nn.Module):
    """An embedding of 50 rows and a head of as many, which may be one."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(50, 16), nn.Linear(16, 50, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(F.layer_norm(self.embed(tokens), (16,)))


@pytest.mark.parametrize("tied", [False, True])
def test_a_table_counts_where_a_projection_reads_it(tied: bool) -> None:
    assert read(nn.Embedding(50, 16), TOKENS) == {}
    assert read(Language(tied), TOKENS) == {"4": 50 * 16}


class Routed(nn.Module):
    """Four experts, of which the first two are asked; the others are called with nothing, or not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(16, 16, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.experts[0](x) + self.experts[1](x) + self.experts[2](x[:0]).sum()


class Stacked(nn.Module):
    """The same in one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 16, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sum(x @ self.weight[k].T for k in (0, 1, 1))  # type: ignore[return-value]


@pytest.mark.parametrize("model", [Routed(), Stacked()], ids=["a list", "a stack"])
def test_of_experts_those_count_that_are_asked(model: nn.Module) -> None:
    assert read(model, torch.randn(3, 16)) == {"4": 2 * 16 * 16}


@pytest.mark.parametrize("gradients", [False, True])
def test_weights_are_known_behind_autocasts_copies_and_count_once_at_their_own_width(gradients: bool) -> None:
    shared = nn.Linear(16, 16)
    model = nn.Sequential(shared, nn.ReLU(), shared, nn.Linear(16, 8, bias=False).bfloat16())
    with torch.autocast("cpu", torch.bfloat16):
        found = read(model, torch.randn(3, 16), gradients)
    assert found["4"] in (16 * 16, 16 * 16 + 16)  # whether the bias is a part of the product is torch's choice
    assert found["2"] == 16 * 8


def test_a_step_that_cannot_be_followed_reads_nothing() -> None:
    def fails() -> None:
        raise RuntimeError("not like this")

    assert memory_read([torch.ones(2)], fails) == MemoryRead(weights_read={}, stepped_bytes=0)


def test_an_optimizer_moves_what_has_a_gradient_of_its_own_size() -> None:
    class Trained(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.sparse, self.frozen = nn.Embedding(50, 16, sparse=True), nn.Linear(16, 16, bias=False)
            self.last, self.unused = nn.Linear(16, 4, bias=False), nn.Linear(16, 64)
            self.frozen.requires_grad_(False)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.last(self.frozen(self.sparse(tokens))).tanh()

    workload = Workload(
        name="trained",
        model=Trained,
        inputs=lambda seed: torch.randint(50, (4, 3), generator=torch.Generator().manual_seed(seed)),
        loss=lambda output, batch: output.square().mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
    assert survey(workload, pick("cpu")).facts.stepped_bytes == 3 * 4 * 16 * 4


class Held:
    """An optimizer in another object: no torch.optim.Optimizer."""

    def __init__(self, held: torch.optim.Optimizer) -> None:
        self.step, self.zero_grad = held.step, held.zero_grad


@pytest.mark.parametrize(("known", "stepped"), [(True, 3 * 4 * (8 * 8 + 8)), (False, 0)])
def test_of_two_layers_with_gradients_that_counts_which_is_known_to_be_stepped(known: bool, stepped: int) -> None:
    def optimizer(parameters: Any) -> Any:
        first = torch.optim.SGD(list(parameters)[:2], lr=0.1)
        return first if known else Held(first)

    workload = Workload(
        name="half",
        model=lambda: nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)),
        inputs=lambda seed: torch.randn(2, 8, generator=torch.Generator().manual_seed(seed)),
        loss=lambda output, batch: output.square().mean(),
        optimizer=optimizer,
    )
    assert survey(workload, pick("cpu")).facts.stepped_bytes == stepped
