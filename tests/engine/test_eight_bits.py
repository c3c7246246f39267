"""Linear layers in 8 bits: errors of the format and no more, the model's own objects untouched, and a gate of its own."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from known_facts import facts_of
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, prune

import rung
from rung.engine import compiled, step
from rung.engine.compiled import Renewed
from rung.engine.cuda_graph import WARM_CALLS
from rung.engine.linears import EightBits, fp8_forward, suitable
from rung.hardware import pick
from rung.plan import Plan
from rung.rungs import BY_NAME, Context
from rung.rungs.eight_bits import fp8_format
from rung.verify.verify import verify
from rung.workload import Workload, load

CPU = pick("cpu")


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 32, bias=False)).bfloat16()


@pytest.fixture
def runs(kind: str, request: pytest.FixtureRequest) -> None:
    if kind == "fp8":
        request.getfixturevalue("fp8_on_a_cpu")


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize(("kind", "most"), [("fp8", 0.06), ("int8", 0.02)])
def test_the_error_is_that_of_the_format(kind: str, most: float) -> None:
    made = model()
    x = torch.randn(5, 7, 64).bfloat16()
    right = copy.deepcopy(made).double()(x.double()).detach()
    eight = EightBits(made, kind, "sm90")
    with torch.no_grad():
        found = made(x)
    assert (found.shape, found.dtype) == ((5, 7, 32), torch.bfloat16)
    error = float((found.double() - right).norm() / right.norm())
    assert 0.001 < error < most
    eight.undo()
    torch.testing.assert_close(made(x), model()(x), rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["fp8", "int8"])
def test_no_rows_give_none(kind: str) -> None:
    """As an expert gets them whom no token chose. By torch's own operation, which refuses them."""
    made = model()
    EightBits(made, kind, "sm90")
    with torch.no_grad():
        assert made(torch.zeros(2, 0, 64).bfloat16()).shape == (2, 0, 32)


@pytest.mark.parametrize("kind", ["fp8", "int8"])
def test_with_gradients_the_layers_are_the_old_ones(kind: str) -> None:
    made, plain = model(), model()
    EightBits(made, kind, "sm90")
    x = torch.randn(5, 64).bfloat16()
    for each in (made, plain):
        each(x).square().sum().backward()
    torch.testing.assert_close(made[0].weight.grad, plain[0].weight.grad, rtol=0, atol=0)


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda made: pickle.loads(pickle.dumps(made))], ids=["deepcopy", "pickle"]
)
def test_a_copy_of_the_model_computes_of_its_own_weights(copied: Callable[[nn.Module], nn.Module]) -> None:
    """As the average of weights that is kept beside a model does: the bound forward held the layer that it was made for."""
    made, x = model(), torch.randn(5, 64).bfloat16()
    EightBits(made, "int8", "sm90")
    other = copied(made)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(2.0)
        plain = model()
        plain.load_state_dict(other.state_dict())
        torch.testing.assert_close(other(x), plain(x), rtol=0, atol=0)


def test_state_dict_class_and_parameters_stay() -> None:
    made = model()
    before = (list(made.state_dict()), [type(m) for m in made.modules()], [id(p) for p in made.parameters()])
    EightBits(made, "fp8", "sm90")
    assert before == (list(made.state_dict()), [type(m) for m in made.modules()], [id(p) for p in made.parameters()])


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize("kind", ["fp8", "int8"])
def test_a_change_of_the_weights_is_taken_up_where_the_copies_lie(kind: str) -> None:
    """Compiled code and recorded graphs read that memory: neither is made anew for it."""
    made, other = model(), copy.deepcopy(model())
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(torch.linspace(-1, 2, parameter.shape[0]).view(-1, *[1] * (parameter.dim() - 1)))
    step = compiled.Compiled(lambda x: made(x), made, Plan(linears=kind), "sm90")
    x = torch.randn(5, 64).bfloat16()
    with torch.no_grad():
        step(x)
        copies = [(c.weight.data_ptr(), c.scales.data_ptr()) for c in step._eight_bits._copies]
        made.load_state_dict(other.state_dict())
        assert step.renewed() is Renewed.COPIES
        assert [(c.weight.data_ptr(), c.scales.data_ptr()) for c in step._eight_bits._copies] == copies
        EightBits(other, kind, "sm90")
        torch.testing.assert_close(step(x), other(x), rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(2, 3)])
def test_what_was_compiled_reads_the_changed_weights(shape: tuple[int, int]) -> None:
    made = model()
    step = compiled.Compiled(lambda x: made(x), made, Plan(compile=True, linears="int8"), "sm90")
    x = torch.randn(*shape, 64).bfloat16()
    with torch.no_grad():
        step(x)
        before = step.backend
        for parameter in made.parameters():
            parameter.mul_(torch.linspace(-1, 2, parameter.shape[0]).view(-1, *[1] * (parameter.dim() - 1)))
        assert step.renewed() is Renewed.COPIES
        found = step(x)
        assert step.backend is before
        assert before.graphs == 1
        other = copy.deepcopy(made)
        EightBits(other, "int8", "sm90")
        torch.testing.assert_close(found, other(x), rtol=0.05, atol=0.05)


def test_copies_that_were_made_in_inference_mode_are_written_anew_outside_of_it() -> None:
    made, other = model(), model()
    step = compiled.Compiled(lambda x: made(x), made, Plan(linears="int8"), "sm90")
    with torch.inference_mode():
        step(torch.randn(5, 64).bfloat16())
    with torch.no_grad():
        made[0].weight.mul_(2)
        other[0].weight.mul_(2)
        assert step.renewed() is Renewed.COPIES
        EightBits(other, "int8", "sm90")
        x = torch.randn(5, 64).bfloat16()
        torch.testing.assert_close(step(x), other(x), rtol=0, atol=0)


def test_weights_that_were_made_in_inference_mode_are_not_copied() -> None:
    """Nobody counts what is written to them: a copy would go on giving the old results."""
    with torch.inference_mode():
        made = model()
    step = compiled.Compiled(lambda x: made(x), made, Plan(linears="int8"), "sm90")
    x = torch.randn(5, 64).bfloat16()
    with torch.inference_mode():
        for _ in range(2):
            assert step.renewed() is Renewed.NOTHING
            torch.testing.assert_close(step(x), made(x), rtol=0, atol=0)
            made[0].weight.mul_(2)


def test_layers_that_were_given_other_parameters_are_prepared_anew() -> None:
    made, other = model(), model()
    step = compiled.Compiled(lambda x: made(x), made, Plan(linears="int8"), "sm90")
    with torch.no_grad():
        step(torch.randn(5, 64).bfloat16())
        other[0].weight.mul_(3)
        made.load_state_dict(other.state_dict(), assign=True)  # as many changes as before, in sum
        assert step.renewed() is Renewed.STEP
        EightBits(other, "int8", "sm90")
        x = torch.randn(5, 64).bfloat16()
        torch.testing.assert_close(step(x), other(x), rtol=0, atol=0)


def another_in_the_place_of_data(made: nn.Module) -> None:
    made[0].weight.data = torch.ones(64, 64, dtype=torch.bfloat16)  # type: ignore[index]


def pruned(made: nn.Module) -> None:
    prune.l1_unstructured(made[0], "weight", 0.7)  # type: ignore[index]


@pytest.mark.parametrize("change", [another_in_the_place_of_data, pruned], ids=lambda change: change.__name__)
def test_a_change_that_raises_no_counter_and_makes_no_parameter_is_seen(change: Callable[[nn.Module], None]) -> None:
    made = nn.Sequential(nn.Linear(64, 64, bias=False)).bfloat16().eval()
    applied = rung.apply(made, ["int8-weights"])
    x = torch.randn(5, 64).bfloat16()
    with torch.no_grad():
        applied(x)
        change(made)
        torch.testing.assert_close(applied(x), F.linear(x, made[0].weight), rtol=0.05, atol=0.05)  # type: ignore[arg-type]


def test_a_call_beside_the_recipe_and_one_under_another_are_of_the_present_weights() -> None:
    """Who does not come by `applied` does not ask whether copies are still right: it gets none."""
    made, other = model().float(), model().float()
    x = torch.randn(5, 64)
    with torch.no_grad():
        applied, beside = (rung.apply(made, [name]) for name in ("int8-weights", "fused-qkv"))
        assert not torch.equal(applied(x), made(x))
        for each in (made, other):
            for parameter in each.parameters():
                parameter.mul_(-2)
        torch.testing.assert_close(made(x), other(x))
        torch.testing.assert_close(beside(x), other(x))
        given = {name: torch.randn_like(p) for name, p in made.named_parameters()}
        torch.testing.assert_close(
            torch.func.functional_call(made, given, (x,)), torch.func.functional_call(other, given, (x,))
        )


def test_what_was_trained_by_steps_is_what_is_called_afterwards() -> None:
    """Steps and calls prepare the model each by their own way."""
    made = model().float()
    trained = rung.apply(
        made, ["int8-weights"],
        loss=lambda output, batch: output.square().mean(), optimizer=lambda p: torch.optim.SGD(p, lr=1.0),
    )  # fmt: skip
    x = torch.randn(16, 64)
    with torch.no_grad():
        trained(x)
    for _ in range(3):
        trained.step(x)
    with torch.no_grad():
        right = made(x)
        assert float((trained(x) - right).norm() / right.norm()) < 0.02
        assert not torch.equal(trained(x), right)


def test_layers_that_are_more_than_a_plain_product_are_left_alone() -> None:
    tied, hooked, normed = nn.Linear(32, 32), nn.Linear(32, 32), parametrizations.weight_norm(nn.Linear(32, 32))
    hooked.register_forward_hook(lambda module, inputs, output: output)
    other = nn.Linear(32, 32)
    other.weight = tied.weight
    subclass = type("Lora", (nn.Linear,), {})(32, 32)
    plain = nn.Linear(32, 32)
    both = nn.ModuleList([tied, other, hooked, normed, subclass, nn.Linear(30, 32), plain])
    assert suitable(both) == [plain]


@pytest.mark.parametrize(
    ("arch", "dtype"),
    [("gfx942", "float8_e4m3fnuz"), ("gfx950", "float8_e4m3fn"), ("sm90", "float8_e4m3fn"), ("sm100", "float8_e4m3fn"),
     ("gfx90a", None), ("sm80", None), ("x86_64", None)],
)  # fmt: skip
def test_each_architecture_has_its_format_or_none(arch: str, dtype: str | None) -> None:
    form = fp8_format(arch)
    assert (form and form.dtype) == dtype
    if form:
        assert torch.finfo(getattr(torch, form.dtype)).max == form.most
    else:
        with pytest.raises(ValueError, match="no units"):
            fp8_forward(nn.Linear(32, 32), arch)


def context(**facts: Any) -> Context:
    known = {
        "gpu": True, "mode": "infer", "arch": "sm90", "dtype": "torch.bfloat16", "linears": 3, "tokens": 1
    }  # fmt: skip
    plan, numerics = facts.pop("plan", Plan(compile=True)), facts.pop("numerics", "fp8")
    return Context(plan, numerics, facts_of(known, **facts), {}, {})


def test_it_needs_the_contract_the_chip_and_bfloat16() -> None:
    fp8, int8 = BY_NAME["fp8-linears"], BY_NAME["int8-weights"]
    assert fp8.applies(context()) is None
    assert int8.applies(context()) is None
    assert "--numerics fp8" in str(fp8.applies(context(numerics="bf16")))
    assert "no units" in str(fp8.applies(context(arch="gfx90a")))
    assert "inference" in str(fp8.applies(context(mode="train")))
    assert "bfloat16" in str(fp8.applies(context(dtype="torch.float32")))
    assert "multiples of 16" in str(fp8.applies(context(linears=0)))


def test_int8_weights_need_a_compiler_that_widens_them_inside_of_the_product() -> None:
    int8 = BY_NAME["int8-weights"]
    tuned = Plan(compile=True, inductor=(("max_autotune", True),))
    for tokens in (16, None):
        assert "writes every weight widened" in str(int8.applies(context(tokens=tokens)))
    assert int8.applies(context(tokens=16, plan=tuned)) is None
    plan = int8.change(tuned)
    assert (plan.linears, dict(plan.inductor)) == ("int8", {"max_autotune": True, "coordinate_descent_tuning": True})


def half(broken: str = "") -> Workload:
    made = load("tiny-transformer", {"hidden-dim": "64", "num-layers": "2", "num-heads": "4", "seq-len": "24",
                                     "batch-size": "4", "mode": "infer"})  # fmt: skip
    return Workload(**{**vars(made), "model": lambda: made.model().bfloat16()})


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize(
    ("kind", "plan"), [("fp8", Plan(linears="fp8")), ("int8", Plan(linears="int8"))], ids=["fp8", "int8"]
)
def test_honest_8_bits_pass_a_gate_of_their_own(kind: str, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "EightBits", lambda model, kind, arch: EightBits(model, kind, "sm90"))
    assert plan.phases("bf16") == ("exact", "fp8")
    assert plan.at("exact").linears == ""
    found = verify(half(), plan, CPU, precisions=["fp8"]).record()
    assert found.passed, found.failures
    assert found.worst.error > 0.002


def test_a_weight_in_the_wrong_place_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(model: nn.Module, kind: str, arch: str) -> EightBits:
        eight = EightBits(model, kind, "sm90")
        eight._bound[4] = lambda x: 0 * nn.Linear.forward(eight.layers[4], x)
        return eight

    monkeypatch.setattr(compiled, "EightBits", wrong)
    assert not verify(half(), Plan(linears="fp8"), CPU, precisions=["fp8"]).record().passed


def test_a_replay_that_is_wrong_is_refused_though_other_weights_have_it_recorded_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Replayed:
        """A CPU's stand-in for GraphedStep, whose replays are wrong."""

        shapes, calls = 0, 0

        def __init__(self, run: Any, device: Any, model: Any, optimizer: Any, renewed: Any) -> None:
            self.run, self.renewed = run, renewed

        def __call__(self, batch: Any) -> Any:
            self.calls = 1 if self.renewed() is Renewed.STEP else self.calls + 1
            loss, output = self.run(batch)
            return loss, output if self.calls <= WARM_CALLS else 2 * output

    monkeypatch.setattr(compiled, "EightBits", lambda model, kind, arch: EightBits(model, kind, "sm90"))
    monkeypatch.setattr(step, "GraphedStep", Replayed)
    plan = Plan(linears="int8", capture=True)
    found = verify(half(), plan, CPU, precisions=["fp8"]).record()
    assert any("output is off by" in said for said in found.failures)


@pytest.mark.parametrize("shape", [(1, 1), (2, 3)])
def test_int8_compiles_behind_what_is_no_tensor_of_its_own(shape: tuple[int, int]) -> None:
    """Behind a norm, whose result several layers read: Inductor's own operation for int8 weights fails there."""
    layers = nn.ModuleList(nn.Linear(64, 32, bias=False) for _ in range(3)).bfloat16()
    x = torch.randn(*shape, 64).bfloat16()
    EightBits(layers, "int8", "sm90")

    def fn(x: torch.Tensor) -> torch.Tensor:
        normed = torch.nn.functional.rms_norm(x.float(), (64,)).bfloat16()
        return torch.cat([layer(normed) for layer in layers], -1)

    with torch.no_grad():
        torch.testing.assert_close(torch.compile(fn, dynamic=False)(x), fn(x), rtol=0.05, atol=0.05)
