"""Capped scores and sliding windows become FlexAttention; what it is asked for, and what its numbers are."""

import pytest
import torch
import torch.nn.functional as F
from known_facts import facts_of
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.debugging import aot_eager
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import flex_attention as torchs
from torch.torch_version import TorchVersion

from rung.plan import Plan
from rung.rewrites import RewriteBackend, hidden
from rung.rewrites.attention.flex import BLOCKS, flex_attention
from rung.rungs import BY_NAME, Context

BATCH, HEADS, GROUPS, TOKENS, DIM, CAP, SCALE = 2, 4, 2, 9, 8, 3.0, 0.7


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()
    torch.manual_seed(0)


@pytest.fixture
def trains_on_a_cpu(monkeypatch):
    """torch refuses the backward pass on a CPU up front; its plain form computes it."""
    monkeypatch.setattr(torchs, "_validate_device", lambda *tensors: None)
    monkeypatch.setattr("rung.rewrites.attention.sdpa.obstacle", lambda *given: "")
    monkeypatch.setattr("rung.rewrites.attention.flex.obstacle", lambda *given: "")


def ones():
    return torch.ones(TOKENS, TOKENS, dtype=torch.bool)


def window(width):
    return ones().tril() & ~ones().tril(-width)


def gemma(q, k, v):
    scores = torch.matmul(q, k.transpose(2, 3)) * SCALE
    scores = torch.tanh(scores / CAP) * CAP
    return torch.matmul((scores + torch.zeros(ones().shape).masked_fill(~ones().tril(), -1e30)).softmax(-1), v)


def grouped(q, k, v):
    k, v = (x[:, :GROUPS].repeat_interleave(HEADS // GROUPS, 1) for x in (k, v))
    return ((q * SCALE @ k.mT).div(CAP).tanh().mul(CAP)).masked_fill(~window(4), float("-inf")).softmax(-1) @ v


def without_a_mask(q, k, v):
    return F.softmax(CAP * torch.tanh(q @ k.mT), dim=-1, dtype=torch.float32).to(q.dtype) @ v


def window_by_hand(q, k, v):
    return (SCALE * q @ k.mT).masked_fill(~window(3), float("-inf")).softmax(-1) @ v


def window_by_sdpa(q, k, v):
    k, v = (x[:, :GROUPS].repeat_interleave(HEADS // GROUPS, 1) for x in (k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=window(3)[None, None])


LOGITS = torch.linspace(-2, 3, HEADS).view(1, HEADS, 1, 1)


def sunk(q, k, v, keep, largest=lambda x: x.max(-1, keepdim=True).values, drop=lambda x: x[..., :-1]):
    """As gpt-oss writes it: a score a row that is no key's."""
    k, v = (x[:, :GROUPS].repeat_interleave(HEADS // GROUPS, 1) for x in (k, v))
    scores = q @ k.mT * SCALE + torch.zeros(ones().shape).masked_fill(~keep, -1e30)
    scores = torch.cat([scores, LOGITS.expand(BATCH, -1, TOKENS, -1)], dim=-1)
    scores = scores - largest(scores)
    return F.dropout(drop(F.softmax(scores, dim=-1, dtype=scores.dtype)), p=0.0).to(v.dtype) @ v


def less_before_the_sink(q, k, v, largest):
    """The sink is not less by what the scores are less by."""
    scores = q @ k.mT
    scores = scores - scores.max(-1, keepdim=True).values
    scores = torch.cat([scores, LOGITS.expand(BATCH, -1, TOKENS, -1)], dim=-1)
    return (scores - largest(scores)).softmax(-1)[..., :-1] @ v


def sink_and_window(q, k, v):
    return sunk(q, k, v, window(4))


def sink_and_causal(q, k, v):
    return sunk(q, k, v, ones().tril(), lambda x: x.amax(-1, True).detach(), lambda x: x[:, :, :, :TOKENS])


SINKS = [sink_and_window, sink_and_causal]
FORMS = [gemma, grouped, without_a_mask, window_by_hand, window_by_sdpa]


class Traced(RewriteBackend):
    def compiled(self, gm, inputs):
        return aot_eager(gm, inputs)


class Kept(RewriteBackend):
    def compiled(self, gm, inputs):
        self.graph = gm.graph
        return super().compiled(gm, inputs)


def compared(fn, kind=RewriteBackend, passes=("flex-attention",), train=False):
    backend = kind(passes, "eager")

    def whole(*parts):
        return fn(*(part.sin().transpose(1, 2) for part in parts)).transpose(1, 2).flatten(2) * 2

    parts = [torch.randn(BATCH, TOKENS, HEADS, DIM, requires_grad=train) for _ in range(3)]
    want, got = whole(*parts), torch.compile(whole, backend=backend, dynamic=False)(*parts)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    if train:
        slopes = [torch.autograd.grad(y.square().sum(), parts) for y in (want, got)]
        torch.testing.assert_close(slopes[1], slopes[0], rtol=1e-4, atol=1e-4)
    return backend


@pytest.mark.parametrize("fn", FORMS, ids=lambda fn: fn.__name__)
def test_attention_becomes_flexattention(fn):
    backend = compared(fn, Kept)
    assert backend.rewritten == {"flex-attention": 1}
    assert backend.after["flex"] == 1
    assert backend.after["gemm"] == backend.after["sdpa"] == backend.after["softmax"] == 0
    (call,) = [node for node in backend.graph.nodes if node.target is flex_attention]
    told = {"gemma": (CAP, True, None), "grouped": (CAP, False, 4), "without_a_mask": (CAP, False, None)}
    wanted = told.get(fn.__name__, (None, False, 3))
    assert tuple(call.kwargs.get(k) or d for k, d in (("cap", None), ("causal", False), ("window", None))) == wanted
    heads = call.args[1].meta["example_value"].shape[1] if "example_value" in call.args[1].meta else None
    assert heads in (None, HEADS if fn in (gemma, without_a_mask, window_by_hand) else GROUPS)


@pytest.mark.parametrize("kind", [RewriteBackend, Traced], ids=["eager", "traced"])
@pytest.mark.parametrize("fn", [gemma, grouped, window_by_sdpa, *SINKS], ids=lambda fn: fn.__name__)
def test_its_gradients_are_those_of_the_hand_written_form(fn, kind, trains_on_a_cpu):
    assert compared(fn, kind, train=True).rewritten == {"flex-attention": 1}


@pytest.mark.parametrize("fn", SINKS, ids=lambda fn: fn.__name__)
def test_a_sink_takes_its_share(fn, trains_on_a_cpu):
    backend = compared(fn, Kept)
    assert backend.rewritten == {"flex-attention": 1}
    (call,) = [node for node in backend.graph.nodes if node.target is flex_attention]
    assert call.kwargs["sink"] is not None
    assert (call.kwargs["causal"], call.kwargs["window"]) == ((False, 4) if fn is sink_and_window else (True, None))
    assert backend.after["gemm"] == backend.after["softmax"] == 0
    torch._dynamo.reset()
    assert "a sink" in compared(fn, passes=("sdpa",)).skipped[0]


def test_the_gradient_of_a_sink_is_that_of_the_hand_written_form(trains_on_a_cpu):
    """It is a parameter; keys and values see less of a row, too."""
    logits = torch.linspace(-2, 3, HEADS).view(HEADS, 1, 1).requires_grad_()
    parts = [torch.randn(BATCH, HEADS, TOKENS, DIM, requires_grad=True) for _ in range(3)]

    def fn(q, k, v, logits):
        scores = torch.cat([q @ k.mT, logits.expand(BATCH, -1, TOKENS, -1)], -1)
        return (scores.softmax(-1)[..., :-1] @ v).tanh()

    for kind in (RewriteBackend, Traced):
        torch._dynamo.reset()
        backend = kind(("flex-attention",), "eager")
        compiled = torch.compile(fn, backend=backend, dynamic=False)
        slopes = [torch.autograd.grad(f(*parts, logits).sum(), [*parts, logits]) for f in (fn, compiled)]
        torch.testing.assert_close(slopes[1], slopes[0], rtol=1e-4, atol=1e-5)
        assert backend.rewritten == {"flex-attention": 1}


@pytest.mark.parametrize(
    "fn",
    [
        lambda q, k, v: sunk(q, k, v, ones().tril(), drop=lambda x: x[..., 1:]),
        lambda q, k, v: sunk(q, k, F.pad(v, (0, 0, 0, 1)), ones().tril(), drop=lambda x: x),
        lambda q, k, v: sunk(q, k, v, ones().tril(), lambda x: x.max(-2, keepdim=True).values),
        lambda q, k, v: less_before_the_sink(q, k, v, torch.zeros_like),
        lambda q, k, v: less_before_the_sink(q, k, v, lambda x: x.max(-1, keepdim=True).values),
    ],
    ids=[
        "another column dropped",
        "nothing dropped",
        "another largest",
        "its largest before the sink",
        "before and after",
    ],
)
def test_a_score_more_that_is_no_sink_is_left_alone(fn, trains_on_a_cpu):
    assert compared(fn, passes=("flex-attention", "sdpa")).rewritten == {}


def test_a_sink_that_is_left_alone_says_why(trains_on_a_cpu):
    fn = lambda q, k, v: sunk(q, k, F.pad(v, (0, 0, 0, 1)), ones().tril(), drop=lambda x: x)  # noqa: E731
    kept = compared(fn, passes=("flex-attention", "sdpa"))
    assert "whose probability is not dropped before the values" in kept.skipped[0]


def test_a_row_less_its_largest_is_the_same_softmax():
    def stable(q, k, v):
        scores = (q @ k.mT * SCALE).masked_fill(~ones().tril(), float("-inf"))
        return (scores - scores.amax(dim=-1, keepdim=True)).softmax(-1) @ v

    backend = compared(stable, passes=("sdpa",), train=True)
    assert backend.rewritten == {"sdpa": 1}
    assert backend.after["masked_sdpa"] == 0


def test_what_is_compiled_can_be_kept():
    """Inductor's cache writes the graphs of the score and the mask down, which it cannot where a type in them is text."""
    seen = []

    class Noted(RewriteBackend):
        def compiled(self, gm, inputs):
            return aot_autograd(fw_compiler=lambda gm, inputs: seen.append(gm) or gm.forward)(gm, inputs)

    with torch.no_grad():
        compared(gemma, Noted)
    parts = [part for gm in seen for part in gm.modules() if isinstance(part, torch.fx.GraphModule)]
    assert len(parts) >= 3
    assert not [node for part in parts for node in part.graph.nodes if isinstance(node.type, str)]


@pytest.mark.parametrize(
    ("tokens", "width", "dtype", "capability", "precision", "larger"),
    [(512, 128, torch.float32, (9, 0), "high", True), (512, 80, torch.float32, (9, 0), "high", True), (512, 64, torch.float32, (9, 0), "high", False),
     (512, 256, torch.float32, (9, 0), "high", False), (64, 128, torch.float32, (9, 0), "high", False), (512, 128, torch.bfloat16, (9, 0), "high", False),
     (512, 128, torch.float32, (8, 0), "high", False), (512, 128, torch.float32, (9, 0), "highest", False)],
    ids=str,
)  # fmt: skip
def test_tf32_is_cut_into_larger_blocks_where_that_was_measured(
    tokens, width, dtype, capability, precision, larger, monkeypatch
):
    monkeypatch.setattr(torch, "__version__", TorchVersion("2.11.0"))
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: precision)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert (asked_of_a_gpu(monkeypatch, tokens, width, dtype) == BLOCKS) == larger


@pytest.mark.parametrize(("queries", "decoding"), [(1, True), (8, True), (9, False), (127, False)])
def test_only_a_few_queries_are_for_the_kernel_that_decodes(queries, decoding, monkeypatch):
    asked = asked_of_a_gpu(monkeypatch, queries, 64, torch.bfloat16, HEADS // 2)
    assert asked == (None if decoding else {"FORCE_USE_FLEX_ATTENTION": True})


def asked_of_a_gpu(monkeypatch, tokens, width, dtype, groups=HEADS):
    """What torch is told of its kernel."""
    asked = {}
    monkeypatch.setattr(torchs, "flex_attention", lambda q, *given, **options: asked.update(options) or q)
    monkeypatch.setattr(torchs, "create_block_mask", lambda *given, **options: None)
    with FakeTensorMode():
        q, k = (torch.empty(1, heads, tokens, width, dtype=dtype, device="cuda") for heads in (HEADS, groups))
        make_fx(lambda q, k: flex_attention(q, k, k, SCALE, causal=True))(q, k)
    return asked["kernel_options"]


def causal_by_hand(q, k, v):
    return (SCALE * q @ k.mT).masked_fill(~ones().tril(), float("-inf")).softmax(-1) @ v


def causal_by_sdpa(q, k, v):
    k, v = (x[:, :GROUPS].repeat_interleave(HEADS // GROUPS, 1) for x in (k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def causal_by_a_mask(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=ones().tril()[None, None], scale=SCALE)


def open_to_other_keys(q, k, v):
    return F.scaled_dot_product_attention(q, k[:, :, 1:], v[:, :, 1:])


@pytest.mark.parametrize(
    ("fn", "told"),
    [(causal_by_hand, (SCALE, True, HEADS)), (causal_by_sdpa, (DIM**-0.5, True, GROUPS)),
     (causal_by_a_mask, (SCALE, True, HEADS)), (open_to_other_keys, (DIM**-0.5, False, HEADS))],
    ids=lambda item: getattr(item, "__name__", ""),
)  # fmt: skip
def test_what_sdpa_can_do_becomes_flexattention_where_it_is_asked_for(fn, told, trains_on_a_cpu):
    backend = compared(fn, Kept, BY_NAME["flex-for-sdpa"].change(Plan()).passes)
    assert backend.after["flex"] == 1
    assert backend.after["sdpa"] == backend.after["softmax"] == 0
    (call,) = [node for node in backend.graph.nodes if node.target is flex_attention]
    assert (call.kwargs["scale"], call.kwargs["causal"]) == (pytest.approx(told[0]), told[1])
    shape = call.args[1].meta.get("example_value", torch.empty(0, told[2])).shape
    assert shape[1] == told[2]
    assert compared(fn, Traced, ("sdpa", "flex-for-sdpa"), train=True).matches["flex-for-sdpa"] == 1


def test_other_masks_and_dropout_stay_with_sdpa():
    mask = torch.randn(TOKENS, TOKENS)
    kept = compared(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=mask), passes=("flex-for-sdpa",))
    assert (kept.rewritten, kept.skipped, kept.after["sdpa"]) == ({}, [], 1)
    torch._dynamo.reset()
    zero = compared(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=1e-9), passes=("flex-for-sdpa",))
    assert "no dropout" in zero.skipped[0]
    torch._dynamo.reset()
    trained = compared(causal_by_hand, passes=("sdpa", "flex-for-sdpa"), train=True)
    assert trained.rewritten == {"sdpa": 1}
    assert "no backward pass on a CPU" in trained.skipped[0]


@pytest.mark.parametrize(
    "fn",
    [
        lambda q, k, v: F.scaled_dot_product_attention(q[:, :1], k, v),
        lambda q, k, v: F.scaled_dot_product_attention(q, k[:1], v[:1]),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v[:, :1]),
    ],
    ids=["one query head", "one batch of keys", "one value head"],
)
def test_what_sdpa_broadcasts_stays_with_it(fn):
    left = compared(fn, passes=("flex-for-sdpa",))
    assert left.rewritten == {}
    assert "broadcast" in left.skipped[0]


def test_a_scale_of_zero_is_one():
    fn = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.0)  # noqa: E731
    assert compared(fn, passes=("flex-for-sdpa",)).rewritten == {"flex-for-sdpa": 1}


@pytest.mark.parametrize("copied", ["", "q k", "k v"])
def test_a_cpu_is_given_parts_of_one_product_as_they_lie(copied):
    """What fused-qkv leaves: views beside what is computed from them. torch's own kernel fails at two of the three."""
    joined = torch.randn(BATCH, TOKENS, HEADS * 16 + 2 * GROUPS * 16)

    def fn(x, kernel):
        q, k, v = (
            (part * 1 if name in copied else part).unflatten(-1, (-1, 16)).transpose(1, 2)
            for name, part in zip("qkv", x.split([HEADS * 16, GROUPS * 16, GROUPS * 16], -1), strict=True)
        )
        return kernel(q, k, v, SCALE, CAP, True)

    with torch.no_grad():
        got = torch.compile(fn, dynamic=False)(joined, flex_attention)
    torch.testing.assert_close(got, fn(joined, flex_attention), rtol=1e-5, atol=1e-5)


def test_what_sdpa_can_do_is_left_to_it():
    plain = lambda q, k, v: (q @ k.mT * SCALE).softmax(-1) @ v  # noqa: E731
    backend = compared(plain)
    assert backend.rewritten == {}
    assert backend.skipped == []
    torch._dynamo.reset()
    both = compared(window_by_hand, passes=("sdpa", "flex-attention"))
    assert both.rewritten == {"flex-attention": 1}
    assert hidden(both.matches) == ("sdpa",)  # so the survey asks sdpa by itself
    assert "cannot do" in compared(gemma, passes=("sdpa",)).skipped[0]


def test_capped_attention_that_is_left_alone_says_why():
    mask = torch.randn(TOKENS, TOKENS)
    backend = compared(lambda q, k, v: (CAP * torch.tanh(q @ k.mT) + mask).softmax(-1) @ v)
    assert "neither the causal one nor a sliding window" in backend.skipped[0]
    torch._dynamo.reset()
    assert "no backward pass on a CPU" in compared(gemma, train=True).skipped[0]
    torch._dynamo.reset()
    inside = compared(lambda q, k, v: (CAP * torch.tanh(q @ k.mT + mask)).softmax(-1) @ v, passes=("sdpa",))
    assert "before the cap" in inside.skipped[0]


def test_in_16_bits_sdpa_keeps_what_it_can_do():
    rung = BY_NAME["flex-for-sdpa"]
    facts = {"gpu": True, "matches": {"flex-for-sdpa": 4}, "dtype": "torch.float32", "amp": None}
    for plan, more in ((Plan(bf16=True, compile=True), {}), (Plan(compile=True), {"amp": "torch.bfloat16"}),
                       (Plan(compile=True), {"dtype": "torch.float16"})):  # fmt: skip
        assert "16 bits" in str(rung.applies(Context(plan, "bf16", facts_of(facts, **more), {}, {})))
    assert rung.applies(Context(Plan(tf32=True, compile=True), "tf32", facts_of(facts), {}, {})) is None
