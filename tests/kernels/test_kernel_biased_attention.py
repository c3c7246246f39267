"""Attention with a bias that learns against float64: sizes, broadcast biases, hidden keys, layouts, dtypes, what needs no gradient."""

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from kernel_agreement import agree, strided, tensor

from rung import kernels
from rung.errors import UsageError
from rung.kernels import configs, reference
from rung.kernels.families.biased_attention import REUSED

SMALL = {"BLOCK_M": 16, "BLOCK_N": 16, "num_warps": 4, "num_stages": 1}
# One block, all keys in one block, several blocks of keys: what sums the bias' gradient differs.
BLOCKS = {"one": (32, 32), "keys": (16, 32), "several": (16, 16)}


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the blocks for every kernel: the interpreter would take seconds for sequences that need several of the usual ones."""

    def choose(m: int, n: int) -> None:
        monkeypatch.setattr(configs, "biased_attention", lambda *_: {**SMALL, "BLOCK_M": m, "BLOCK_N": n})

    return choose


def drawn(
    batch: int, heads: int, m: int, n: int, dim: int, v_dim: int | None = None, dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> list[torch.Tensor]:  # fmt: skip
    shapes = (m, dim), (n, dim), (n, v_dim or dim)
    return [tensor(batch, heads, *shape, dtype=dtype, device=device) for shape in shapes]


def close(*inputs: Any, **more: Any) -> None:
    agree(kernels.biased_attention, reference.biased_attention, *inputs, **more)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("how", BLOCKS)
def test_results_and_gradients_agree_with_float64(how: str, dtype: torch.dtype, blocks: Any, device: str) -> None:
    blocks(*BLOCKS[how])
    q, k, v = drawn(5, 2, 27, 27, 16, dtype=dtype, device=device)
    close(q, k, v, tensor(1, 2, 27, 27, dtype=dtype, device=device), 0.3)


@pytest.mark.parametrize("how", BLOCKS)
@pytest.mark.parametrize("shape", [(3, 2), (1, 1), (3, 1)], ids=str)
def test_a_bias_is_broadcast_over_sequences_and_heads(
    shape: tuple[int, int], how: str, blocks: Any, device: str
) -> None:
    blocks(*BLOCKS[how])
    q, k, v = drawn(3, 2, 18, 29, 16, device=device)
    close(q, k, v, tensor(*shape, 18, 29, device=device))


def test_a_bias_for_each_query_or_each_key_alone(device: str) -> None:
    q, k, v = drawn(2, 2, 9, 12, 16, device=device)
    close(q, k, v, tensor(2, 1, 1, 12, device=device))
    close(q, k, v, tensor(1, 2, 9, 1, device=device))


@pytest.mark.parametrize("how", BLOCKS)
def test_infinite_biases_hide_keys_and_a_query_that_sees_none_gets_zeros(how: str, blocks: Any, device: str) -> None:
    blocks(*BLOCKS[how])
    q, k, v = drawn(REUSED, 2, 27, 27, 16, device=device)
    for heads in (1, REUSED):
        bias = tensor(heads, 2, 27, 27, device=device, grad=False)
        bias[:, :, :, :17] = float("-inf")  # a block of keys, for all queries
        bias[:, :, 3, 20:] = bias[:, :, 5] = bias[:, 1, 26] = float("-inf")
        close(q, k, v, bias.requires_grad_())
        out = kernels.biased_attention(q, k, v, bias)
        assert not out[:, :, 5].any()
        assert not torch.autograd.grad(out.sum(), q)[0][:, :, 5].any()


@pytest.mark.parametrize("wide", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_bias_has_a_dtype_of_its_own(wide: torch.dtype, device: str) -> None:
    q, k, v = drawn(2, 2, 20, 20, 16, dtype=torch.float16, device=device)
    close(
        q, k, v, tensor(1, 2, 20, 20, dtype=wide, device=device), tolerance=1.6e-2 if wide == torch.bfloat16 else None
    )
    close(
        q, k, v, tensor(2, 2, 20, 20, dtype=wide, device=device), tolerance=1.6e-2 if wide == torch.bfloat16 else None
    )


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(
    batch=5, heads=2, m=18, n=1, dim=1, v_dim=18, alike=False, shared=False, how="keys", learns=False, seed=0,
)  # fmt: skip
@given(
    batch=st.integers(1, 6), heads=st.integers(1, 3), m=st.integers(1, 40), n=st.integers(1, 40),
    dim=st.integers(1, 40), v_dim=st.integers(1, 40), alike=st.booleans(), shared=st.booleans(),
    how=st.sampled_from(sorted(BLOCKS)), learns=st.booleans(), seed=st.integers(0, 1000),
)  # fmt: skip
def test_any_shape(
    batch: int, heads: int, m: int, n: int, dim: int, v_dim: int, alike: bool, shared: bool, how: str, learns: bool,
    seed: int, blocks: Any, device: str,
) -> None:  # fmt: skip
    torch.manual_seed(seed)
    blocks(*BLOCKS[how])
    q, k, v = drawn(batch, heads, m, n, dim, v_dim, device=device)
    bias = tensor(1 if alike else batch, 1 if shared else heads, m, n, device=device, grad=learns)
    close(q, k, v, bias, 0.1, tolerance=1e-4)


@pytest.mark.parametrize(("length", "dim"), [(49, 32), (70, 64)])
def test_the_blocks_of_a_gpu_agree_too(length: int, dim: int, device: str) -> None:
    q, k, v = drawn(2, 1, length, length, dim, dtype=torch.float16, device=device)
    close(q, k, v, tensor(1, 1, length, length, dtype=torch.float16, device=device))


@pytest.mark.parametrize("kind", ["slice", "swapped", "columns"])
def test_tensors_are_read_where_they_lie(kind: str, device: str) -> None:
    for batch in (2, REUSED):
        q, k, v = (strided(kind, x) for x in drawn(batch, 2, 20, 20, 16, device=device))
        close(q, k, v, strided(kind, tensor(2 if batch == 2 else 1, 2, 20, 20, device=device)))


def test_heads_lie_inside_tokens_in_results(device: str) -> None:
    q, k, v = drawn(2, 3, 20, 20, 16, device=device)
    out = kernels.biased_attention(q, k, v, tensor(1, 3, 20, 20, device=device))
    for x in (out, *torch.autograd.grad(out.sum(), (q, k, v))):
        assert x.transpose(1, 2).is_contiguous()


def test_only_gradients_that_are_wanted_are_worked_out(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from rung.kernels.families import biased_attention

    q, k, v = drawn(2, 2, 20, 20, 16, device=device)
    bias = tensor(1, 2, 20, 20, device=device, grad=False)
    close(q, k, v, bias)
    monkeypatch.setattr(configs, "sequences", lambda *_: pytest.fail("the gradient of the bias was worked out"))
    kernels.biased_attention(q, k, v, bias).sum().backward()
    assert biased_attention._back_fake(q, q, k, v, bias, q, q, 1.0, 0.0, None, False)[3].numel() == 0


def test_large_scores_overflow_nowhere(device: str) -> None:
    q, k, v = drawn(2, 2, 20, 20, 16, device=device)
    close((100 * q).detach().requires_grad_(), k, v, tensor(1, 2, 20, 20, device=device), tolerance=1e-3)


def test_the_same_input_gives_the_same_bits(device: str) -> None:
    q, k, v = drawn(6, 2, 20, 20, 16, device=device)
    bias = tensor(1, 2, 20, 20, device=device)
    first, second = (torch.autograd.grad(kernels.biased_attention(q, k, v, bias).square().sum(), bias) for _ in "ab")
    assert torch.equal(first[0], second[0])


@pytest.mark.parametrize("batch", [1, 64, 1024])
@pytest.mark.parametrize("programs", [1, 48, 1000])
def test_sequences_are_shared_out_so_that_the_gpu_is_full(batch: int, programs: int) -> None:
    each = configs.sequences(batch, programs, 132, 32)
    splits = -(-batch // each)
    assert 1 <= each <= batch
    assert splits == batch or splits * programs >= 2 * 132
    assert configs.sequences(batch, programs, 132, 64) == 1


def test_what_does_not_fit_is_refused(device: str) -> None:
    q, k, v = drawn(2, 2, 10, 10, 16, device=device)
    bias = tensor(1, 2, 10, 10, device=device)
    with pytest.raises(UsageError, match="do not fit"):
        kernels.biased_attention(q, k[:, :1], v, bias)
    with pytest.raises(UsageError, match="at most 128"):
        kernels.biased_attention(q, k, v.repeat(1, 1, 1, 9), bias)
    with pytest.raises(UsageError, match="one dtype"):
        kernels.biased_attention(q, k.half(), v, bias)
    far = torch.empty(1, 1, 1, 16, device=device).expand(1, 1, 50000, 16)
    with pytest.raises(UsageError, match=r"50000 x 50000 scores; the kernels take fewer than 2\^31"):
        kernels.biased_attention(far, far, far, torch.empty(1, 1, 1, 1, device=device))
    with pytest.raises(UsageError, match="must broadcast"):
        kernels.biased_attention(q, k, v, bias[..., :9])
    with pytest.raises(UsageError, match="none in float64"):
        kernels.biased_attention(q.double(), k.double(), v.double(), bias.double())
