"""A copy in front of an attention call goes where the call is its only reader and nothing is written in between."""

import pytest
import torch
import torch.nn.functional as F

from rung.rewrites import RewriteBackend

BATCH, TOKENS, HEADS, DIM = 2, 5, 3, 4
sdpa = F.scaled_dot_product_attention


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()
    torch.manual_seed(0)


def compared(fn, width=DIM):
    backend = RewriteBackend(["sdpa", "strided-sdpa-inputs"], "eager")
    sides = [torch.randn(BATCH, TOKENS, 3 * HEADS * width, generator=torch.Generator().manual_seed(1)) for _ in "ab"]
    sides = [x.requires_grad_() for x in sides]
    runs = fn, torch.compile(fn, backend=backend, dynamic=False)
    found = [run(x.sin()) for run, x in zip(runs, sides, strict=True)]
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-5)
    slopes = [torch.autograd.grad(y.square().sum(), x)[0] for y, x in zip(found, sides, strict=True)]
    torch.testing.assert_close(slopes[1], slopes[0], rtol=1e-5, atol=1e-5)
    return backend


def heads(x, width=DIM):
    return (part.unflatten(-1, (HEADS, width)).transpose(1, 2) for part in x.chunk(3, -1))


def copied(x):
    return sdpa(*(part.contiguous() for part in heads(x)), is_causal=True).transpose(1, 2).contiguous().flatten(2)


def by_hand(x):
    q, k, v = heads(x)
    return ((q.contiguous() @ k.mT * 0.5).softmax(-1) @ v.contiguous()).transpose(1, 2).flatten(2)


def read_twice(x):
    q, k, v = heads(x)
    q = q.contiguous()
    return sdpa(q, k, v) + q


def written(x):
    x = x.clone()
    parts = x.unflatten(-1, (3, HEADS, DIM))
    q, k, v = (parts[:, :, spot].transpose(1, 2) for spot in range(3))
    q = q.contiguous()
    x.mul_(2.0)
    return sdpa(q, k, v)


def test_copies_for_attention_alone_are_left_out():
    assert compared(copied).rewritten == {"strided-sdpa-inputs": 3}
    torch._dynamo.reset()
    assert compared(by_hand).rewritten == {"sdpa": 1, "strided-sdpa-inputs": 2}


def test_a_copy_that_is_needed_stays():
    assert compared(read_twice).rewritten == {}
    torch._dynamo.reset()
    backend = compared(written)
    assert backend.rewritten == {}
    assert "written between" in backend.skipped[0]
    torch._dynamo.reset()
    odd = compared(lambda x: sdpa(*(part.contiguous() for part in heads(x, 3))), 3)  # rows of 12 bytes
    assert odd.rewritten == {}


def viewed(x):
    q, k, v = (part.contiguous() for part in heads(x))
    return sdpa(q, k, v).view(BATCH * HEADS, TOKENS, DIM)


def handed_out(x):
    q, k, v = (part.contiguous() for part in heads(x))
    return sdpa(q, k, v)


@pytest.mark.parametrize("fn", [viewed, handed_out])
def test_readers_of_the_result_find_it_in_the_order_that_the_copies_gave_it(fn):
    """The kernels write their result as the query lies in memory, copied or not."""
    assert compared(fn).rewritten == {"strided-sdpa-inputs": 3}
    torch._dynamo.reset()
    x = torch.randn(BATCH, TOKENS, 3 * HEADS * DIM)
    again = torch.compile(fn, backend=RewriteBackend(["strided-sdpa-inputs"], "eager"), dynamic=False)(x)
    assert again.stride() == fn(x).stride()
