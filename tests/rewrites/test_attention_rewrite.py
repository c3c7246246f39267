"""Spellings of attention: the rewritten graph gives eager's outputs and gradients."""

import math

import pytest
import torch
import torch.nn.functional as F
from attention_calls import Recorder, copies_of, same_gradients, same_results
from torch import nn

from rung.rewrites import RewriteBackend

NEG = float("-inf")


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()
    torch.manual_seed(0)


def qkv(b=2, h=4, s=6, d=8, hkv=None, t=None, dtype=torch.float32):
    hkv, t = hkv or h, t or s
    shapes = (b, h, s, d), (b, hkv, t, d), (b, hkv, t, d)
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def check(fn, inputs, inner="eager", tol=1e-5, backward=True):
    backend = Recorder(["sdpa"], inner)
    compiled = torch.compile(fn, backend=backend, dynamic=False, fullgraph=True)
    copies = copies_of(inputs)
    want, got = fn(*inputs), compiled(*copies)
    same_results(got, want, tol)
    assert backend.matches == {"sdpa": len(backend.calls)}
    assert not [said for said in backend.skipped if "the pass failed" in said]
    if backward:
        same_gradients(got, want, copies, inputs, tol)
    return backend


SCALES = {
    "after_mul": lambda q, k: (q @ k.transpose(-2, -1)) * 0.3,
    "after_div": lambda q, k: torch.matmul(q, k.transpose(2, 3)) / math.sqrt(q.size(-1)),
    "after_inplace": lambda q, k: q.matmul(k.mT).mul_(0.3),
    "torch_functions": lambda q, k: torch.div(torch.matmul(q, torch.transpose(k, 2, 3)), 2.0),
    "left_number": lambda q, k: 0.3 * torch.matmul(q, k.permute(0, 1, 3, 2)),
    "on_q": lambda q, k: (q * 0.3) @ k.swapaxes(-1, -2),
    "on_k": lambda q, k: q @ (k * 0.3).transpose(-2, -1),
    "on_k_transposed": lambda q, k: q @ (k.transpose(-2, -1) / 3.0),
    "on_both": lambda q, k: (q * 0.5) @ (k / 2.0).mT,
    "none": lambda q, k: q @ k.mT,
    "tensor": lambda q, k: q @ k.mT / torch.sqrt(torch.tensor(q.size(-1), dtype=torch.float32)),
    "full": lambda q, k: q @ k.mT / torch.full([], q.size(-1) ** 0.5, dtype=q.dtype),
    "rsqrt_on_q": lambda q, k: (torch.tensor(8.0).rsqrt() * q) @ k.mT,
}

CAUSAL = {
    "full_triu": lambda w: w + torch.full((w.size(-2), w.size(-1)), NEG).triu(1),
    "full_triu_inplace": lambda w: w + torch.full((w.size(-2), w.size(-1)), NEG).triu_(1),
    "iadd_4d": lambda w: w.add_(torch.triu(torch.full((1, 1, w.size(-2), w.size(-1)), NEG), diagonal=1)),
    "finfo_left": lambda w: torch.full((w.size(-1),) * 2, torch.finfo(w.dtype).min).triu(1)[None, None] + w,
    "tril_eq0": lambda w: w.masked_fill(torch.tril(torch.ones(w.size(-2), w.size(-1))) == 0, NEG),
    "bool_triu": lambda w: w.masked_fill(torch.ones(w.shape[-2:], dtype=torch.bool).triu(1), -1e9),
    "where_tril": lambda w: torch.where(torch.ones(w.shape[-2:]).tril().bool(), w, NEG),
    "where_min": lambda w: torch.where(
        torch.ones(w.shape[-2:], dtype=torch.bool).tril(), w, torch.full([], torch.finfo(w.dtype).min)
    ),
    "where_drop": lambda w: torch.where(torch.ones(w.shape[-2:]).triu(1) == 1, NEG, w),
    "arange": lambda w: w.masked_fill(
        torch.arange(w.size(-1))[None, :] > torch.arange(w.size(-2)).unsqueeze(1), torch.finfo(w.dtype).min
    ),
    "arange_not": lambda w: w.masked_fill(~(torch.arange(w.size(-2))[:, None] >= torch.arange(w.size(-1))[None]), NEG),
    "taken_away": lambda w: w - 1e10 * (1 - torch.ones(w.shape[-2:]).tril()),
    "statement": lambda w: (w.masked_fill_(torch.ones(w.shape[-2:], dtype=torch.bool).triu(1), NEG), w)[1],
    "where_float": lambda w: w + torch.where(torch.ones(w.shape[-2:]).tril() == 1, 0.0, NEG),
}

NOT_CAUSAL = {
    "triu2": lambda w: w + torch.full(w.shape[-2:], NEG).triu(2),
    "tril_off_by_one": lambda w: w.masked_fill(torch.ones(w.shape[-2:]).tril(1) == 0, NEG),
    "tril_wrong_side": lambda w: w.masked_fill(torch.ones(w.shape[-2:]).triu(0) == 0, NEG),
    "triu0_finite": lambda w: w + torch.full(w.shape[-2:], -1e9).triu(0),
    "window": lambda w: w.masked_fill(
        torch.ones(w.shape[-2:], dtype=torch.bool).triu(1) | torch.ones(w.shape[-2:], dtype=torch.bool).tril(-3),
        NEG,
    ),
    "bias_too": lambda w: w + (torch.full(w.shape[-2:], NEG).triu(1) + torch.eye(w.size(-1))),
    "mild": lambda w: w + torch.full(w.shape[-2:], -5.0).triu(1),
}


CAUSAL_3D = {
    "bmm": lambda q, k, v: torch.bmm(
        F.softmax(torch.bmm(q, k.transpose(1, 2)) * 0.3 + torch.full((6, 6), NEG).triu(1), -1), v
    ),
    "head": lambda q, k, v: (q @ k.mT / 8**0.5).masked_fill(torch.ones(6, 6).tril() == 0, NEG).softmax(-1) @ v,
    "einsum": lambda q, k, v: torch.einsum(
        "bij,bjd->bid", (torch.einsum("bid,bjd->bij", q, k) + torch.full((6, 6), NEG).triu(1)).softmax(-1), v
    ),
}

# q, k and v are [batch, heads, length, width].
EINSUMS = {
    "as_they_lie": ("bhid,bhjd->bhij", "bhij,bhjd->bhid", (0, 1, 2, 3)),
    "spaces": ("b h i d, b h j d -> b h i j", "b h i j, b h j d -> b h i d", (0, 1, 2, 3)),
    "heads_inside": ("bqhd,bkhd->bhqk", "bhqk,bkhd->bqhd", (0, 2, 1, 3)),
    "heads_first": ("bqhd,bkhd->hbqk", "hbqk,bkhd->bqhd", (0, 2, 1, 3)),
    "ellipsis": ("...id,...jd->...ij", "...ij,...jd->...id", (0, 1, 2, 3)),
}


@pytest.mark.parametrize("spelling", EINSUMS)
@pytest.mark.parametrize("swapped", [False, True])
def test_einsums(spelling, swapped):
    scores, output, order = EINSUMS[spelling]

    def product(equation, one, two):
        if not swapped:
            return torch.einsum(equation, one, two)
        left, right = equation.split("->")[0].split(",")
        return torch.einsum(f"{right},{left}->{equation.split('->')[1]}", two, one)

    def fn(q, k, v):
        q, k, v = (item.permute(order) for item in (q, k, v))
        weights = product(scores, q, k) * 0.3 + torch.full((6, 6), NEG).triu(1)
        return product(output, weights.softmax(-1), v)

    assert check(fn, qkv()).calls[0]["is_causal"] is True


@pytest.mark.parametrize("equation", ["bhid,bhjd->hij", "bhid,bhjd->bij", "bhid,hjd->bhij", "bhid,bhjd->bhijd"])
def test_einsums_that_are_no_batched_products_stay(equation):
    def fn(q, k, v):
        other = k[0] if ",hjd" in equation else k
        scores = torch.einsum(equation, q, other)
        return scores.softmax(-1).sum() * v

    assert check(fn, qkv()).matches == {"sdpa": 0}


def test_a_result_that_is_written_through_a_view_is_written():
    def fn(q, k, v):
        q, k, v = (item.transpose(1, 2).contiguous().transpose(1, 2) for item in (q, k, v))
        out = (q @ k.mT).softmax(-1) @ v
        out.view(*out.shape[:2], -1).mul_(2)
        return out + 1

    assert check(fn, qkv()).matches == {"sdpa": 1}


def test_an_einsum_that_broadcasts_what_it_sums_over_stays():
    def fn(q, k, v):
        return torch.einsum("bhid,bhjd->bhij", q, k[..., :1]).softmax(-1) @ v

    assert check(fn, qkv()).matches == {"sdpa": 0}


@pytest.mark.parametrize("spelling", CAUSAL_3D)
def test_heads_and_batch_in_one_dimension(spelling):
    inputs = [torch.randn(5, 6, 8, requires_grad=True) for _ in range(3)]
    assert check(CAUSAL_3D[spelling], inputs).calls[0]["is_causal"] is True


def test_a_mask_for_each_head_of_one_dimension():
    bias = torch.randn(5, 6, 6)
    inputs = [torch.randn(5, 6, 8, requires_grad=True) for _ in range(3)]
    found = check(lambda q, k, v: (q @ k.mT * 0.3 + bias).softmax(-1) @ v, inputs)
    assert "attn_mask" in found.calls[0]


def test_what_was_written_in_place_and_is_read_before_it_stays_what_it_was():
    def fn(q, k, v):
        scores = q @ k.mT
        seen = scores.exp().sum()
        scores.masked_fill_(torch.ones(6, 6, dtype=torch.bool).triu(1), NEG)
        return scores.softmax(-1) @ v + seen

    assert check(fn, qkv(), backward=False, inner="eager").matches == {"sdpa": 0}


@pytest.mark.parametrize("spelling", SCALES)
def test_scales(spelling):
    scores = SCALES[spelling]
    backend = check(lambda q, k, v: torch.softmax(scores(q, k), dim=-1) @ v, qkv())
    assert len(backend.calls) == 1
    assert not backend.calls[0]["is_causal"]
    assert "attn_mask" not in backend.calls[0]


@pytest.mark.parametrize("spelling", CAUSAL)
def test_causal_masks_need_no_tensor(spelling):
    mask = CAUSAL[spelling]
    backend = check(lambda q, k, v: mask(q @ k.mT / math.sqrt(8)).softmax(-1).matmul(v), qkv())
    assert backend.calls[0]["is_causal"] is True
    assert "attn_mask" not in backend.calls[0]


@pytest.mark.parametrize("spelling", NOT_CAUSAL)
def test_other_masks_stay_masks(spelling):
    mask = NOT_CAUSAL[spelling]
    # triu(0) closes a whole row, whose gradients the flash kernels do not promise.
    backward = spelling != "triu0_finite"
    backend = check(lambda q, k, v: F.softmax(mask(q @ k.mT * 0.3), dim=3) @ v, qkv(), backward=backward)
    assert backend.calls[0]["is_causal"] is False
    assert "attn_mask" in backend.calls[0]


def test_unequal_lengths_are_not_causal():
    def fn(q, k, v):
        return (q @ k.mT + torch.full((6, 9), NEG).triu(1)).softmax(-1) @ v

    assert check(fn, qkv(t=9)).calls[0]["is_causal"] is False


def test_mask_written_after_it_was_made():
    def fn(q, k, v):
        mask = torch.full((6, 6), NEG).triu(1)
        mask[0, 3] = 0.0
        return (q @ k.mT + mask).softmax(-1) @ v

    assert check(fn, qkv()).calls[0]["is_causal"] is False


def test_what_of_a_buffer_is_not_causal_is_passed_as_a_mask():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mask", torch.tril(torch.ones(16, 16), 1).view(1, 1, 16, 16))

        def forward(self, q, k, v):
            s = q.size(2)
            return (q @ k.mT).masked_fill(self.mask[:, :, :s, :s] == 0, NEG).softmax(-1) @ v

    backend = check(Attention(), qkv())
    assert backend.calls[0]["is_causal"] is False
    assert "attn_mask" in backend.calls[0]


@pytest.mark.parametrize("shape", [(2, 1, 6, 6), (2, 1, 1, 6), (4, 6, 6), (6, 6), (6,), (2, 4, 6, 1)])
def test_additive_inputs(shape):
    bias = torch.randn(shape, requires_grad=True)
    check(lambda q, k, v, m: (q @ k.mT * 0.3 + m).softmax(-1) @ v, [*qkv(), bias])


def test_two_masks():
    pad = torch.zeros(2, 1, 1, 6)
    pad[1, ..., 4:] = -1e9

    def fn(q, k, v, pad):
        scores = torch.where(torch.ones(6, 6, dtype=torch.bool).tril(), q @ k.mT, torch.finfo(q.dtype).min)
        return (scores + pad).softmax(-1) @ v

    assert len(check(fn, [*qkv(), pad]).calls) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("fill", [-1e4, -1e9, torch.finfo(torch.float32).min])
def test_rows_closed_by_a_finite_number_stay_a_mean(fill, dtype):
    closed = torch.zeros(2, 1, 6, 6, dtype=torch.bool)
    closed[0, :, 2] = True
    inputs = [*qkv(dtype=dtype), closed]
    check(lambda q, k, v, m: (q @ k.mT).masked_fill(m, fill).softmax(-1) @ v, inputs)


def test_rows_closed_by_two_masks_stay_a_mean():
    # The first tokens of a sequence that is padded on the left see nothing, the later ones twice.
    pad = torch.zeros(2, 1, 1, 6, dtype=torch.bool)
    pad[0, ..., :3] = True

    def fn(q, k, v, pad):
        scores = (q @ k.mT).masked_fill(pad, -1e9)
        return scores.masked_fill(torch.ones(6, 6, dtype=torch.bool).triu(1), -1e9).softmax(-1) @ v

    check(fn, [*qkv(), pad])


@pytest.mark.parametrize("frozen", [False, True])
def test_rows_closed_over_a_bias_hand_no_gradient_on(frozen):
    closed = torch.zeros(2, 1, 6, 6, dtype=torch.bool)
    closed[0, :, 2] = closed[1, :, :, 4] = True
    bias = torch.randn(4, 6, 6, requires_grad=True)

    def fn(q, k, v, bias, closed):
        return (q @ k.mT * 0.3 + bias).masked_fill(closed, torch.finfo(q.dtype).min).softmax(-1) @ v

    check(fn, [*(x.requires_grad_(not frozen) for x in qkv()), bias, closed])


@pytest.mark.parametrize("lower", [torch.randn(6, 6), torch.full((6, 6), NEG).triu(1)], ids=["bias", "causal"])
def test_rows_closed_over_what_is_added_stay_a_mean_in_inference(lower):
    def fn(q, k, v, lower, closed):
        return (q @ k.mT + lower).masked_fill(closed, -1e4).softmax(-1) @ v

    inputs = [x.requires_grad_(False) for x in qkv()]
    check(fn, [*inputs, lower, (torch.arange(6) == 2)[:, None].expand(6, 6)], backward=False)


@pytest.mark.parametrize(("known", "trains", "looks"), [(True, True, 0), (False, False, 0), (False, True, 1)])
def test_closed_rows_are_looked_for_where_there_may_be_some_and_gradients(known, trains, looks):
    def fn(q, k, v, closed):
        return (q @ k.mT).masked_fill(torch.ones(6, 6).triu(2) == 1 if known else closed, -1e9).softmax(-1) @ v

    backend = check(fn, [*(x.requires_grad_(trains) for x in qkv()), torch.ones(6, 6).triu(2) == 1], backward=trains)
    assert len(backend.calls[0]["attn_mask"].all_input_nodes) == 1 + looks


@pytest.mark.parametrize("future", [float("-inf"), torch.finfo(torch.float32).min])
def test_a_row_that_is_closed_and_then_masked_by_addition_does_not_see_the_future(future):
    pad = torch.zeros(2, 1, 1, 6, dtype=torch.bool)
    pad[0, ..., :3] = True

    def fn(q, k, v, pad):
        return ((q @ k.mT).masked_fill(pad, -1e9) + torch.full((6, 6), future).triu(1)).softmax(-1) @ v

    check(fn, [*qkv(), pad], backward=False)


def repeat_view(x, n):
    b, h, s, d = x.shape
    return x[:, :, None, :, :].expand(b, h, n, s, d).reshape(b, h * n, s, d)


GROUPS = {
    "interleave": lambda x, n: x.repeat_interleave(n, dim=1),
    "torch_interleave": lambda x, n: torch.repeat_interleave(x, n, dim=-3),
    "expand": repeat_view,
    "unsqueeze": lambda x, n: x.unsqueeze(2).expand(-1, -1, n, -1, -1).flatten(1, 2),
    "token_first": lambda x, n: torch.repeat_interleave(x.transpose(1, 2).contiguous(), n, dim=2).transpose(1, 2),
}


@pytest.mark.parametrize("spelling", GROUPS)
def test_grouped_queries(spelling):
    repeat = GROUPS[spelling]

    def fn(q, k, v):
        k, v = repeat(k, 2), repeat(v, 2)
        return (q @ k.transpose(2, 3) / math.sqrt(8)).softmax(dim=-1) @ v

    assert check(fn, qkv(hkv=2)).calls[0]["enable_gqa"] is True


def test_tiled_heads_are_not_groups():
    # x.repeat tiles the heads: 0 1 0 1, where grouped attention means 0 0 1 1.
    backend = check(lambda q, k, v: (q @ k.repeat(1, 2, 1, 1).mT).softmax(-1) @ v.repeat(1, 2, 1, 1), qkv(hkv=2))
    assert "enable_gqa" not in backend.calls[0]


SOFTMAXES = {
    "dtype": lambda w, q: F.softmax(w, dim=-1, dtype=torch.float32).to(q.dtype),
    "float": lambda w, q: w.float().softmax(-1).type_as(q),
    "torch": lambda w, q: torch.softmax(w, -1, torch.float32).to(dtype=q.dtype),
    "dropout_eval": lambda w, q: F.dropout(w.softmax(-1), 0.5, False),
    "dropout_zero": lambda w, q: nn.Dropout(0.0)(w.softmax(-1)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("spelling", SOFTMAXES)
def test_softmax_spellings(spelling, dtype):
    probs = SOFTMAXES[spelling]
    tol = 1e-5 if dtype == torch.float32 else 0.05
    backend = check(lambda q, k, v: probs(q @ k.mT * 0.3, q) @ v, qkv(dtype=dtype), tol=tol)
    assert backend.calls[0]["dropout_p"] == 0.0


def test_training_dropout_is_passed_on():
    backend = Recorder(["sdpa"], "eager")
    fn = torch.compile(
        lambda q, k, v: F.dropout((q @ k.mT).softmax(-1), 0.25, True) @ v, backend=backend, dynamic=False
    )
    fn(*qkv())
    assert backend.calls[0]["dropout_p"] == 0.25


def test_mixed_dtypes_agree_inside():
    q, k, v = qkv()
    v = v.detach().bfloat16().requires_grad_()
    backend = check(lambda q, k, v: (q @ k.mT).softmax(-1).to(v.dtype) @ v, [q, k, v], tol=0.03)
    assert len(backend.calls) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_values_that_are_wider_than_the_scores_are_not_rounded_to_them(dtype):
    backend = check(lambda q, k, v: (q.to(dtype) @ k.to(dtype).mT).float().softmax(-1) @ v, qkv())
    assert backend.calls == []
    assert "the values are torch.float32 and the scores" in backend.skipped[0]


def test_values_that_are_widened_to_meet_the_probabilities_are_read_as_they_were():
    def fn(q, k, v):
        return (q @ k.mT).float().softmax(-1) @ v.transpose(1, 2).float().transpose(1, 2)

    assert len(check(fn, qkv(dtype=torch.bfloat16), tol=0.05).calls) == 1


def test_autocast():
    def fn(q, k, v):
        with torch.autocast("cpu", torch.bfloat16):
            w = q @ k.mT * 0.3 + torch.full((6, 6), NEG).triu(1)
            return w.softmax(-1) @ v

    assert check(fn, qkv(), tol=0.05).calls[0]["is_causal"] is True


def test_view_of_the_result():
    check(lambda q, k, v: ((q @ k.mT).softmax(-1) @ v).view(2, -1), qkv())
    check(lambda q, k, v: ((q @ k.mT).softmax(-1) @ v).transpose(1, 2).contiguous().view(2, 6, -1), qkv())


def written_to(out, q):
    doubled = out * 2
    doubled.view(2, -1).add_(1)
    return doubled.sin()


# SDPA's result lies as its query does, and so does what is computed from it elementwise.
AFTERWARDS = {
    "viewed": lambda out, q: (out * 2).view(2, -1),
    "viewed_after_several": lambda out, q: (
        F.gelu(out.transpose(1, 2) * 2).transpose(1, 2).to(torch.float32).view(2, 24, 8)
    ),
    "written_to": written_to,
    "leaves_as_numbers": lambda out, q: torch.view_as_complex(out.exp().unflatten(-1, (4, 2))).abs(),
}


@pytest.mark.parametrize("reader", AFTERWARDS)
def test_readers_of_what_is_computed_elementwise_from_a_result_that_lies_otherwise(reader):
    def fn(q, k, v):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return AFTERWARDS[reader]((q @ k.mT).softmax(-1) @ v, q)

    assert check(fn, qkv(h=6, s=4)).calls


LEFT_ALONE = {
    "softcap": (lambda q, k, v: (torch.tanh(q @ k.mT / 5.0) * 5.0).softmax(-1) @ v, "tanh"),
    "after_softmax": (lambda q, k, v: ((q @ k.mT).softmax(-1) * 0.5) @ v, "`mul` lies between the softmax"),
    "learned_scale": (lambda q, k, v: (q @ k.mT * v[0, 0, 0, 0]).softmax(-1) @ v, "`mul` lies between the scores"),
    "wrong_dim": (lambda q, k, v: (q @ k.mT).softmax(-2) @ v, "last dimension"),
    "scaled_after_mask": (
        lambda q, k, v: ((q @ k.mT + torch.ones(6, 6)) * 2).softmax(-1) @ v,
        "after the mask",
    ),
    "negative": (lambda q, k, v: (q @ k.mT * -1.0).softmax(-1) @ v, "not positive"),
    "scores_reused": (
        lambda q, k, v: ((w := q @ k.mT).softmax(-1) @ v) + w.sum(),
        "scores are used elsewhere",
    ),
}


@pytest.mark.parametrize("case", LEFT_ALONE)
def test_left_alone(case):
    fn, words = LEFT_ALONE[case]
    backend = check(fn, qkv())
    assert backend.matches == {"sdpa": 0}
    if words:
        assert any(words in reason for reason in backend.skipped), backend.skipped


def test_returned_probabilities():
    def fn(q, k, v):
        probs = (q @ k.mT).softmax(-1)
        return probs @ v, probs

    backend = RewriteBackend(["sdpa"], "eager")
    q, k, v = qkv()
    got = torch.compile(fn, backend=backend, dynamic=False)(q, k, v)
    torch.testing.assert_close(got, fn(q, k, v))
    assert backend.matches == {"sdpa": 0}
    assert "attention probabilities are returned" in backend.skipped[0]
    assert "probs = (q @ k.mT).softmax(-1)" in backend.skipped[0]


def test_values_written_in_between():
    def fn(q, k, v):
        v = v * 1.0
        probs = (q @ k.mT).softmax(-1)
        k = k.clone()
        v.add_(1.0)
        return probs @ v

    check(fn, qkv())

    def moved(q, k, v):
        q = q.clone()
        probs = (q @ k.mT).softmax(-1)
        with torch.no_grad():
            q.add_(1.0)
        return probs @ v + q.detach()

    backend = RewriteBackend(["sdpa"], "eager")
    with torch.no_grad():
        inputs = qkv()
        got = torch.compile(moved, backend=backend, dynamic=False)(*inputs)
        torch.testing.assert_close(got, moved(*inputs))
    assert backend.matches == {"sdpa": 0}


def test_scale_in_place_counts_once():
    def fn(q, k, v):
        q = q.clone()
        q *= 0.3
        return (q @ k.mT).softmax(-1) @ v

    assert len(check(fn, qkv()).calls) == 1


def test_inductor():
    def fn(q, k, v):
        w = q @ k.mT / math.sqrt(8) + torch.full((6, 6), NEG).triu(1)
        return w.softmax(-1) @ v

    assert check(fn, qkv(), inner="inductor").calls[0]["is_causal"] is True
