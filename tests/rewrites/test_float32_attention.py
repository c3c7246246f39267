"""SDPA calls in float32 become calls of the kernel for TF32: by plain PyTorch here, and once by itself."""

import importlib.util
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from known_facts import facts_of

from rung.kernels import reference
from rung.plan import Plan
from rung.rewrites import RewriteBackend, hidden
from rung.rewrites.attention import float32_attention
from rung.rewrites.graph import kernel_ops
from rung.rungs import BY_NAME, Context, Evidence, with_rung
from rung.rungs.rung import Counters
from rung.workload.tiny_transformer import TinyTransformer

BATCH, HEADS, GROUPS, TOKENS, WIDTH, SCALE = 2, 4, 2, 9, 64, 0.3
sdpa = F.scaled_dot_product_attention


def plain(q, k, v, causal, scale, tf32):
    told.append((k.shape[1], causal, round(scale, 4), tf32))
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    return sdpa(q, k, v, is_causal=causal, scale=scale).transpose(1, 2).contiguous().transpose(1, 2), None


plain.namespace = "rung"
told: list = []


@pytest.fixture(autouse=True)
def _fresh_dynamo(monkeypatch):
    torch._dynamo.reset()
    torch.manual_seed(0)
    told.clear()
    monkeypatch.setattr(float32_attention, "matmul_precision_name", lambda: "high")


@pytest.fixture
def _as_reference(monkeypatch):
    monkeypatch.setattr(float32_attention, "obstacle", lambda *tensors: "")
    monkeypatch.setattr(kernel_ops, "operator", {"float32_attention": plain}.__getitem__)


def hide():
    return torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()


def by_hand(q, k, v):
    k, v = (x.repeat_interleave(HEADS // GROUPS, 1) for x in (k, v))
    scores = (q @ k.mT * SCALE).masked_fill(~hide(), float("-inf"))
    return (scores.softmax(-1) @ v).transpose(1, 2).reshape(BATCH, TOKENS, -1)


def by_a_mask(q, k, v):
    return sdpa(q, k, v, attn_mask=hide(), enable_gqa=True)


def no_mask(q, k, v):
    return sdpa(q, k, v, scale=SCALE, enable_gqa=True).transpose(1, 2).flatten(2)


def check(fn, passes=("sdpa", "tf32-attention"), dtype=torch.float32, width=WIDTH, **changes):
    given = [torch.randn(BATCH, n, TOKENS, width, dtype=dtype, requires_grad=True) for n in (HEADS, GROUPS, GROUPS)]
    backend = RewriteBackend(list(passes), "eager")
    compiled = torch.compile(fn, backend=backend, dynamic=False, fullgraph=True)
    out, want = compiled(*given), fn(*given)
    torch.testing.assert_close(out, want)
    assert out.stride() == want.stride()
    slope = torch.randn_like(out)
    for got, right in zip(torch.autograd.grad(out, given, slope), torch.autograd.grad(want, given, slope), strict=True):
        torch.testing.assert_close(got, right)
    return backend


@pytest.mark.usefixtures("_as_reference")
@pytest.mark.parametrize(
    ("fn", "causal", "scale"), [(by_hand, True, SCALE), (by_a_mask, True, 0.125), (no_mask, False, SCALE)]
)
def test_attention_in_float32_is_the_kernels_without_repeated_heads(fn, causal, scale):
    assert check(fn).matches["tf32-attention"] == 1
    assert told == [(GROUPS, causal, scale, True)]


class Copies(RewriteBackend):
    """Counts what is asked to be dense in the graph as the passes left it."""

    def compiled(self, gm, inputs):
        self.dense = sum(node.target == "contiguous" for node in gm.graph.nodes)
        return super().compiled(gm, inputs)


def rope(x, cos, sin, interleaved, backward):
    """Lies as x does, as the kernel's result."""
    found = reference.rope(x, cos, sin, interleaved=interleaved)
    return found.transpose(1, 2).contiguous().transpose(1, 2) if x.stride(1) < x.stride(2) else found.contiguous()


rope.namespace = "rung"


@pytest.fixture
def _both_as_references(monkeypatch):
    monkeypatch.setattr(kernel_ops, "obstacle", lambda *tensors: "")
    monkeypatch.setattr(float32_attention, "obstacle", lambda *tensors: "")
    monkeypatch.setattr(kernel_ops, "operator", {"float32_attention": along, "rope": rope}.__getitem__)


def along(q, k, v, causal, scale, tf32):
    out, _ = plain(q, k, v, causal, scale, tf32)
    return (out if q.stride(1) < q.stride(2) else out.contiguous()), None


along.namespace = "rung"


@pytest.mark.usefixtures("_both_as_references")
def test_what_our_own_kernels_read_and_write_is_not_copied_between_them():
    model, tokens = TinyTransformer(512, 1, 8), torch.randint(0, 1000, (2, TOKENS))
    backend = Copies(["sdpa", "tf32-attention", "hoisted-constants", "fused-qkv", "triton-rope"], "eager")
    torch.testing.assert_close(torch.compile(model, backend=backend, dynamic=False)(tokens), model(tokens))
    assert backend.rewritten["tf32-attention"] == backend.rewritten["fused-qkv"] == 1
    assert backend.rewritten["triton-rope"] == 2
    assert backend.dense == 0


class Rotated(torch.nn.Module):
    """Queries and keys turned in halves, and what `after` makes of attention's result."""

    def __init__(self, after):
        super().__init__()
        self.projections = torch.nn.ModuleList(torch.nn.Linear(HEADS * WIDTH, HEADS * WIDTH, bias=False) for _ in "qkv")
        self.register_buffer("angle", torch.outer(torch.arange(float(TOKENS)), torch.rand(WIDTH // 2)))
        self.after = after

    def forward(self, x):
        q, k, v = (layer(x).view(BATCH, TOKENS, HEADS, WIDTH).transpose(1, 2) for layer in self.projections)
        cos, sin = self.angle.cos(), self.angle.sin()
        halves = [x.chunk(2, -1) for x in (q, k)]
        q, k = (torch.cat((a * cos - b * sin, b * cos + a * sin), -1) for a, b in halves)
        return self.after(sdpa(q, k, v, is_causal=True))


def written_through_a_copy(out):
    joined = out.transpose(1, 2).reshape(BATCH, TOKENS, -1)
    joined.mul_(2)
    return out.sum((1, 3)) + joined.sum(-1)


@pytest.mark.usefixtures("_both_as_references")
@pytest.mark.parametrize(
    "after",
    [lambda out: out * 2, lambda out: out.transpose(1, 2) * 2, lambda out: (out * 2).view(-1), written_through_a_copy],
)
def test_what_is_made_of_rotated_queries_lies_and_is_as_it_was(after):
    model, x = Rotated(after), torch.randn(BATCH, TOKENS, HEADS * WIDTH)
    backend = RewriteBackend(["tf32-attention", "fused-qkv", "triton-rope"], "eager")
    with torch.no_grad():
        got, want = torch.compile(model, backend=backend, dynamic=False)(x), model(x)
    assert backend.matches["triton-rope"] == 2
    torch.testing.assert_close(got, want)
    assert got.stride() == want.stride()


def straight(q, k, v):
    return sdpa(*(x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)), is_causal=True, enable_gqa=True)


def in_16_bits(q, k, v):
    with torch.autocast("cpu", torch.bfloat16):
        return sdpa(q, k, v, is_causal=True, enable_gqa=True) + 0


@pytest.mark.usefixtures("_as_reference")
def test_a_result_in_16_bits_is_left():
    backend = check(in_16_bits, passes=("tf32-attention",))
    assert backend.rewritten == {}
    assert "another size or dtype" in backend.skipped[0]


@pytest.mark.usefixtures("_as_reference")
def test_a_result_that_the_graph_returns_lies_as_it_did():
    given = [torch.randn(BATCH, n, TOKENS, WIDTH) for n in (HEADS, GROUPS, GROUPS)]
    backend = RewriteBackend(["tf32-attention"], "eager")
    with torch.no_grad():
        got = torch.compile(straight, backend=backend, dynamic=False)(*given)
        want = straight(*given)
    assert backend.rewritten
    torch.testing.assert_close(got, want)
    assert got.stride() == want.stride()


@pytest.mark.usefixtures("_as_reference")
def test_where_products_are_to_be_exact_so_are_the_kernels(monkeypatch):
    monkeypatch.setattr(float32_attention, "matmul_precision_name", lambda: "highest")
    check(by_hand)
    assert told == [(GROUPS, True, SCALE, False)]


def windowed(q, k, v):
    return sdpa(q, k, v, attn_mask=hide() & ~hide().tril(-3), enable_gqa=True)


def dropped(q, k, v):
    return sdpa(q, k, v, dropout_p=1e-9, enable_gqa=True)


def broadcast(q, k, v):
    return sdpa(q[:, :GROUPS], k[:1], v[:1])


@pytest.mark.usefixtures("_as_reference")
@pytest.mark.parametrize(
    ("fn", "changes", "why"),
    [(windowed, {}, None), (dropped, {}, "dropout"), (broadcast, {}, "broadcast"), (by_a_mask, {"width": 40}, "40 elements"),
     (by_a_mask, {"dtype": torch.float64}, None)],
)  # fmt: skip
def test_other_attention_is_left(fn, changes, why):
    backend = check(fn, passes=("tf32-attention",), **changes)
    assert backend.rewritten == {}
    assert (why in backend.skipped[0]) if why else backend.skipped == []


def test_without_a_gpu_it_is_left(monkeypatch):
    monkeypatch.setattr(kernel_ops, "obstacle", lambda *tensors: "its kernel runs on a GPU")
    backend = check(by_a_mask)
    assert backend.matches["tf32-attention"] == 0
    assert "runs on a GPU" in backend.skipped[0]


@pytest.mark.usefixtures("_as_reference")
def test_flexattention_is_asked_by_itself_where_this_one_found_what_it_would_find():
    assert hidden(check(by_hand, ("sdpa", "tf32-attention", "flex-for-sdpa")).matches) == ("flex-for-sdpa",)


@pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="Triton is not installed")
@pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter is for machines without a GPU")
def test_the_kernel_itself_does_as_its_reference(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert check(by_hand).matches["tf32-attention"] == 1


FACTS = {
    "gpu": True, "mode": "train", "amp": None, "dtype": "torch.float32", "arch": "sm90", "matmul_precision": "highest",
    "matches": {"tf32-attention": 4}, "skipped": [],
}  # fmt: skip


def test_it_applies_to_compiled_tf32_on_hopper():
    rung = BY_NAME["tf32-attention"]
    here = Context(Plan(tf32=True, compile=True), "tf32", facts_of(FACTS), {}, {})
    assert rung.applies(here) is None
    own = {**FACTS, "matmul_precision": "high", "mode": "infer"}
    assert rung.applies(replace(here, plan=Plan(compile=True), facts=facts_of(own))) is None
    for change, says in (({"gpu": False}, "GPUs"), ({"arch": "gfx942"}, "sm90"), ({"amp": "torch.bfloat16"}, "16 bits"),
                         ({"matches": {}}, "no attention in float32")):  # fmt: skip
        assert says in str(rung.applies(replace(here, facts=facts_of(FACTS, **change))))
    for plan, says in ((Plan(compile=True), "TF32"), (Plan(tf32=True), "torch.compile")):
        assert says in str(rung.applies(replace(here, plan=plan)))


def test_it_takes_the_place_of_flexattention_and_calls_of_sdpa_are_made_for_it_once():
    rung = BY_NAME["tf32-attention"]
    assert with_rung(["compile", "sdpa", "flex-for-sdpa"], rung) == ["compile", "sdpa", "tf32-attention"]
    assert rung.change(Plan()).passes == rung.change(Plan(passes=("sdpa",))).passes == ("sdpa", "tf32-attention")


def test_it_shows_by_its_kernels():
    rung, said = BY_NAME["tf32-attention"], {"matches": {"tf32-attention": 12}}
    before, after = Counters(300, 300, 90, {}), Counters(324, 324, 66, {"float32_attention_forward": 12.0})
    assert rung.proof(Evidence(before, after, said)).shown is True
    assert rung.proof(Evidence(before, before, said)).shown is False
