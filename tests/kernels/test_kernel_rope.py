"""Rotary embedding in both layouts against float64, and against what it means: a rotation."""

from functools import partial

import pytest
import torch
from kernel_agreement import agree, error, run, tensor, wide

from rung import kernels
from rung.errors import UsageError
from rung.kernels import reference

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]


def angles(tokens: int, half: int, device: str) -> torch.Tensor:
    return torch.outer(torch.arange(tokens), 100.0 ** -(torch.arange(half) / half)).to(device)


def both(interleaved: bool):
    return partial(kernels.rope, interleaved=interleaved), partial(reference.rope, interleaved=interleaved)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("full", [False, True], ids=["half-table", "full-table"])
@pytest.mark.parametrize("interleaved", [False, True], ids=["half-split", "interleaved"])
def test_rope_and_its_gradient_agree_with_float64(
    interleaved: bool, full: bool, dtype: torch.dtype, device: str
) -> None:
    # Random tables, the two halves unlike each other: nothing is assumed of them.
    cos, sin = (tensor(2, 7, 40 if full else 20, dtype=dtype, device=device, grad=False) for _ in range(2))
    agree(*both(interleaved), tensor(2, 3, 7, 40, dtype=dtype, device=device), cos, sin)


@pytest.mark.parametrize("interleaved", [False, True], ids=["half-split", "interleaved"])
def test_tables_may_have_another_dtype(interleaved: bool, device: str) -> None:
    cos, sin = (tensor(7, 20, device=device, grad=False) for _ in range(2))
    agree(*both(interleaved), tensor(2, 3, 7, 40, dtype=torch.float16, device=device), cos, sin)


@pytest.mark.parametrize("interleaved", [False, True], ids=["half-split", "interleaved"])
def test_no_less_precise_than_eager(interleaved: bool, device: str) -> None:
    """Root mean square error against float64: what is rounded once is not worse than what is rounded often.

    In float16: the interpreter does not round to bfloat16, it truncates.
    """
    x, *tables = (
        tensor(*s, dtype=torch.float16, device=device, grad=not k)
        for k, s in enumerate(((2, 3, 64, 40), (64, 40), (64, 40)))
    )
    ours, eager = both(interleaved)
    truth = run(eager, tuple(map(wide, (x, *tables))))
    for a, b, c in zip(run(ours, (x, *tables)), run(eager, (x, *tables)), truth, strict=True):
        assert (a.double() - c).square().mean() <= 1.05 * (b.double() - c).square().mean()


@pytest.mark.parametrize("interleaved", [False, True], ids=["half-split", "interleaved"])
def test_no_tokens(interleaved: bool, device: str) -> None:
    table = tensor(0, 8, device=device, grad=False)
    found = run(both(interleaved)[0], (tensor(2, 3, 0, 8, device=device), table, table))
    assert [tuple(t.shape) for t in found] == [(2, 3, 0, 8)] * 2


@pytest.mark.parametrize("interleaved", [False, True], ids=["half-split", "interleaved"])
def test_heads_inside_tokens_stay_there(interleaved: bool, device: str) -> None:
    """As q is after `view(b, t, h, d).transpose(1, 2)`, cut out of a fused projection."""
    fused = tensor(2, 7, 5, 16, device=device, grad=False)
    q = fused[:, :, 1:4].transpose(1, 2).requires_grad_()
    table = tensor(1, 7, 8, device=device, grad=False)
    agree(*both(interleaved), q, table, table.flip(-1))
    assert kernels.rope(q, table, table, interleaved=interleaved).transpose(1, 2).is_contiguous()


@pytest.mark.parametrize("shape", [(1, 1, 1, 2), (1, 33, 2, 6), (2, 2, 3, 256), (1, 40, 5, 96)], ids=str)
@pytest.mark.parametrize("interleaved", [False, True], ids=["half-split", "interleaved"])
def test_odd_sizes_of_heads(interleaved: bool, shape: tuple[int, ...], device: str) -> None:
    table = angles(shape[2], shape[3] // 2, device)
    agree(*both(interleaved), tensor(*shape, device=device), table.cos(), table.sin())


def test_rope_is_a_rotation_by_the_position(device: str) -> None:
    """q_m . k_n depends on m - n alone, and lengths stay."""
    table = angles(9, 16, device)
    q, k = (tensor(32, device=device, grad=False).expand(1, 1, 9, 32) for _ in range(2))
    for interleaved in (False, True):
        rq, rk = (kernels.rope(t, table.cos(), table.sin(), interleaved=interleaved)[0, 0] for t in (q, k))
        scores = (rq.double() @ rk.double().T).diagonal(1)
        assert error(scores, scores[:1].expand_as(scores)) < 1e-5
        assert error(rq.norm(dim=-1), q[0, 0].norm(dim=-1).double()) < 1e-5


def test_tables_that_do_not_fit_are_refused(device: str) -> None:
    x, table = tensor(1, 2, 4, 8, device=device), tensor(4, 8, device=device, grad=False)
    with pytest.raises(UsageError, match="even d"):
        kernels.rope(x[..., :7], table, table)
    with pytest.raises(UsageError, match=r"cos is float32 \(1, 3, 8\)"):
        kernels.rope(x, table[:3], table[:3])
    with pytest.raises(UsageError, match="sin requires a gradient"):
        kernels.rope(x, table, table.clone().requires_grad_())
    with pytest.raises(UsageError, match="cos is float64 and others are not"):
        kernels.rope(x, table.double(), table)
