"""What hangs on the user's optimizer object: a rung that makes an optimizer anew would lose it, and is left out for that."""

from __future__ import annotations

import contextlib
import copy
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from msgspec import structs
from torch import nn

import rung
from rung.engine import cuda_graph
from rung.engine.compiled import Renewed
from rung.engine.input_guards import Inputs
from rung.engine.optimizer import custom_state, is_fused, own_step, rebuild, why_not_capturable, why_not_fused
from rung.engine.optimizer_guards import OptimizerGuards
from rung.errors import WorkloadError
from rung.hardware import pick
from rung.ladder.survey import survey
from rung.plan import Plan
from rung.recipes.apply import _would_leave_behind
from rung.rungs import BY_NAME, Context
from rung.rungs.rung import Inapplicable
from rung.verify.audit import audit
from rung.verify.verify import verify
from rung.workload import Workload

CPU = pick("cpu")
LEAST = 1e-9  # what gradients are clipped to


def loss(output: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


def adam(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.1)


def trained_by(optimizer: Callable[..., Any], model: Callable[[], nn.Module] = lambda: nn.Linear(8, 8)) -> Workload:
    return Workload(
        "hooked", model, lambda seed: torch.randn(16, 8, generator=torch.Generator().manual_seed(seed)),
        loss=loss, optimizer=optimizer,
    )  # fmt: skip


def clip(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    torch.nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], LEAST)


def clipped(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    made = torch.optim.SGD(parameters, lr=0.1)
    made.register_step_pre_hook(clip)
    return made


def patched(made: torch.optim.Optimizer) -> None:
    made.step = lambda closure=None: None  # type: ignore[method-assign]


def stepped(made: torch.optim.Optimizer) -> None:
    for group in made.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter)
    made.step()


HANGING: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "a hook before each step": lambda made: made.register_step_pre_hook(clip),
    "a hook after each step": lambda made: made.register_step_post_hook(clip),
    "a hook on its state dict": lambda made: made.register_state_dict_post_hook(lambda *_: None),
    "a step() of its own": patched,
    "a zero_grad() of its own": lambda made: setattr(made, "zero_grad", lambda set_to_none=True: None),
    "a learning-rate scheduler": lambda made: torch.optim.lr_scheduler.ExponentialLR(made, 0.5),
    "state of earlier steps": stepped,
}


@pytest.mark.parametrize("what", HANGING)
def test_what_hangs_on_an_optimizer_keeps_it_from_being_made_anew(what: str) -> None:
    made = adam([nn.Parameter(torch.ones(4))])
    assert why_not_fused(made) == why_not_capturable(made) == custom_state(made) == ""
    kept = HANGING[what](made)
    for why in (why_not_fused(made), why_not_capturable(made)):
        instead = " (if it clips gradients, give max_grad_norm= instead)" if what == "a hook before each step" else ""
        assert why == f"its optimizer has {what}, which an optimizer made anew would lose{instead}"
    for forms in ({"fused": True, "capturable": False}, {"fused": False, "capturable": True}):
        with pytest.raises(WorkloadError, match=r"made anew would lose.*; leave .* out"):
            rebuild(made, **forms)
    assert rebuild(made, fused=False, capturable=False) is made
    del kept


@pytest.mark.parametrize("kind", [torch.optim.Adagrad, torch.optim.Adam, torch.optim.SGD])
def test_nothing_hangs_on_one_that_was_just_made(kind: type[torch.optim.Optimizer]) -> None:
    made = kind([nn.Parameter(torch.ones(4))], lr=0.1)  # type: ignore[call-arg]
    assert custom_state(made) == ""
    assert is_fused(rebuild(made, fused=True, capturable=False))


def test_one_that_is_fused_already_stays_what_it_is_with_its_hooks() -> None:
    made = torch.optim.SGD([nn.Parameter(torch.ones(4))], lr=0.1, fused=True)
    made.register_step_pre_hook(clip)
    assert why_not_fused(made) == ""
    assert rebuild(made, fused=True, capturable=False) is made


def test_the_survey_tells_and_the_rungs_do_not_apply() -> None:
    facts = structs.replace(survey(trained_by(clipped), CPU).facts, gpu=True)
    context = Context(Plan(), "exact", facts, {}, {})
    for name in ("fused-optimizer", "capture"):
        found = BY_NAME[name].applies(context)
        assert found == Inapplicable(
            "its optimizer has a hook before each step, which an optimizer made anew would lose "
            "(if it clips gradients, give max_grad_norm= instead)."
        )
    facts = survey(trained_by(adam), CPU).facts  # whose own first steps leave state
    assert BY_NAME["fused-optimizer"].applies(Context(Plan(), "exact", facts, {}, {})) is None


class Waves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.to(torch.complex64) @ self.weight).abs()


def test_complex_parameters_have_no_fused_step() -> None:
    facts = survey(trained_by(adam, Waves), CPU).facts
    found = BY_NAME["fused-optimizer"].applies(Context(Plan(), "exact", facts, {}, {}))
    assert found == Inapplicable("fused steps take floating-point parameters alone, and one is complex64.")
    assert facts.optimizer_not_captured == ""
    sgd = torch.optim.SGD(Waves().parameters())  # captured in its fused form alone
    assert "one is complex64" in why_not_capturable(sgd)
    with pytest.warns(UserWarning, match="fused-optimizer is not in effect: fused steps take floating-point"):
        assert rung.apply(trained_by(adam, Waves), "fused-optimizer").pending == ("fused-optimizer",)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD], ids=lambda kind: kind.__name__)
def test_a_differentiable_step_has_no_fused_form(kind: Callable[..., torch.optim.Optimizer]) -> None:
    with pytest.warns(UserWarning, match="fused-optimizer is not in effect: fused steps are not differentiable"):
        applied = rung.apply(
            nn.Linear(8, 8), "fused-optimizer", loss=loss, optimizer=lambda p: kind(p, lr=0.1, differentiable=True)
        )
    assert applied.pending == ("fused-optimizer",)


@pytest.mark.parametrize("kind", [torch.optim.Adagrad, torch.optim.SGD])
def test_sparse_gradients_have_no_fused_step(kind: Callable[..., torch.optim.Optimizer]) -> None:
    model = nn.Sequential(nn.Embedding(8, 4, sparse=True), nn.Linear(4, 4))
    with pytest.warns(UserWarning, match="fused steps take no sparse gradients"):
        trained = rung.apply(model, "fused-optimizer", loss=loss, optimizer=lambda p: kind(p, lr=0.1))
    before = model[0].weight.detach().clone()
    trained.step(torch.arange(4))
    assert not torch.equal(model[0].weight, before)
    assert trained.pending == ("fused-optimizer",)
    model[0].requires_grad_(False)
    assert rung.apply(model, "fused-optimizer", loss=loss, optimizer=lambda p: kind(p, lr=0.1)).pending == ()


@pytest.mark.parametrize("capturable", [False, True])
def test_a_state_that_is_loaded_leaves_the_switches_and_trains_on(capturable: bool) -> None:
    """A checkpoint from a run without the recipe has neither."""
    plain, made = nn.Linear(8, 8), nn.Linear(8, 8)
    before, x = adam(plain.parameters()), torch.randn(4, 8)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        loss(model(x), x).backward()
        optimizer.step()

    step(plain, before)
    made.load_state_dict(plain.state_dict())
    after = rebuild(adam(made.parameters()), fused=True, capturable=capturable)
    after.load_state_dict(copy.deepcopy(before.state_dict()))
    assert is_fused(after)
    assert after.param_groups[0]["capturable"] == capturable
    if not capturable:  # a CPU has no such steps
        step(plain, before)
        step(made, after)
        torch.testing.assert_close(made.weight, plain.weight)


@pytest.mark.parametrize("fused", [False, True])
def test_an_optimizer_that_was_there_before_is_the_one_that_steps(
    fused: bool, recwarn: pytest.WarningsRecorder
) -> None:
    """Whoever holds it saves its state; that of one made anew in its place was lost in silence."""
    model = nn.Linear(8, 8)
    mine = torch.optim.AdamW(model.parameters(), lr=0.1, fused=fused)
    trainer = rung.apply(model, "fused-optimizer", loss=loss, optimizer=lambda parameters: mine)
    trainer.step(torch.randn(4, 8))
    assert trainer.optimizer is mine
    assert mine.state_dict()["state"]
    assert trainer.pending == (() if fused else ("fused-optimizer",))
    said = [str(warning.message) for warning in recwarn.list]
    assert len(said) == (0 if fused else 1)
    assert fused or "optimizer= gives one that was there before" in said[0]


@pytest.mark.parametrize(
    ("kind", "fused", "left_out"),
    [
        (torch.optim.SGD, True, []),
        (torch.optim.SGD, False, ["fused-optimizer", "capture"]),
        (torch.optim.AdamW, True, ["capture"]),
    ],
)
def test_of_an_optimizer_that_was_there_before_rungs_are_left_out_that_make_another(
    kind: Callable[..., torch.optim.Optimizer], fused: bool, left_out: list[str]
) -> None:
    mine = kind(nn.Linear(8, 8).parameters(), lr=0.1, fused=fused)
    assert list(_would_leave_behind(mine, ["tf32", "fused-optimizer", "capture"])) == left_out


def test_apply_leaves_a_rung_out_that_would_lose_the_clipping() -> None:
    model, x = nn.Linear(8, 8), torch.randn(4, 8)
    before = model.weight.detach().clone()
    with pytest.warns(UserWarning, match="^fused-optimizer is not in effect: its optimizer has a hook before each"):
        applied = rung.apply(model, "fused-optimizer", loss=loss, optimizer=clipped)
    assert applied.pending == ("fused-optimizer",)
    applied.step(x)
    torch.testing.assert_close(model.weight, before, rtol=0, atol=10 * LEAST)


def test_a_scheduler_and_a_hook_of_the_optimizer_that_steps_take_effect() -> None:
    model, x = nn.Linear(8, 8), torch.randn(4, 8)
    trainer = rung.apply(model, "fused-optimizer", loss=loss, optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
    assert trainer.optimizer is not None
    assert is_fused(trainer.optimizer)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(trainer.optimizer, 0.0)
    before = model.weight.detach().clone()
    trainer.step(x)
    assert not torch.equal(model.weight, before)
    scheduler.step()
    before = model.weight.detach().clone()
    trainer.step(x)
    assert torch.equal(model.weight, before)
    trainer.optimizer.param_groups[0]["lr"] = 0.1
    trainer.optimizer.register_step_pre_hook(clip)
    trainer.step(x)
    torch.testing.assert_close(model.weight, before, rtol=0, atol=10 * LEAST)


@pytest.mark.parametrize("what", ["a learning-rate scheduler", "a hook before each step"])
def test_what_is_given_to_another_optimizer_than_the_one_that_steps_is_warned_of_once(
    what: str, recwarn: pytest.WarningsRecorder
) -> None:
    made: list[torch.optim.Optimizer] = []

    def factory(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        made.append(adam(parameters))
        return made[-1]

    trainer, x = rung.apply(nn.Linear(8, 8), "fused-optimizer", loss=loss, optimizer=factory), torch.randn(4, 8)
    trainer.step(x)
    kept = HANGING[what](made[-1])
    assert not recwarn.list
    trainer.step(x)
    trainer.step(x)
    [warning] = recwarn.list
    assert f"was given {what}, but it is not the one that steps: use `.optimizer`" in str(warning.message)
    assert warning.filename == __file__
    del kept


@pytest.mark.parametrize("rungs", [[], ["fused-optimizer"]], ids=str)
def test_a_rate_that_a_plateau_lowers_takes_effect_or_is_warned_of_once(
    rungs: list[str], recwarn: pytest.WarningsRecorder
) -> None:
    """It hangs on whatever the function returns, and leaves no mark there."""
    made: list[torch.optim.lr_scheduler.ReduceLROnPlateau] = []

    def factory(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        optimizer = adam(parameters)
        made.append(torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0))
        return optimizer

    trainer, x = rung.apply(nn.Linear(8, 8), rungs, loss=loss, optimizer=factory), torch.randn(4, 8)
    for worse in range(3):
        trainer.step(x)
        made[-1].step(float(worse))
    trainer.step(x)
    assert trainer.optimizer is not None
    if made[-1].optimizer is trainer.optimizer:
        assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(0.025)
        assert not recwarn.list
    else:
        [warning] = recwarn.list
        assert "was given another learning rate, but it is not the one that steps" in str(warning.message)


def test_what_the_factory_itself_hangs_on_each_is_not_warned_of(recwarn: pytest.WarningsRecorder) -> None:
    made: list[torch.optim.Optimizer] = []

    def factory(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        made.append(clipped(parameters))
        return made[-1]

    rung.apply(nn.Linear(8, 8), [], loss=loss, optimizer=factory).step(torch.randn(4, 8))
    assert not recwarn.list


def told(optimizer: torch.optim.Optimizer, monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    """What a captured step does when it is called: it runs, or is replayed, after it was recorded where that is due."""
    ran: list[str] = []
    run = object.__new__(cuda_graph.GraphedStep)
    given = SimpleNamespace(check=lambda: (0, False), hooked="", accept=lambda: None, state=0)
    vars(run).update(_guards=given, _optimizer_guards=OptimizerGuards(optimizer), _graphs={}, _calls={}, _changes=0)
    vars(run).update(_optimizer=optimizer, _parameters=[], _rates=[], _renewed=lambda: Renewed.NOTHING)
    vars(run).update(_device=SimpleNamespace(kind="cpu"), _model=torch.nn.Identity(), _failed=set())

    def recorded(self: cuda_graph.GraphedStep, given: Inputs) -> Any:
        ran.append("recorded")
        return SimpleNamespace(inputs=given.copied, held=[], harmless=None)

    monkeypatch.setattr(cuda_graph.GraphedStep, "_warm", lambda self, given: ran.append("run"))
    monkeypatch.setattr(cuda_graph.GraphedStep, "_capture", recorded)
    monkeypatch.setattr(cuda_graph.GraphedStep, "_replay", lambda self, *a, **k: ran.append("replayed"))

    def last() -> str:
        run._called(Inputs((torch.ones(4),), {}, "cpu"))
        return ran[-1]

    return last


def test_a_step_whose_optimizer_is_given_a_hook_is_not_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a scheduler puts on it only counts; its rates are read before each replay."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(4))], lr=0.1, fused=True)
    last = told(optimizer, monkeypatch)
    assert [last() for _ in range(cuda_graph.WARM_CALLS + 1)] == ["run", "run", "replayed"]
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    assert own_step(optimizer) == ""
    assert last() == "replayed"
    hook = optimizer.register_step_post_hook(clip)
    assert last() == "run"
    hook.remove()
    assert last() == "replayed"
    del scheduler


def loaded(optimizer: torch.optim.Optimizer) -> None:
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


def equalled(tensors: Any, key: Any) -> None:
    tensors[key] = copy.deepcopy(tensors[key])


CHANGES: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "state dict": loaded,
    "one tensor of its state": lambda made: made.state[made.param_groups[0]["params"][0]].update(exp_avg=torch.ones(4)),
    "one tensor by its equal": lambda made: equalled(made.state[made.param_groups[0]["params"][0]], "exp_avg"),
    "a parameter by its equal": lambda made: equalled(made.param_groups[0]["params"], 0),
    "a setting that is gone": lambda made: made.param_groups[0].pop("weight_decay"),
    "weight decay": lambda made: made.param_groups[0].update(weight_decay=0.5),
    "momentum": lambda made: made.param_groups[0].update(betas=(0.8, 0.9)),
    "another group": lambda made: made.add_param_group({"params": [nn.Parameter(torch.ones(4))]}),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_step_is_recorded_anew_where_its_optimizer_was_changed(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay would go on with the state that was, or the number."""
    optimizer = adam([nn.Parameter(torch.ones(4))])
    stepped(optimizer)
    last = told(optimizer, monkeypatch)
    assert [last() for _ in range(cuda_graph.WARM_CALLS + 1)] == ["run", "run", "replayed"]
    CHANGES[what](optimizer)
    assert [last() for _ in range(cuda_graph.WARM_CALLS + 2)] == ["run", "run", "replayed", "replayed"]
    optimizer.param_groups[0]["lr"] = 0.2
    assert last() == "replayed"


def test_a_state_that_is_only_asked_for_is_no_change() -> None:
    """torch makes an empty one then."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(4))], lr=0.1)
    given = OptimizerGuards(optimizer)
    assert not optimizer.state[optimizer.param_groups[0]["params"][0]]
    assert given.changed() == ""


def test_a_look_before_a_replay_is_no_more_python_where_there_are_more_groups() -> None:
    """With one per parameter it took longer than many a step."""

    def calls(groups: int) -> int:
        optimizer = adam([{"params": [nn.Parameter(torch.ones(4))]} for _ in range(groups)])  # type: ignore[misc]
        stepped(optimizer)
        given, before, seen = OptimizerGuards(optimizer), sys.getprofile(), list[str]()
        sys.setprofile(lambda frame, event, arg: seen.append(event))
        try:
            given.changed()
        finally:
            sys.setprofile(before)
        return len(seen)

    assert calls(2) == calls(50)


def test_a_rate_that_is_a_tensor_is_the_users_after_recording_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever holds it sets it; in its place would be a number that nobody sees change."""
    rate, seen = torch.tensor(0.1), []
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(4))], lr=rate, fused=True)
    run = object.__new__(cuda_graph.GraphedStep)
    vars(run).update(
        _optimizer=optimizer, _parameters=optimizer.param_groups[0]["params"], _rates=[], _seen=[], _summed=[]
    )
    vars(run).update(
        _stream=None, _device=CPU, _model=nn.Identity(), _run=lambda: seen.append(optimizer.param_groups[0]["lr"])
    )
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=lambda: None))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(cuda_graph, "recording", lambda *a: contextlib.nullcontext())
    given = Inputs((), {}, "cpu")
    recorded = run._capture(given)
    assert optimizer.param_groups[0]["lr"] is rate
    [read] = seen
    assert read is not rate
    rate.fill_(0.05)
    run._replay(recorded, given)
    assert float(read) == pytest.approx(0.05)


def test_a_momentum_that_is_turned_at_every_step_is_never_replayed_and_warned_of_once(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    optimizer = adam([nn.Parameter(torch.ones(4))])
    stepped(optimizer)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=50)
    last = told(optimizer, monkeypatch)
    for _ in range(2 * cuda_graph.OFTEN):
        assert last() == "run"
        stepped(optimizer)
        scheduler.step()
    [warning] = recwarn.list
    assert "`betas` of the optimizer has changed 8 times" in str(warning.message)


class Pair:
    """Two optimizers in one, as for a GAN: no torch.optim.Optimizer, and no switches for how gradients are cleared."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        first, *others = parameters
        self.both = torch.optim.Adam([first], lr=0.1), torch.optim.SGD(others, lr=0.2)

    def step(self) -> None:
        for one in self.both:
            one.step()

    def zero_grad(self) -> None:
        for one in self.both:
            one.zero_grad()


def test_any_object_that_steps_and_clears_gradients_trains_and_is_verified() -> None:
    paired = trained_by(Pair)
    facts = structs.replace(survey(paired, CPU).facts, gpu=True)
    for name in ("fused-optimizer", "capture"):
        found = BY_NAME[name].applies(Context(Plan(), "exact", facts, {}, {}))
        assert isinstance(found, Inapplicable)
        assert found.why.startswith("Pair ")
    assert verify(paired, Plan(), CPU).passed

    class Faster(Pair):
        def step(self) -> None:
            super().step()
            with torch.no_grad():
                self.both[0].param_groups[0]["params"][0].mul_(1.01)

    wrong = verify(paired, Plan(), CPU, lambda model, plan: rung.engine.step.Step(trained_by(Faster), model, plan, CPU))
    assert not wrong.passed


class SharpnessAware(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:
        assert closure is not None


@pytest.mark.parametrize(
    ("optimizer", "says"),
    [
        (lambda p: SharpnessAware(p, lr=0.1), r"^SharpnessAware\.step\(\) needs a closure, .* with SharpnessAware\."),
        (
            lambda p: None,
            r"workload 'hooked': optimizer\(parameters\) returned NoneType, which has no step\(\) and zero_grad\(\)",
        ),
        (
            lambda p: torch.optim.LBFGS(p),
            r"workload 'hooked': LBFGS\.step\(\) needs a closure, .* With torch\.optim\.SGD you get a recipe .* to your loop with LBFGS\.",
        ),
    ],
)
def test_what_cannot_be_driven_is_refused_in_a_sentence(optimizer: Any, says: str) -> None:
    with pytest.raises(WorkloadError, match=says):
        audit(replace(trained_by(adam), optimizer=optimizer), CPU)


@pytest.mark.parametrize(
    "options",
    [
        {"nesterov": True},
        {"dampening": 0.3, "weight_decay": 0.1},
        {"dampening": 0.3, "weight_decay": 0.1, "maximize": True},
    ],
)
def test_a_layer_that_is_unfrozen_later_begins_its_momentum_then(options: dict[str, Any]) -> None:
    """torch's fused SGD stops where some of a group have a momentum and others none."""
    models = []
    for rungs in ([], ["fused-optimizer"]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        trained = rung.apply(
            model, rungs, loss=lambda output, batch: output.square().mean(),
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, **options),
        )  # fmt: skip
        assert is_fused(trained.optimizer) == bool(rungs)  # type: ignore[arg-type]
        for free in (False, True):
            model[0].requires_grad_(free)
            for _ in range(3):
                trained.step(torch.ones(2, 4))
        models.append(model)
    torch.testing.assert_close(models[1].state_dict(), models[0].state_dict())
