"""Logits that nobody reads are not made: those of the tokens before the last, and those between layer and loss."""

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.backends.debugging import aot_eager

import rung
from rung import Workload
from rung.engine.step import Step
from rung.hardware import pick
from rung.plan import Plan
from rung.rewrites import RewriteBackend, chunked, cross_entropy
from rung.verify.verify import verify
from rung.workload import seeded_model

ROWS, TOKENS, WIDTH, CLASSES = 3, 7, 16, 50


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()
    torch.manual_seed(0)


X = torch.randn(ROWS, TOKENS, WIDTH)

NARROW = {
    "one token": lambda y: y[:, -1],
    "kept dimension": lambda y: y[:, -1:, :],
    "after a cast": lambda y: y.double()[..., -1, :],
    "capped": lambda y: (torch.tanh(y / 30) * 30)[:, 2:5],
    "one row": lambda y: y[1],
}


@pytest.mark.parametrize("spelling", NARROW)
def test_rows_are_taken_before_the_layer(spelling):
    layer = nn.Linear(WIDTH, CLASSES)
    backend = RewriteBackend(["narrow-logits"], "eager")
    run = torch.compile(lambda x: NARROW[spelling](layer(x.relu())), backend=backend, dynamic=False)
    want = NARROW[spelling](layer(X.relu()))
    got = run(X)
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    slopes = [torch.autograd.grad(y.square().sum(), layer.weight)[0] for y in (want, got)]
    torch.testing.assert_close(slopes[1], slopes[0], rtol=1e-4, atol=1e-4)
    assert backend.rewritten == {"narrow-logits": 1}
    assert backend.after["layer_flop"] == 2 * WIDTH * want.numel() < backend.before["layer_flop"]


@pytest.mark.parametrize(
    ("read", "says"),
    [
        (lambda y: (y[:, -1], y), "used elsewhere"),
        (lambda y: y[..., :10], ""),
        (lambda y: y.softmax(1)[:, -1], ""),
        (lambda y: y[:, torch.tensor([0, 1])], ""),
        (lambda y: y[:, :, None][:, -1], ""),
        (lambda y: y.add_(1.0)[:, -1], ""),
    ],
    ids=["all returned", "classes sliced", "mixed rows", "gathered", "new dimension", "written"],
)
def test_other_readers_keep_the_whole(read, says):
    layer = nn.Linear(WIDTH, CLASSES)
    backend = RewriteBackend(["narrow-logits"], "eager")
    with torch.no_grad():
        got = torch.compile(lambda x: read(layer(x)), backend=backend, dynamic=False)(X)
        torch.testing.assert_close(got, read(layer(X)))
    assert backend.rewritten == {}
    assert (says in backend.skipped[0]) if says else not backend.skipped


class Language(nn.Module):
    """Tied weights; the labels are shifted in the loss, and some are to be ignored."""

    def __init__(self, bias=True, reduction="mean", **options):
        super().__init__()
        self.embed, self.norm = nn.Embedding(CLASSES, WIDTH), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES, bias=bias)
        self.head.weight = self.embed.weight
        self.options = {"reduction": reduction, **options}

    def forward(self, tokens, labels):
        logits = self.head(self.norm(self.embed(tokens))).float()
        return F.cross_entropy(logits[:, :-1].reshape(-1, CLASSES), labels[:, 1:].reshape(-1), **self.options)


def tokens(ignored=-100):
    drawn = torch.randint(CLASSES, (ROWS, TOKENS))
    labels = drawn.clone()
    labels[0, 2:5] = ignored
    return drawn, labels


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(chunked, "LEAST_ROWS", 4)
    monkeypatch.setattr(cross_entropy, "LEAST_BYTES", 0)


class Traced(RewriteBackend):
    """Hands the graph to AOTAutograd, as Inductor does, and runs what that gives."""

    def compiled(self, gm, inputs):
        return aot_eager(gm, inputs)


def trained(model, kind=RewriteBackend, amp=False):
    other, backend = copy.deepcopy(model), kind(["fused-cross-entropy"], "eager")
    run = torch.compile(other, backend=backend, dynamic=False)
    batch = tokens(model.options.get("ignore_index", -100))
    with torch.autocast("cpu", torch.bfloat16, enabled=amp):
        want, got = model(*batch), run(*batch)
    (3 * want).backward()
    (3 * got).backward()
    tol = 0.02 if amp else 1e-5
    torch.testing.assert_close(got, want, rtol=tol, atol=tol)
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        assert (theirs.grad - mine.grad).norm() <= tol * mine.grad.norm()
    with torch.no_grad():
        torch.testing.assert_close(run(*batch), model(*batch), rtol=1e-4, atol=1e-4)
    return backend


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"reduction": "sum"}, {"ignore_index": -1}], ids=str)
def test_a_chunked_loss_has_the_plain_ones_value_and_gradients(options, small):
    assert trained(Language(**options)).rewritten == {"fused-cross-entropy": 1}


def test_a_chunked_loss_under_autocast(small):
    assert trained(Language(), amp=True).rewritten == {"fused-cross-entropy": 1}


def test_a_chunked_loss_is_traced_with_its_gradients(small):
    assert trained(Language(), kind=Traced).rewritten == {"fused-cross-entropy": 1}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"label_smoothing": 0.1}, "label smoothing"),
        ({"weight": torch.ones(CLASSES)}, "class weights"),
        ({}, "small enough to keep"),
    ],
)
def test_a_loss_that_is_left_alone_says_why(options, says):
    backend = trained(Language(**options))
    assert backend.rewritten == {}
    assert says in backend.skipped[0]


def test_a_loss_in_float64_keeps_its_digits(small):
    model = nn.Linear(WIDTH, CLASSES).double()
    backend = RewriteBackend(["fused-cross-entropy"], "eager")
    x, labels = torch.randn(ROWS, WIDTH, dtype=torch.float64), torch.randint(CLASSES, (ROWS,))

    def loss(x, labels):
        return F.cross_entropy(model(x), labels)

    got = torch.compile(loss, backend=backend, dynamic=False)(x, labels)
    torch.testing.assert_close(got, loss(x, labels), rtol=1e-12, atol=0)
    assert "float64" in backend.skipped[0]


def test_returned_logits_must_be_made_anyway(small):
    layer = nn.Linear(WIDTH, CLASSES)
    labels = torch.randint(CLASSES, (ROWS,))

    def fn(x):
        logits = layer(x[:, 0])
        return F.cross_entropy(logits, labels), logits.detach()

    backend = RewriteBackend(["fused-cross-entropy"], "eager")
    torch.testing.assert_close(torch.compile(fn, backend=backend, dynamic=False)(X), fn(X))
    assert "Workload(output=False)" in backend.skipped[0]


def test_a_step_that_is_asked_for_its_loss_alone_hands_out_no_output_and_makes_no_logits(small):
    asked = Workload(
        "language", lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)),
        lambda seed: {"x": X + seed, "y": torch.arange(ROWS * TOKENS) % CLASSES},
        forward=lambda model, batch: model(batch["x"]).flatten(0, 1), mode="train",
        loss=lambda output, batch: F.cross_entropy(output, batch["y"]),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1), output=False,
    )  # fmt: skip
    asked = replace(asked, other_shapes=(asked.inputs,))
    plan = Plan(passes=("fused-cross-entropy",))
    step = Step(asked, seeded_model(asked), plan, pick("cpu"))
    loss, output = step(asked.inputs(1))
    assert output is None
    assert loss is not None
    assert step.backend is not None
    assert step.backend.rewritten == {"fused-cross-entropy": 1}
    found = verify(asked, plan, pick("cpu")).record()
    assert found.passed, found.failures

    model = seeded_model(asked)
    applied = rung.apply(
        model, "fused-cross-entropy", forward=asked.forward, loss=asked.loss, optimizer=asked.optimizer, output=False
    )
    again, output = applied.step(asked.inputs(1))
    assert output is None
    torch.testing.assert_close(again, loss)


def test_without_a_row_that_counts_the_mean_is_not_a_number(small):
    hidden, weight = torch.randn(5, WIDTH), torch.randn(CLASSES, WIDTH)
    target = torch.full((5,), -100)
    assert chunked.linear_cross_entropy(hidden, weight, None, target).isnan()
    assert chunked.linear_cross_entropy(hidden, weight, None, target, mean=False) == 0


def test_a_sum_divided_by_no_rows_has_gradients_of_zero_as_in_torch(small):
    """A micro-batch without a label: its loss is not a number, and an optimizer's step leaves the weights alone."""
    target = torch.full((5,), -100)
    hidden, weight, bias = (
        torch.randn(size, requires_grad=True) for size in ((5, WIDTH), (CLASSES, WIDTH), (CLASSES,))
    )
    plain = torch.nn.functional.cross_entropy(hidden @ weight.T + bias, target, reduction="sum")
    for loss in (plain, chunked.linear_cross_entropy(hidden, weight, bias, target, mean=False)):
        for gradient in torch.autograd.grad(loss / (target != -100).sum(), (hidden, weight, bias)):
            assert bool((gradient == 0).all())


@pytest.mark.parametrize(("dtype", "scale"), [(torch.float16, 65536.0), (torch.bfloat16, 0.3), (torch.float64, 0.3)])
def test_a_scale_of_the_loss_is_not_rounded_before_it_reaches_the_gradients(dtype, scale, small):
    drawn = [torch.randn(10, WIDTH), torch.randn(CLASSES, WIDTH), torch.randn(CLASSES)]
    leaves = [(x * 0.01).to(dtype).requires_grad_() for x in drawn]
    loss = chunked.linear_cross_entropy(*leaves, torch.arange(10))
    plain = torch.autograd.grad(loss, leaves, retain_graph=True)
    for one, many in zip(plain, torch.autograd.grad(loss * scale, leaves), strict=True):
        assert many.isfinite().all()
        assert torch.equal(many, (one.double() * torch.tensor(scale).double()).to(dtype))


def test_a_layer_that_is_trained_in_float16_is_left_to_its_loss_scale(small):
    model = Language()
    backend = RewriteBackend(["fused-cross-entropy"], "eager")
    run = torch.compile(model, backend=backend, dynamic=False)
    batch = tokens()
    with torch.autocast("cpu", torch.float16):
        torch.testing.assert_close(run(*batch), model(*batch))
        assert backend.rewritten == {}
        assert "before a scale of the loss" in backend.skipped[0]
        with torch.no_grad():
            torch.testing.assert_close(run(*batch), model(*batch), rtol=1e-3, atol=1e-3)
    assert backend.rewritten == {"fused-cross-entropy": 1}


def test_a_second_derivative_of_a_chunked_loss_is_an_error_and_not_a_part_of_it(small):
    """What the gradients depend on was used in forward: a penalty on them would miss all of it."""
    hidden, weight = torch.randn(10, 4, requires_grad=True), torch.randn(6, 4, requires_grad=True)
    loss = chunked.linear_cross_entropy(hidden, weight, None, torch.arange(10) % 6)
    (first,) = torch.autograd.grad(loss, hidden, create_graph=True)
    plain = F.cross_entropy(F.linear(hidden, weight), torch.arange(10) % 6)
    assert torch.allclose(first, torch.autograd.grad(plain, hidden)[0], atol=1e-6)
    with pytest.raises(RuntimeError, match="no gradient of its own"):
        (loss + first.square().sum()).backward()


@pytest.mark.parametrize("backward", ["eager", "aot_eager"])
def test_a_chunked_loss_is_trained_through_compiled_autograd(small, backward):
    hidden = torch.randn(10, 4)
    layer = nn.Linear(4, 6)
    other = copy.deepcopy(layer)
    F.cross_entropy(other(hidden), torch.arange(10) % 6).backward()
    backend = RewriteBackend(["fused-cross-entropy"], "eager")
    loss = torch.compile(lambda x: F.cross_entropy(layer(x), torch.arange(10) % 6), backend=backend, dynamic=False)
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend=backward)):
        loss(hidden).backward()
    assert backend.rewritten == {"fused-cross-entropy": 1}
    assert torch.allclose(layer.weight.grad, other.weight.grad, atol=1e-6)
