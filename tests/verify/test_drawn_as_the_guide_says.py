"""docs/how-to/workload.md names ways to draw random numbers that are refused, and what to write instead: that is taken."""

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Categorical, Normal
from torch.nn import functional as F

from rung.errors import WorkloadError
from rung.hardware import pick
from rung.verify.audit import audit
from rung.workload import Workload

Draw = Callable[[torch.Tensor], torch.Tensor]


class Drawing(nn.Module):
    """What it gives is what it draws from logits, and the logits."""

    def __init__(self, draw: Draw) -> None:
        super().__init__()
        self.layer, self.draw = nn.Linear(8, 8), draw

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.layer(x)
        return logits, self.draw(logits)


def workload(draw: Draw) -> Workload:
    return Workload(
        name="drawing",
        model=lambda: Drawing(draw),
        inputs=lambda seed: {"x": torch.randn(64, 8, generator=torch.Generator().manual_seed(seed))},
        mode="infer",
    )


REFUSED: dict[str, tuple[Draw, str]] = {
    "normal": (lambda x: torch.normal(x, x.exp()), "depends on the weights"),
    "Normal": (lambda x: Normal(x, x.exp()).sample(), "depends on the weights"),
    "Categorical": (lambda x: Categorical(logits=x).sample(), "depends on the weights"),
    "multinomial": (lambda x: torch.multinomial(x.softmax(-1), 1), "depends on the weights"),
    "bernoulli": (lambda x: torch.bernoulli(x.sigmoid()), "depends on the weights"),
    "numpy": (lambda x: x * np.random.default_rng().uniform(), "differ"),
    "random": (lambda x: x * random.random(), "differ"),
}
TAKEN: dict[str, Draw] = {
    "normal": lambda x: x + x.exp() * torch.randn_like(x.exp()),
    "Categorical": lambda x: (x - torch.empty_like(x).exponential_().log()).argmax(-1),
    "bernoulli": lambda x: (torch.rand_like(x) < x.sigmoid()).to(x.dtype),
    "numpy": lambda x: x * torch.rand(()),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_guide_says_is_refused_is(name: str) -> None:
    draw, why = REFUSED[name]
    with pytest.raises(WorkloadError, match=why):
        audit(workload(draw), pick("cpu"), random=True)


@pytest.mark.parametrize("name", TAKEN)
def test_what_it_says_to_write_is_taken(name: str) -> None:
    audit(workload(TAKEN[name]), pick("cpu"), random=True)


def test_the_gumbel_max_trick_draws_as_a_categorical_distribution_does() -> None:
    logits = torch.tensor([0.0, 1.0, -1.0, 2.0])
    torch.manual_seed(0)
    drawn = TAKEN["Categorical"](logits.expand(100_000, 4))
    shares = F.one_hot(drawn, 4).double().mean(0)
    torch.testing.assert_close(shares, logits.double().softmax(-1), atol=0.01, rtol=0.0)
