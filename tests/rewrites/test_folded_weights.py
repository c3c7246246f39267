"""What is computed of weights alone is computed once: the same numbers, never those of weights or statistics as they were."""

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from known_facts import facts_of
from torch import nn

import rung
from rung import Workload
from rung.hardware import pick
from rung.plan import Plan
from rung.rewrites import RewriteBackend, folded_weights, weight_cache
from rung.rewrites.statistics import Statistics
from rung.rungs import BY_NAME, Context, plan_of
from rung.verify import verify as verifying

PASSES = ("folded-batch-norm", "folded-weights")
X = torch.randn(2, 8, 6, 6)


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def network() -> nn.Sequential:
    layers = [nn.Conv2d(8, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 1), nn.BatchNorm2d(8)]
    model = nn.Sequential(*layers).eval()
    for norm in (model[1], model[4]):
        nn.init.normal_(norm.running_mean)
        nn.init.uniform_(norm.running_var, 0.5, 2.0)
        nn.init.uniform_(norm.weight, 0.5, 2.0)
    return model


class Standardized(nn.Conv2d):
    """Weights of mean 0 and variance 1, as in networks without norms."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = self.weight.reshape(1, self.out_channels, -1)
        weight = F.batch_norm(flat, None, None, training=True, momentum=0.0).reshape_as(self.weight)
        return F.conv2d(x, weight, self.bias)


class Positions(nn.Module):
    """Attention whose bias a table holds by the distance of two tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.qkv = nn.Parameter(torch.randn(11, 2)), nn.Linear(8, 24)
        self.register_buffer("index", torch.arange(6)[:, None] - torch.arange(6) + 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x.flatten(2).mT[:, :6]).view(len(x), 6, 3, 2, 4).permute(2, 0, 3, 1, 4)
        bias = self.table[self.index.view(-1)].view(6, 6, 2).permute(2, 0, 1).contiguous().unsqueeze(0)
        return F.scaled_dot_product_attention(q, k, v, bias.expand(len(x), -1, -1, -1)).transpose(1, 2).flatten(2)


def compiled(model: nn.Module, passes: tuple[str, ...] = PASSES) -> tuple[Callable[..., Any], RewriteBackend]:
    backend = RewriteBackend(passes, "eager", model=model)
    return torch.compile(model, backend=backend, dynamic=False), backend


def same(model: nn.Module, run: Callable[..., Any], x: torch.Tensor = X, amp: bool = False) -> torch.Tensor:
    near = {"rtol": 3e-2, "atol": 3e-2} if amp else {"rtol": 1e-4, "atol": 1e-5}
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=amp):
        want, got = model(x), run(x)
    torch.testing.assert_close(got, want, **near)
    return want


@pytest.mark.parametrize("amp", [False, True])
@pytest.mark.parametrize(
    ("make", "values"),
    [
        (network, 4),  # two weights, two biases
        (lambda: Standardized(8, 4, 3).eval(), 1),
        (lambda: nn.utils.parametrizations.weight_norm(nn.Conv2d(8, 4, 3)).eval(), 1),
        (Positions, 1),
    ],
    ids=["batch norm", "standardized", "weight norm", "positions"],
)
def test_values_of_weights_are_inputs(make: Callable[[], nn.Module], values: int, amp: bool) -> None:
    model = make()
    run, backend = compiled(model)
    same(model, run, amp=amp)
    assert backend.matches["folded-weights"] == values
    # As autocast casts them for a product or a convolution; attention's bias is cast with the queries.
    assert {one.dtype for one in backend._weight_cache.tensors()} == {torch.bfloat16 if amp else torch.float32}


def test_a_model_in_bfloat16_keeps_its_values_in_bfloat16() -> None:
    model = network().bfloat16()
    run, backend = compiled(model)
    with torch.no_grad():
        torch.testing.assert_close(run(X.bfloat16()), model(X.bfloat16()), rtol=5e-2, atol=5e-2)
    assert {one.dtype for one in backend._weight_cache.tensors()} == {torch.bfloat16}
    assert backend.matches["folded-weights"] == 4


def trained(model: nn.Module) -> None:
    """Forward alone: batch norm writes its statistics, and raises no version counter of theirs."""
    versions = [b._version for name, b in model.named_buffers() if "running" in name]
    model.train()
    with torch.no_grad():
        model(torch.randn(4, 8, 6, 6) * 3 + 1)
    model.eval()
    assert [b._version for name, b in model.named_buffers() if "running" in name] == versions


def trained_compiled(model: nn.Module) -> None:
    model.train()
    with torch.no_grad():
        torch.compile(model, backend="aot_eager")(torch.randn(4, 8, 6, 6) * 3 + 1)
    model.eval()


def scaled(model: nn.Module) -> None:
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.5)


def loaded(model: nn.Module) -> None:
    model.load_state_dict({name: t * 0.5 for name, t in model.state_dict().items()})


def assigned(model: nn.Module) -> None:
    model.load_state_dict({name: t * 0.5 for name, t in model.state_dict().items()}, assign=True)


def assigned_and_trained(model: nn.Module) -> None:
    assigned(model)
    trained(model)


def other_data(model: nn.Module) -> None:
    for p in model.parameters():
        p.data = p.data * 0.5


def in_one_memory(model: nn.Module) -> None:
    """Parameters take turns in the rows of one tensor, as those of stacked checkpoints do."""
    for p in model.parameters():
        rows = torch.stack([p.data * 0.5, p.data * 0.7, p.data * 1.3])
        p.data = rows[0]
        p.rows = rows  # type: ignore[attr-defined]


def next_row(model: nn.Module) -> None:
    for p in model.parameters():
        p.data = p.rows[(p.storage_offset() // p.numel() + 1) % 3]  # type: ignore[attr-defined]


def other_statistics(model: nn.Module) -> None:
    model[1].running_mean = model[1].running_mean + 1  # type: ignore[index, union-attr, operator, assignment]


def optimized(model: nn.Module) -> None:
    """Its kernel raises no version counter."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()


CHANGES = [
    trained,
    trained_compiled,
    scaled,
    loaded,
    assigned,
    assigned_and_trained,
    other_data,
    other_statistics,
    optimized,
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen(change: Callable[[nn.Module], None]) -> None:
    model = network()
    run, backend = compiled(model)
    before = same(model, run)
    change(model)
    assert not torch.allclose(same(model, run), before)
    assert backend.matches["folded-weights"]
    trained(model)  # and once more, of what is there now
    same(model, run)


@given(
    changes=st.lists(
        st.sampled_from([trained, scaled, loaded, assigned, other_data, other_statistics, optimized]), max_size=4
    )
)
@settings(max_examples=15, deadline=None)
def test_changes_in_any_order_are_seen(changes: list[Callable[[nn.Module], None]]) -> None:
    torch._dynamo.reset()
    model = network()
    run, _ = compiled(model)
    same(model, run)
    for change in changes:
        change(model)
        same(model, run)


@pytest.mark.parametrize("change", [trained, scaled, loaded, other_data, optimized])
def test_what_a_recorded_graph_reads_is_renewed_where_it_lies(change: Callable[[nn.Module], None]) -> None:
    model = network()
    run, backend = compiled(model)
    same(model, run)
    copies = backend._weight_cache.tensors()
    places, before = [one.data_ptr() for one in copies], [one.clone() for one in copies]
    backend.renew()
    assert not backend.renew()  # once it is known what all of them are made of
    assert all(map(torch.equal, copies, before))
    change(model)
    assert backend.renew()
    assert [one.data_ptr() for one in copies] == places
    torch._dynamo.reset()
    again, other = compiled(copy.deepcopy(model))
    same(model, again)
    for one, new in zip(copies, other._weight_cache.tensors(), strict=True):
        torch.testing.assert_close(one, new)
        assert not all(map(torch.equal, copies, before))


def test_statistics_that_nothing_counts_are_folded_in_every_call() -> None:
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(8, 8, 1)
            self.register_buffer("mean", torch.zeros(8))
            self.register_buffer("variance", torch.ones(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.batch_norm(self.layer(x), self.mean, self.variance, training=self.training)

    model = Functional().eval()
    run, backend = compiled(model)
    same(model, run)
    assert backend.rewritten == {"folded-batch-norm": 1}
    assert any("no counter says when batch norm writes them" in reason for reason in backend.skipped)
    trained(model.eval())
    same(model, run)


def test_a_count_that_was_taken_away_leaves_nothing_to_trust() -> None:
    model = network()
    run, backend = compiled(model)
    same(model, run)
    for norm in (model[1], model[4]):
        for name in ("running_mean", "running_var"):
            setattr(norm, name, getattr(norm, name).clone())
        norm.num_batches_tracked = None
    trained(model)
    backend.renew()
    same(model, run)
    trained(model)
    same(model, run)


def test_a_model_that_was_made_in_inference_mode_is_folded_in_every_call() -> None:
    with torch.inference_mode():
        model = network()
        run, backend = compiled(model)
        torch.testing.assert_close(run(X), model(X), rtol=1e-4, atol=1e-5)
    assert backend.rewritten == {"folded-batch-norm": 2}


def test_a_frozen_backbone_that_is_trained_on_top_of_is_folded_in_the_graph() -> None:
    """The steps of its optimizer would have every value computed anew."""
    model = nn.Sequential(network().requires_grad_(False), nn.Conv2d(8, 4, 1))
    run, backend = compiled(model)
    torch.testing.assert_close(run(X), model(X), rtol=1e-4, atol=1e-5)
    assert backend.rewritten == {"folded-batch-norm": 2}


class Doubled:
    key = "doubled"

    def __init__(self) -> None:
        self.fails = False

    def new(self, tensors: Any) -> torch.Tensor:
        return tensors[0] * 2

    def write(self, made: torch.Tensor, tensors: Any) -> None:
        if self.fails:
            raise RuntimeError("out of memory")
        made.copy_(tensors[0] * 2)


def test_a_value_that_could_not_be_renewed_is_not_believed() -> None:
    doubled, copies, weight = Doubled(), weight_cache.WeightCache(Statistics()), nn.Parameter(torch.ones(3))
    values = weight_cache.CachedValues([weight_cache.CachedValue((0,), doubled)], copies)
    assert values([weight])[0].tolist() == [2, 2, 2]
    with torch.no_grad():
        weight.add_(1)
    doubled.fails = True
    with pytest.raises(RuntimeError, match="out of memory"):
        values([weight])
    doubled.fails = False
    assert values([weight])[0].tolist() == [4, 4, 4]


def test_layers_of_one_code_are_remembered_beside_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    copies, layers = (
        weight_cache.WeightCache(Statistics()),
        [nn.Parameter(torch.full((2,), float(k))) for k in range(5)],
    )
    values = weight_cache.CachedValues([weight_cache.CachedValue((0,), Doubled())], copies)
    asked = []
    watch = weight_cache.WeightCache.watch
    monkeypatch.setattr(
        weight_cache.WeightCache, "watch", lambda *given, **more: asked.append(1) or watch(*given, **more)
    )
    for _ in range(3):
        assert [values([layer])[0].tolist() for layer in layers] == [[2.0 * k] * 2 for k in range(5)]
        before = len(asked)
    assert len(asked) == before == 2 * len(layers)


def test_two_graphs_that_name_their_nodes_otherwise_read_one_value() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(6, 6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.softmax(-1) if len(x) > 2 else x
            return F.linear(x, self.weight.softmax(-1))

    model = Named()
    run, backend = compiled(model)
    for rows in (2, 3):
        same(model, run, torch.randn(rows, 8, 6, 6))
    assert backend.graphs == 2
    assert len(backend._weight_cache.tensors()) == 1


class Spelled(nn.BatchNorm2d):
    """By torch's own function of the name, whose arguments have another order."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.batch_norm(
            x, self.weight, self.bias, self.running_mean, self.running_var, self.training, 0.5, 1e-5, False
        )


class Uncounted(nn.BatchNorm2d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, self.training, 0.5)


class CountsAnew(nn.BatchNorm2d):
    """Its count is another tensor each time."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.num_batches_tracked = self.num_batches_tracked + 1
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, self.training, 0.5)


class Trainable(nn.Module):
    """Its statistics are parameters."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(width), requires_grad=False)
        self.variance = nn.Parameter(torch.ones(width), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.batch_norm(x, self.mean, self.variance, training=self.training, momentum=0.5)


@pytest.mark.parametrize("norm", [Uncounted, CountsAnew, Trainable, Spelled])
def test_a_batch_norm_with_a_forward_of_its_own_is_not_believed_to_count(norm: type[nn.Module]) -> None:
    model = nn.Sequential(nn.Conv2d(8, 8, 1), norm(8)).eval()
    run, backend = compiled(model)
    for _ in range(3):
        same(model, run)
        model.train()
        with torch.no_grad():
            model(torch.randn(4, 8, 6, 6) * 3 + 1)
        model.eval()
    same(model, run)
    assert backend.rewritten == ({} if norm is Spelled else {"folded-batch-norm": 1})


def test_what_instance_norm_keeps_is_not_counted() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.weight = nn.InstanceNorm2d(8, track_running_stats=True), nn.Parameter(torch.randn(8, 8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.linear(x.flatten(2).mT, self.weight * self.norm.running_var)

    model = Scaled().eval()
    run, backend = compiled(model)
    for _ in range(2):
        same(model, run)
        model.norm.train()(torch.randn(4, 8, 6, 6) * 3)
        model.norm.eval()
    same(model, run)
    assert not backend.rewritten


def test_statistics_of_two_layers_change_with_either() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.norm, self.other = nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8), nn.BatchNorm2d(8)
            self.other.running_mean, self.other.running_var = self.norm.running_mean, self.norm.running_var

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(self.layer(x))

    model = Shared().eval()
    run, backend = compiled(model)
    same(model, run)
    for layer in (model.norm, model.other, model.norm):
        layer.train()(torch.randn(4, 8, 6, 6) * 3)
        layer.eval()
        same(model, run)
    assert backend.matches["folded-weights"] == 2


def by_the_layer(norm: nn.BatchNorm2d, x: torch.Tensor) -> None:
    norm.train()
    norm(x)
    norm.eval()


def by_torchs_function(norm: nn.BatchNorm2d, x: torch.Tensor) -> None:
    """Its arguments have another order."""
    torch.batch_norm(x, norm.weight, norm.bias, norm.running_mean, norm.running_var, True, 0.5, 1e-5, False)


@pytest.mark.parametrize("learn", [by_the_layer, by_torchs_function])
def test_statistics_that_the_step_writes_itself_are_read_after_it(learn: Callable[..., None]) -> None:
    class Adapting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.norm = nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            learn(self.norm, x)
            return self.norm(self.layer(x))

    model = Adapting().eval()
    other = copy.deepcopy(model)
    run, _ = compiled(other)
    with torch.no_grad():
        for seed in range(4):
            x = torch.randn(2, 8, 6, 6, generator=torch.Generator().manual_seed(seed)) * 3
            torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "change",
    [
        lambda p: setattr(p, "data", p.data * 1.3),
        lambda p: setattr(p, "data", p.data.T.contiguous()),
        lambda p: setattr(p, "data", p.data.T),  # the same memory
        lambda p: setattr(p, "data", p.data.half().float()),
    ],
)
def test_data_that_comes_to_lie_where_others_lay_is_seen(change: Callable[[nn.Parameter], None]) -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(128, 128))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.linear(x, self.weight * 2)

    model, x = Sum(), torch.randn(3, 128)
    run, backend = compiled(model)
    same(model, run, x)
    for _ in range(6):
        change(model.weight)
        change(model.weight)
        change(model.weight)
        with torch.no_grad():
            torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-3)
    assert backend.matches["folded-weights"] == 1


def test_two_weights_in_one_memory_are_read_in_every_call() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Parameter(torch.randn(6, 6)), nn.Parameter(torch.randn(6, 6))
            self.second.data = self.first.data

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.linear(x, self.first * 2) + F.linear(x, self.second)

    model = Tied()
    run, _ = compiled(model)
    same(model, run)
    with torch.no_grad():
        model.second.mul_(2)
    same(model, run)


@pytest.mark.parametrize(
    "parts", [torch.Tensor.unbind, lambda t: t.chunk(2), lambda t: t.split(3), lambda t: F.dropout(t, 0.5, False)]
)
def test_a_value_that_leaves_the_graph_is_the_callers_own(parts: Callable[[torch.Tensor], Any]) -> None:
    class Leaving(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(6, 8))

        def forward(self, x: torch.Tensor) -> Any:
            return parts(F.layer_norm(self.weight, (8,)))

    model = Leaving()
    run, _ = compiled(model)
    with torch.no_grad():
        for _ in range(3):
            got = run(X)
            torch.testing.assert_close(got, model(X))
            (got if isinstance(got, torch.Tensor) else got[0]).mul_(3)


@pytest.mark.parametrize(
    "broadcast",
    [
        lambda b: torch.broadcast_to(b, (2, 2, 6, 6)), lambda b: b.expand(2, 2, 6, 6), lambda b: b.expand(2, 2, 6, 6).detach(),
        lambda b: b.expand(1, 2, 6, 6).squeeze(0), lambda b: b.expand(2, 2, 6, 6).flatten(0, 1).unflatten(0, (2, 2)),
    ],
)  # fmt: skip
def test_a_value_that_is_repeated_is_kept_once(broadcast: Callable[[torch.Tensor], torch.Tensor]) -> None:
    class Biased(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.randn(6, 6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q = x[:, :2]
            return F.scaled_dot_product_attention(q, q, q, broadcast(self.bias.softmax(-1)))

    model = Biased()
    run, backend = compiled(model)
    same(model, run)
    assert [one.numel() for one in backend._weight_cache.tensors()] in ([36], [144])


def test_a_bias_in_float32_beside_queries_in_16_bits_stays_so() -> None:
    class Far(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.rand(6, 6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q = x.half()
            return F.scaled_dot_product_attention(q, q, q, self.bias * -1e9)

    model = Far()
    with torch.no_grad():
        want = model(X)
        run, backend = compiled(model)
        torch.testing.assert_close(run(X), want, rtol=1e-2, atol=1e-2)
    assert {one.dtype for one in backend._weight_cache.tensors()} == {torch.float32}


def test_values_go_with_their_model() -> None:
    model = network()
    run, backend = compiled(model)
    same(model, run)
    copies = backend._weight_cache
    assert len(copies.tensors()) == 4
    del model, run
    gc.collect()
    assert not copies.tensors()


class Other(nn.Module):
    """Values of weights that are not to be kept."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.weight, self.gain = kind, nn.Parameter(torch.randn(8, 8)), nn.Parameter(torch.randn(8))

    def forward(self, x: torch.Tensor) -> Any:
        rows = x.flatten(2).mT
        if self.kind == "a view":
            return rows @ self.weight.view(8, 8).T
        if self.kind == "part of another kernel":
            return rows * (1 + self.gain)
        if self.kind == "returned":
            return rows * 2, self.weight * 2
        if self.kind == "random":
            return rows @ F.dropout(self.weight, 0.0, training=True)
        if self.kind == "written":
            made = self.weight * 2
            made.mul_(rows.mean())
            return rows @ made
        if self.kind == "of the input":
            return rows @ (self.weight * rows.mean())
        self.weight.data.mul_(0.9)
        return rows @ (self.weight * 2)


@pytest.mark.parametrize(
    "kind", ["a view", "part of another kernel", "returned", "random", "written", "of the input", "the step writes it"]
)
def test_other_values_are_left(kind: str) -> None:
    model = Other(kind).eval()
    other = copy.deepcopy(model)
    run, backend = compiled(other)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(run(X), model(X))
    assert not backend.rewritten


@pytest.mark.parametrize("codes", [torch.int8, torch.uint8, torch.float8_e4m3fn])
def test_weights_in_few_bits_are_widened_in_every_call(codes: torch.dtype) -> None:
    """Who stores codes wants the memory."""

    class Coded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("codes", torch.arange(64).reshape(8, 8).to(codes))
            self.scale = nn.Parameter(torch.rand(8, 1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.linear(x.flatten(2).mT, self.codes.to(x.dtype) * self.scale)

    run, backend = compiled(model := Coded())
    same(model, run)
    assert not backend.rewritten


def test_a_value_that_takes_more_memory_than_its_weights_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folded_weights, "SMALL", 0)
    run, backend = compiled(model := Positions())  # 36 biases a head of 11 entries
    same(model, run)
    assert not backend.rewritten
    assert any("takes more memory" in reason for reason in backend.skipped)
    run, backend = compiled(other := network())
    same(other, run)
    assert backend.matches["folded-weights"] == 4


def test_in_training_weights_get_their_gradients() -> None:
    model = network()
    other = copy.deepcopy(model)
    run, backend = compiled(other)
    model(X).square().sum().backward()
    run(X).square().sum().backward()
    assert backend.rewritten == {"folded-batch-norm": 2}
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(theirs.grad, mine.grad, rtol=1e-3, atol=1e-3)


def test_other_shapes_read_the_same_values() -> None:
    model = network()
    run, backend = compiled(model)
    for rows in (1, 2, 3):
        same(model, run, torch.randn(rows, 8, 6, 6))
    assert backend.graphs == 3
    assert len(backend._weight_cache.tensors()) == 4


def test_one_code_serves_layers_with_values_of_their_own() -> None:
    layers = nn.ModuleList(network() for _ in range(3))
    backend = RewriteBackend(PASSES, "eager", model=layers)
    for layer in layers:
        same(layer, torch.compile(layer, backend=backend, dynamic=False))
    assert len({one.data_ptr() for one in backend._weight_cache.tensors()}) == 3 * 4


def test_values_lie_as_the_compiler_was_told() -> None:
    model = network().to(memory_format=torch.channels_last)
    backend = RewriteBackend(PASSES, "inductor", model=model)
    same(model, torch.compile(model, backend=backend, dynamic=False), X.to(memory_format=torch.channels_last))
    assert any(one.dim() == 4 and not one.is_contiguous() for one in backend._weight_cache.tensors())


def test_applied_to_a_model_it_follows_training_in_between() -> None:
    model = network()
    fast = rung.apply(model, ["compile", "folded-batch-norm"])
    for change in (lambda m: None, trained, optimized, trained):
        change(model)
        with torch.no_grad():
            torch.testing.assert_close(fast(X), model(X), rtol=1e-4, atol=1e-5)
    assert fast._compiled.applied()["matches"]["folded-weights"] == 4


WORKLOAD = Workload(
    name="network",
    model=network,
    inputs=lambda seed: torch.randn(2, 8, 6, 6, generator=torch.Generator().manual_seed(seed)),
)


def test_values_of_weights_that_were_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert verifying.verify(WORKLOAD, Plan(passes=PASSES), pick("cpu"), precisions=["exact"]).record().passed
    torch._dynamo.reset()
    monkeypatch.setattr(weight_cache._Entry, "renew", lambda self, tensors, watch: True)
    monkeypatch.setattr(weight_cache._Watch, "same", lambda self, tensors=None: True)
    assert not verifying.verify(WORKLOAD, Plan(passes=PASSES), pick("cpu"), precisions=["exact"]).record().passed


def test_a_folded_batch_norm_is_kept_and_the_rest_by_a_rung_of_its_own() -> None:
    assert plan_of(["folded-batch-norm"]).passes == ("folded-weights", "folded-batch-norm")
    facts = {"gpu": True, "mode": "infer", "matches": {"folded-weights": 3}}
    rung_ = BY_NAME["folded-weights"]
    assert rung_.applies(Context(Plan(), "exact", facts_of(facts), {}, {})) is None
    for other, why in (
        ({"mode": "train"}, "it is for inference"),
        ({"matches": {}}, "no value that depends on weights alone"),
    ):
        assert why in str(rung_.applies(Context(Plan(), "exact", facts_of({**facts, **other}), {}, {})))
