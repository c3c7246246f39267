"""Which outputs of a function are the same whatever its inputs."""

import pytest
import torch

from rung.hardware import pick
from rung.verify.timed_functions import TimedFunctions

TABLE = torch.arange(6.0)


def inputs(seed: int) -> tuple[torch.Tensor]:
    return (torch.randn(4, 6, generator=torch.Generator().manual_seed(seed)),)


@pytest.mark.parametrize(
    ("beside", "constant"),
    [
        (lambda x: TABLE, True),
        (lambda x: TABLE.to_sparse(), True),
        (lambda x: torch.full((3,), torch.nan), True),
        (lambda x: x.sum() * TABLE, False),
        (lambda x: (x.sum() * TABLE).to_sparse(), False),
    ],
    ids=["a table", "a sparse table", "not a number", "by the inputs", "sparse, by the inputs"],
)
def test_the_same_bits_on_all_inputs_are_constant_and_nothing_else(beside, constant) -> None:
    judge = TimedFunctions("f", lambda x: (x * 2, beside(x)), inputs, pick("cpu"))
    assert judge.constants([inputs(seed) for seed in range(3)]) == ({1} if constant else set())
