"""What is counted in a captured graph that no pass looks for."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from rung.rewrites import RewriteBackend


def counted(call: Callable[..., Any], *inputs: torch.Tensor) -> dict[str, int]:
    torch._dynamo.reset()
    backend = RewriteBackend([], "eager")
    torch.compile(call, backend=backend, dynamic=False, fullgraph=True)(*inputs)
    return backend.before


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(*shape)


@pytest.mark.parametrize(
    ("call", "inputs", "flop", "unaligned"),
    [
        (F.linear, (ones(2, 4, 16), ones(24, 16)), 2 * 8 * 16 * 24, 0),
        (F.linear, (ones(2, 4, 12), ones(24, 12)), 2 * 8 * 12 * 24, 1),
        (F.linear, (ones(3, 4, 16), ones(24, 16)), 2 * 12 * 16 * 24, 1),  # twelve rows
        (F.linear, (ones(8, 16), ones(10, 16)), 2 * 8 * 16 * 10, 1),
        (torch.matmul, (ones(3, 8, 16), ones(3, 16, 8)), 2 * 3 * 8 * 16 * 8, 0),
        (torch.matmul, (ones(3, 8, 9), ones(3, 9, 8)), 2 * 3 * 8 * 9 * 8, 1),
        (torch.matmul, (ones(8, 8), ones(3, 8, 16)), 2 * 3 * 8 * 8 * 16, 0),
        (torch.matmul, (ones(8, 3, 16), ones(16, 8)), 2 * 24 * 16 * 8, 0),  # eight times three rows meet one matrix
        (torch.matmul, (ones(8, 3, 16), ones(8, 16, 8)), 2 * 24 * 16 * 8, 1),
        (torch.addmm, (ones(8), ones(16, 8), ones(8, 8)), 2 * 16 * 8 * 8, 0),
        (torch.addmm, (ones(8), ones(16, 7), ones(7, 8)), 2 * 16 * 7 * 8, 1),
        (torch.baddbmm, (ones(2, 8, 8), ones(2, 8, 7), ones(2, 7, 8)), 2 * 2 * 8 * 7 * 8, 1),
        (lambda a, b: torch.mm(input=a, mat2=b), (ones(8, 9), ones(9, 8)), 2 * 8 * 9 * 8, 1),
        (torch.matmul, (ones(9), ones(9, 8)), 0, 0),  # no matrix
        (torch.matmul, (ones(3, 8, 9), ones(9)), 0, 0),
        (torch.matmul, (ones(0, 9), ones(9, 8)), 0, 0),
        (lambda a, b: torch.einsum("ij,jk->ik", a, b), (ones(9, 9), ones(9, 9)), 0, 0),
    ],
)
def test_operations_of_products_and_of_those_with_a_size_that_is_no_multiple_of_8(
    call: Any, inputs: tuple[torch.Tensor, ...], flop: int, unaligned: int
) -> None:
    found = counted(call, *inputs)
    assert found["gemm"] == 1
    assert found["gemm_flop"] == flop
    assert found["unaligned_flop"] == flop * unaligned
