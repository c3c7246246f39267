"""SDPA calls that can do without their mask tensor or their repeated heads, and those that cannot."""

import pytest
import torch
import torch.nn.functional as F

from rung.rewrites import RewriteBackend
from rung.rewrites import backend as backend_module


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()
    torch.manual_seed(0)


class Recorder(RewriteBackend):
    """Keeps the SDPA calls of the graphs it has rewritten."""

    calls: list
    shapes: list

    def compiled(self, gm, inputs):
        queries = [n.args[0] for n in gm.graph.nodes if n.target is F.scaled_dot_product_attention]
        self.shapes = [(2, 2, *q.args[3:]) for q in queries if q.target == "reshape"]
        self.calls = [dict(n.kwargs) for n in gm.graph.nodes if n.target is F.scaled_dot_product_attention]
        return super().compiled(gm, inputs)


def check(fn, heads=(4, 4), lengths=(6, 6), extra=(), tol=1e-5):
    q = torch.randn(2, heads[0], lengths[0], 8, requires_grad=True)
    k, v = (torch.randn(2, heads[1], lengths[1], 8, requires_grad=True) for _ in range(2))
    backend = Recorder(["sdpa-no-mask"], "eager")
    compiled = torch.compile(fn, backend=backend, dynamic=False, fullgraph=True)
    want, got = fn(q, k, v, *extra), compiled(q, k, v, *extra)
    torch.testing.assert_close(got, want, rtol=tol, atol=tol)
    slopes = [torch.autograd.grad(out.square().sum(), (q, k, v)) for out in (want, got)]
    torch.testing.assert_close(slopes[1], slopes[0], rtol=1e-4, atol=1e-4)
    return backend


def indices(q, k):
    return torch.arange(q.size(2))[:, None], torch.arange(k.size(2))[None, :]


def additive(q, k):
    rows, columns = indices(q, k)
    return torch.where(columns <= rows, torch.zeros(()), torch.finfo(q.dtype).min).expand(2, 1, -1, -1)


def packed(q, k):
    # Which sequence a token belongs to, found from positions that happen to be one sequence's.
    positions = torch.arange(q.size(2)).unsqueeze(0).expand(2, -1)
    jumps = torch.diff(positions, prepend=positions[:, :1] - 1, dim=-1) != 1
    own = jumps.cumsum(-1)
    batch = torch.arange(2)[:, None, None, None]
    rows, columns = (index[None, None] for index in indices(q, k))
    return (own[(batch, rows)] == own[(batch, columns)]) & (columns <= rows)


CAUSAL = {
    "bool": lambda q, k: indices(q, k)[1] <= indices(q, k)[0],
    "additive": additive,
    "packed": packed,
    "wide window": lambda q, k: packed(q, k) & (indices(q, k)[0] - indices(q, k)[1] < 64),
}


@pytest.mark.parametrize("spelling", CAUSAL)
def test_a_provably_causal_mask_is_said_and_not_passed(spelling):
    mask = CAUSAL[spelling]
    backend = check(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=mask(q, k), scale=0.5))
    assert backend.rewritten == {"sdpa-no-mask": 1}
    assert backend.calls[0]["is_causal"] is True
    assert backend.calls[0]["attn_mask"] is None
    assert backend.calls[0]["scale"] == 0.5
    assert (backend.before["masked_sdpa"], backend.after["masked_sdpa"]) == (1, 0)


OTHERS = {
    "window": lambda q, k: CAUSAL["bool"](q, k) & (indices(q, k)[0] - indices(q, k)[1] < 3),
    "one off": lambda q, k: indices(q, k)[1] <= indices(q, k)[0] + 1,
    "with a bias": lambda q, k: additive(q, k) + torch.eye(6),
}


@pytest.mark.parametrize("spelling", OTHERS)
def test_another_mask_stays(spelling):
    mask = OTHERS[spelling]
    backend = check(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, mask(q, k)))
    assert backend.rewritten == {}
    assert "not provably the causal one" in backend.skipped[0]


def test_a_mask_from_the_caller_stays():
    mask = torch.ones(6, 6, dtype=torch.bool).tril()
    backend = check(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m), extra=(mask,))
    assert backend.rewritten == {}


def test_with_unequal_lengths_no_mask_is_causal():
    # SDPA's own causal form is aligned to the top left: one query would see the first key alone.
    def fn(q, k, v):
        rows, columns = indices(q, k)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=columns <= rows)

    assert check(fn, lengths=(3, 6)).rewritten == {}


def test_a_mask_that_hides_nothing_goes():
    def fn(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=torch.zeros(1, 4, 3, 6))

    calls = check(fn, lengths=(3, 6)).calls
    assert calls[0]["attn_mask"] is None
    assert calls[0]["is_causal"] is False


def repeated(x, n):
    b, h, s, d = x.shape
    return x[:, :, None].expand(b, h, n, s, d).reshape(b, h * n, s, d)


def test_grouped_heads_are_not_repeated():
    def fn(q, k, v):
        return F.scaled_dot_product_attention(q, repeated(k, 2), repeated(v, 2), attn_mask=CAUSAL["bool"](q, k))

    backend = check(fn, heads=(4, 2))
    assert backend.calls[0]["enable_gqa"] is True
    assert backend.calls[0]["is_causal"] is True


@pytest.mark.parametrize("masked", [True, False])
def test_with_one_query_a_head_the_queries_of_a_group_are_rows_of_one(masked, monkeypatch):
    # As on a GPU, where grouped heads need a call without a mask tensor.
    monkeypatch.setattr("rung.rewrites.attention.mask_free.takes_groups", lambda *a: False)

    def fn(q, k, v, open_to):
        mask = (torch.arange(6) <= open_to)[None, None] if masked else None
        out = F.scaled_dot_product_attention(q, repeated(k, 2), repeated(v, 2), attn_mask=mask)
        return out.transpose(1, 2).reshape(2, 1, -1)

    backend = check(fn, heads=(4, 2), lengths=(1, 6), extra=(torch.tensor([3]),))
    assert backend.rewritten == {"sdpa-no-mask": 1}
    assert backend.shapes == [(2, 2, 2, 8)]


def test_a_mask_of_its_own_for_each_head_keeps_the_repeat(monkeypatch):
    monkeypatch.setattr("rung.rewrites.attention.mask_free.takes_groups", lambda *a: False)

    def fn(q, k, v, bias):
        return F.scaled_dot_product_attention(q, repeated(k, 2), repeated(v, 2), attn_mask=bias)

    backend = check(fn, heads=(4, 2), lengths=(1, 6), extra=(torch.randn(1, 4, 1, 6),))
    assert backend.rewritten == {}


def test_a_cache_is_not_repeated_and_what_was_written_into_it_is_read(monkeypatch):
    monkeypatch.setattr("rung.rewrites.attention.mask_free.takes_groups", lambda *a: False)
    keys, values = torch.randn(2, 2, 6, 8), torch.randn(2, 2, 6, 8)

    def fn(q, k, v, keys, values, place):
        keys.index_copy_(2, place, k)
        values.index_copy_(2, place, v)
        mask = (torch.arange(6) <= place)[None, None]
        return F.scaled_dot_product_attention(q, repeated(keys, 2), repeated(values, 2), attn_mask=mask)

    q, k, v = torch.randn(2, 4, 1, 8), torch.randn(2, 2, 1, 8), torch.randn(2, 2, 1, 8)
    backend = RewriteBackend(["sdpa-no-mask"], "eager")
    run = torch.compile(fn, backend=backend, dynamic=False)
    for place in (torch.tensor([2]), torch.tensor([3])):
        mine, theirs = (keys.clone(), values.clone()), (keys.clone(), values.clone())
        torch.testing.assert_close(run(q, k, v, *theirs, place), fn(q, k, v, *mine, place))
        assert torch.equal(mine[0], theirs[0])
    assert backend.rewritten == {"sdpa-no-mask": 1}


def test_keys_written_after_they_were_repeated_stay_repeated():
    def fn(q, k, v):
        k = k * 1.0
        wide = repeated(k, 2)
        k.add_(1.0)
        return F.scaled_dot_product_attention(q, wide, repeated(v, 2)) + k.sum()

    backend = check(fn, heads=(4, 2))
    assert backend.rewritten == {}


def test_one_key_head_for_all_query_heads_is_read_as_a_group():
    def fn(q, k, v):
        return (q @ k.transpose(-1, -2) / 3.0).softmax(-1) @ v

    q, k, v = torch.randn(2, 4, 6, 8), torch.randn(2, 1, 6, 8), torch.randn(2, 1, 6, 8)
    for groups in (True, False):
        torch._dynamo.reset()
        backend = Recorder(["sdpa"], "eager")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("rung.rewrites.attention.sdpa.takes_groups", lambda *a, groups=groups: groups)
            got = torch.compile(fn, backend=backend, dynamic=False)(q, k, v)
        torch.testing.assert_close(got, fn(q, k, v))
        assert backend.rewritten == {"sdpa": 1}
        assert backend.calls[0].get("enable_gqa", False) is groups


def test_passes_run_in_one_order_however_they_were_chosen():
    assert RewriteBackend(["fused-qkv", "sdpa-no-mask", "sdpa"]).passes == ("sdpa", "sdpa-no-mask", "fused-qkv")
    assert set(backend_module.PASSES) >= {"sdpa", "sdpa-no-mask", "fused-qkv"}
