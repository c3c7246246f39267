"""Attention of one query to a cache against float64: groups, masks, parts, strides."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernel_agreement import TOLERANCE, error, launched, strided, tensor, wide

from rung import kernels
from rung.errors import UsageError
from rung.kernels import configs, reference

DTYPES = [torch.float32, torch.bfloat16]


def close(q, k, v, keep=None, scale=None):
    with torch.no_grad():
        found = kernels.decode_attention(q, k, v, keep, scale=scale)
        truth = reference.decode_attention(*map(wide, (q, k, v)), keep, scale=scale)
    assert found.dtype == q.dtype
    assert found.shape == truth.shape
    assert error(found, truth) <= TOLERANCE[q.dtype]


def drawn(batch, heads, kv_heads, length, dim, v_dim=None, dtype=torch.float32, device="cpu"):
    shapes = (batch, heads, 1, dim), (batch, kv_heads, length, dim), (batch, kv_heads, length, v_dim or dim)
    return [tensor(*shape, dtype=dtype, device=device, grad=False) for shape in shapes]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (20, 1)])
def test_attention_of_one_query_agrees_with_float64(heads: int, kv_heads: int, dtype: torch.dtype, device: str) -> None:
    q, k, v = drawn(2, heads, kv_heads, 130, 32, dtype=dtype, device=device)
    keep = torch.rand(2, 130, generator=torch.Generator().manual_seed(0)) < 0.6
    close(q, k, v)
    close(q, k, v, keep.to(device))
    close(q, k, v, keep[:1].to(device), scale=0.3)


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    length=st.integers(1, 200), dim=st.integers(1, 40), v_dim=st.integers(1, 40), group=st.integers(1, 5),
    kv_heads=st.integers(1, 3), seen=st.integers(0, 200),
)  # fmt: skip
def test_any_shape_of_a_cache(
    length: int, dim: int, v_dim: int, group: int, kv_heads: int, seen: int, device: str
) -> None:
    q, k, v = drawn(2, group * kv_heads, kv_heads, length, dim, v_dim, device=device)
    close(q, k, v, (torch.arange(length, device=device) < seen)[None])


def test_what_is_hidden_is_not_read(device: str) -> None:
    q, k, v = drawn(1, 4, 2, 256, 16, device=device)
    keep = torch.arange(256, device=device)[None] % 256 < 70
    right = kernels.decode_attention(q, k, v, keep)
    k[:, :, 70:] = v[:, :, 70:] = float("nan")
    assert torch.equal(kernels.decode_attention(q, k, v, keep), right)
    assert not kernels.decode_attention(q, k, v, torch.zeros_like(keep)).any()


def test_a_part_of_a_cache_is_read_where_it_lies(device: str) -> None:
    q, k, v = drawn(3, 4, 2, 80, 16, device=device)
    cache = tensor(5, 2, 100, 16, device=device, grad=False)
    close(q, cache[:3, :, :80], v.transpose(1, 2).contiguous().transpose(1, 2))
    close(strided("columns", q), strided("columns", k), strided("slice", v))
    keep = torch.ones(3, 160, dtype=torch.bool, device=device).tril(20)[:, ::2]
    close(q, k, v, keep)


def test_large_scores_overflow_nowhere(device: str) -> None:
    q, k, v = drawn(1, 2, 2, 130, 16, device=device)
    close(100 * q, 100 * k, v)


@pytest.mark.parametrize(("batch", "length"), [(2, 0), (0, 70), (0, 0)])
def test_an_empty_cache_and_no_sequences_are_what_torch_makes_of_them(batch: int, length: int, device: str) -> None:
    q, k, v = drawn(batch, 4, 2, length, 16, 8, device=device)
    found = kernels.decode_attention(q, k, v)
    assert torch.equal(found, torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True))
    assert torch.equal(found, kernels.decode_attention(q, k, v, torch.ones(1, length, dtype=torch.bool, device=device)))
    close(q, k, v)


@pytest.mark.parametrize("pairs", [1, 8, 128, 4096])
@pytest.mark.parametrize("length", [1, 64, 1000, 131072])
@pytest.mark.parametrize("exact", [False, True])
def test_the_parts_cover_all_keys_and_fill_the_gpu(pairs: int, length: int, exact: bool) -> None:
    config = configs.decoding(pairs, 4, length, 64, 64, 132, exact)
    parts = -(-length // config["per_part"])
    assert config["per_part"] % config["BLOCK"] == 0
    assert parts <= 128
    assert parts == 1 or pairs * (parts - 1) < 2 * 132


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_float32_is_launched_with_its_own_configuration(
    dtype: torch.dtype, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k, v = drawn(1, 4, 2, 70, 16, dtype=dtype, device=device)
    wanted = configs.decoding(2, 2, 70, 16, 16, configs.units(q.device), dtype == torch.float32)
    taken = launched(monkeypatch, "decoding")
    kernels.decode_attention(q, k, v)
    assert taken == [wanted]


def test_what_does_not_fit_is_refused(device: str) -> None:
    q, k, v = drawn(2, 4, 2, 10, 16, device=device)
    with pytest.raises(UsageError, match="do not fit"):
        kernels.decode_attention(q.expand(2, 4, 3, 16), k, v)
    with pytest.raises(UsageError, match="one dtype"):
        kernels.decode_attention(q, k.half(), v)
    with pytest.raises(UsageError, match="it is bool"):
        kernels.decode_attention(q, k, v, torch.ones(2, 10, device=device))
    with pytest.raises(UsageError, match="no gradient"):
        kernels.decode_attention(q.requires_grad_(), k, v)
