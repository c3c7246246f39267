"""The gate against the rewrites themselves: each done slightly wrong, as a slip in a pass would, must be refused."""

import operator
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn

from rung import Workload
from rung.hardware import pick
from rung.kernels import reference
from rung.plan import Plan
from rung.rewrites import added_inputs, chunked, cross_entropy, gemv, packed_weights
from rung.rewrites import backend as backend_module
from rung.rewrites.attention import flex, float32_attention
from rung.rewrites.attention import sdpa as sdpa_module
from rung.rewrites.attention.biased import attention_with_bias
from rung.rewrites.attention.flex import flex_attention
from rung.rewrites.attention.short import short_attention
from rung.rewrites.chunked import linear_cross_entropy
from rung.rewrites.convolution_epilogues import convolution_relu
from rung.rewrites.epilogues import linear_gelu, linear_relu, linear_tanh_gelu
from rung.rewrites.gelu_between import gelu_between, tanh_gelu_between
from rung.rewrites.gemv import one_row_linear
from rung.rewrites.graph import kernel_ops
from rung.rewrites.graph.normalize import kind
from rung.rewrites.grouped_mm import combine, expert_linear
from rung.verify import verify as verifying

WIDTH, HEADS, GROUPS, CLASSES = 16, 4, 2, 24


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    torch._dynamo.reset()
    monkeypatch.setattr(chunked, "LEAST_ROWS", 4)
    monkeypatch.setattr(cross_entropy, "LEAST_BYTES", 0)
    monkeypatch.setattr(verifying, "OPTIMIZER_STEPS", 1)
    monkeypatch.setattr(verifying, "SEEDS", (12, 13))  # sharp weights


def rotated(x):
    angle = torch.outer(torch.arange(x.shape[2], dtype=torch.float32), torch.tensor([1.0, 0.3])).repeat(1, 2)
    first, second = x.chunk(2, -1)
    return x * angle.cos().to(x.dtype) + torch.cat((-second, first), -1) * angle.sin().to(x.dtype)


class Model(nn.Module):
    """Attention with grouped keys, by hand or by SDPA, turned by position or not; a gated feed-forward; an output layer."""

    def __init__(self, by_hand=True, turned=False, capped=False):
        super().__init__()
        self.by_hand, self.turned, self.capped, width = by_hand, turned, capped, WIDTH // HEADS
        self.embed, self.norm = nn.Embedding(CLASSES, WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, GROUPS * width)
        self.v = nn.Linear(WIDTH, GROUPS * width, bias=False)
        self.gate, self.up = nn.Linear(WIDTH, 12), nn.Linear(WIDTH, 12, bias=False)
        self.down, self.head = nn.Linear(12, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens):
        x = self.embed(tokens)
        h = self.norm(x)
        q, k, v = (
            layer(h).view(*h.shape[:2], -1, WIDTH // HEADS).transpose(1, 2) for layer in (self.q, self.k, self.v)
        )
        if self.turned:
            q, k = rotated(q), rotated(k)
        k, v = (part.repeat_interleave(HEADS // GROUPS, dim=1) for part in (k, v))
        keep = torch.ones(h.shape[1], h.shape[1], dtype=torch.bool).tril()
        if self.capped:
            keep = keep & ~keep.tril(-4)
            scores = 2.0 * torch.tanh(q @ k.mT * 0.4 / 2.0)
            mixed = scores.masked_fill(~keep, float("-inf")).softmax(-1) @ v
        elif self.by_hand:
            mixed = (q @ k.mT * 0.4).masked_fill(~keep, float("-inf")).softmax(-1) @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=keep, scale=0.4)
        x = x + mixed.transpose(1, 2).flatten(2)
        return self.head(self.norm(x + self.down(F.silu(self.gate(x)) * self.up(x))))


class Sunk(Model):
    """A score of no key beside those of each head, sharp."""

    def __init__(self):
        super().__init__()
        self.sinks = nn.Parameter(torch.linspace(-2, 3, HEADS))

    def forward(self, tokens):
        h = self.norm(self.embed(tokens))
        q, k, v = (
            layer(h).view(*h.shape[:2], -1, WIDTH // HEADS).transpose(1, 2) for layer in (self.q, self.k, self.v)
        )
        k, v = (part.repeat_interleave(HEADS // GROUPS, dim=1) for part in (k, v))
        keep = torch.ones(h.shape[1], h.shape[1], dtype=torch.bool).tril()
        scores = (q @ k.mT * 0.4).masked_fill(~keep, float("-inf"))
        sinks = self.sinks.reshape(1, -1, 1, 1).expand(h.shape[0], -1, h.shape[1], -1)
        mixed = torch.cat([scores, sinks.to(scores.dtype)], -1).softmax(-1)[..., :-1] @ v
        return self.head(self.norm(self.embed(tokens) + mixed.transpose(1, 2).flatten(2)))


class Merged(Model):
    """Batch and heads in one dimension, and a bias for each head that a product adds to its scores."""

    def forward(self, tokens):
        h = self.norm(self.embed(tokens))
        q, k, v = (
            layer(h).view(*h.shape[:2], -1, WIDTH // HEADS).transpose(1, 2) for layer in (self.q, self.k, self.v)
        )
        k, v = (part.repeat_interleave(HEADS // GROUPS, dim=1) for part in (k, v))
        batch, _, length, _ = q.shape
        q, k, v = (part.reshape(batch * HEADS, length, -1) for part in (q, k, v))
        places = torch.arange(length, dtype=h.dtype)
        bias = (torch.tensor([1.0, 0.5, 0.25, 0.1])[:, None, None] * places).to(h.dtype).repeat(batch, 1, 1)
        scores = torch.baddbmm(bias, q, k.mT, beta=0.5, alpha=0.4).view(batch, HEADS, length, length)
        keep = torch.ones(length, length, dtype=torch.bool).tril()
        probs = scores.masked_fill(~keep, float("-inf")).softmax(-1).view(batch * HEADS, length, length)
        mixed = torch.bmm(probs, v).view(batch, HEADS, length, -1).transpose(1, 2).flatten(2)
        return self.head(self.norm(self.embed(tokens) + mixed))


class Biased(Model):
    """Scores to which a number is added that belongs to the distance of two tokens, and learns."""

    def __init__(self):
        super().__init__()
        self.distances = nn.Embedding(32, HEADS)

    def forward(self, tokens):
        h = self.norm(self.embed(tokens))
        q, k, v = (
            layer(h).view(*h.shape[:2], -1, WIDTH // HEADS).transpose(1, 2) for layer in (self.q, self.k, self.v)
        )
        k, v = (part.repeat_interleave(HEADS // GROUPS, dim=1) for part in (k, v))
        places = torch.arange(h.shape[1])
        bias = self.distances(places[None] - places[:, None] + 16).permute(2, 0, 1)[None]
        mixed = F.scaled_dot_product_attention(q, k, v, bias, scale=0.4)
        return self.head(self.norm(self.embed(tokens) + mixed.transpose(1, 2).flatten(2)))


class Decoding(Model):
    """The last token's query meets the keys of all, or of those that a mask shows."""

    def __init__(self, masked=False):
        super().__init__()
        self.masked = masked

    def forward(self, tokens):
        h = self.norm(self.embed(tokens))
        parts = (self.q(h[:, -1:]), self.k(h), self.v(h))
        q, k, v = (part.view(*part.shape[:2], -1, WIDTH // HEADS).transpose(1, 2) for part in parts)
        k, v = (part.repeat_interleave(HEADS // GROUPS, dim=1) for part in (k, v))
        keep = (torch.arange(tokens.shape[1]) < 5)[None] if self.masked else None
        return self.head(F.scaled_dot_product_attention(q, k, v, keep).transpose(1, 2).flatten(2))


def inputs(seed, rows=2, length=7):
    drawn = torch.randint(CLASSES, (rows, length), generator=torch.Generator().manual_seed(seed))
    labels = drawn.clone()
    labels[0, 2:4] = -100
    return {"tokens": drawn, "labels": labels}


def loss_of(model, batch):
    logits = model(batch["tokens"])[:, :-1].flatten(0, 1)
    return F.cross_entropy(logits, batch["labels"][:, 1:].flatten())


TRAINED = Workload(
    name="small language model",
    model=Model,
    inputs=inputs,
    other_shapes=(lambda seed: inputs(seed, 3, 6),),
    forward=loss_of,
    mode="train",
    loss=lambda output, batch: output,
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
)
TURNED = replace(TRAINED, model=lambda: Model(turned=True))
CAPPED = replace(TRAINED, model=lambda: Model(capped=True))
SUNK = replace(TRAINED, model=Sunk)
BIASED = replace(TRAINED, model=Biased)
MERGED = replace(TRAINED, model=Merged)
MASK_GIVEN = replace(TRAINED, model=lambda: Model(by_hand=False))
ONE_QUERY = replace(
    TRAINED,
    model=Decoding,
    forward=lambda model, batch: model(batch["tokens"]),
    mode="infer",
    loss=None,
    optimizer=None,
)
ONE_ROW = replace(ONE_QUERY, inputs=lambda seed: {name: each[:1] for name, each in TRAINED.inputs(seed).items()})
MASKED_QUERY = replace(ONE_QUERY, model=lambda: Decoding(masked=True))
LAST = replace(
    TRAINED, forward=lambda model, batch: model(batch["tokens"])[:, -1], mode="infer", loss=None, optimizer=None
)


IMAGES = Workload(
    name="images",
    model=lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)),
    inputs=lambda seed: torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(seed)),
)


PATCHES = Workload(
    name="patches",
    model=lambda: nn.Sequential(nn.Conv2d(3, 4, 2, stride=2), nn.GELU()),
    inputs=lambda seed: torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(seed)),
)


RESIDUAL = Workload(
    name="residual",
    model=lambda: Residual().eval(),
    inputs=lambda seed: torch.randn(2, 8, 4, 4, generator=torch.Generator().manual_seed(seed)),
)


FED_FORWARD = Workload(
    name="fed forward",
    model=lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8), nn.Linear(8, 16), nn.GELU("tanh"), nn.Linear(16, 8)),
    inputs=lambda seed: torch.randn(3, 8, generator=torch.Generator().manual_seed(seed)),
    loss=lambda output, batch: output.square().mean(),
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    mode="train",
)  # fmt: skip


class Residual(nn.Module):
    """A convolution with ReLU, and one with a sum before that; two layers with the two forms of GELU."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(8, 16, 3, padding=1), nn.Conv2d(16, 8, 1)
        self.exact, self.tanh = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        x = F.relu(self.second(F.relu(self.first(x))) + x).flatten(2).mT
        return F.gelu(self.tanh(F.gelu(self.exact(x))), approximate="tanh")


class Experts(nn.Module):
    """Two of three feed-forwards see a token."""

    def __init__(self):
        super().__init__()
        self.embed, self.router = nn.Embedding(CLASSES, WIDTH), nn.Linear(WIDTH, 3)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 12), nn.SiLU(), nn.Linear(12, WIDTH)) for _ in "abc"
        )

    def forward(self, tokens):
        x = self.embed(tokens).flatten(0, 1)
        weights, chosen = torch.topk(self.router(x).softmax(-1), 2, dim=-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, rank = torch.where(chosen == number)
            out.index_add_(0, token, expert(x[token]) * weights[token, rank, None])
        return out


class Cached(nn.Module):
    """A token is written among those before it, and all of them are read."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(CLASSES, WIDTH)
        self.register_buffer("cache", torch.randn(4, 2, 8, WIDTH // 2))

    def forward(self, tokens):
        x = self.embed(tokens[:, :1]).view(len(tokens), 1, 2, WIDTH // 2).transpose(1, 2)
        self.cache[: len(tokens)].index_copy_(2, tokens[0, :1] * 0 + 5, x)
        return self.cache[: len(tokens)] @ x.mT


EXPERTS, CACHED = (
    replace(ONE_QUERY, model=model, forward=lambda model, batch: model(batch["tokens"])) for model in (Experts, Cached)
)


class Packed(Model):
    """Torch's own attention over those tokens that are no 3, and a bias for each pair of places."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        nn.init.normal_(self.attention.in_proj_bias)
        nn.init.normal_(self.attention.out_proj.bias)

    def forward(self, tokens):
        h = self.norm(self.embed(tokens))
        places = torch.arange(h.shape[1], dtype=h.dtype)
        hidden = torch.zeros(tokens.shape, dtype=h.dtype).masked_fill(tokens == 3, float("-inf"))
        bias = -0.3 * (places[:, None] - 2 * places).abs()
        return self.head(h + self.attention(h, h, h, attn_mask=bias, key_padding_mask=hidden)[0])


OPENED = replace(TRAINED, model=Packed)


def calls(graph: fx.Graph, target: object) -> list[fx.Node]:
    return [node for node in graph.nodes if node.op == "call_function" and node.target is target]


def attention(**options) -> Callable[[fx.Graph], None]:
    def change(graph):
        for node in calls(graph, F.scaled_dot_product_attention):
            node.kwargs = {**node.kwargs, **options}

    return change


def keys_and_values_swapped(graph):
    for node in calls(graph, F.scaled_dot_product_attention):
        node.args = (node.args[0], node.args[2], node.args[1])


def heads_tiled(graph):
    # 0 1 0 1 where grouped heads are 0 0 1 1.
    for node in calls(graph, F.scaled_dot_product_attention):
        node.kwargs = {**node.kwargs, "enable_gqa": False}
        with graph.inserting_before(node):
            wide = [graph.call_method("repeat", (item, 1, HEADS // GROUPS, 1, 1)) for item in node.args[1:3]]
        node.args = (node.args[0], *wide)


def added_again(graph):
    # What is added to the scores counts half: beta.
    for node in calls(graph, F.scaled_dot_product_attention):
        with graph.inserting_before(node):
            doubled = graph.call_function(torch.mul, (node.kwargs["attn_mask"], 2.0))
        node.kwargs = {**node.kwargs, "attn_mask": doubled}


def another_heads_bias(graph):
    for node in calls(graph, F.scaled_dot_product_attention):
        with graph.inserting_before(node):
            other = graph.call_method("flip", (node.kwargs["attn_mask"], 1))
        node.kwargs = {**node.kwargs, "attn_mask": other}


def batch_and_heads_exchanged(graph):
    # [B * H] split as [H, B].
    for node in calls(graph, F.scaled_dot_product_attention):
        with graph.inserting_before(node):
            flat = [graph.call_method("flatten", (item, 0, 1)) for item in node.args[:3]]
            split = [graph.call_method("unflatten", (item, 0, (HEADS, -1))) for item in flat]
            node.args = tuple(graph.call_method("transpose", (item, 0, 1)) for item in split)


def groups_mixed(graph):
    # The queries of different groups as rows of one head.
    for node in calls(graph, F.scaled_dot_product_attention):
        source, batch, _, rows, width = node.args[0].args
        with graph.inserting_before(node):
            wrong = graph.call_method("reshape", (source, batch, rows, -1, width))
            wrong = graph.call_method("transpose", (wrong, 1, 2))
        node.args = (wrong, *node.args[1:])


def flexible(**options) -> Callable[[fx.Graph], None]:
    def change(graph):
        for node in calls(graph, flex_attention):
            node.kwargs = {**node.kwargs, **options}

    return change


def sinks_of_other_heads(graph):
    for node in calls(graph, flex_attention):
        with graph.inserting_before(node):
            node.kwargs = {**node.kwargs, "sink": graph.call_function(torch.roll, (node.kwargs["sink"], 1, 1))}


def fused(graph: fx.Graph) -> list[fx.Node]:
    """The products over joined weights."""
    return [n for n in calls(graph, F.linear) if any(user.target == "split" for user in n.users)]


def chunks_swapped(graph):
    for node in fused(graph):
        (split,) = node.users
        parts = sorted(split.users, key=lambda part: part.args[1])
        parts[-1].args, parts[-2].args = (split, parts[-2].args[1]), (split, parts[-1].args[1])


def bias_missing(graph):
    for node in fused(graph):
        node.args = (*node.args[:2], None)


def bias_shifted(graph):
    for node in fused(graph):
        with graph.inserting_before(node):
            node.args = (*node.args[:2], graph.call_function(torch.roll, (node.args[2], 1)))


def one_weight_twice(graph):
    for node in fused(graph):
        cat = node.args[1]
        weights = list(cat.args[0])
        weights[-1] = weights[-2]
        cat.args = (weights, 0)


def loss(position: int, new: object) -> Callable[[fx.Graph], None]:
    def change(graph):
        for node in calls(graph, linear_cross_entropy):
            node.args = (*node.args[:position], new, *node.args[position + 1 :])

    return change


def one_token_late(graph):
    for node in graph.nodes:
        if node.target == "__getitem__" and isinstance(node.args[1], tuple):
            node.args = (node.args[0], tuple(-2 if item == -1 else item for item in node.args[1]))


def after(graph, node, function, argument):
    """Puts `function(result, argument)` in the place of a node's result."""
    with graph.inserting_after(node):
        made = graph.call_function(function, (node, argument))
    node.replace_all_uses_with(made, lambda user: user is not made)


def counted_wrongly(graph):
    # The mean over all labels, where those that are ignored do not count.
    for node in calls(graph, linear_cross_entropy):
        after(graph, node, torch.mul, 10 / 12)


def weight_without_gradient(graph):
    for node in calls(graph, linear_cross_entropy):
        with graph.inserting_before(node):
            node.args = (node.args[0], graph.call_method("detach", (node.args[1],)), *node.args[2:])


def mask_inverted(graph):
    for node in calls(graph, F.scaled_dot_product_attention):
        with graph.inserting_before(node):
            flipped = [graph.call_method("flip", (item, 2)) for item in node.args[:3]]
        node.args = tuple(flipped)
        after(graph, node, torch.flip, [2])


def folding(target, new):
    """A step of working out the folded weights, done otherwise."""

    def change(graph):
        for node in calls(graph, target):
            node.target = new

    return change


def window_transposed(graph):
    for node in graph.find_nodes(op="call_method", target="permute")[:1]:
        node.args = (*node.args[:-2], *node.args[:-3:-1])


def places_reversed(graph):
    for node in calls(graph, F.linear):
        after(graph, node, torch.flip, [1])


def patch_bias_missing(graph):
    for node in calls(graph, F.linear):
        node.args = (*node.args[:2], None)


def short_mask_dropped(graph):
    for node in calls(graph, short_attention):
        node.args = (*node.args[:3], None)


def briefly(**options):
    def change(graph):
        for node in calls(graph, short_attention):
            node.kwargs = {**node.kwargs, **options}

    return change


def bias_as(function, *arguments):
    """The bias of attention, as a function makes another of it."""

    def change(graph):
        for node in calls(graph, attention_with_bias):
            with graph.inserting_before(node):
                node.args = (*node.args[:3], graph.call_function(function, (node.args[3], *arguments)), *node.args[4:])

    return change


def activation(target, **changed):
    """Other arguments, by their places, or another function in the place of a product with an activation."""

    def change(graph):
        for node in calls(graph, target):
            node.target = changed.get("function", target)
            if "bias" in changed:
                with graph.inserting_before(node):
                    node.args = (*node.args[:2], graph.call_function(changed["bias"], (node.args[2],)), *node.args[3:])

    return change


def sum_forgotten(graph):
    for node in calls(graph, convolution_relu):
        node.args = (*node.args[:3], None, *node.args[4:])


def sum_cut_off_before(graph):
    for node in calls(graph, convolution_relu):
        if node.args[3] is not None:
            summand = node.args[3]
            node.args = (*node.args[:3], None, *node.args[4:])
            after(graph, node, torch.add, summand)


def convolution_bias_missing(graph):
    for node in calls(graph, convolution_relu):
        node.args = (*node.args[:2], None, *node.args[3:])


def labels_not_shifted(graph):
    for node in calls(graph, linear_cross_entropy):
        with graph.inserting_before(node):
            rolled = graph.call_function(torch.roll, (node.args[3], 1))
        node.args = (*node.args[:3], rolled, *node.args[4:])


def turn(x, cos, sin, interleaved, backward):
    assert not backward
    return reference.rope(x, cos, sin, interleaved=interleaved)


def losses(logits, target, ignored, smoothing):
    options = {"ignore_index": ignored, "label_smoothing": smoothing, "reduction": "none"}
    return reference.cross_entropy(logits, target, **options), None


def decoded(q, k, v, keep, scale):
    return reference.decode_attention(q, k, v, keep, scale=scale)


def attended(q, k, v, causal, scale, tf32):
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale, enable_gqa=True), None


def biased(q, k, v, bias, scale, dropout_p, seed):
    return reference.biased_attention(q, k, v, bias, scale, dropout_p=dropout_p, seed=seed), None


turn.namespace = losses.namespace = decoded.namespace = attended.namespace = biased.namespace = "rung"


@pytest.fixture(autouse=True)
def _kernels_as_their_references(monkeypatch):
    monkeypatch.setattr(kernel_ops, "obstacle", lambda *tensors: "")
    for module in (sdpa_module, flex, float32_attention):
        monkeypatch.setattr(module, "obstacle", lambda *given: "")  # FlexAttention's backward pass is a GPU's
    monkeypatch.setattr(float32_attention, "WIDTHS", range(1, 129))
    monkeypatch.setattr(gemv, "LEAST", 0)
    monkeypatch.setattr(gemv, "NARROW", (torch.float32, torch.float64))
    plain = {
        "rope": turn, "cross_entropy": losses, "decode_attention": decoded, "float32_attention": attended, "biased_attention": biased, "gemv": reference.gemv,
    }  # fmt: skip
    monkeypatch.setattr(kernel_ops, "operator", plain.__getitem__)


def kernel(target: object, position: int, new: object) -> Callable[[fx.Graph], None]:
    """Another argument of the kernel."""

    def change(graph):
        for node in calls(graph, target):
            node.args = (*node.args[:position], new, *node.args[position + 1 :])

    return change


def tables_swapped(graph):
    for node in calls(graph, turn):
        node.args = (node.args[0], node.args[2], node.args[1], *node.args[3:])


def turned_back(graph):
    for node in calls(graph, turn):
        with graph.inserting_before(node):
            node.args = (*node.args[:2], graph.call_function(torch.neg, (node.args[2],)), *node.args[3:])


def one_position_late(graph):
    for node in calls(graph, turn)[:1]:
        with graph.inserting_before(node):
            late = [graph.call_function(torch.roll, (table, 1, 1)) for table in node.args[1:3]]
        node.args = (node.args[0], *late, *node.args[3:])


def decoding(spot, what, *rest):
    """An argument of the kernel, made otherwise."""

    def change(graph):
        for node in calls(graph, decoded):
            with graph.inserting_before(node):
                other = graph.call_function(what, (node.args[spot], *rest))
            node.args = (*node.args[:spot], other, *node.args[spot + 1 :])

    return change


def last_input_left_out(graph):
    for node in calls(graph, one_row_linear):
        with graph.inserting_before(node):
            node.args = tuple(graph.call_function(torch.narrow, (item, -1, 0, WIDTH - 1)) for item in node.args[:2])


def all_rows_counted(graph):
    for node in calls(graph, torch.ne):
        with graph.inserting_before(node):
            everything = graph.call_function(torch.ones_like, (node.args[0],))
        node.replace_all_uses_with(everything)


def table(what, *rest):
    """A table that was worked out otherwise."""

    def change(graph):
        inputs = graph.find_nodes(op="placeholder")
        node = next((n for n in inputs if added_inputs.VALUE in n.meta), None)
        if node is not None:
            with graph.inserting_after(inputs[-1]):
                other = graph.call_function(what, (node, *rest))
            node.replace_all_uses_with(other, lambda user: user is not other)

    return change


def written(change):
    """Other places, or other rows, of a write to a cache."""

    def changed(graph):
        for node in graph.nodes:
            if node.target == "index_put_":
                with graph.inserting_before(node):
                    base, (rows, heads, places), new = node.args
                    node.args = (base, *change(graph, rows, heads, places, new))

    return changed


def one_place_on(graph, rows, heads, places, new):
    late = graph.call_function(torch.remainder, (graph.call_function(torch.add, (places, 1)), 8))
    return (rows, heads, late), new


def another_row(graph, rows, heads, places, new):
    return (graph.call_function(torch.add, (rows, 1)), heads, places), new


def heads_swapped(graph, rows, heads, places, new):
    return (rows, heads, places), graph.call_method("flip", (new, 1))


def experts(target, spot, what, *rest):
    """An argument of one of the functions that compute all experts together, made otherwise."""

    def change(graph):
        for node in calls(graph, target):
            with graph.inserting_before(node):
                other = graph.call_function(what, (node.args[spot], *rest))
            node.args = (*node.args[:spot], other, *node.args[spot + 1 :])

    return change


# (the workload, the pass, what goes wrong in the graph that it leaves)
MUTATIONS = {
    "sdpa: scale 3 % off": (TRAINED, "sdpa", attention(scale=0.4 * 1.03)),
    "sdpa: mask dropped": (TRAINED, "sdpa", attention(is_causal=False)),
    "sdpa: k and v swapped": (TRAINED, "sdpa", keys_and_values_swapped),
    "sdpa: heads in another order": (TRAINED, "sdpa", heads_tiled),
    "sdpa: beta forgotten": (MERGED, "sdpa", added_again),
    "sdpa: another head's bias": (MERGED, "sdpa", another_heads_bias),
    "sdpa: batch and heads exchanged": (MERGED, "sdpa", batch_and_heads_exchanged),
    "sdpa-no-mask: mask dropped": (MASK_GIVEN, "sdpa-no-mask", attention(is_causal=False)),
    "sdpa-no-mask: scale forgotten": (MASK_GIVEN, "sdpa-no-mask", attention(scale=None)),
    "sdpa-no-mask: groups mixed": (ONE_QUERY, "sdpa-no-mask", groups_mixed),
    "fused-qkv: parts swapped": (TRAINED, "fused-qkv", chunks_swapped),
    "fused-qkv: bias missing": (TRAINED, "fused-qkv", bias_missing),
    "fused-qkv: bias one place off": (TRAINED, "fused-qkv", bias_shifted),
    "fused-qkv: one weight twice": (TRAINED, "fused-qkv", one_weight_twice),
    "fused-gate-up: parts swapped": (TRAINED, "fused-gate-up", chunks_swapped),
    "fused-cross-entropy: ignored labels counted": (TRAINED, "fused-cross-entropy", loss(4, 5)),
    "fused-cross-entropy: summed": (TRAINED, "fused-cross-entropy", loss(5, False)),
    "fused-cross-entropy: bias missing": (TRAINED, "fused-cross-entropy", loss(2, None)),
    "fused-cross-entropy: labels not shifted": (TRAINED, "fused-cross-entropy", labels_not_shifted),
    "flex-attention: another cap": (CAPPED, "flex-attention", flexible(cap=2.1)),
    "flex-attention: cap forgotten": (CAPPED, "flex-attention", flexible(cap=None)),
    "flex-attention: window too wide": (CAPPED, "flex-attention", flexible(window=5)),
    "flex-attention: scale of the uncapped form": (CAPPED, "flex-attention", flexible(scale=0.4)),
    "flex-attention: sink forgotten": (SUNK, "flex-attention", flexible(sink=None)),
    "flex-attention: another head's sink": (SUNK, "flex-attention", sinks_of_other_heads),
    "flex-for-sdpa: causal mask dropped": (MASK_GIVEN, "flex-for-sdpa", flexible(causal=False)),
    "flex-for-sdpa: scale 3 % off": (MASK_GIVEN, "flex-for-sdpa", flexible(scale=0.4 * 1.03)),
    "tf32-attention: mask dropped": (MASK_GIVEN, "tf32-attention", kernel(attended, 3, False)),
    "tf32-attention: scale 3 % off": (MASK_GIVEN, "tf32-attention", kernel(attended, 4, 0.4 * 1.03)),
    "triton-rope: pairs of the other layout": (TURNED, "triton-rope", kernel(turn, 3, True)),
    "triton-rope: sine and cosine swapped": (TURNED, "triton-rope", tables_swapped),
    "triton-rope: turned back": (TURNED, "triton-rope", turned_back),
    "triton-rope: one position late": (TURNED, "triton-rope", one_position_late),
    "triton-decode-attention: mask dropped": (MASKED_QUERY, "triton-decode-attention", kernel(decoded, 3, None)),
    "triton-decode-attention: a key too many": (MASKED_QUERY, "triton-decode-attention", decoding(3, torch.roll, 1, 1)),
    "triton-decode-attention: scale 3 % off": (MASKED_QUERY, "triton-decode-attention", kernel(decoded, 4, 0.515)),
    "triton-decode-attention: groups mixed": (MASKED_QUERY, "triton-decode-attention", decoding(1, torch.flip, [1])),
    "triton-decode-attention: a part left out": (MASKED_QUERY, "triton-decode-attention", decoding(3, torch.Tensor.tril, 3)),
    "triton-gemv: bias missing": (ONE_ROW, "triton-gemv", kernel(one_row_linear, 2, None)),
    "triton-gemv: the last inputs left out": (ONE_ROW, "triton-gemv", last_input_left_out),
    "triton-cross-entropy: ignored labels counted": (TRAINED, "triton-cross-entropy", kernel(losses, 2, 5)),
    "triton-cross-entropy: mean over all rows": (TRAINED, "triton-cross-entropy", all_rows_counted),
    "triton-cross-entropy: smoothed": (TRAINED, "triton-cross-entropy", kernel(losses, 3, 0.1)),
    "sdpa: mask inverted": (TRAINED, "sdpa", mask_inverted),
    "fused-cross-entropy: mean over all labels": (TRAINED, "fused-cross-entropy", counted_wrongly),
    "fused-cross-entropy: no gradient of the weight": (TRAINED, "fused-cross-entropy", weight_without_gradient),
    "folded-batch-norm: eps forgotten": (IMAGES, "folded-batch-norm", folding(torch.add, lambda a, b: a if b == 1e-5 else a + b)),
    "folded-batch-norm: gain or shift missed": (IMAGES, "folded-batch-norm", folding(torch.mul, lambda a, b: a if b.dim() == 1 else a * b)),
    "folded-batch-norm: running mean missed": (IMAGES, "folded-batch-norm", folding(torch.sub, lambda a, b: a)),
    "folded-batch-norm: variance without its root": (IMAGES, "folded-batch-norm", folding(torch.rsqrt, torch.reciprocal)),
    "patch-matmul: rows and columns of a window exchanged": (PATCHES, "patch-matmul", window_transposed),
    "patch-matmul: bias missing": (PATCHES, "patch-matmul", patch_bias_missing),
    "patch-matmul: the last places at the end": (PATCHES, "patch-matmul", places_reversed),
    "biased-attention: the bias does not learn": (BIASED, "biased-attention", bias_as(torch.Tensor.detach)),
    "biased-attention: queries and keys exchanged": (BIASED, "biased-attention", bias_as(torch.transpose, -1, -2)),
    "biased-attention: another head's": (BIASED, "biased-attention", bias_as(torch.roll, 1, 1)),
    "biased-attention: scale 3 % off": (BIASED, "biased-attention", kernel(attention_with_bias, 4, 0.4 * 1.03)),
    "short-attention: mask dropped": (MASK_GIVEN, "short-attention", short_mask_dropped),
    "short-attention: scale 3 % off": (MASK_GIVEN, "short-attention", briefly(scale=0.4 * 1.03)),
    "activation-epilogue: bias missing": (RESIDUAL, "activation-epilogue", activation(linear_tanh_gelu, bias=torch.zeros_like)),
    "activation-epilogue: the other GELU": (RESIDUAL, "activation-epilogue", activation(linear_tanh_gelu, function=linear_gelu)),
    "activation-epilogue: ReLU": (RESIDUAL, "activation-epilogue", activation(linear_tanh_gelu, function=linear_relu)),
    "gelu-epilogue: by tanh in float32": (RESIDUAL, "gelu-epilogue", activation(linear_gelu, function=linear_tanh_gelu)),
    "gelu-epilogue: no activation": (RESIDUAL, "gelu-epilogue", activation(linear_gelu, function=F.linear)),
    "gelu-epilogue: in training, a bias missing": (FED_FORWARD, "gelu-epilogue", activation(gelu_between, bias=torch.zeros_like)),
    "gelu-epilogue: in training, by tanh in float32": (FED_FORWARD, "gelu-epilogue", activation(gelu_between, function=tanh_gelu_between)),
    "activation-epilogue: in training, the other GELU": (FED_FORWARD, "activation-epilogue", activation(tanh_gelu_between, function=gelu_between)),
    "convolution-epilogue: sum forgotten": (RESIDUAL, "convolution-epilogue", sum_forgotten),
    "convolution-epilogue: ReLU before the sum": (RESIDUAL, "convolution-epilogue", sum_cut_off_before),
    "convolution-epilogue: bias missing": (RESIDUAL, "convolution-epilogue", convolution_bias_missing),
    "hoisted-constants: one position late": (TURNED, "hoisted-constants", table(torch.roll, 1, -2)),
    "hoisted-constants: in bfloat16": (TURNED, "hoisted-constants", table(lambda t: t.bfloat16().float())),
    "grouped-experts: another expert's weights": (EXPERTS, "grouped-experts", experts(expert_linear, 1, torch.roll, 12, 0)),
    "grouped-experts: another expert's biases": (EXPERTS, "grouped-experts", experts(expert_linear, 2, torch.flip, [0])),
    "grouped-experts: a token's choices exchanged": (EXPERTS, "grouped-experts", experts(combine, 2, torch.flip, [1])),
    "grouped-experts: rows given back to the next token": (EXPERTS, "grouped-experts", experts(combine, 1, torch.roll, 2)),
    "grouped-experts: equal weights": (EXPERTS, "grouped-experts", experts(combine, 2, torch.full_like, 0.5)),
    "grouped-experts: weights in bfloat16": (EXPERTS, "grouped-experts", experts(combine, 2, torch.Tensor.bfloat16)),
    "in-place-cache: one place on": (CACHED, "in-place-cache", written(one_place_on)),
    "in-place-cache: another sequence's row": (CACHED, "in-place-cache", written(another_row)),
    "in-place-cache: heads exchanged": (CACHED, "in-place-cache", written(heads_swapped)),
    "narrow-logits: one token late": (LAST, "narrow-logits", one_token_late),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_rewrite_gone_wrong_is_refused(name, monkeypatch):
    workload, which, change = MUTATIONS[name]
    monkeypatch.setattr(verifying, "shapes", lambda workload: [workload.inputs])  # refusing needs no second shape
    right = backend_module._PASS_FUNCTIONS[which]
    broken = []

    def wrong(graph):
        found = right(graph)
        before = str(graph)
        change(graph)
        broken.append(found[0] and str(graph) != before)
        return found

    monkeypatch.setitem(backend_module._PASS_FUNCTIONS, which, wrong)
    found = verifying.verify(workload, Plan(passes=(which,)), pick("cpu"), precisions=["exact"]).record()
    assert any(broken)
    assert not found.passed
    assert found.failures


# Where the mistakes of the others are refused: test_residual_stream.py, test_weight_cache.py, test_folded_weights.py, test_copies.py,
# test_routed.py.
ELSEWHERE = {"bf16-stream", "bf16-weights", "folded-weights", "strided-sdpa-inputs", "aiter-gemm"}


def test_no_rewrite_is_without_a_mistake():
    assert {which for _, which, _ in MUTATIONS.values()} | ELSEWHERE == set(backend_module.PASSES)


def test_joined_weights_that_are_a_stale_copy_are_refused(monkeypatch):
    kept = {}

    def stale(self, arguments):
        return kept.setdefault(self.spots, torch.cat([arguments[spot].detach() for spot in self.spots]))

    monkeypatch.setattr(packed_weights.PackedWeights, "__call__", stale)
    monkeypatch.setattr(verifying, "SEEDS", (11, 12))  # matrices are others in faint weights than in sharp ones
    found = verifying.verify(LAST, Plan(passes=("fused-gate-up",)), pick("cpu"), precisions=["exact"]).record()
    assert kept
    assert not found.passed


def other_parts(graph):
    parts = [node for node in calls(graph, operator.getitem) if kind(node.args[0]) == "contiguous"]
    for part, spot in zip(parts, (0, 2, 1), strict=True):
        part.args = (part.args[0], spot)


def heads_reversed(graph):
    split = (2 * HEADS, WIDTH // HEADS)
    queries = next((node for node in graph.nodes if node.target == "view" and node.args[2:] == split), None)
    if queries is not None:
        after(graph, queries, torch.flip, [1])


def padding_forgotten(graph):
    for node in graph.nodes:
        if node.target == "add" and kind(node.args[1]) == "reshape":
            node.replace_all_uses_with(node.args[0])


def without_bias(spot):
    def change(graph):
        node = [node for node in calls(graph, F.linear) if "attention" in str(node.args[1])][spot]
        node.args = (*node.args[:2], None)

    return change


# What goes wrong in what nn.MultiheadAttention is written out as.
OPENINGS = {
    "keys and values exchanged": other_parts,
    "another head's queries": heads_reversed,
    "padding forgotten": padding_forgotten,
    "no bias of the projections": without_bias(0),
    "no bias of the output": without_bias(1),
}


@pytest.mark.parametrize("name", OPENINGS)
def test_torchs_attention_written_out_wrongly_is_refused(name, monkeypatch):
    monkeypatch.setattr(verifying, "shapes", lambda workload: [workload.inputs])
    right, broken = backend_module.write_out, []

    def wrong(graph):
        found, before = right(graph), str(graph)
        OPENINGS[name](graph)
        broken.append(str(graph) != before)
        return found

    monkeypatch.setattr(backend_module, "write_out", wrong)
    found = verifying.verify(OPENED, Plan(passes=("sdpa",)), pick("cpu"), precisions=["exact"]).record()
    assert all(broken)
    assert found.failures


@pytest.mark.parametrize(
    "workload",
    [TRAINED, TURNED, CAPPED, SUNK, MERGED, MASK_GIVEN, LAST, ONE_QUERY, MASKED_QUERY, EXPERTS, CACHED, OPENED],
    ids=[
        "by hand",
        "turned",
        "capped",
        "sunk",
        "merged",
        "by SDPA",
        "last token",
        "one query",
        "masked query",
        "experts",
        "cached",
        "torch's own",
    ],
)
def test_the_same_rewrites_done_right_pass(workload):
    passes = tuple(backend_module.PASSES)
    found = verifying.verify(workload, Plan(passes=passes), pick("cpu"), precisions=["exact"]).record()
    assert found.passed, found.failures


def _slope_of_one_chunk_lost(hidden, weight, bias, target, ignore_index, mean):
    rows = chunked.chunk_rows(len(hidden))
    hidden = torch.cat([hidden[:rows], hidden[rows:].detach()])
    return linear_cross_entropy(hidden, weight, bias, target, ignore_index, mean)


def test_a_chunk_without_its_gradient_is_refused(monkeypatch):
    # The loss is right: only the gradients tell.
    monkeypatch.setattr(cross_entropy, "linear_cross_entropy", _slope_of_one_chunk_lost)
    plan = Plan(passes=("fused-cross-entropy",))
    found = verifying.verify(TRAINED, plan, pick("cpu"), precisions=["exact"]).record()
    assert not found.passed
    assert all("loss" not in failure.split(" ")[0] for failure in found.failures)
