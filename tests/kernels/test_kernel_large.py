"""More than 2^31 elements: offsets that 32 bits do not hold. Needs a GPU with memory for it."""

import pytest
import torch

from rung import kernels

ROWS, COLUMNS = (1 << 20) + 3, 2048  # 2^31 elements and three rows


@pytest.fixture
def huge(device: str) -> torch.Tensor:
    """(ROWS, COLUMNS) of float16, 4 GiB; the kernels need four times as much."""
    if device != "cuda":
        pytest.skip("needs a GPU")
    if torch.cuda.mem_get_info()[0] < 30 << 30:
        pytest.skip("needs 30 GiB of free memory on the GPU")
    x = torch.zeros(ROWS, COLUMNS, dtype=torch.float16, device="cuda")
    x[-3:] = torch.randn(3, COLUMNS)
    yield x
    del x
    torch.cuda.empty_cache()


def last(x: torch.Tensor) -> torch.Tensor:
    return x[-3:].detach().clone().requires_grad_()


def same(ours, small, x: torch.Tensor) -> None:
    """The last rows of a huge tensor fare as the same rows alone do, forward and backward."""
    x.requires_grad_()
    y, few = ours(x), last(x)
    expected = small(few)
    torch.testing.assert_close(y[-3:], expected)
    (dx,) = torch.autograd.grad(y, x, torch.ones_like(y))
    (d_few,) = torch.autograd.grad(expected, few, torch.ones_like(expected))
    torch.testing.assert_close(dx[-3:], d_few)


def test_rope_beyond_32_bits(huge: torch.Tensor) -> None:
    table = torch.randn(1, 64, device="cuda").expand(ROWS, 64)

    def turned(x: torch.Tensor) -> torch.Tensor:
        t = table[: x.shape[0]]
        return kernels.rope(x.view(1, -1, 16, 128).transpose(1, 2), t, t).transpose(1, 2).reshape(x.shape)

    same(turned, turned, huge)


def test_cross_entropy_beyond_32_bits(huge: torch.Tensor) -> None:
    target = torch.arange(ROWS, device="cuda") % COLUMNS

    def loss(x: torch.Tensor) -> torch.Tensor:
        return kernels.cross_entropy(x, target[-x.shape[0] :], reduction="none")

    same(loss, loss, huge)


def test_biased_attention_beyond_32_bits(huge: torch.Tensor) -> None:
    k, v, bias = (torch.randn(1, 1, 32, n, dtype=torch.float16, device="cuda") for n in (64, 64, 32))

    def attended(x: torch.Tensor) -> torch.Tensor:
        q = x.view(-1, 1, 32, 64)
        return kernels.biased_attention(q, *(t.expand(q.shape) for t in (k, v)), bias).reshape(x.shape)

    same(attended, attended, huge)
