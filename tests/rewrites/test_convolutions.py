"""Convolutions: a batch norm in evaluation goes into the weights, and the weights may lie channels-last."""

import copy

import pytest
import torch
from torch import nn

import rung
from rung import Workload
from rung.engine.channels_last import ChannelsLast
from rung.engine.step import Step
from rung.hardware import pick
from rung.plan import Plan
from rung.rewrites import RewriteBackend
from rung.rewrites import backend as backend_module
from rung.rungs import plan_of
from rung.verify.verify import verify

X = torch.randn(2, 3, 8, 8)


def network(bias=False, learns=False):
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 6, 3, padding=1, bias=bias), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 1)]
    model = nn.Sequential(*layers).train(learns)
    with torch.no_grad():
        model[1].running_mean.normal_()
        model[1].running_var.uniform_(0.5, 2)
        model[1].weight.normal_()
        model[1].bias.normal_()
    return model


@pytest.mark.parametrize("bias", [False, True])
def test_a_batch_norm_in_evaluation_goes_into_the_convolution(bias):
    torch._dynamo.reset()
    model = network(bias)
    other, backend = copy.deepcopy(model), RewriteBackend(["folded-batch-norm"], "eager")
    run = torch.compile(other, backend=backend, dynamic=False)
    want, got = model(X), run(X)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    want.square().sum().backward()
    got.square().sum().backward()
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(theirs.grad, mine.grad, rtol=1e-3, atol=1e-3)
    assert backend.rewritten == {"folded-batch-norm": 1}
    assert (backend.before["batch_norm"], backend.after["batch_norm"]) == (1, 0)


def test_a_batch_norm_that_learns_stays_and_says_so():
    torch._dynamo.reset()
    backend = RewriteBackend(["folded-batch-norm"], "eager")
    torch.compile(network(learns=True), backend=backend, dynamic=False)(X)
    assert backend.rewritten == {}
    assert "statistics of the batch" in backend.skipped[0]


def test_a_convolution_without_a_batch_has_its_channels_elsewhere():
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(3, 8, 1), nn.BatchNorm1d(8)).eval()
    model[1].running_mean.normal_()
    backend = RewriteBackend(["folded-batch-norm"], "eager")
    run = torch.compile(model, backend=backend, dynamic=False)
    x = torch.randn(3, 8)  # [channels, length]: the batch norm takes 3 for the batch
    torch.testing.assert_close(run(x), model(x))
    assert backend.rewritten == {}
    assert "no batch" in backend.skipped[0]


def workload():
    def inputs(seed):
        return torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(seed))

    return Workload("small convolutions", network, inputs)


def test_a_weight_that_a_kept_state_dict_has_stays_where_it_is():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3))
    kept = model[0].state_dict()["weight"]
    assert len(ChannelsLast(model)) == 1
    with torch.no_grad():
        model[0].weight.fill_(2.0)
    assert bool((kept == 2).all())


def test_weights_lie_channels_last_until_it_is_undone():
    model = network()
    want, places = model(X), [p.stride() for p in model.parameters()]
    step = Step(workload(), model, plan_of(["channels-last"]), pick("cpu"))
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert step._forward.applied()["channels_last"] == 2
    torch.testing.assert_close(step(X)[1], want, rtol=1e-4, atol=1e-5)
    step.undo()
    assert [p.stride() for p in model.parameters()] == places
    assert torch.equal(model(X), want)


def trained(trainer, optimizer, steps=3):
    """The optimizer's state after some steps."""
    for seed in range(steps):
        trainer(torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(seed)))
    return copy.deepcopy(optimizer().state_dict())


@pytest.mark.parametrize("there", ["loaded", "saved", "undone"])
def test_the_states_of_a_fused_optimizer_lie_as_the_weights_do(there):
    """Else torch's fused steps read a weight's value and its state in two orders, without a word."""

    def fused(parameters):
        return torch.optim.AdamW(parameters, lr=0.05, fused=True)

    def plain(model):
        optimizer = fused(model.parameters())

        def step(x):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

        return step, optimizer

    def applied(model):
        trainer = rung.apply(
            model, ["channels-last"], loss=lambda output, x: output.square().mean(), optimizer=fused, output=False
        )
        return trainer, trainer.optimizer

    want, model = network(learns=True), network(learns=True)
    step, optimizer = plain(want)
    trained(step, lambda: optimizer)
    before = copy.deepcopy(want.state_dict())
    kept = trained(step, lambda: optimizer)
    if there == "loaded":
        step, optimizer = plain(model)
        state = trained(step, lambda: optimizer)
        trainer, mine = applied(model)
        mine.load_state_dict(state)
        trained(trainer.step, lambda: mine)
    else:
        trainer, mine = applied(model)
        state = trained(trainer.step, lambda: mine)
        trainer.undo()
        if there == "saved":
            step, mine = plain(model)
            mine.load_state_dict(state)
            trained(step, lambda: mine)
        else:

            def on(x):
                mine.zero_grad()
                model(x).square().mean().backward()
                mine.step()

            trained(on, lambda: mine)
    assert before.keys() == want.state_dict().keys()
    for name, value in want.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-3, atol=1e-4)
    assert kept["state"].keys() == mine.state_dict()["state"].keys()


def flat_squares(output, batch):
    return output.view(-1).square().mean()


@pytest.mark.parametrize(
    "rungs", [["channels-last"], ["channels-last", "folded-batch-norm"], ["channels-last", "bf16"]]
)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_outputs_lie_as_those_of_the_untouched_model(rungs, layout):
    torch._dynamo.reset()
    model, x = network(), X.contiguous(memory_format=layout)
    want = model(x).stride()
    assert (want[1] == 1) == (layout is torch.channels_last)
    applied = rung.apply(model, rungs)
    assert applied(x).stride() == want
    assert applied.step(x).stride() == want
    assert not applied._compiled.breaks
    applied.undo()


def test_a_loss_that_takes_a_view_of_the_output_is_computed():
    model, usual = network(learns=True), network(learns=True)
    trainer = rung.apply(
        model, "channels-last", loss=flat_squares, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1)
    )
    loss, output = trainer.step(X)
    torch.testing.assert_close(loss, flat_squares(usual(X), X).detach())
    assert output.is_contiguous()


class Own:
    """A training loop of the user's own: a model, and its fused optimizer. applies: under the rung."""

    def __init__(self, applies):
        self.applies, self.call, self.model = applies, None, network()
        self.optimizer = self.made()

    def made(self):
        return torch.optim.AdamW(self.model.parameters(), lr=0.05, fused=True)

    def apply(self):
        self.call = rung.apply(self.model, "channels-last") if self.applies else None

    def undo(self):
        if self.call:
            self.call.undo()
        self.call = None

    def save(self):
        self.saved = copy.deepcopy(self.optimizer.state_dict())

    def load(self):
        self.optimizer = self.made()
        self.optimizer.load_state_dict(self.saved)

    def backward(self):
        x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
        (self.call or self.model)(x).square().mean().backward()

    def step(self):
        self.optimizer.step()

    def train(self):
        for _ in range(3):
            self.optimizer.zero_grad()
            self.backward()
            self.step()


@pytest.mark.parametrize(
    "loop",
    [
        "train apply train",
        "train save apply load train",
        "backward apply backward step",
        "apply train undo train",
        "apply backward undo step",
        "apply train save undo load train",
    ],
)
def test_an_optimizer_that_apply_was_not_given_trains_as_without_the_rung(loop):
    """torch's fused steps read a weight, its gradient and its state in one order, without a word."""
    usual, mine = Own(False), Own(True)
    for one in (usual, mine):
        for what in loop.split():
            getattr(one, what)()
    for name, value in usual.model.state_dict().items():
        torch.testing.assert_close(mine.model.state_dict()[name], value, rtol=1e-3, atol=1e-4)


def test_optimizers_of_other_models_are_left_alone():
    model = network()
    applied = rung.apply(model, "channels-last")
    other = Own(False)
    other.train()
    assert not other.optimizer._optimizer_state_dict_post_hooks
    assert other.model[0].weight.grad.is_contiguous()
    applied.undo()


def test_weights_of_volumes_and_of_transposed_convolutions_are_laid_out_too():
    layers = [nn.Conv3d(4, 8, 3), nn.ConvTranspose3d(8, 4, 3), nn.ConvTranspose2d(4, 4, 3), nn.Conv1d(4, 4, 3)]
    model, x = nn.Sequential(*layers[:2]).eval(), torch.randn(2, 4, 6, 6, 6)
    with torch.no_grad():
        want = model(x)
        assert len(ChannelsLast(nn.Sequential(*layers))) == 3
        assert layers[0].weight.is_contiguous(memory_format=torch.channels_last_3d)
        torch.testing.assert_close(model(x), want, rtol=1e-4, atol=1e-5)


def test_a_spectral_norm_is_not_worked_out_by_looking_at_its_weight():
    """In training each look at the weight is a step of its power iteration, and writes to its buffers."""
    model = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Conv2d(3, 4, 3)))
    before = copy.deepcopy(model.state_dict())
    assert len(ChannelsLast(model)) == 0
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_both_are_verified_and_a_scale_left_out_is_refused(monkeypatch):
    torch._dynamo.reset()
    plan = Plan(passes=("folded-batch-norm",), channels_last=True)
    found = verify(workload(), plan, pick("cpu"), precisions=["exact"]).record()
    assert found.passed, found.failures

    right = backend_module._PASS_FUNCTIONS["folded-batch-norm"]

    def wrong(graph):
        count = right(graph)
        for node in graph.nodes:
            if node.target is torch.rsqrt:
                node.target = torch.reciprocal  # the variance in the place of its root
        return count

    monkeypatch.setitem(backend_module._PASS_FUNCTIONS, "folded-batch-norm", wrong)
    torch._dynamo.reset()
    assert not verify(workload(), plan, pick("cpu"), precisions=["exact"]).record().passed


def test_weights_that_are_assigned_lose_the_layout_and_are_right() -> None:
    """What docs/internals/recipes.md says of load_state_dict(assign=True): it is laid out again by a recipe that is applied anew."""
    torch.manual_seed(0)  # Adam makes a step of a gradient that is all rounding, which some draws have
    plain = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3))
    model, x = copy.deepcopy(plain), torch.randn(2, 3, 8, 8)
    fast = rung.apply(model, "channels-last")
    other = {name: torch.randn_like(value) for name, value in plain.state_dict().items()}
    for assign, laid_out in ((False, 2), (True, 0)):
        for each in (model, plain):
            each.load_state_dict({name: value.clone() for name, value in other.items()}, assign=assign)
        assert fast._compiled.applied()["channels_last"] == laid_out
        torch.testing.assert_close(fast(x), plain(x))
    for run, each in ((fast, model), (plain, plain)):
        optimizer = torch.optim.AdamW(each.parameters(), fused=True)
        for _ in range(2):
            optimizer.zero_grad()
            run(x).square().mean().backward()
            optimizer.step()
    torch.testing.assert_close(model.state_dict(), plain.state_dict())
    fast.undo()
    anew = rung.apply(model, "channels-last")
    assert anew._compiled.applied()["channels_last"] == 2
    torch.testing.assert_close(anew(x), plain(x))
