"""Linear layers on one input become one; whole models; the bookkeeping of the backend."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from rung import rewrites
from rung.rewrites import RewriteBackend
from rung.rewrites import backend as backend_module


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()
    torch.manual_seed(0)


# Kernels have tests of their own; so have those that belong to autocast.
PASSES = tuple(name for name in rewrites.PASSES if not name.startswith(("triton-", "flex-", "tf32-", "bf16-")))


def check(model, x, passes=PASSES, inner="eager", tol=1e-5, backend=None):
    backend = backend or RewriteBackend(passes, inner)
    keys = list(model.state_dict())
    compiled = torch.compile(model, backend=backend, dynamic=False, fullgraph=True)
    want = model(x)
    want.float().square().mean().backward()
    grads = {name: p.grad for name, p in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    got = compiled(x)
    assert got.dtype == want.dtype
    assert got.stride() == want.stride()
    torch.testing.assert_close(got, want, rtol=tol, atol=tol)
    got.float().square().mean().backward()
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.grad, grads[name], rtol=tol, atol=tol)
    model.zero_grad(set_to_none=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), want, rtol=tol, atol=tol)
    assert list(model.state_dict()) == keys
    return backend


class Projections(nn.Module):
    def __init__(self, widths=(8, 4, 4), biases=(False, True, False), combine=None):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, w, bias=b) for w, b in zip(widths, biases, strict=True))
        self.combine = combine or (lambda parts: torch.cat(parts, -1))

    def forward(self, x):
        return self.combine([layer(x) for layer in self.layers])


X = torch.randn(2, 5, 16)


@pytest.mark.parametrize("biases", [(False,) * 3, (True,) * 3, (False, True, False)])
def test_unequal_widths_and_mixed_biases(biases):
    assert check(Projections(biases=biases), X).matches["fused-qkv"] == 1


@pytest.mark.parametrize("shape", [(), (1,), (5, 8)], ids=str)
def test_a_bias_that_is_broadcast_stays_with_its_layer(shape):
    class Broadcast(Projections):
        def forward(self, x):
            return torch.cat([F.linear(x, self.layers[0].weight, self.bias)[-1:], self.layers[1](x)[-1:]], -1)

    model = Broadcast(widths=(8, 4), biases=(False, True))
    model.bias = nn.Parameter(torch.randn(shape))
    assert check(model, X[0]).rewritten == {"narrow-logits": 1}  # of the other layer alone


@pytest.mark.parametrize(
    "combine",
    [
        lambda p: p[0].view(-1, 4).sum(0) + p[1].view(-1, 4).sum(0) + p[2].view(2, -1).sum(),
        lambda p: p[0].transpose(0, 1).transpose(0, 1).view(10, 8)[:, :4] + p[1].view(10, 4),
        lambda p: p[1].to(torch.float32).view(-1) + p[2].view(-1) + p[0].relu().view(-1).sum(),
    ],
)
def test_views_of_the_parts(combine):
    assert check(Projections(combine=combine), X).matches["fused-qkv"] == 1


def test_returned_part_keeps_its_strides():
    backend = RewriteBackend(["fused-qkv"], "eager")
    model = Projections(combine=tuple)
    for got, want in zip(torch.compile(model, backend=backend, dynamic=False)(X), model(X), strict=True):
        torch.testing.assert_close(got, want)
        assert got.stride() == want.stride()
    assert backend.rewritten == {"fused-qkv": 1}


@pytest.mark.parametrize(
    "combine",
    [
        lambda p: F.silu(p[0]) * p[1],
        lambda p: p[0] * F.gelu(p[1], approximate="tanh"),
        lambda p: p[0] * torch.sigmoid(1.7 * p[0]) * p[1],
        lambda p: p[0].float().sigmoid().to(p[0].dtype).mul(p[1]),
    ],
)
def test_gate_up(combine):
    backend = check(Projections((8, 8), (False, True), combine), X)
    assert backend.rewritten == {"fused-gate-up": 1}


def test_two_that_do_not_meet_are_not_gate_up():
    assert check(Projections((8, 8), (False, False)), X).matches["fused-gate-up"] == 0


def test_different_inputs_stay_apart():
    model = Projections((8, 8), (False, False))
    model.forward = lambda x: model.layers[0](x) + model.layers[1](x + 1)
    assert check(model, X).matches["fused-qkv"] == 0


def test_input_written_between():
    class Model(Projections):
        def forward(self, x):
            x = x.clone()
            one = self.layers[1](x)
            x.add_(1.0)
            return one + self.layers[2](x)

    backend = RewriteBackend(["fused-qkv"], "eager")
    model = Model()
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(model, backend=backend, dynamic=False)(X), model(X))
    assert backend.rewritten == {}
    assert "written in place" in backend.skipped[0]


def test_output_written_in_place():
    backend = check(Projections((8, 8), (True, False), lambda p: p[0].add_(1.0) - p[1].relu()), X)
    assert backend.matches["fused-qkv"] == 0


@pytest.mark.parametrize("inside", [True, False])
def test_autocast(inside):
    class Model(Projections):
        def forward(self, x):
            if not inside:
                return super().forward(x)
            with torch.autocast("cpu", torch.bfloat16):
                parts = super().forward(x)
            return parts

    model = Model()
    with torch.autocast("cpu", torch.bfloat16, enabled=not inside):
        backend = check(model, X, tol=0.02)
    assert backend.matches["fused-qkv"] == 1


def test_autocast_boundary_keeps_layers_apart():
    class Model(Projections):
        def forward(self, x):
            one = self.layers[1](x)
            with torch.autocast("cpu", torch.bfloat16):
                two = self.layers[2](x)
            return one + two

    assert check(Model(), X).matches["fused-qkv"] == 0


class RMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(1 + 0.1 * torch.randn(dim))

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)
        return y.type_as(x) * self.weight


def rope(x, cos, sin):
    even, odd = x[..., ::2], x[..., 1::2]
    cos, sin = cos[: x.shape[1], None], sin[: x.shape[1], None]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(3).type_as(x)


class Layer(nn.Module):
    def __init__(self, dim=32, heads=4, kv=2):
        super().__init__()
        self.heads, self.kv, self.width = heads, kv, dim // heads
        self.n1, self.n2 = RMSNorm(dim), RMSNorm(dim)
        self.q = nn.Linear(dim, dim, bias=False)
        self.k = nn.Linear(dim, kv * self.width, bias=False)
        self.v = nn.Linear(dim, kv * self.width, bias=False)
        self.o = nn.Linear(dim, dim, bias=False)
        self.gate, self.up = nn.Linear(dim, 48, bias=False), nn.Linear(dim, 48, bias=False)
        self.down = nn.Linear(48, dim, bias=False)

    def forward(self, x, cos, sin):
        b, s, _ = x.shape
        h = self.n1(x)
        q = rope(self.q(h).view(b, s, self.heads, self.width), cos, sin).transpose(1, 2)
        k = rope(self.k(h).view(b, s, self.kv, self.width), cos, sin).transpose(1, 2)
        v = self.v(h).view(b, s, self.kv, self.width).transpose(1, 2)
        n = self.heads // self.kv
        k = k[:, :, None].expand(b, self.kv, n, s, self.width).reshape(b, self.heads, s, self.width)
        v = v[:, :, None].expand(b, self.kv, n, s, self.width).reshape(b, self.heads, s, self.width)
        scores = torch.matmul(q, k.transpose(2, 3)) * self.width**-0.5
        scores = scores + torch.full((s, s), float("-inf"), device=x.device).triu(1)
        probs = F.softmax(scores.float(), dim=-1).type_as(q)
        x = x + self.o((probs @ v).transpose(1, 2).contiguous().view(b, s, -1))
        h = self.n2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        angles = torch.outer(torch.arange(64.0), 10000 ** (-torch.arange(0, 8, 2) / 8))
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return x @ self.embed.weight.T


def test_llama():
    backend = check(Llama(), torch.randint(50, (2, 7)), tol=2e-5)
    assert backend.rewritten == {"sdpa": 2, "fused-qkv": 2, "fused-gate-up": 2}
    assert {reason.partition(":")[0] for reason in backend.skipped} == {"short-attention"}  # its heads share keys


def test_llama_under_inductor():
    # Inference only: compiling C++ code is most of the time here, and the other tests cover gradients.
    model, backend = Llama(1), RewriteBackend(PASSES, "inductor", {"epilogue_fusion": True})
    tokens = torch.randint(50, (2, 7))
    with torch.no_grad():
        got = torch.compile(model, backend=backend, dynamic=False, fullgraph=True)(tokens)
        torch.testing.assert_close(got, model(tokens), rtol=2e-5, atol=2e-5)
    assert backend.rewritten == {"sdpa": 1, "fused-qkv": 1, "fused-gate-up": 1}


def test_unread_member_gets_no_gradient():
    model = Projections(combine=lambda parts: parts[0].sum() + parts[1].sum())
    assert check(model, X[:1]).matches["fused-qkv"] == 1
    assert model.layers[2].weight.grad is None


class Apart(nn.Module):
    """Its third layer is for whoever looks: what is trained by does not depend on it."""

    def __init__(self, look):
        super().__init__()
        self.layers, self.look = nn.ModuleList(nn.Linear(16, w) for w in (8, 8, 4)), look

    def forward(self, x):
        a, b, c = (layer(x) for layer in self.layers)
        return a + b, self.look(c)


LOOKS = {
    "detached": lambda c: c.detach(),
    "chosen": lambda c: c.argmax(-1),
    "parts": lambda c: [part.detach() for part in c.sin().chunk(2, -1)],
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_member_whose_result_is_detached_gets_no_gradient(look):
    model, backend = Apart(look), RewriteBackend(["fused-qkv"], "eager")
    torch.compile(model, backend=backend, dynamic=False)(X)[0].sum().backward()
    assert backend.after["gemm"] == 2
    assert model.layers[0].weight.grad is not None
    assert model.layers[2].weight.grad is None


def test_member_that_is_written_to_what_is_returned_is_joined():
    class Written(Apart):
        def forward(self, x):
            a, b, c = (layer(x) for layer in self.layers)
            whole = torch.zeros_like(a)
            whole[..., 4:] = c
            return whole + a + b

    backend = RewriteBackend(["fused-qkv"], "eager")
    model = Written(None)
    torch.compile(model, backend=backend, dynamic=False)(X).sum().backward()
    assert backend.after["gemm"] == 1
    assert model.layers[2].weight.grad is not None


@pytest.mark.parametrize("whole", [True, False])
def test_llama_bf16(whole):
    model, tokens = Llama(1), torch.randint(50, (2, 7))
    if whole:
        backend = check(model.bfloat16(), tokens, tol=0.1)
    else:
        with torch.autocast("cpu", torch.bfloat16):
            backend = check(model, tokens, tol=0.1)
    assert backend.rewritten == {"sdpa": 1, "fused-qkv": 1, "fused-gate-up": 1}


def test_two_shapes_and_a_second_compilation():
    model, backend = Llama(1), RewriteBackend(PASSES, "eager")
    check(model, torch.randint(50, (2, 7)), backend=backend)
    assert (backend.graphs, backend.matches["sdpa"]) == (1, 1)
    check(model, torch.randint(50, (1, 4)), backend=backend)
    assert (backend.graphs, backend.matches["sdpa"]) == (2, 2)
    torch._dynamo.reset()
    check(model, torch.randint(50, (1, 4)), backend=backend)
    assert (backend.graphs, backend.matches["sdpa"]) == (2, 2)


def test_checkpointed_layers():
    from torch.utils.checkpoint import checkpoint

    class Model(Llama):
        def forward(self, tokens):
            x = self.embed(tokens)
            for layer in self.layers:
                x = checkpoint(layer, x, self.cos, self.sin, use_reentrant=False)
            return x

    backend = check(Model(), torch.randint(50, (2, 7)), tol=2e-5)
    assert backend.rewritten == {"sdpa": 2, "fused-qkv": 2, "fused-gate-up": 2}


def test_failing_pass_leaves_the_graph_alone(monkeypatch):
    def broken(graph):
        for node in list(graph.nodes):
            if node.op == "call_function":
                node.args = ()
        raise RuntimeError("half done")

    def broken_too(graph):
        return broken(graph) if any(node.args for node in graph.nodes if node.op == "call_function") else (0, [])

    monkeypatch.setitem(backend_module._PASS_FUNCTIONS, "sdpa", broken)
    monkeypatch.setitem(backend_module._PASS_FUNCTIONS, "fused-gate-up", broken_too)
    backend = check(Llama(1), torch.randint(50, (2, 7)))
    assert backend.rewritten == {"fused-qkv": 1}
    assert ["half done" in reason for reason in backend.skipped] == [True, True]


def test_unknown_names():
    with pytest.raises(ValueError, match="unknown passes"):
        RewriteBackend(["sdpa", "nonsense"])
    with pytest.raises(ValueError, match="inner"):
        RewriteBackend(["sdpa"], "magic")
