"""`nn.MultiheadAttention` and torch's transformer layers: opened, counted and rewritten, with eager's results and gradients."""

import copy

import pytest
import torch
from attention_calls import Recorder, same_results
from torch import nn
from torch.utils.checkpoint import checkpoint

from rung.rewrites import PASSES, RewriteBackend
from rung.rewrites.attention import multi_head
from rung.rewrites.graph.normalize import kind, value
from rung.rewrites.graph.writes import aliases

BATCH, QUERIES, KEYS, HEADS, WIDTH = 2, 5, 7, 4, 16
TOLERANCE = {torch.float64: 1e-11, torch.float32: 2e-5, torch.bfloat16: 0.05}


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()
    torch.manual_seed(0)


@pytest.fixture
def _no_fast_path():
    """With torch 2.6 compiled attention is torch's fast path in evaluation, too; newer torch leaves it when it is compiled."""
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(True)


class Attention(nn.Module):
    """Of its results, those named by `reads`."""

    def __init__(self, reads=(0,), call=None, **options):
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, **options)
        self.reads, self.call = reads, call or {}
        for name, parameter in self.attention.named_parameters():
            if "bias" in name:
                nn.init.normal_(parameter)

    def forward(self, *inputs, **masks):
        found = self.attention(*inputs, **self.call, **masks)
        return tuple(found[spot] for spot in self.reads)


def trained(run, model, inputs, masks):
    """Results and gradients of what is put in and of all weights."""
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    given = {id(x): x for x in inputs}
    found = run(*inputs, **masks)
    loss = sum((part * torch.linspace(-1, 2, part.numel(), dtype=part.dtype).view_as(part)).sum() for part in found)
    loss.backward()
    return [*found, *(x.grad for x in given.values()), *(parameter.grad for parameter in model.parameters())]


def compared(model, inputs, masks=None, dtype=torch.float64, passes=("sdpa",), inner="eager"):
    """Rewritten and not; what was found and called."""
    masks = {name: mask.to(dtype) if mask.is_floating_point() else mask for name, mask in (masks or {}).items()}
    model, inputs = model.to(dtype), [x.to(dtype) for x in inputs]
    model.train().zero_grad()
    other, backend = copy.deepcopy(model), Recorder(passes, inner)
    run = torch.compile(other, backend=backend, dynamic=False, fullgraph=True)
    pairs = zip(trained(run, other, inputs, masks), trained(model, model, inputs, masks), strict=True)
    for got, want in pairs:
        assert (got is None) == (want is None)
        if want is not None:
            same_results(got, want, TOLERANCE[dtype])
    other.eval(), model.eval()
    with torch.no_grad():
        for got, want in zip(run(*inputs, **masks), model(*inputs, **masks), strict=True):
            same_results(got, want, TOLERANCE[dtype])
    return backend


def drawn(length, batch_first, batched=True, width=WIDTH):
    shape = (BATCH, length) if batch_first else (length, BATCH)
    return torch.randn(*(shape if batched else (length,)), width)


HIDDEN = torch.rand(QUERIES, KEYS, generator=torch.Generator().manual_seed(3)) > 0.6
HIDDEN[:, 0] = False
PADDED = torch.zeros(BATCH, KEYS, dtype=torch.bool)
PADDED[1, 4:] = True


def as_float(mask):
    return torch.zeros(mask.shape).masked_fill(mask, float("-inf"))


MASKS = {
    "none": {},
    "bool": {"attn_mask": HIDDEN},
    "float": {"attn_mask": torch.randn(QUERIES, KEYS, generator=torch.Generator().manual_seed(4))},
    "of each head": {"attn_mask": HIDDEN.repeat(BATCH * HEADS, 1, 1).roll(1, 2).index_fill(2, torch.tensor(2), False)},
    "padding": {"key_padding_mask": PADDED},
    "float padding": {"key_padding_mask": as_float(PADDED)},
    "both": {"attn_mask": HIDDEN, "key_padding_mask": PADDED},
    "both float": {"attn_mask": as_float(HIDDEN), "key_padding_mask": as_float(PADDED)},
}


@pytest.mark.parametrize(
    ("masks", "asked", "batch_first"),
    [
        *((masks, True, True) for masks in MASKS),
        *((masks, True, False) for masks in ("none", "of each head", "both")),
        *((masks, False, True) for masks in ("none", "of each head", "float padding", "both")),
    ],
)
def test_masks(masks, asked, batch_first):
    model = Attention(call={"need_weights": asked}, batch_first=batch_first)
    queries, keys = drawn(QUERIES, batch_first), drawn(KEYS, batch_first)
    for dtype in (torch.float64, torch.float32) if masks == "both float" else (torch.float64,):
        torch._dynamo.reset()
        found = compared(model, [queries, keys, keys], MASKS[masks], dtype)
        # Once while it trains and once in evaluation.
        assert found.matches == {"sdpa": 2 * asked}
        assert found.skipped == []
        assert found.before["softmax"] == 2 * asked
        assert (found.after["softmax"], found.after["sdpa"]) == (0, 2)
        assert found.after["masked_sdpa"] == 2 * (masks != "none")


SHAPES = {
    "widths of keys and values": ({"kdim": 12, "vdim": 20}, True),
    "a key and value of its own": ({"add_bias_kv": True}, True),
    "a zero key": ({"add_zero_attn": True}, True),
    "both keys more": ({"add_bias_kv": True, "add_zero_attn": True}, True),
    "no biases": ({"bias": False}, True),
    "no batch": ({}, False),
}


@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_other_forms(shape, asked):
    options, batched = SHAPES[shape]
    masks = {"attn_mask": HIDDEN, "key_padding_mask": PADDED if batched else PADDED[1]}
    model = Attention(call={"need_weights": asked}, batch_first=True, **options)
    widths = WIDTH, options.get("kdim", WIDTH), options.get("vdim", WIDTH)
    inputs = [drawn(length, True, batched, width) for length, width in zip((QUERIES, KEYS, KEYS), widths, strict=True)]
    for given in ({}, masks) if asked else (masks,):
        torch._dynamo.reset()
        found = compared(model, inputs, given)
        assert found.matches == {"sdpa": 2 * asked}
        assert found.after["sdpa"] == 2


@pytest.mark.usefixtures("_no_fast_path")
@pytest.mark.parametrize("shared", ["self", "keys", "nothing"])
def test_what_is_projected_together(shared):
    q, k, v = (drawn(QUERIES, True) for _ in range(3))
    inputs = {"self": [q], "keys": [q, k], "nothing": [q, k, v]}[shared]

    class Shared(Attention):
        def forward(self, *inputs):
            return super().forward(*inputs, *[inputs[-1]] * (3 - len(inputs)))

    found = compared(Shared(batch_first=True), inputs)
    linears = {"self": 2, "keys": 3, "nothing": 4}[shared]
    assert (found.before["gemm"], found.after["gemm"]) == (2 * (linears + 2), 2 * linears)
    # Forward once while it trains and once in evaluation; four square layers, split as they may be.
    assert found.after["layer_flop"] == 2 * 2 * BATCH * QUERIES * 4 * WIDTH * WIDTH


def test_weights_of_their_own_are_joined_as_those_of_other_layers_are():
    class Crossed(Attention):
        def forward(self, queries, keys):
            return super().forward(queries, keys, keys)

    model = Crossed(batch_first=True, kdim=12, vdim=12, bias=False)
    found = compared(model, [drawn(QUERIES, True), drawn(KEYS, True, width=12)], passes=PASSES)
    assert (found.matches["sdpa"], found.matches["fused-qkv"]) == (2, 2)


def causal(length):
    return torch.ones(length, length, dtype=torch.bool).triu(1)


@pytest.mark.usefixtures("_no_fast_path")
@pytest.mark.parametrize("asked", [True, False])
def test_a_causal_mask_that_is_proved_is_said(asked):
    class Causal(Attention):
        def forward(self, x):
            return super().forward(x, x, x, attn_mask=causal(QUERIES))

    model = Causal(call={"need_weights": asked}, batch_first=True)
    found = compared(model, [drawn(QUERIES, True)], passes=["sdpa", "sdpa-no-mask"])
    assert [call["is_causal"] for call in found.calls] == [True, True]
    assert found.after["masked_sdpa"] == 0


@pytest.mark.parametrize("extra", [{}, {"add_zero_attn": True}])
def test_a_hint_that_torch_does_not_follow_where_weights_are_asked_for_is_not_followed(extra):
    # Not causal: who believes the hint gives another result.
    model = Attention(call={"is_causal": True}, batch_first=True, **extra)
    found = compared(model, [drawn(QUERIES, True)] * 3, {"attn_mask": HIDDEN[:, :QUERIES]})
    assert found.matches == {"sdpa": 2}
    assert [call["is_causal"] for call in found.calls] == [False, False]


def test_a_hint_that_torch_follows_is_followed():
    model = Attention(call={"is_causal": True, "need_weights": False}, batch_first=True)
    found = compared(model, [drawn(QUERIES, True)] * 3, {"attn_mask": HIDDEN[:, :QUERIES]})
    assert (found.after["sdpa"], found.after["masked_sdpa"]) == (2, 0)


@pytest.mark.parametrize("averaged", [True, False])
def test_weights_that_are_read_are_computed_by_hand_and_said(averaged):
    model = Attention((0, 1), {"average_attn_weights": averaged}, batch_first=True)
    found = compared(model, [drawn(QUERIES, True)] * 3)
    assert found.rewritten == {}
    [reason] = found.skipped
    assert reason.startswith("sdpa: softmax at `found = self.attention(")
    assert "attention probabilities are used elsewhere" in reason


def test_dropout_is_that_of_training():
    model = Attention(batch_first=True, dropout=0.25)
    backend, x = Recorder(["sdpa"], "eager"), drawn(QUERIES, True)
    run = torch.compile(model, backend=backend, dynamic=False)
    run(x, x, x)
    model.eval()
    run(x, x, x)
    assert [call["dropout_p"] for call in backend.calls] == [0.25, 0.0]


@pytest.mark.parametrize("asked", [True, False])
def test_without_a_rewrite_it_computes_what_it_did_dropout_included(asked):
    model = Attention((0, 1) if asked else (0,), {"need_weights": asked}, batch_first=True, dropout=0.25)
    other, x = copy.deepcopy(model), drawn(QUERIES, True)
    run = torch.compile(other, backend=RewriteBackend([], "eager"), dynamic=False)
    sides = []
    for each, called in ((model, model), (other, run)):
        torch.manual_seed(5)
        sides.append(trained(called, each, [x, x, x], {"key_padding_mask": PADDED[:, :QUERIES]}))
    for one, another in zip(*sides, strict=True):
        assert torch.equal(one, another)


@pytest.mark.parametrize("where", ["inside", "outside"])
def test_autocast(where):
    class Cast(Attention):
        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16):
                return super().forward(x, x, x)

    model, x = (Cast if where == "inside" else Attention)(batch_first=True), drawn(QUERIES, True)
    backend = RewriteBackend(["sdpa"], "eager")
    run = torch.compile(model, backend=backend, dynamic=False, fullgraph=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=where == "outside"):
        inputs = [x] if where == "inside" else [x, x, x]
        [got], [want] = run(*inputs), model(*inputs)
    same_results(got, want, TOLERANCE[torch.bfloat16])
    assert (backend.matches, backend.skipped) == ({"sdpa": 1}, [])


@pytest.mark.usefixtures("_no_fast_path")
def test_inside_a_checkpointed_part():
    class Checkpointed(Attention):
        def forward(self, x):
            return (checkpoint(lambda x: self.attention(x, x, x)[0].sin(), x, use_reentrant=False),)

    assert compared(Checkpointed(batch_first=True), [drawn(QUERIES, True)]).matches == {"sdpa": 2}


@pytest.mark.usefixtures("_no_fast_path")
def test_by_inductor():
    model = Attention(batch_first=True)
    assert compared(model, [drawn(QUERIES, True)] * 3, dtype=torch.float32, inner="inductor").matches == {"sdpa": 2}


@pytest.mark.parametrize("trains", [True, False])
def test_nodes_are_known_as_those_of_dynamo_are(trains):
    """By their spelling, by the memory that they share with what comes after them, and by whether they are trained."""
    seen = []

    class Looking(RewriteBackend):
        def compiled(self, gm, inputs):
            last = [node for node in gm.graph.nodes if kind(node) == "linear"][-1]
            seen.extend((kind(node), node.op, value(node).requires_grad) for node in aliases(last))
            return super().compiled(gm, inputs)

    model, x = Attention(batch_first=True), drawn(QUERIES, True)
    with torch.set_grad_enabled(trains):
        torch.compile(model, backend=Looking([], "eager"), dynamic=False)(x, x, x)
    ops = {"linear": "call_function", "view": "call_method", "transpose": "call_method"}
    assert seen == [(name, op, trains) for name, op in ops.items()]


def test_what_cannot_be_opened_stays_and_is_said(monkeypatch):
    def fails():
        raise RuntimeError("another torch")

    monkeypatch.setattr(multi_head, "_body", fails)
    found = compared(Attention(batch_first=True), [drawn(QUERIES, True)] * 3)
    assert found.rewritten == {}
    assert found.skipped == ["sdpa: the pass failed and was left out (RuntimeError: another torch)"]


class Layers(nn.Module):
    """Torch's encoder, or its decoder of what the encoder gives, of causal tokens."""

    def __init__(self, decodes, **options):
        super().__init__()
        options = {"dim_feedforward": 24, "batch_first": True, "dropout": 0.0, **options}
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(WIDTH, HEADS, **options), 2, enable_nested_tensor=False
        )
        self.decoder = (
            nn.TransformerDecoder(nn.TransformerDecoderLayer(WIDTH, HEADS, **options), 2) if decodes else None
        )
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.4)

    def forward(self, x, y=None, padding=None):
        kept = self.encoder(x, src_key_padding_mask=padding)
        if self.decoder is None:
            return (kept,)
        mask = nn.Transformer.generate_square_subsequent_mask(y.shape[1], dtype=y.dtype)
        return (self.decoder(y, kept, mask, tgt_is_causal=True, memory_key_padding_mask=padding),)


@pytest.mark.parametrize(("norm_first", "padding"), [(True, None), (False, PADDED)])
def test_transformer_decoder(norm_first, padding):
    model, masks = (
        Layers(True, norm_first=norm_first, activation="gelu"),
        {} if padding is None else {"padding": padding},
    )
    # Nothing is by hand in it: what torch computes is counted.
    found = compared(model, [drawn(KEYS, True), drawn(QUERIES, True)], masks, passes=PASSES)
    training = {"gemm": 2 * 4 + 2 * 7, "sdpa": 2 + 4, "masked_sdpa": 0 if padding is None else 4}
    # Evaluated without gradients the encoder is torch's fast path, which is by hand under a mask.
    by_hand = padding is not None
    evaluated = {
        "gemm": 2 * (6 if by_hand else 4) + 2 * 7,
        "sdpa": 4 if by_hand else 6,
        "masked_sdpa": 2 if by_hand else 0,
    }
    for name, count in training.items():
        assert found.before[name] == count + evaluated[name], name


def test_transformer_encoder():
    found = compared(Layers(False), [drawn(QUERIES, True)], passes=PASSES)
    assert (found.graphs, found.before["gemm"], found.before["sdpa"]) == (2, 2 * 2 * 4, 2 * 2)
    [reason] = [reason for reason in found.skipped if "fast path" in reason]
    assert reason.startswith("sdpa: layer at ")


def test_attention_that_is_the_fast_path_is_said():
    backend = Recorder(["sdpa"], "eager")

    def run(x, attention):
        in_bias, out = attention.in_proj_bias, attention.out_proj
        return torch._native_multi_head_attention(
            x, x, x, WIDTH, HEADS, attention.in_proj_weight, in_bias, out.weight, out.bias, need_weights=False
        )[0]

    x, attention = drawn(QUERIES, True), nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).eval()
    with torch.no_grad():
        torch.compile(run, backend=backend, fullgraph=True)(x, attention)
    assert backend.matches == {"sdpa": 0}
    [reason] = backend.skipped
    assert reason.startswith("sdpa: attention at ")
    assert "fast path" in reason
    assert (backend.before["gemm"], backend.before["sdpa"]) == (2, 1)  # as on a GPU
