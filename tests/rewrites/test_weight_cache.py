"""What autocast makes of weights in every call is kept: the same numbers, and never those of another weight."""

import copy

import pytest
import torch
import torch.nn.functional as F
from known_facts import facts_of
from torch import nn

import rung
from rung.engine.step import Step
from rung.hardware import pick
from rung.plan import Plan
from rung.rewrites import RewriteBackend, weight_cache
from rung.rungs import BY_NAME, Context
from rung.verify import verify as verifying
from rung.workload import seeded_model
from rung.workload.tiny_transformer import make

CPU = pick("cpu")
TOGETHER = ("bf16-weights", "fused-qkv", "fused-gate-up", "sdpa", "bf16-stream", "hoisted-constants")


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()
    torch.manual_seed(0)


class Tied(nn.Module):
    """An embedding whose weight is the head's, a convolution, a product that is spelled out, and one in float32."""

    def __init__(self):
        super().__init__()
        self.embedding, self.layer = nn.Embedding(32, 16), nn.Linear(16, 16)
        self.convolution, self.free = nn.Conv1d(16, 16, 3, padding=1), nn.Parameter(torch.randn(16, 16) / 4)
        self.precise = nn.Linear(16, 16)

    def forward(self, tokens):
        x = self.embedding(tokens)
        x = x + self.layer(x)
        x = x + self.convolution(x.transpose(1, 2)).transpose(1, 2) @ self.free.T
        with torch.autocast("cpu", enabled=False):
            x = x + self.precise(x.float())
        return F.linear(x, self.embedding.weight)


TOKENS = torch.randint(32, (2, 5))


def compiled(model, passes=("bf16-weights",), grad=False):
    backend = RewriteBackend(passes, "eager")
    run = torch.compile(model, backend=backend, dynamic=False)

    def call(*arguments):
        with torch.set_grad_enabled(grad), torch.autocast("cpu", torch.bfloat16):
            return run(*arguments), model(*arguments)

    return call, backend


def test_the_numbers_are_autocasts_own():
    call, backend = compiled(Tied())
    found, right = call(TOKENS)
    assert torch.equal(found, right)
    # Layer and convolution with their biases, the free weight and the head's; not the product in float32.
    assert backend.rewritten == {"bf16-weights": 6}
    assert [one.dtype for one in backend._weight_cache.tensors()] == [torch.bfloat16] * 6


def stepped(model):
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.5)


def loaded(model):
    model.load_state_dict({name: t * 0.5 for name, t in model.state_dict().items()})


def assigned(model):
    model.load_state_dict({name: t * 0.5 for name, t in model.state_dict().items()}, assign=True)


def other_data(model):
    for p in model.parameters():
        p.data = p.data * 0.5


def in_one_memory(model):
    """The next row of a tensor each time."""
    for p in model.parameters():
        rows = getattr(p, "rows", None)
        p.rows = torch.stack([p.data * k for k in (0.5, 0.7, 1.3)]) if rows is None else rows
        p.data = p.rows[0 if rows is None else (p.storage_offset() // p.numel() + 1) % 3]


def optimized(kind, **options):
    def change(model):
        """Fused kernels raise no version counter."""
        optimizer = kind(model.parameters(), lr=0.1, **options)
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        optimizer.step()

    return change


CHANGES = {
    "in place": stepped,
    "a state dict": loaded,
    "other parameters": assigned,
    "other data": other_data,
    "rows of one tensor": in_one_memory,
    "SGD": optimized(torch.optim.SGD),
    "fused SGD": optimized(torch.optim.SGD, fused=True),
    "fused AdamW": optimized(torch.optim.AdamW, fused=True),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_weight_that_is_another_is_cast_anew(change):
    model = Tied()
    call, _ = compiled(model)
    before, _ = call(TOKENS)
    for _ in range(3):
        change(model)
        found, right = call(TOKENS)
        assert torch.equal(found, right)
        assert not torch.equal(found, before)
        before = found


def test_weights_that_train_are_cast_as_before():
    call, backend = compiled(Tied(), grad=True)
    found, right = call(TOKENS)
    assert torch.equal(found, right)
    assert backend.rewritten == {}


def test_one_code_serves_layers_with_copies_of_their_own():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(16, 16)

        def forward(self, x):
            return self.layer(x)

    layers = nn.ModuleList(Block() for _ in range(3))
    backend, x = RewriteBackend(["bf16-weights"], "eager"), torch.randn(4, 16)
    for layer in layers:
        layer.compile(backend=backend, dynamic=False)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        for _ in range(2):
            for layer in layers:
                assert torch.equal(layer(x), F.linear(x, layer.layer.weight, layer.layer.bias))
    assert backend.graphs == 1


class Cached(nn.Module):
    def __init__(self, buffer):
        super().__init__()
        self.query, self.key = nn.Linear(16, 16), nn.Linear(16, 16)
        keys = torch.zeros(8, 16)
        if buffer:
            self.register_buffer("keys", keys)
        else:
            self.keys = nn.Parameter(keys)

    def forward(self, x, at):
        self.keys[at : at + 1] = self.key(x).float()
        return self.query(x) @ self.keys.T


@pytest.mark.parametrize(("buffer", "says"), [(True, "not a parameter"), (False, "the step itself may write to it")])
def test_what_the_step_writes_to_is_read_as_it_is(buffer, says):
    model = Cached(buffer)
    other = copy.deepcopy(model)
    backend = RewriteBackend(["bf16-weights"], "eager")
    run = torch.compile(model, backend=backend, dynamic=False)
    for at in range(3):
        x = torch.randn(1, 16)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(run(x, at), other(x, at))
    assert any(says in reason for reason in backend.skipped)


def test_graphs_for_other_shapes_read_the_same_copies():
    call, backend = compiled(Tied())
    for rows in (1, 2, 3, 4):
        found, right = call(torch.randint(32, (rows, 5)))
        assert torch.equal(found, right)
    assert backend.graphs == 4
    assert len(backend._weight_cache.tensors()) == 6


def test_weights_that_were_taken_away_stop_no_replay():
    layer = nn.Linear(16, 16)
    call, backend = compiled(layer)
    x = torch.randn(4, 16)
    call(x)
    before = layer.weight.data
    layer.weight.data = torch.empty(0)
    backend.renew()
    layer.weight.data = before * 2
    found, right = call(x)
    assert torch.equal(found, right)


def test_a_trainer_goes_without_them():
    with pytest.warns(UserWarning, match="bf16-weights is not in effect: it is for inference"):
        rung.apply(
            nn.Linear(16, 16),
            ["bf16", "bf16-weights"],
            loss=lambda out, batch: out.square().mean(),
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        )


def test_what_a_recorded_graph_reads_is_renewed_where_it_lies():
    layer = nn.Linear(16, 16)
    call, backend = compiled(layer)
    call(torch.randn(4, 16))
    copies = backend._weight_cache.tensors()
    places = [one.data_ptr() for one in copies]
    stepped(layer)
    backend.renew()
    assert [one.data_ptr() for one in copies] == places
    for kept_as, weight in zip(copies, (layer.weight, layer.bias), strict=True):
        assert torch.equal(kept_as, weight.to(torch.bfloat16))


def test_joined_weights_are_copied_as_one_and_stay_where_they_are():
    w = make(mode="infer", hidden_dim=32, num_layers=1, seq_len=8, batch_size=2, num_heads=2)
    step = Step(w, seeded_model(w), Plan(bf16=True, passes=TOGETHER), CPU)
    step(w.inputs(1))
    # The fused product of queries, keys and values, that of gate and up, two others of the layer and the head.
    assert step.applied()["matches"]["bf16-weights"] == 5
    assert all(p.untyped_storage().nbytes() == p.nbytes for p in step.model.parameters())


def test_a_transformer_is_verified_with_it_beside_other_rewrites():
    w = make(mode="infer", hidden_dim=32, num_layers=2, seq_len=8, batch_size=2, num_heads=2)
    found = verifying.verify(w, Plan(bf16=True, passes=TOGETHER), CPU).record()
    assert found.passed, found.failures


def test_copies_of_weights_that_were_are_refused(monkeypatch):
    monkeypatch.setattr(weight_cache._Watch, "same", lambda self, tensors=None: True)
    w = make(mode="infer", hidden_dim=32, num_layers=1, seq_len=8, batch_size=2, num_heads=2)
    found = verifying.verify(w, Plan(bf16=True, passes=("bf16-weights",)), CPU, precisions=["bf16"]).record()
    assert not found.passed


def test_when_it_applies_and_what_it_is_thought_to_give():
    here = BY_NAME["bf16-weights"]
    facts = {"gpu": True, "mode": "infer", "dtype": "torch.float32", "amp": None, "bandwidth": 1e12}
    says = {
        "contract": (Plan(), "tf32", facts),
        "autocast": (Plan(), "bf16", facts),
        "inference": (Plan(bf16=True), "bf16", {**facts, "mode": "train"}),
        "they are not cast": (Plan(bf16=True), "bf16", {**facts, "dtype": "torch.bfloat16"}),
        "8 bits": (Plan(bf16=True, linears="int8"), "fp8", facts),
        "sizes": (Plan(bf16=True, dynamic=True), "bf16", facts),
    }
    for words, (plan, numerics, known) in says.items():
        assert words in str(here.applies(Context(plan, numerics, facts_of(known), {}, {})))
    assert here.applies(Context(Plan(bf16=True), "bf16", facts_of(facts), {}, {})) is None
    # 1e8 weights: 0.6 ms of 1.2 ms of elementwise kernels are casts, at the bandwidth; all of it, at half of that.
    parts = {"pointwise": 1.2e6, "gemm": 1e6}
    known = {**facts, "weights_read": {"4": 100_000_000}}
    low, high = here.remaining(Context(Plan(bf16=True), "bf16", facts_of(known), parts, {}))["pointwise"]
    assert low == pytest.approx(0.05)
    assert high == pytest.approx(0.5)


class Bounded(nn.Module):
    """A table whose rows are brought to a norm as they are looked up, and that is the head's weight, too."""

    def __init__(self, kind):
        super().__init__()
        self.table = kind(32, 16, max_norm=1.0)

    def forward(self, tokens):
        return F.linear(self.table(tokens), self.table.weight)


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
@pytest.mark.parametrize("passes", [("bf16-weights",), ("folded-weights", "bf16-weights")])
def test_a_table_that_is_brought_to_a_norm_is_written_to(kind, passes):
    model = Bounded(kind)
    other, (call, backend) = copy.deepcopy(model), compiled(model, passes)
    for tokens in torch.arange(32).view(4, 2, 4):
        found, _ = call(tokens)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(found, other(tokens))
    assert backend.rewritten == {}


def test_frozen_weights_that_gradients_pass_are_not_kept():
    """What autograd holds to the backward pass is not written to, whatever optimizer steps meanwhile."""
    frozen, other = nn.Linear(16, 16).requires_grad_(False), nn.Parameter(torch.ones(4))
    call, backend = compiled(frozen, grad=True)
    x = torch.randn(4, 16, requires_grad=True)
    one, _ = call(x)
    other.grad = torch.ones(4)
    torch.optim.SGD([other], lr=0.1).step()
    two, right = call(x)
    (one + two).sum().backward()
    assert torch.equal(two, right)
    assert backend.rewritten == {}


def _adam_steps_with_a_hook(seen):
    def hook(optimizer, arguments, options):
        seen()

    def change(model):
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
        optimizer.register_step_post_hook(hook)
        optimizer.step()

    return change


def test_a_hook_behind_an_optimizers_step_sees_the_new_weights():
    model, found = nn.Sequential(nn.Linear(16, 16)), []
    call, _ = compiled(model)
    x = torch.randn(4, 16)
    step = _adam_steps_with_a_hook(lambda: found.append(call(x)))
    for _ in range(2):
        call(x)
        step(model)
        found.append(call(x))
    assert all(torch.equal(got, right) for got, right in found)
    assert len(found) == 4


def tied_by_data(model, x, call):
    model[1].weight.data = model[0].weight.data
    yield
    with torch.no_grad():
        model[0].weight.fill_(0.1)
    yield


def of_one_vector(model, x, call):
    yield
    vector = nn.utils.parameters_to_vector(model.parameters()).detach()
    for _ in range(3):
        vector.add_(0.1)
        nn.utils.vector_to_parameters(vector, model.parameters())
        yield
    vector.mul_(2)
    yield


@pytest.mark.parametrize("changes", [tied_by_data, of_one_vector])
@pytest.mark.parametrize("passes", [("bf16-weights",), ("folded-weights", "bf16-weights")])
def test_what_is_written_through_another_tensor_of_the_same_memory_is_seen(changes, passes):
    model, x = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16)), torch.randn(4, 16)
    call, _ = compiled(model, passes)
    for _ in changes(model, x, call):
        found, right = call(x)
        assert torch.equal(found, right)
