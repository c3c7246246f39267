"""What verification sees of a model: dataclasses, plain values, float64, complex numbers, sparse gradients, and what it says of them."""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rung.engine.disturbed import not_finite, shapes_of
from rung.engine.parts import on_tensors, parts
from rung.engine.step import Step
from rung.errors import WorkloadError
from rung.hardware import pick
from rung.plan import Plan
from rung.records import measured
from rung.records.record import plain, record_of
from rung.runs import to_json
from rung.verify import timed_run_checks
from rung.verify.audit import audit
from rung.verify.perturb import perturbed
from rung.verify.reference import Reference, jittered
from rung.verify.verdict import Check, Verification, joined
from rung.verify.verify import verify
from rung.workload import Workload, seeded_model

CPU = pick("cpu")
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@dataclass
class Inner:
    hidden: torch.Tensor


@dataclass(frozen=True)
class Out:
    logits: torch.Tensor
    more: dict[str, Any]
    loss: torch.Tensor | None = None


@dataclass
class Holder:
    held: list[Any]


class Opaque:
    def __init__(self, y: torch.Tensor) -> None:
        self.y = y


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def linear(
    forward: Callable[[Any, Any], Any] = lambda model, batch: model(batch),
    loss: Callable[[Any, Any], Any] | None = None,
    model: Callable[[], nn.Module] = lambda: nn.Linear(8, 16),
    dtype: torch.dtype = torch.float32,
) -> Workload:
    def inputs(seed: int) -> torch.Tensor:
        return torch.randn(6, 8, generator=torch.Generator().manual_seed(seed), dtype=dtype)

    return Workload("linear", model, inputs, forward, loss=loss, optimizer=sgd if loss else None)


def against(a: Workload, b: Workload, plan: Plan = Plan()) -> measured.Verification:  # noqa: B008
    """Whether b computes what a does, from a's weights."""

    def build(model: nn.Module, at: Plan) -> Step:
        twin = seeded_model(b)
        twin.load_state_dict(model.state_dict())
        return Step(b, twin, at, CPU)

    return verify(a, plan, CPU, build).record()


def as_dataclass(model: Any, batch: Any) -> Out:
    y = model(batch)
    return Out(y, {"layers": (Inner(y.tanh()),), "n": 1}, y.square().mean())


@pytest.mark.parametrize("mode", ["infer", "train"])
def test_tensors_in_dataclasses_are_compared(mode: str) -> None:
    def off(model: Any, batch: Any) -> Out:
        out = as_dataclass(model, batch)
        return replace(out, logits=out.logits * 2)

    def deep(model: Any, batch: Any) -> Out:
        out = as_dataclass(model, batch)
        return replace(out, more={**out.more, "layers": (Inner(out.more["layers"][0].hidden * 1.01),)})

    w = linear(as_dataclass, (lambda out, batch: out.loss) if mode == "train" else None)
    assert audit(w, CPU) == []
    honest = against(w, w)
    assert honest.passed, honest.failures
    assert "output is off" in against(w, replace(w, forward=off)).failures[0]
    assert "output 1 is off" in against(w, replace(w, forward=deep)).failures[0]


def test_a_dataclass_of_other_fields_is_of_another_form() -> None:
    @dataclass
    class Other:
        logits: torch.Tensor

    w = linear(lambda model, batch: Inner(model(batch)))
    said = against(w, replace(w, forward=lambda model, batch: Other(model(batch)))).failures
    assert "another form: fields logits where the baseline has fields hidden" in said[0]
    assert not against(w, replace(w, forward=lambda model, batch: {"hidden": model(batch)})).passed


@dataclass(frozen=True, slots=True)
class Slotted:
    y: torch.Tensor


@pytest.mark.parametrize("kind", [Inner, Slotted, lambda y: Holder([Out(y, {}), y])])
def test_the_outputs_gradient_is_not_kept_in_a_dataclass_either(kind: Callable[[Any], Any]) -> None:
    """And what says so is captured with the forward, in one graph. (Dynamo before torch 2.13 breaks it: it does not go through a `__dict__`.)"""
    weight = torch.randn(8, 8, requires_grad=True)

    def forward(x: torch.Tensor) -> Any:
        return on_tensors(torch.Tensor.detach, kind(x @ weight))

    made = forward(torch.ones(2, 8))
    whole = torch.__version__ >= (2, 13)
    if kind is Slotted and torch.__version__ < (2, 7):
        pytest.skip("torch 2.6 compiles no copy of a dataclass with slots")
    compiled = torch.compile(forward, backend="eager", fullgraph=whole)(torch.ones(2, 8))
    for found in (made, compiled):
        assert type(found) is type(kind(weight))
        assert not any(t.requires_grad for _, t in parts(found)[0] if isinstance(t, torch.Tensor))


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors_are_compared_row_by_row(layout: torch.layout) -> None:
    def inputs(seed: int) -> torch.Tensor:
        drawn = torch.Generator().manual_seed(seed)
        return torch.nested.nested_tensor(
            [torch.randn(n, 8, generator=drawn) for n in (5, 2 + seed % 3)], layout=layout
        )

    given = replace(linear(), inputs=inputs, one_shape=True)
    off = replace(given, forward=lambda model, batch: model(batch) * 1.01)
    rows = replace(given, forward=lambda model, batch: list(model(batch).unbind()))
    assert audit(given, CPU) == []
    assert against(given, given).passed
    assert not against(given, off).passed
    assert "has another form" in against(given, rows).failures[0]
    assert [name for name, _ in parts({"y": inputs(0)})[0]] == ["['y'][0]", "['y'][1]"]
    assert shapes_of([inputs(0), inputs(3), inputs(1)]) == ["(2 rows, 56 elements)", "(2 rows, 64 elements)"]
    assert not_finite(inputs(0) / 0) == "inf"
    with pytest.raises(WorkloadError, match="inputs must depend on the seed"):
        audit(replace(given, inputs=lambda seed: inputs(0)), CPU)


def test_what_is_not_finite_in_a_dataclass_is_seen() -> None:
    assert not_finite({"a": Inner(torch.tensor([1.0, math.nan]))}) == "nan"


@pytest.mark.parametrize(
    ("loss", "says"),
    [(None, "register_pytree_node."), (lambda out, batch: out["made"].y.square().mean(), "Workload(output=False)")],
)
def test_an_output_in_which_nothing_can_be_seen_is_refused_by_its_class(loss: Any, says: str) -> None:
    w = linear(lambda model, batch: {"made": Opaque(model(batch))}, loss)
    for ask in (lambda: audit(w, CPU), lambda: verify(w, Plan(), CPU)):
        with pytest.raises(
            WorkloadError, match=r"consists of Opaque, .* return a dict or a dataclass, or register"
        ) as raised:
            ask()
        assert says in str(raised.value)
    if loss:
        assert against(replace(w, output=False), replace(w, output=False)).passed


def test_a_verification_without_checks_says_so() -> None:
    found = Verification().record()
    assert not found.passed
    assert "nothing could be compared" in found.failures[0]


def test_verifications_are_joined_after_their_errors_went_through_a_file() -> None:
    """There, what is not finite is null: the worst of all."""
    parts = []
    for error in (1e-9, math.inf, 2.0):
        made = Verification(
            [Check(f"off by {error}", "exact", "a case", error, 1e-9, 1e-6)], cases=1, precisions=["exact"]
        )
        parts.append(record_of(measured.Verification, json.loads(to_json(plain(made.record())))))
    found = joined(parts)
    assert (found.passed, found.cases, found.checks) == (False, 3, 3)
    assert found.worst is not None
    assert (found.worst.what, found.worst.error) == ("off by inf", None)
    assert joined([parts[0], parts[2]]).worst == parts[2].worst


def valued(**values: Any) -> Workload:
    return linear(lambda model, batch: {"y": model(batch), **values})


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [(1, 5), ("one", "two"), (None, 1), (True, False), (0.3, 7.0), (0.3, math.nan), (math.nan, 0.3), (1 + 2j, 1 - 2j)],
)
def test_values_that_are_no_tensors_are_compared(mine: Any, theirs: Any) -> None:
    assert against(valued(v=mine), valued(v=mine)).passed
    said = against(valued(v=mine), valued(v=theirs)).failures
    assert said
    assert said[0].startswith(("output['v'] is off", "the candidate's output['v'] is"))


def test_none_in_the_place_of_a_tensor_is_seen() -> None:
    w = linear(lambda model, batch: {"a": None, "b": model(batch)})
    swapped = replace(w, forward=lambda model, batch: {"a": model(batch), "b": None})
    assert "the candidate's output['a'] is of another type where" in against(w, swapped).failures[0]


def test_a_float_may_be_off_by_rounding_and_not_by_more() -> None:
    w = linear(lambda model, batch: {"y": model(batch), "mean": model(batch).mean().item()})

    def other(factor: float) -> Workload:
        def forward(model: Any, batch: Any) -> Any:
            y = model(batch)
            return {"y": y, "mean": (y.sum(0).sum() / y.numel()).item() * factor}

        return replace(w, forward=forward)

    assert against(w, other(1.0)).passed
    assert "output['mean'] is off" in against(w, other(1.01)).failures[0]


def test_values_that_vary_from_call_to_call_are_left_out() -> None:
    """Of the untouched model itself, whatever others lie beside them."""

    def forward_of(fixed: int) -> Callable[[Any, Any], Any]:
        calls = itertools.count()
        return lambda model, batch: {
            "y": model(batch),
            "calls": next(calls),
            "at": time.perf_counter_ns(),
            "random": torch.rand(()).item(),
            "fixed": fixed,
        }

    found = against(linear(forward_of(3)), linear(forward_of(3)))
    assert found.passed, found.failures
    said = against(linear(forward_of(3)), linear(forward_of(4))).failures
    assert said
    assert all("output['fixed'] is 4 where the baseline's is 3" in one for one in said)


def test_what_rounding_decides_refuses_nobody() -> None:
    w = linear(lambda model, batch: {"y": model(batch), "dtype": str(model.weight.dtype)})
    assert against(w, w).passed


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 8)).double()


def in_float32(model: Any, batch: Any) -> torch.Tensor:
    h = torch.tanh(F.linear(batch.float(), model[0].weight.float(), model[0].bias.float()))
    return F.linear(h, model[2].weight.float(), model[2].bias.float()).double()


@pytest.mark.parametrize("loss", [None, lambda y, batch: y.square().mean()], ids=["infer", "train"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_float32_is_not_exact_for_a_model_in_float64(loss: Any, dtype: torch.dtype) -> None:
    w = linear(lambda model, batch: model(batch.double()), loss, layers, dtype)

    def joined(model: Any, batch: Any) -> torch.Tensor:
        """The same sums in another order."""
        a, b = model[0].weight.split(4, 1)
        x = batch.double()
        h = torch.tanh(x[:, :4] @ a.T + x[:, 4:] @ b.T + model[0].bias)
        y: torch.Tensor = model[2](h)
        return y

    honest = against(w, replace(w, forward=joined))
    assert honest.passed, honest.failures
    assert not against(w, replace(w, forward=in_float32)).passed


def test_a_model_in_float64_that_computes_in_float32_itself_is_judged_as_that() -> None:
    w = linear(in_float32, None, layers, torch.float64)

    def joined(model: Any, batch: Any) -> torch.Tensor:
        a, b = model[0].weight.float().split(4, 1)
        x = batch.float()
        h = torch.tanh(x[:, :4] @ a.T + x[:, 4:] @ b.T + model[0].bias.float())
        return F.linear(h, model[2].weight.float(), model[2].bias.float()).double()

    found = against(w, replace(w, forward=joined))
    assert found.passed, found.failures


def test_inference_in_float64_that_changes_its_weights_is_refused() -> None:
    """Also where the baseline's own are moved by an ulp."""

    def moving(model: Any, batch: Any) -> torch.Tensor:
        y: torch.Tensor = model(batch)
        model[0].bias.data += 1
        return y

    w = linear(model=layers, dtype=torch.float64)
    said = against(w, replace(w, forward=moving)).failures
    assert any("the candidate changes weights, 0.bias first" in one for one in said)


class Spectral(nn.Module):
    """A complex parameter, between two transforms."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.w = nn.Linear(8, 16), nn.Parameter(torch.randn(9, dtype=torch.cfloat))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.irfft(torch.fft.rfft(self.inner(x)) * self.w)


@pytest.mark.parametrize("optimizer", [sgd, lambda parameters: torch.optim.Adam(parameters, lr=1e-2)])
def test_complex_parameters_are_trained_and_compared(optimizer: Any) -> None:
    w = replace(linear(loss=lambda y, batch: y.square().mean(), model=Spectral), optimizer=optimizer)
    honest = against(w, w)
    assert honest.passed, honest.failures
    assert honest.reference == "float64"

    def conjugated(model: Any, batch: Any) -> torch.Tensor:
        return torch.fft.irfft(torch.fft.rfft(model.inner(batch)) * model.w.conj())

    assert not against(w, replace(w, forward=conjugated)).passed
    found = against(w, replace(w, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.11)))
    assert any(said.startswith("change of w ") for said in found.failures)


def test_complex_tensors_are_raised_and_moved_as_real_ones_are() -> None:
    model = Spectral()
    reference = Reference(linear(model=Spectral), model, CPU)
    assert reference.step.model.w.dtype == torch.complex128
    assert model.w.dtype == torch.complex64
    assert reference.cast(torch.ones(2, dtype=torch.complex64)).dtype == torch.complex128
    weights = perturbed(model, 11)
    moved = jittered(weights, 1)["w"]
    assert not torch.equal(weights["w"], model.w)
    assert moved.dtype == torch.complex64
    assert 0 < float((moved - weights["w"]).abs().max()) < 1e-5


@pytest.mark.parametrize(
    ("plan", "dtype"), [(Plan(), torch.float64), (Plan(bf16=True), torch.float32)], ids=["exact", "bf16"]
)
@pytest.mark.parametrize("off", [0.0, 0.1])
def test_what_was_timed_is_held_against_float64_or_in_bfloat16_against_float32(
    monkeypatch: pytest.MonkeyPatch, plan: Plan, dtype: torch.dtype, off: float
) -> None:
    used: list[torch.dtype] = []

    def reference(*arguments: Any, **more: Any) -> Reference:
        made = Reference(*arguments, **more)
        used.append(made.step.model.weight.dtype)
        return made

    monkeypatch.setattr(timed_run_checks, "Reference", reference)
    workload = linear(loss=lambda output, batch: output.square().mean())
    step = Step(
        replace(workload, loss=lambda output, batch: (1 + off) * output.square().mean()),
        seeded_model(workload),
        plan,
        CPU,
    )
    watched, batch = timed_run_checks.WatchedSteps(), workload.inputs(3)
    watched.before(step, batch)
    watched.after(step, step(batch))
    said = timed_run_checks.compare_with_untouched(workload, plan, CPU, watched)
    assert used == [dtype]
    assert bool(said) is bool(off)


class ForFloat32(nn.Module):
    """What a kernel that is made for float32 does elsewhere; the gradient of the bias is nothing but rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.reversed, self.scale = nn.Linear(8, 4), False, 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dtype != torch.float32:
            raise TypeError("this is for float32")
        y: torch.Tensor = self.linear(x.flip(0) if self.reversed else x)
        centered = self.scale * (y - y.mean(0, keepdim=True))
        return centered.flip(0) if self.reversed else centered


@pytest.mark.parametrize(("scale", "off"), [(1.0, False), (1.001, True)])
def test_what_has_no_float64_is_judged_by_its_rounding_while_it_is_timed(scale: float, off: bool) -> None:
    workload = linear(loss=lambda y, batch: y.square().mean(), model=ForFloat32)
    workload = replace(workload, inputs=lambda seed: torch.randn(33, 8, generator=torch.Generator().manual_seed(seed)))
    step, watched = Step(workload, seeded_model(workload), Plan(), CPU), timed_run_checks.WatchedSteps()
    step.model.reversed, step.model.scale = True, scale  # another order of the same sums, or another result
    for seed in (1, 2, 3):
        batch = workload.inputs(seed)
        watched.before(step, batch)
        watched.after(step, step(batch))
    said = timed_run_checks.compare_with_untouched(workload, Plan(), CPU, watched)
    assert bool(said) is off, said


class Logits(nn.Module):
    """Layers as after long training, which are next to certain of what `_nearly_one` draws."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dtype != torch.float32:
            raise TypeError("this is for float32")
        y: torch.Tensor = self.linear(x)
        return y


def _nearly_one(seed: int) -> torch.Tensor:
    drawn = torch.Generator().manual_seed(seed)
    x = 0.01 * torch.randn(33, 8, generator=drawn)
    x[torch.arange(33), torch.randint(4, (33,), generator=drawn)] += 1
    return x


def _classes(batch: torch.Tensor) -> torch.Tensor:
    return batch[:, :4].argmax(-1)


@pytest.mark.parametrize(
    ("known", "new", "off"),
    [(1.0, 1.0, False), (1.5, 1.0, True), (0.0, 1.0, True), (1.0, 1.001, True), (1.0, 0.0, True)],
)
def test_without_float64_what_training_made_small_may_be_off_by_what_was_lost_of_it(
    known: float, new: float, off: bool
) -> None:
    """Gradients on a batch that is known are what is left of probabilities next to one. Nothing is lost on another batch. known, new: times
    what they have to be there."""
    workload = linear(model=Logits, loss=lambda y, batch: nn.functional.cross_entropy(y, _classes(batch)))
    workload = replace(workload, inputs=lambda seed: _nearly_one(seed) * (1 if seed == 1 else -1))
    scale = {1: known, 2: new}

    def otherwise(y: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        right = torch.softmax(y, -1)[torch.arange(len(y)), _classes(batch)]
        return -scale[1 if batch.max() > 0.5 else 2] * right.log().mean()

    step, watched = (
        Step(replace(workload, loss=otherwise), seeded_model(workload), Plan(), CPU),
        timed_run_checks.WatchedSteps(),
    )
    for seed in (1, 2):
        with torch.no_grad():
            step.model.linear.weight.copy_(12 * torch.eye(4, 8))
        batch = workload.inputs(seed)
        watched.before(step, batch)
        watched.after(step, step(batch))
    said = timed_run_checks.compare_with_untouched(workload, Plan(), CPU, watched)
    assert bool(said) is off, said


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=GPU)])
def test_weights_are_moved_where_they_are_and_each_by_numbers_of_its_own(device: str) -> None:
    weights = {name: torch.ones(1000, dtype=torch.float64, device=device) for name in ("a", "b")}
    moved, again = jittered(weights, 1), jittered(weights, 1)
    assert all(t.device == weights[name].device and torch.equal(t, again[name]) for name, t in moved.items())
    assert not torch.equal(moved["a"], moved["b"])
    assert not torch.equal(moved["a"], jittered(weights, 2)["a"])
    assert float((moved["a"] - 1).std()) == pytest.approx(2**-51, rel=0.2)


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.e, self.o = nn.EmbeddingBag(500, 8, sparse=True, mode="sum"), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.o(self.e(x))
        return y


@pytest.mark.parametrize("large", [1 << 30, 100], ids=["as dense", "as sparse"])
def test_sparse_gradients_are_compared(large: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rung.verify.observe.LARGE", large)
    w = replace(
        linear(loss=lambda y, batch: y.square().mean(), model=Bag),
        inputs=lambda seed: torch.randint(0, 500, (6, 20), generator=torch.Generator().manual_seed(seed)),
    )
    assert audit(w, CPU) == []
    honest = against(w, w)
    assert honest.passed, honest.failures

    class Scaled(Bag):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            e = self.e(x)
            y: torch.Tensor = self.o(e.detach() + 1.01 * (e - e.detach()))
            return y

    said = against(w, replace(w, model=Scaled)).failures
    assert any(one.startswith("gradient of e.weight is off by 1.0e-02") for one in said)
    more_rows = replace(w, forward=lambda model, batch: model(batch) + 0 * model(batch.flip(1) // 2))
    assert against(w, more_rows).passed  # with gradients of zero
    other_rows = replace(w, forward=lambda model, batch: model(batch) + 0.01 * model(batch // 2))
    assert any(one.startswith("gradient of e.weight is off") for one in against(w, other_rows).failures)


def test_lazily_conjugated_outputs_are_compared() -> None:
    w = linear(lambda model, batch: (torch.fft.fft(model(batch)).conj(), torch.fft.fft(model(batch)).conj().imag))
    assert against(w, w).passed
    assert not against(w, replace(w, forward=lambda m, b: (torch.fft.fft(m(b)), torch.fft.fft(m(b)).imag))).passed


def test_a_weight_that_only_the_candidate_changes_is_said_in_words() -> None:
    def model(frozen: bool) -> nn.Module:
        made = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        made[0].requires_grad_(not frozen)
        return made

    w = linear(loss=lambda y, batch: y.square().mean(), model=lambda: model(True))
    said = " ".join(against(w, replace(w, model=lambda: model(False))).failures)
    assert "the candidate changes 0.weight over 3 steps, but the untouched model does not" in said
    assert "not finite" not in said


def test_an_output_of_zeros_that_is_none_is_said_in_words() -> None:
    w = linear(lambda model, batch: model(batch) * 0)
    said = against(w, replace(w, forward=lambda model, batch: model(batch))).failures
    assert said[0].startswith("output is zero in the untouched model but not in the candidate (exact, ")


def hidden(y: torch.Tensor, fill: float) -> torch.Tensor:
    return y.masked_fill((torch.arange(16) % 3 == 0), fill)


def beside_a_time(y: torch.Tensor) -> torch.Tensor:
    """A time that is computed in the output's precision, beside 16 features."""
    return torch.cat([1.7e9 + 1e3 * y[:, :1], y], -1)


def beside_counts(y: torch.Tensor) -> torch.Tensor:
    """Numbers of all sizes, that are copied."""
    counts = torch.arange(64, dtype=y.dtype).square().square().expand(len(y), 64)
    return torch.cat([counts, y / 100], -1)


@pytest.mark.parametrize(
    "head",
    [
        lambda y: hidden(y, -1e9),
        lambda y: hidden(y, torch.finfo(y.dtype).min),
        lambda y: y + hidden(torch.zeros_like(y), -1e9),
        beside_a_time,
        beside_counts,
    ],
    ids=["fill", "least number", "added fill", "time", "counts"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("plan", [Plan(), Plan(bf16=True)], ids=["exact", "bf16"])
def test_a_large_constant_hides_no_mistake_beside_it(
    head: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype, plan: Plan
) -> None:
    w = linear(lambda model, batch: head(model(batch)), dtype=dtype, model=lambda: nn.Linear(8, 16, dtype=dtype))
    honest = against(w, w, plan)
    assert honest.passed, honest.failures
    off = against(w, replace(w, forward=lambda model, batch: head(model(batch) * 1.05)))
    assert any("elements) is off by 5.0e-02" in one for one in off.failures)


def test_a_fill_that_is_moved_as_well_hides_no_mistake() -> None:
    """The candidate has no say in which elements are looked at."""
    w = linear(lambda model, batch: hidden(model(batch), -1e9))
    other = replace(w, forward=lambda model, batch: hidden(model(batch) * 2, -1e9 - 64))
    assert any("(small elements) is off by 1.0e+00" in one for one in against(w, other).failures)
    less = replace(w, forward=lambda model, batch: hidden(model(batch), -1e8))
    assert against(w, less).failures[0].startswith("output is off by 9.0e-01")


def test_what_remains_of_large_elements_may_be_their_rounding() -> None:
    """The log-softmax of two classes, of which one is certain or nearly so."""

    def scores(model: Any, batch: Any) -> torch.Tensor:
        y: torch.Tensor = model(batch)[:, :2]
        return y.sign() * (30 + y.abs())

    w = linear(lambda model, batch: torch.log_softmax(scores(model, batch), -1))
    other = replace(
        w, forward=lambda model, batch: scores(model, batch) - scores(model, batch).logsumexp(-1, keepdim=True)
    )
    found = against(w, other)
    assert found.passed, found.failures


def test_random_numbers_beside_a_fill_are_noticed() -> None:
    w = linear(lambda model, batch: hidden(model(batch) * torch.rand(16), -1e9))
    with pytest.raises(WorkloadError, match="depends on torch's random state"):
        audit(w, CPU)


def test_an_output_whose_shape_rounding_decides_is_said_to_be_one() -> None:
    w = linear(lambda model, batch: (model(batch.repeat(512, 1)) > 0.5).nonzero())
    assert against(w, w).passed
    said = against(w, w, Plan(bf16=True)).failures
    assert said[0].startswith("rounding decides the shape of output, (")
    assert "zero in" not in " ".join(said)


def test_a_derived_shape_is_said_in_words() -> None:
    def forward(model: Any, batch: Any) -> torch.Tensor:
        y: torch.Tensor = model(batch)
        return y * 2 if len(batch) == 3 else y

    w = linear()
    said = against(w, replace(w, forward=forward)).failures
    assert all("(exact, shape 2: a batch of 3 rows derived from yours, seed 1" in one for one in said)
    given = replace(w, other_shapes=(lambda seed: w.inputs(seed)[:3],))
    assert all("(exact, shape 2, seed 1" in s for s in against(given, replace(given, forward=forward)).failures)
