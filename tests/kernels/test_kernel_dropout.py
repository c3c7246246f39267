"""Dropout of attention weights: the kernels draw the mask of the reference, whatever their blocks, and the mask is random."""

from typing import Any

import pytest
import torch
from kernel_agreement import HAS_TRITON, agree, tensor

from rung import kernels
from rung.errors import UsageError
from rung.kernels import configs, dropout, reference

SMALL = {"num_warps": 4, "num_stages": 1}
# One block, all keys in one block, several blocks of keys; the last two are other parts of a cell of 16 x 32 weights.
BLOCKS = {"one": (64, 64), "keys": (16, 64), "several": (16, 16), "wide": (32, 16)}


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> Any:
    def choose(m: int, n: int) -> None:
        monkeypatch.setattr(configs, "biased_attention", lambda *_: {**SMALL, "BLOCK_M": m, "BLOCK_N": n})

    return choose


def close(p: float, *inputs: Any, device: str, **more: Any) -> None:
    seed = torch.tensor([-(1 << 61) - 7], device=device)  # both halves count

    def with_dropout(fn: Any) -> Any:
        return lambda *given: fn(*given, dropout_p=p, seed=seed)

    agree(with_dropout(kernels.biased_attention), with_dropout(reference.biased_attention), *inputs, **more)


@pytest.mark.parametrize(
    ("how", "dtype"),
    [*((how, torch.float32) for how in BLOCKS), ("several", torch.float16), ("several", torch.bfloat16)],
)
def test_results_and_gradients_agree_with_float64_by_the_same_mask(
    how: str, dtype: torch.dtype, blocks: Any, device: str
) -> None:
    blocks(*BLOCKS[how])
    tolerance = 2.4e-2 if dtype == torch.bfloat16 else None  # the interpreter's casts truncate
    for of, p in ((3, 0.3), (1, 0.1)):  # a bias for each sequence, and one whose gradient a program sums
        q, k, v = (tensor(3, 2, length, 16, dtype=dtype, device=device) for length in (37, 45, 45))
        bias = tensor(of, 2, 37, 45, dtype=dtype, device=device)
        close(p, q, k, v, bias, 0.3, device=device, tolerance=tolerance)


@pytest.mark.parametrize(("length", "dim"), [(49, 32), (130, 64)])
def test_the_blocks_of_a_gpu_draw_the_same_mask(length: int, dim: int, device: str) -> None:
    q, k, v = (tensor(2, 1, length, dim, dtype=torch.float16, device=device) for _ in "qkv")
    close(0.2, q, k, v, tensor(2, 1, length, length, dtype=torch.float16, device=device), device=device)


@pytest.mark.parametrize("how", BLOCKS)
def test_a_query_that_sees_no_key_gets_zeros(how: str, blocks: Any, device: str) -> None:
    blocks(*BLOCKS[how])
    q, k, v = (tensor(2, 2, 20, 16, device=device) for _ in "qkv")
    bias = tensor(2, 2, 20, 20, device=device, grad=False)
    bias[:, :, :, :17] = bias[:, :, 5] = float("-inf")
    close(0.3, q, k, v, bias.requires_grad_(), device=device)


@pytest.mark.parametrize("how", BLOCKS)
def test_where_all_is_dropped_results_and_gradients_are_zeros(how: str, blocks: Any, device: str) -> None:
    blocks(*BLOCKS[how])
    inputs = [tensor(2, 2, 20, 16, device=device) for _ in "qkv"] + [tensor(2, 2, 20, 20, device=device)]
    out = kernels.biased_attention(*inputs, dropout_p=1.0)
    for x in (out, *torch.autograd.grad(out.sum(), inputs)):
        assert not x.any()


def weights(p: float, **more: Any) -> torch.Tensor:
    """What is left of equal weights."""
    device = more.pop("device")
    q, bias = torch.zeros(2, 3, 64, 16, device=device), torch.zeros(1, 1, 64, 64, device=device)
    v = torch.eye(64, device=device).expand(2, 3, 64, 64)
    return kernels.biased_attention(q, q, v, bias, dropout_p=p, **more) * 64


def test_torchs_generator_draws_the_seed_that_is_not_given(device: str) -> None:
    torch.manual_seed(5)
    first, second = weights(0.5, device=device), weights(0.5, device=device)
    torch.manual_seed(5)
    assert torch.equal(weights(0.5, device=device), first)
    assert 0.4 < (first == second).float().mean() < 0.6


def test_what_is_kept_is_divided_by_its_probability(device: str) -> None:
    left = weights(0.3, device=device)
    kept = left[left > 0]
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / dropout.keep_probability(0.3)))
    assert abs(dropout.keep_probability(0.3) - 0.7) <= 2**-17
    assert torch.equal(weights(2**-20, device=device), torch.ones_like(left))  # less than half a step


def test_wrong_seeds_and_rates_are_refused(device: str) -> None:
    for p in (-0.1, 1.1):
        with pytest.raises(UsageError, match="between 0 and 1"):
            weights(p, device=device)
    for seed in (torch.zeros(1), torch.zeros(2, dtype=torch.int64)):
        with pytest.raises(UsageError, match="int64, of one element"):
            weights(0.1, seed=seed.to(device), device=device)


def test_a_replayed_graph_draws_other_masks(device: str) -> None:
    if device != "cuda":
        pytest.skip("needs a GPU")
    weights(0.5, device=device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = weights(0.5, device=device)
    seen = []
    for _ in range(3):
        graph.replay()
        seen.append(found > 0)
    for one, other in ((0, 1), (1, 2), (0, 2)):
        assert 0.4 < (seen[one] == seen[other]).float().mean() < 0.6
    torch.testing.assert_close(torch.stack(seen).float().mean().item(), 0.5, atol=0.03, rtol=0)


@pytest.mark.parametrize(
    ("counter", "key", "rounds", "words"),
    [
        (0, 0, 10, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        (0xFFFFFFFF, 0xFFFFFFFF, 10, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (0, 0, 7, "5f6fb709 0d893f64 4f121f81 4f730a48"),
    ],
)
def test_philox_gives_the_words_of_random123(counter: int, key: int, rounds: int, words: str) -> None:
    c, k = torch.tensor(counter), torch.tensor(key)
    assert " ".join(f"{int(word):08x}" for word in dropout.philox((c, c, c, c), k, k, rounds)) == words


SHAPE = (4, 6, 128, 160)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_as_many_are_kept_as_should_be(p: float) -> None:
    """Of all, and of each sequence and head, row and key: as many standard deviations off as chance has it."""
    kept = dropout.keep_mask(torch.tensor([99]), SHAPE, p).double() - (1 - p)
    for axes, most in (((0, 1, 2, 3), 4.0), ((2, 3), 4.5), ((0, 1, 3), 4.5), ((0, 1, 2), 4.5), ((3,), 5.5)):
        count = torch.tensor([SHAPE[axis] for axis in axes]).prod()
        off = kept.mean(axes) / (p * (1 - p) / count).sqrt()
        assert off.abs().max() < most, axes


def test_numbers_of_a_word_a_call_and_of_neighbours_are_independent() -> None:
    """The mask beside itself, moved: within a cell, to the next row, key, head and sequence; and beside that of the next seed."""
    mask = dropout.keep_mask(torch.tensor([99]), SHAPE, 0.5).double() * 2 - 1
    other = dropout.keep_mask(torch.tensor([100]), SHAPE, 0.5).double() * 2 - 1
    high = dropout.keep_mask(torch.tensor([99 + (1 << 32)]), SHAPE, 0.5).double() * 2 - 1
    moves = [(3, 1), (3, 8), (3, 16), (3, 24), (3, 32), (2, 1), (2, 8), (2, 16), (1, 1), (0, 1)]
    pairs = [*(mask.roll(by, axis) for axis, by in moves), other, high, mask.roll((8, 8), (2, 3))]
    for k, beside in enumerate(pairs):
        assert abs(float((mask * beside).sum())) < 4.5 * mask.numel() ** 0.5, k


def test_no_head_of_no_sequence_has_the_mask_of_another() -> None:
    masks = dropout.keep_mask(torch.tensor([3]), (8, 16, 32, 32), 0.5).flatten(2).flatten(0, 1)
    assert len(masks.unique(dim=0)) == 128


@pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed")
@pytest.mark.parametrize("backend", ["aot_eager_decomp_partition", "inductor"])
def test_compiled_layers_draw_masks_of_their_own_and_go_back_by_them(backend: str, device: str) -> None:
    """Gradients of values are the sums of the columns of what was multiplied with them."""
    v = torch.eye(32, device=device).expand(2, 2, 32, 32)
    bias = torch.zeros(1, 1, 32, 32, device=device)

    def layers(q: torch.Tensor, *values: torch.Tensor) -> list[torch.Tensor]:
        return [kernels.biased_attention(q, q, value, bias, dropout_p=0.5) for value in values]

    torch._dynamo.reset()
    run = torch.compile(layers, fullgraph=True, backend=backend)
    seen = []
    for _ in range(2):
        values = [v.clone().requires_grad_() for _ in "ab"]
        found = run(torch.zeros(2, 2, 32, 16, device=device), *values)
        gradients = torch.autograd.grad(sum(each.sum() for each in found), values)
        for made, gradient in zip(found, gradients, strict=True):
            torch.testing.assert_close(gradient[..., 0], made.sum(2))
        seen += [made > 0 for made in found]
    for k, one in enumerate(seen):
        for other in seen[:k]:
            assert 0.4 < (one == other).float().mean() < 0.6
