"""Attention whose batch and heads lie in one dimension or in three, or whose scores are one `baddbmm`."""

import math

import pytest
import torch
import torch.nn.functional as F
from attention_calls import Recorder, copies_of, same_gradients, same_results

from rung.rewrites import RewriteBackend

NEG = float("-inf")
B, H, T, D, G = 2, 4, 6, 8, 2


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()
    torch.manual_seed(0)


class Operations(Recorder):
    """Keeps the shapes of the SDPA calls and all operations, too."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.operations = []

    def compiled(self, gm, inputs):
        self.operations += [getattr(node.target, "__name__", str(node.target)) for node in gm.graph.nodes]
        return super().compiled(gm, inputs)

    def call(self, node):
        shapes = [tuple(item.meta["example_value"].shape) for item in node.args[:3]]
        return {**super().call(node), "shapes": shapes}


def check(fn, inputs, calls=1, tol=1e-5):
    """Training and inference give what the function gives by itself, with this many SDPA calls."""
    backend = Operations(["sdpa"], "eager")
    compiled = torch.compile(fn, backend=backend, dynamic=False, fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(*inputs), fn(*inputs), rtol=tol, atol=tol)
    copies = copies_of(inputs)
    want, got = fn(*inputs), compiled(*copies)
    same_results(got, want, tol)
    same_gradients(got, want, copies, inputs, tol)
    assert len(backend.calls) == 2 * calls  # with and without gradients
    assert len(backend.skipped) == (not calls), backend.skipped
    return backend


def tokens(heads=H, keys=H, dtype=torch.float32):
    """q, k and v as projections leave them: [batch, length, heads * width]."""
    return [torch.randn(B, T, n * D, dtype=dtype, requires_grad=True) for n in (heads, keys, keys)]


def heads(x):
    """[B, T, H * D] as [B * H, T, D]."""
    n = x.shape[-1] // D
    return x.view(B, T, n, D).transpose(1, 2).reshape(B * n, T, D)


def merged(x):
    """[B * H, T, D] as [B, T, H * D]."""
    return x.view(B, -1, T, D).transpose(1, 2).reshape(B, T, -1)


def causal(dtype=torch.float32):
    return torch.full((T, T), NEG, dtype=dtype).triu(1)


def alibi():
    slopes = torch.tensor([2.0**-n for n in range(1, H + 1)])
    return (slopes[:, None, None] * torch.arange(T)).repeat(B, 1, 1)  # [B * H, 1, T]


def opt(q, k, v):
    q, k, v = (heads(x) for x in (q * 0.3, k, v))
    scores = torch.bmm(q, k.transpose(1, 2)).view(B, H, T, T) + causal()
    return merged(torch.bmm(scores.view(B * H, T, T).softmax(-1), v))


def bloom_like(q, k, v):
    q, k, v = (heads(x) for x in (q, k, v))
    scores = (torch.bmm(q, k.transpose(-1, -2)) / math.sqrt(D)).view(B, H, T, T)
    probs = F.softmax(scores.masked_fill(torch.ones(T, T).tril() == 0, NEG), dim=-1, dtype=torch.float32).to(q.dtype)
    return merged(torch.bmm(F.dropout(probs, 0.1, False).view(B * H, T, T), v))


def fairseq(q, k, v):
    # Time comes first, and the heads are split off beside the batch.
    q, k, v = (x.transpose(0, 1).contiguous().view(T, B * H, D).transpose(0, 1) for x in (q * 0.3, k, v))
    scores = torch.bmm(q, k.transpose(1, 2))
    scores += causal().unsqueeze(0)
    scores = scores.view(B, H, T, T).view(B * H, T, T)
    probs = F.dropout(F.softmax(scores.float(), dim=-1).type_as(scores), p=0.1, training=False)
    out = torch.bmm(probs, v)
    return out.transpose(0, 1).contiguous().view(T, B, H * D).transpose(0, 1)


def softmax_of_three(q, k, v):
    q, k, v = (heads(x) for x in (q, k, v))
    scores = torch.bmm(q, k.mT).mul_(0.3).reshape(B, H, T, T).add_(causal())
    return merged(torch.bmm(torch.softmax(scores.flatten(0, 1), 2), v))


def values_of_four(q, k, v):
    scores = torch.bmm(heads(q), heads(k).mT).unflatten(0, (B, H)) * 0.3 + causal()
    out = scores.softmax(-1) @ v.view(B, T, H, D).transpose(1, 2)
    return out.transpose(1, 2).flatten(2)


def mask_of_three(q, k, v):
    q, k, v = (heads(x) for x in (q, k, v))
    mask = causal()[None, None].expand(B, H, T, T).reshape(B * H, T, T)
    scores = ((q @ k.mT) * 0.3 + mask).view(B, H, T, T)
    return merged(torch.bmm(scores.softmax(-1).view(B * H, T, T), v))


SPLIT = {
    "opt": opt,
    "bloom": bloom_like,
    "fairseq": fairseq,
    "softmax_of_three": softmax_of_three,
    "values_of_four": values_of_four,
    "mask_of_three": mask_of_three,
}


@pytest.mark.parametrize("spelling", SPLIT)
def test_heads_split_from_the_batch_on_the_way(spelling):
    found = check(SPLIT[spelling], tokens())
    for call in found.calls:
        assert call["is_causal"] is True
        assert call["shapes"] == [(B, H, T, D)] * 3
    assert not {"bmm", "matmul", "softmax"} & set(found.operations)


def test_a_padding_mask_of_four_dimensions_on_scores_of_three():
    pad = torch.zeros(B, 1, 1, T)
    pad[1, ..., 4:] = -1e9

    def fn(q, k, v, pad):
        scores = (torch.bmm(heads(q), heads(k).mT) * 0.3).view(B, H, T, T) + pad
        return merged(torch.bmm(scores.view(B * H, T, T).softmax(-1), heads(v)))

    assert "attn_mask" in check(fn, [*tokens(), pad]).calls[0]


def test_heads_that_were_repeated_before_they_were_merged_are_groups():
    def fn(q, k, v):
        k, v = (x.view(B, T, G, D).transpose(1, 2).repeat_interleave(H // G, 1).reshape(B * H, T, D) for x in (k, v))
        scores = torch.bmm(heads(q), k.mT).view(B, H, T, T) + causal()
        return merged(torch.bmm(scores.softmax(-1).view(B * H, T, T), v))

    found = check(fn, tokens(keys=G))
    assert found.calls[0]["enable_gqa"] is True
    assert found.calls[0]["shapes"][1] == (B, G, T, D)
    assert "repeat_interleave" not in found.operations


@pytest.mark.parametrize("order", ["view", "swapped"])
def test_a_split_in_the_other_order_means_what_it_says(order):
    # [B * H] seen as [H, B]: the mask of one batch falls on what lies there, right or not.
    bias = torch.randn(H, B, T, T, requires_grad=True)

    def fn(q, k, v, bias):
        scores = torch.bmm(heads(q), heads(k).mT).view(H, B, T, T) + bias
        probs = scores.softmax(-1)
        probs = probs.transpose(0, 1) if order == "swapped" else probs
        return merged(torch.bmm(probs.reshape(B * H, T, T), heads(v)))

    found = check(fn, [*tokens(), bias], calls=order == "view")
    if order == "swapped":
        assert "`transpose` lies between the softmax and the values" in found.skipped[0]


def test_equal_batch_and_heads_are_not_taken_for_one_another():
    # 4 sequences of 4 heads: sizes alone do not tell the two apart.
    x = [torch.randn(4, 4, T, D, requires_grad=True) for _ in range(3)]
    bias = torch.randn(4, 1, T, T, requires_grad=True)

    def fn(q, k, v, bias):
        q, k = q.reshape(16, T, D), k.transpose(0, 1).reshape(16, T, D)
        scores = torch.bmm(q, k.mT).view(4, 4, T, T) + bias
        return torch.bmm(scores.softmax(-1).view(16, T, T), v.view(16, T, D))

    check(fn, [*x, bias])


BADDBMM = {
    "zeros": lambda q, k: torch.baddbmm(torch.zeros(B * H, T, T), q, k.transpose(1, 2), beta=1.0, alpha=0.3),
    "empty": lambda q, k: torch.baddbmm(torch.empty(B * H, T, T), q, k.transpose(1, 2), beta=0, alpha=0.3),
    "not_a_number": lambda q, k: torch.baddbmm(q.new_full((1,), math.nan), q, k.mT, beta=0, alpha=0.3),
    "method": lambda q, k: q.new_zeros(()).baddbmm(batch1=q, batch2=k.mT, alpha=0.3),
}


@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("spelling", BADDBMM)
def test_baddbmm_of_nothing_is_a_scale(spelling, split):
    def fn(q, k, v):
        scores = BADDBMM[spelling](heads(q), heads(k))
        scores = scores.view(B, H, T, T) if split else scores
        return merged(torch.bmm((scores + causal()).softmax(-1).view(B * H, T, T), heads(v)))

    for call in check(fn, tokens()).calls:
        assert call["scale"] == pytest.approx(0.3)
        assert call["is_causal"] is True
        assert "attn_mask" not in call


@pytest.mark.parametrize("beta", [1, 0.5, -2.0])
def test_baddbmm_of_alibi_is_a_mask_times_beta(beta):
    def fn(q, k, v):
        scores = alibi().baddbmm(batch1=heads(q), batch2=heads(k).mT, beta=beta, alpha=0.3).view(B, H, T, T)
        probs = F.softmax(scores.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), NEG), -1)
        return merged(torch.bmm(probs.view(B * H, T, T), heads(v)))

    call = check(fn, tokens()).calls[0]
    assert "attn_mask" in call
    assert call["is_causal"] is False


@pytest.mark.parametrize("shape", [(B * H, T, T), (B * H, 1, T), (1, T, T), (T,)])
@pytest.mark.parametrize("split", [True, False])
def test_baddbmm_of_an_activation_is_a_mask_with_its_gradient(shape, split):
    bias = torch.randn(shape, requires_grad=True)

    def fn(q, k, v, bias):
        scores = torch.baddbmm(bias * 2, heads(q), heads(k).mT, beta=0.5, alpha=0.3)
        scores = scores.view(B, H, T, T) if split else scores
        return merged(torch.bmm(scores.softmax(-1).view(B * H, T, T), heads(v)))

    assert "attn_mask" in check(fn, [*tokens(), bias]).calls[0]


def test_a_causal_mask_may_be_what_baddbmm_adds():
    def fn(q, k, v):
        scores = torch.baddbmm(causal(), heads(q), heads(k).mT, alpha=0.3)
        return merged(torch.bmm(scores.softmax(-1), heads(v)))

    assert check(fn, tokens()).calls[0]["is_causal"] is True


def test_a_bias_that_counts_for_nothing_keeps_its_gradient_of_zeros():
    bias = torch.randn(B * H, T, T, requires_grad=True)

    def fn(q, k, v, bias):
        scores = torch.baddbmm(bias, heads(q), heads(k).mT, beta=0)
        return merged(torch.bmm(scores.softmax(-1), heads(v)))

    assert "`baddbmm` lies between the scores and the softmax" in check(fn, [*tokens(), bias], calls=0).skipped[0]


def test_zeros_that_were_written_are_a_mask():
    def fn(q, k, v):
        bias = torch.zeros(T, T)
        bias[0, 3] = 2.0
        scores = torch.baddbmm(bias, heads(q), heads(k).mT, alpha=0.3)
        return merged(torch.bmm(scores.softmax(-1), heads(v)))

    assert "attn_mask" in check(fn, tokens()).calls[0]


def grouped(x, n=G):
    """[B, T, n * G * D] as [B, n, G, T, D]."""
    return x.view(B, T, n, -1, D).permute(0, 2, 3, 1, 4)


def by_matmul(q, k, v):
    q, k, v = (grouped(x) for x in (q, k, v))  # [B, Hk, G, T, D], and 1 for G
    return ((q @ k.transpose(-1, -2) * 0.3 + causal()).softmax(-1) @ v).permute(0, 3, 1, 2, 4).reshape(B, T, -1)


def by_unsqueeze(q, k, v):
    k, v = (x.view(B, T, G, D).transpose(1, 2) for x in (k, v))
    q = q.view(B, T, H, D).transpose(1, 2).view(B, G, H // G, T, D)
    scores = torch.matmul(q, k.unsqueeze(2).mT) * 0.3
    mask = torch.ones(T, T, dtype=torch.bool).tril()[None, None, None]
    out = scores.masked_fill(~mask, torch.finfo(q.dtype).min).softmax(-1) @ v[:, :, None]
    return out.view(B, H, T, D).transpose(1, 2).reshape(B, T, -1)


def by_expand(q, k, v):
    k, v = (grouped(x).expand(B, G, H // G, T, D) for x in (k, v))
    return ((grouped(q) @ k.mT * 0.3 + causal()).softmax(-1) @ v).permute(0, 3, 1, 2, 4).reshape(B, T, -1)


def by_einsum(q, k, v):
    k, v = (x.view(B, T, G, D).transpose(1, 2) for x in (k, v))
    scores = torch.einsum("bkgtd,bksd->bkgts", grouped(q), k) * 0.3
    out = torch.einsum("bkgts,bksd->bkgtd", (scores + causal()).softmax(-1), v)
    return out.permute(0, 3, 1, 2, 4).reshape(B, T, -1)


def by_einsum_tokens_first(q, k, v):
    q, k, v = q.view(B, T, G, H // G, D), k.view(B, T, G, D), v.view(B, T, G, D)
    scores = torch.einsum("btkgd,bskd->bkgts", q, k) * 0.3 + causal()
    return torch.einsum("bkgts,bskd->btkgd", scores.softmax(-1), v).reshape(B, T, -1)


def by_einsum_the_other_way_round(q, k, v):
    q, k, v = q.view(B, T, G, H // G, D), k.view(B, T, G, D), v.view(B, T, G, D)
    scores = torch.einsum("bskd,btkgd->bkgts", k, q) * 0.3 + causal()
    return torch.einsum("bskd,bkgts->btkgd", v, scores.softmax(-1)).reshape(B, T, -1)


def softmax_of_four(q, k, v):
    q, k, v = (grouped(x) for x in (q, k, v))
    scores = (q @ k.mT * 0.3).flatten(1, 2) + causal()[None, None]
    out = scores.softmax(-1).view(B, G, H // G, T, T) @ v
    return out.flatten(1, 2).transpose(1, 2).flatten(2)


GROUPED = {
    "matmul": by_matmul,
    "unsqueeze": by_unsqueeze,
    "expand": by_expand,
    "einsum": by_einsum,
    "einsum_tokens_first": by_einsum_tokens_first,
    "einsum_the_other_way_round": by_einsum_the_other_way_round,
    "softmax_of_four": softmax_of_four,
}


@pytest.mark.parametrize("spelling", GROUPED)
def test_groups_in_a_dimension_of_their_own(spelling):
    found = check(GROUPED[spelling], tokens(keys=G))
    for call in found.calls:
        assert call["is_causal"] is True
        assert call["enable_gqa"] is True
        assert call["shapes"] == [(B, H, T, D), (B, G, T, D), (B, G, T, D)]


def test_groups_of_one_sequence():
    def fn(q, k, v):
        q, k, v = (x.view(1, -1, G, x.shape[-1] // G // D, D).permute(0, 2, 3, 1, 4) for x in (q, k, v))
        return ((q @ k.mT * 0.3).softmax(-1) @ v).permute(0, 3, 1, 2, 4).reshape(1, T, -1)

    inputs = [torch.randn(1, T, n * D, requires_grad=True) for n in (H, G, G)]
    assert check(fn, inputs).calls[0]["enable_gqa"] is True


def test_a_result_in_another_order_has_the_strides_that_it_had():
    def fn(q, k, v):
        q, k, v = q.view(B, T, G, H // G, D), k.view(B, T, G, D), v.view(B, T, G, D)
        return torch.einsum("bkgts,bskd->btkgd", torch.einsum("btkgd,bskd->bkgts", q, k).softmax(-1), v)

    inputs = tokens(keys=G)
    got = torch.compile(fn, backend=RewriteBackend(["sdpa"], "eager"), dynamic=False)(*inputs)
    assert got.stride() == fn(*inputs).stride()
    torch._dynamo.reset()
    check(fn, inputs)


def test_a_cast_of_it_has_the_strides_that_it_had():
    """As a step under autocast hands it out."""

    def fn(q, k, v):
        q, k, v = (x.view(B, T, -1, D).transpose(1, 2) for x in (q, k, v))
        return ((q @ k.mT).softmax(-1) @ v).to(torch.float64)

    inputs = tokens(keys=H)
    backend = RewriteBackend(["sdpa"], "eager")
    got = torch.compile(fn, backend=backend, dynamic=False)(*inputs)
    assert backend.matches["sdpa"] == 1
    assert got.stride() == fn(*inputs).stride()


def test_windows_beside_the_batch():
    # Windows of two pictures, each with its own mask: split from the batch for that, and merged again.
    windows, bias = 3, torch.randn(H, T, T, requires_grad=True)
    mask = torch.zeros(windows, T, T)
    mask[1, :, 4:] = -100.0

    def fn(q, k, v, bias, mask):
        scores = (q * 0.3) @ k.transpose(-2, -1) + bias[None]
        scores = scores.view(B, windows, H, T, T) + mask[None, :, None]
        return scores.view(-1, H, T, T).softmax(-1) @ v

    inputs = [torch.randn(B * windows, H, T, D, requires_grad=True) for _ in range(3)]
    assert "attn_mask" in check(fn, [*inputs, bias, mask]).calls[0]


def test_frames_in_a_dimension_of_their_own():
    inputs = [torch.randn(B, 3, H, T, D, requires_grad=True) for _ in range(3)]
    call = check(lambda q, k, v: (q @ k.mT * 0.3 + causal()).softmax(-1) @ v, inputs).calls[0]
    assert call["is_causal"] is True
    assert call["shapes"] == [(B, 3 * H, T, D)] * 3


def test_one_key_head_for_all_in_an_einsum():
    def fn(q, k, v):
        scores = torch.einsum("bthd,bsd->bhts", q.view(B, T, H, D), k) * 0.3 + causal()
        return torch.einsum("bhts,bsd->bthd", scores.softmax(-1), v).flatten(2)

    assert check(fn, tokens(keys=1)).calls[0]["enable_gqa"] is True


@pytest.mark.parametrize(
    "shape", [(B, 1, 1, 1, T), (B, G, 1, 1, T), (B, 1, H // G, T, T), (H // G, T, T), (G, 1, T, T)]
)
def test_masks_of_grouped_scores_fall_on_the_heads_that_they_fell_on(shape):
    bias = torch.randn(shape, requires_grad=True)

    def fn(q, k, v, bias):
        q, k, v = (grouped(x) for x in (q, k, v))
        return ((q @ k.mT + bias).softmax(-1) @ v).permute(0, 3, 1, 2, 4).reshape(B, T, -1)

    assert "attn_mask" in check(fn, [*tokens(keys=G), bias]).calls[0]


def test_keys_that_vary_within_a_group_are_no_group():
    def fn(q, k, v):
        q, k, v = (grouped(x) for x in (q, k, v))
        return ((q @ k.mT * 0.3).softmax(-1) @ v).permute(0, 3, 1, 2, 4).reshape(B, T, -1)

    assert "enable_gqa" not in check(fn, tokens()).calls[0]


def test_keys_that_are_shared_across_groups_are_no_group():
    # Heads 0 1 0 1, where grouped heads are 0 0 1 1.
    def fn(q, k, v):
        q, (k, v) = grouped(q), (grouped(x).transpose(1, 2) for x in (k, v))  # [B, 1, G, T, D]
        return ((q @ k.mT * 0.3).softmax(-1) @ v).permute(0, 3, 1, 2, 4).reshape(B, T, -1)

    assert "enable_gqa" not in check(fn, tokens(keys=G)).calls[0]


def split_scores(q, k):
    return torch.bmm(heads(q), heads(k).mT).view(B, H, T, T)


LEFT_ALONE = {
    "scores_read": (
        lambda q, k, v: (
            merged(torch.bmm((w := torch.bmm(heads(q), heads(k).mT)).view(B, H, T, T).softmax(-1).flatten(0, 1), heads(v)))
            + w.sum()
        ),
        "attention scores are used elsewhere",
    ),
    "probabilities_read": (
        lambda q, k, v: merged(torch.bmm(p := split_scores(q, k).softmax(-1).flatten(0, 1), heads(v))) + p.sum(),
        "attention probabilities are used elsewhere",
    ),
    "tokens_exchanged": (
        lambda q, k, v: merged(torch.bmm(split_scores(q, k).softmax(-1).mT.reshape(B * H, T, T), heads(v))),
        "`mT` lies between the softmax and the values",
    ),
    "scaled_after_what_baddbmm_adds": (
        lambda q, k, v: merged(torch.bmm((torch.baddbmm(alibi(), heads(q), heads(k).mT) * 0.3).softmax(-1), heads(v))),
        "scaled after the mask",
    ),
    "baddbmm_returned": (
        lambda q, k, v: (
            merged(torch.bmm((w := torch.baddbmm(alibi(), heads(q), heads(k).mT)).softmax(-1), heads(v))) + w.sum()
        ),
        "attention scores are used elsewhere",
    ),
    "into_another_length": (
        lambda q, k, v: (split_scores(q, k).view(B, H, T // 2, 2 * T).softmax(-1).view(B, H, T, T) @ heads(v).view(B, H, T, D)),
        "`view` lies between",
    ),
    "probabilities_of_one_head": (
        lambda q, k, v: torch.einsum(
            "bkgts,bksd->bkgtd", torch.einsum("bkgtd,bksd->bkgts", grouped(q, 1), heads(k).view(B, H, T, D)[:, :1]).softmax(-1),
            heads(v).view(B, H, T, D),
        ),
        "`einsum` lies between the softmax and the values",
    ),
    "six": (
        lambda q, k, v: (
            (grouped(q)[None] @ grouped(k)[None].mT).softmax(-1) @ grouped(v)[None]
        ),
        "its scores have 6 dimensions",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", LEFT_ALONE)
def test_left_alone_with_its_reason(case):
    fn, words = LEFT_ALONE[case]
    untouched = Operations([], "eager")
    torch.compile(fn, backend=untouched, dynamic=False)(*tokens())
    torch._dynamo.reset()
    found = check(fn, tokens(), calls=0)
    assert words in found.skipped[0]
    assert found.operations == untouched.operations * 2  # and nothing of it was computed otherwise


def test_a_key_written_after_it_was_copied_is_read_from_the_copy():
    def fn(q, k, v):
        key = k.view(B, T, H, D).transpose(1, 2) * 1.0
        flat = key.transpose(2, 3).reshape(B * H, D, T)  # a copy
        with torch.no_grad():
            key.add_(1.0)
        scores = torch.bmm(heads(q), flat).view(B, H, T, T)
        return merged(torch.bmm(scores.softmax(-1).view(B * H, T, T), heads(v))) + key.sum()

    check(fn, tokens())


def test_a_value_written_inside_the_attention_stops_it():
    def fn(q, k, v):
        v = heads(v) * 1.0
        probs = split_scores(q, k).softmax(-1)
        kept = v.clone()
        v.add_(1.0)
        return merged(torch.bmm(probs.view(B * H, T, T), v)) + kept.sum()

    check(fn, tokens())  # read after it was written, as before

    def moved(q, k, v):
        q = heads(q) * 1.0
        probs = torch.bmm(q, heads(k).mT).view(B, H, T, T).softmax(-1)
        with torch.no_grad():
            q.add_(1.0)
        return merged(torch.bmm(probs.view(B * H, T, T), heads(v))) + q.detach().sum()

    backend = RewriteBackend(["sdpa"], "eager")
    with torch.no_grad():
        inputs = tokens()
        got = torch.compile(moved, backend=backend, dynamic=False)(*inputs)
        torch.testing.assert_close(got, moved(*inputs))
    assert "written in place inside the attention" in backend.skipped[0]


@pytest.mark.parametrize("again", ["view", "reshape", "unflatten"])
def test_a_result_that_is_written_after_its_heads_were_split(again):
    split = {
        "view": lambda x: x.view(B, H, T, D),
        "reshape": lambda x: x.reshape(B, H, T, D),
        "unflatten": lambda x: x.unflatten(0, (B, H)),
    }[again]

    def fn(q, k, v):
        out = torch.bmm(split_scores(q, k).softmax(-1).view(B * H, T, T), heads(v))
        split(out).mul_(2)
        return out.transpose(1, 2) + 1

    check(fn, tokens())


def test_dropout_stays_where_it_was():
    backend = Operations(["sdpa"], "eager")

    def fn(q, k, v):
        probs = F.dropout(split_scores(q, k).softmax(-1).view(B * H, T, T), 0.25, True)
        return merged(torch.bmm(probs, heads(v)))

    torch.compile(fn, backend=backend, dynamic=False)(*tokens())
    assert backend.calls[0]["dropout_p"] == 0.25


def test_under_autocast():
    def fn(q, k, v):
        with torch.autocast("cpu", torch.bfloat16):
            scores = torch.baddbmm(torch.zeros(1), heads(q), heads(k).mT, alpha=0.3).view(B, H, T, T) + causal()
            return merged(torch.bmm(F.softmax(scores, -1, dtype=torch.float32).view(B * H, T, T), heads(v)))

    assert check(fn, tokens(), tol=0.05).calls[0]["is_causal"] is True


def test_by_inductor():
    inputs = tokens(keys=G)
    got = torch.compile(by_einsum_tokens_first, backend=RewriteBackend(["sdpa"], "inductor"), dynamic=False)(*inputs)
    torch.testing.assert_close(got, by_einsum_tokens_first(*inputs))
