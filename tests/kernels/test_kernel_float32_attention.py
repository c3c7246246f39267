"""Attention in float32 against float64: shapes, groups, layouts, lengths that no block divides. In TF32 it runs on a GPU alone."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernel_agreement import agree, strided, tensor


def attention(causal: bool, scale: float = 0.3, tf32: bool = False):
    from rung.kernels.families import float32_attention

    return lambda q, k, v: float32_attention.apply(q, k, v, causal, scale, tf32)[0]


def plain(causal: bool, scale: float = 0.3):
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        scores = q @ k.mT * scale
        if causal:
            scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), float("-inf"))
        return scores.softmax(-1) @ v

    return attend


def drawn(batch: int, heads: int, kv_heads: int, length: int, dim: int, device: str) -> list[torch.Tensor]:
    return [tensor(batch, n, length, dim, device=device) for n in (heads, kv_heads, kv_heads)]


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "open"])
@pytest.mark.parametrize("length", [3, 40, 128])
def test_results_and_gradients_agree_with_float64(length: int, causal: bool, device: str) -> None:
    batch, kv_heads = (2, 2) if length == 3 else (1, 1)  # an interpreter takes seconds for each
    agree(attention(causal), plain(causal), *drawn(batch, 2 * kv_heads, kv_heads, length, 64, device))


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    length=st.integers(2, 70), dim=st.sampled_from([64, 128]), group=st.integers(1, 3), kv_heads=st.integers(1, 2),
    causal=st.booleans(), scale=st.floats(0.01, 0.125), seed=st.integers(0, 1000),
)  # fmt: skip
def test_any_shape(
    length: int, dim: int, group: int, kv_heads: int, causal: bool, scale: float, seed: int, device: str
) -> None:
    """Where two keys get all the weight between them, gradients nearly cancel, and float32 keeps four digits of them."""
    torch.manual_seed(seed)  # so that an example fails again when it is tried again
    q, k, v = drawn(1, group * kv_heads, kv_heads, length, dim, device)
    agree(attention(causal, scale), plain(causal, scale), q, k, v, tolerance=2e-4)


@pytest.mark.parametrize("kind", ["slice", "swapped", "columns"])
def test_tensors_are_read_where_they_lie(kind: str, device: str) -> None:
    agree(attention(True), plain(True), *(strided(kind, x) for x in drawn(2, 2, 1, 40, 64, device)))


def test_a_result_lies_as_its_queries_do(device: str) -> None:
    """Tokens inside heads, or heads inside tokens, as a joined projection leaves them; so do the gradients."""
    for inside in (False, True):
        q, k, v = drawn(2, 2, 1, 20, 64, device)
        if inside:
            q, k, v = (x.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for x in (q, k, v))
        out = attention(True)(q, k, v)
        assert out.stride() == q.stride()
        slopes = torch.autograd.grad(out.square().sum(), (q, k, v))
        assert [g.stride() for g in slopes] == [x.stride() for x in (q, k, v)]


def test_large_scores_overflow_nowhere(device: str) -> None:
    q, k, v = drawn(1, 2, 2, 70, 64, device)
    agree(attention(True), plain(True), (100 * q).detach().requires_grad_(), k, v, tolerance=1e-3)


def test_what_the_mask_hides_is_not_read(device: str) -> None:
    q, k, v = (x.detach() for x in drawn(1, 1, 1, 200, 64, device))
    before = attention(True)(q, k, v)
    k[:, :, 130:], v[:, :, 130:] = 1e30, float("nan")
    torch.testing.assert_close(attention(True)(q, k, v)[:, :, :128], before[:, :, :128])


def test_what_is_traced_has_the_strides_that_a_run_has(device: str) -> None:
    from rung.kernels.families import float32_attention  # noqa: F401

    q, k, v = drawn(1, 2, 1, 20, 64, device)
    q = q.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
    tests = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(torch.ops.rung.float32_attention.default, (q, k, v, True, 0.3, False), test_utils=tests)


def test_in_tf32_it_errs_as_tf32_does(device: str) -> None:
    if device != "cuda" or torch.version.hip or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a GPU of sm90, whose TF32 products these are")
    for dim in (64, 128):
        agree(attention(True, tf32=True), plain(True), *drawn(2, 4, 2, 300, dim, device), tolerance=2e-2)
