"""The checker, tested like any other code: honest candidates pass, each mutation is refused, by name."""

from __future__ import annotations

import math
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import faint_attention
import pytest
import torch
import torch.utils._pytree as pytree
from torch import nn
from torch.nn.utils import prune

from rung.engine.step import Step
from rung.errors import WorkloadError
from rung.hardware import pick
from rung.plan import Numerics, Plan
from rung.records import measured
from rung.verify import audit as auditing
from rung.verify import verify as verifying
from rung.verify.observe import Observation, rows
from rung.verify.tolerance import judge
from rung.workload import Workload, load, shapes, tiny_transformer

CPU = pick("cpu")
BF16 = Plan(bf16=True)
EXACT = Plan()


def workload(mode: str = "train") -> Workload:
    return load("tiny-transformer", {"hidden-dim": "64", "num-layers": "2", "num-heads": "4", "seq-len": "24",
                                     "batch-size": "4", "mode": mode})  # fmt: skip


def check(plan: Plan, change: Callable[[Any], None], mode: str = "train") -> measured.Verification:
    """Verifies the workload against itself with `change` done to the candidate's Step."""
    w = workload(mode)

    def build(model: nn.Module, at: Plan) -> Step:
        step = Step(w, model, at, CPU)
        change(step)
        return step

    return verifying.verify(w, plan, CPU, build).record()


def forward_of(kind: type[nn.Module], new: Callable[..., Any], which: int = 0) -> Callable[[Step], None]:
    """Gives one module of a class another forward, in the candidate only."""

    def change(step: Step) -> None:
        module = [m for m in step.model.modules() if type(m) is kind][which]
        module.forward = lambda *a: new(module, type(module).forward, *a)  # type: ignore[method-assign]

    return change


def drop_mask(module: Any, old: Any, x: Any) -> Any:
    real = torch.Tensor.triu
    torch.Tensor.triu = lambda self, *a: torch.zeros_like(self)  # type: ignore[method-assign]
    try:
        return old(module, x)
    finally:
        torch.Tensor.triu = real  # type: ignore[method-assign]


def swap_kv(module: Any, old: Any, x: Any) -> Any:
    module.k_proj, module.v_proj = module.v_proj, module.k_proj
    try:
        return old(module, x)
    finally:
        module.k_proj, module.v_proj = module.v_proj, module.k_proj


def zero_k(step: Step) -> None:
    projection = next(m for n, m in step.model.named_modules() if n.endswith("k_proj"))
    projection.forward = lambda x: nn.Linear.forward(projection, x) * 0  # type: ignore[method-assign]


def larger_eps(module: Any, old: Any, x: Any) -> Any:
    module.eps = 1e-5
    return old(module, x)


class Wrong:
    """Changes what `step(batch)` does as a whole."""

    def __init__(self, new: Callable[[Step, Any], Any]) -> None:
        self.new = new

    def __call__(self, step: Step) -> None:
        real = step._run
        step._run = lambda batch: self.new(real, batch)  # type: ignore[assignment, arg-type]


def cached() -> Wrong:
    memory: list[Any] = []

    def run(real: Any, batch: Any) -> Any:
        if not memory:
            memory.append(real(batch))
        return memory[0]

    return Wrong(run)


def unwritten(real: Any, batch: Any) -> Any:
    loss, output = real(batch)
    hole = torch.empty_like(output)
    hole[:-1] = output[:-1]
    return loss, hole


def one_shape(real: Any, batch: Any) -> Any:
    loss, output = real(batch)
    return loss, output if output.shape[0] == 4 else output * 1.01


def mutating(real: Any, batch: Any) -> Any:
    result = real(batch)
    batch["tokens"].add_(1)
    return result


def lowered(real: Any, batch: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return real(batch)


ATTENTION, NORM = tiny_transformer.Attention, tiny_transformer.RMSNorm


@pytest.mark.parametrize("mode", ["train", "infer"])
@pytest.mark.parametrize("plan", [EXACT, BF16], ids=["fp32", "bf16"])
def test_the_unchanged_model_passes(plan: Plan, mode: str) -> None:
    found = check(plan, lambda step: None, mode)
    assert found.passed, found.failures
    assert found.cases == 6 * len(found.precisions)


@pytest.mark.parametrize(("plan", "mode"), [(EXACT, "train"), (BF16, "infer")], ids=["fp32-train", "bf16-infer"])
def test_rewritten_graphs_pass(plan: Plan, mode: str) -> None:
    w = workload(mode)
    rewritten = Plan(bf16=plan.bf16, passes=("sdpa", "fused-qkv", "fused-gate-up"), fused_optimizer=mode == "train")
    found = verifying.verify(w, rewritten, CPU).record()
    assert found.passed, found.failures


MUTATIONS = {
    "causal mask dropped": forward_of(ATTENTION, drop_mask),
    "k and v swapped": forward_of(ATTENTION, swap_kv),
    "a projection zeroed": zero_k,
    "eps x 10 in the first norm": forward_of(NORM, larger_eps),
    "eps x 10 in the last norm": forward_of(NORM, larger_eps, -1),
    "an output left unwritten": Wrong(unwritten),
    "right for one shape only": Wrong(one_shape),
    "inputs mutated": Wrong(mutating),
}


@pytest.mark.parametrize("mode", ["train", "infer"])
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_is_refused(name: str, mode: str) -> None:
    """In full precision, which comes first whatever the plan."""
    found = check(BF16, MUTATIONS[name], mode)
    assert not found.passed
    assert found.precisions == ["exact"]
    assert found.failures


@pytest.mark.parametrize(
    ("name", "mode"),
    [("a projection zeroed", "train"), ("causal mask dropped", "infer"), ("k and v swapped", "infer")],
)
def test_a_mutation_that_shows_in_bf16_only_is_refused(name: str, mode: str) -> None:
    w = workload(mode)

    def build(model: nn.Module, at: Plan) -> Step:
        step = Step(w, model, at, CPU)
        if at.bf16:
            MUTATIONS[name](step)
        return step

    found = verifying.verify(w, BF16, CPU, build).record()
    assert not found.passed
    assert found.precisions == ["exact", "bf16"]


def test_a_cached_result_is_refused() -> None:
    assert not check(EXACT, cached()).passed


def test_a_silently_lowered_precision_is_refused() -> None:
    assert not check(EXACT, Wrong(lowered)).passed


def test_a_candidate_that_raises_on_another_shape_is_refused_with_its_words() -> None:
    def run(real: Any, batch: Any) -> Any:
        if batch["tokens"].shape[0] != 4:
            raise RuntimeError("made for four rows")
        return real(batch)

    assert "made for four rows" in check(EXACT, Wrong(run)).failures[0]


class OutsideAutograd(nn.Module):
    """A norm as a raw kernel would be: right going forward, unknown to autograd."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.weight = inner.weight
        self.inner = [inner]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner[0](x.detach()).detach().requires_grad_()


def test_a_candidate_whose_norm_runs_outside_autograd_is_refused_by_name() -> None:
    def run(module: Any, old: Any, x: Any) -> Any:
        return old(module, x.detach()).detach()

    found = check(EXACT, forward_of(NORM, run, -1))
    assert not found.passed
    assert "get no gradient" in found.failures[0]
    assert "norm.weight" in " ".join(found.failures)


def test_a_baseline_in_which_most_parameters_get_no_gradient_is_refused_by_name() -> None:
    from dataclasses import replace

    w = workload()

    def model() -> nn.Module:
        made = w.model()
        made.norm = OutsideAutograd(made.norm)  # type: ignore[assignment, arg-type]
        return made

    with pytest.raises(WorkloadError, match=r"of \d+ parameters of the optimizer get no gradient \(.*proj"):
        auditing.audit(replace(w, model=model), CPU)


def test_what_the_optimizer_does_not_step_needs_no_gradient() -> None:
    """A target network, whose weights follow those that are trained."""

    class Critic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.online, self.target = nn.Linear(4, 1), nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            with torch.no_grad():
                aim = self.target(x)
            return self.online(x), aim

    made = Workload(
        "critic",
        model=Critic,
        inputs=lambda seed: torch.randn(8, 4, generator=torch.Generator().manual_seed(seed)),
        loss=lambda output, batch: (output[0] - output[1]).square().mean(),
        optimizer=lambda parameters: torch.optim.SGD(
            [p for p in parameters if p.shape[-1] == 4 or p.numel() == 1][:2], lr=0.1
        ),
    )
    assert not auditing.audit(made, CPU)


def test_an_optimizer_of_other_parameters_is_refused() -> None:
    other = nn.Parameter(torch.ones(2))
    with pytest.raises(WorkloadError, match="its optimizer holds no parameter of the model"):
        auditing.audit(replace(workload(), optimizer=lambda parameters: torch.optim.SGD([other], lr=0.1)), CPU)


def test_a_workload_that_ignores_the_seed_or_draws_random_numbers_is_refused() -> None:
    from dataclasses import replace

    w = workload("infer")
    with pytest.raises(WorkloadError, match="on one batch alone; inputs must depend on the seed"):
        auditing.audit(replace(w, inputs=lambda seed: w.inputs(0)), CPU)
    noisy = replace(w, forward=lambda m, b: m(b["tokens"]) + torch.randn(()))
    with pytest.raises(WorkloadError, match="random state"):
        auditing.audit(noisy, CPU)


def test_a_candidate_that_changes_the_model_object_is_refused() -> None:
    def change(step: Step) -> None:
        step.model.register_buffer("extra", torch.zeros(1))

    w = workload()

    def build(model: nn.Module, at: Plan) -> Step:
        step = Step(w, model, at, CPU)
        real = step._run

        def run(batch: Any) -> Any:
            step.model.eval()
            return real(batch)

        step._run = run  # type: ignore[assignment]
        return step

    found = verifying.verify(w, EXACT, CPU, build).record()
    assert any("train or eval mode" in f for f in found.failures)


# -- what a first look at one batch of one set of weights would not show ------------------------------------


def test_a_result_cached_for_as_long_as_the_weights_stay_is_refused() -> None:
    def change(step: Step) -> None:
        real, memory = step._run, {}

        def run(batch: Any) -> Any:
            key = (next(step.model.parameters())._version, batch["tokens"].shape)
            if key not in memory:
                memory[key] = real(batch)
            return memory[key]

        step._run = run  # type: ignore[assignment]

    assert "second batch" in check(EXACT, change, "infer").failures[0]


def test_inference_that_changes_its_weights_is_refused() -> None:
    def change(step: Step) -> None:
        real = step._run

        def run(batch: Any) -> Any:
            result = real(batch)
            with torch.no_grad():
                next(step.model.parameters()).mul_(0.5)
            return result

        step._run = run  # type: ignore[assignment]

    assert not check(EXACT, change, "infer").passed


@pytest.mark.parametrize(("which", "mode"), [(0, "train"), (-1, "infer")])
def test_a_workload_with_its_own_autocast_is_verified_in_full_precision_first(which: int, mode: str) -> None:
    w = load("tiny-transformer", {"hidden-dim": "64", "num-layers": "2", "num-heads": "4", "seq-len": "24",
                                  "batch-size": "4", "mode": mode, "use-amp": "true"})  # fmt: skip

    def build(model: nn.Module, at: Plan) -> Step:
        step = Step(w, model, at, CPU)
        forward_of(NORM, larger_eps, which)(step)
        return step

    honest = verifying.verify(w, EXACT, CPU)
    assert (honest.record().passed, honest.precisions) == (True, ["exact", "bf16"])
    assert not verifying.verify(w, EXACT, CPU, build).record().passed


def classifier(
    forward: Callable[[Any, Any], Any], model: Callable[[], nn.Module] = lambda: nn.Linear(8, 5)
) -> Workload:
    def inputs(seed: int) -> dict[str, torch.Tensor]:
        return {"x": torch.randn(6, 8, generator=torch.Generator().manual_seed(seed))}

    return Workload("classifier", model, inputs, forward=forward)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda out: {**out, "ids": torch.zeros_like(out["ids"])}, "output"),
        (
            lambda out: {"other": out["logits"], "ids": out["ids"]},
            "another form: structure {'other': *, 'ids': *} where the baseline has structure {'logits': *, 'ids': *} (",
        ),
        (lambda out: {"logits": out["logits"]}, "another form: structure {'logits': *} where"),
        (lambda out: (out["logits"], [out["ids"], None]), "another form: structure (*, [*, *]) where"),
        (lambda out: OrderedDict(out), "another form: structure TreeSpec(OrderedDict, "),
        (lambda out: {**out, "logits": out["logits"].double()}, "torch.float64 where the baseline has"),
    ],
    ids=["integers zeroed", "a key renamed", "an output dropped", "a tuple", "another class", "another dtype"],
)
def test_the_form_of_the_output_and_its_integers_count(change: Callable[[Any], Any], says: str) -> None:
    def forward(model: Any, batch: Any) -> Any:
        logits = model(batch["x"])
        return {"logits": logits, "ids": logits.argmax(-1)}

    w = classifier(forward)
    assert verifying.verify(w, EXACT, CPU).record().passed
    found = verifying.verify(w, EXACT, CPU, lambda m, at: changed_step(w, m, at, change)).record()
    assert not found.passed
    assert says in " ".join(found.failures)
    assert "\n" not in " ".join(found.failures)


def test_integers_that_no_float_decides_are_equal_to_the_last() -> None:
    """One in a hundred tokens, or buckets of the inputs, may be another by a near tie; a mask of tokens may not."""

    def inputs(seed: int, rows: int = 480) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(rows, 8, generator=generator)
        return {"x": x, "tokens": torch.randint(9, (rows,), generator=generator)}

    def forward(model: Any, batch: Any) -> Any:
        logits = model(batch["x"])
        found = {
            "ids": logits.argmax(-1),
            "bucket": (nn.functional.layer_norm(batch["x"], (8,))[:, 0] * 3).round().int(),
        }
        return {"logits": logits, **found, "mask": batch["tokens"] > 3}

    def one_of(name: str) -> Callable[[Any], Any]:
        def change(out: Any) -> Any:
            wrong = out[name].clone()
            wrong[7] = not wrong[7] if wrong.dtype == torch.bool else (wrong[7] + 1) % 5
            return {**out, name: wrong}

        return change

    w = Workload(
        "classifier", lambda: nn.Linear(8, 5), inputs, forward=forward, other_shapes=(lambda seed: inputs(seed, 200),)
    )
    assert verifying.verify(w, EXACT, CPU).record().passed
    for name in ("ids", "bucket"):
        tie = verifying.verify(w, EXACT, CPU, lambda m, at, name=name: changed_step(w, m, at, one_of(name))).record()  # type: ignore[misc]
        assert tie.passed, tie.failures
    found = verifying.verify(w, EXACT, CPU, lambda m, at: changed_step(w, m, at, one_of("mask"))).record()
    assert "output 3 differs in 1 of 480 values that rounding cannot change" in found.failures[0]


def changed_step(w: Workload, model: nn.Module, at: Plan, change: Callable[[Any], Any]) -> Step:
    step = Step(w, model, at, CPU)
    real = step._run
    step._run = lambda batch: (None, change(real(batch)[1]))  # type: ignore[assignment]
    return step


def test_a_complex_output_zeroed_is_refused() -> None:
    w = classifier(lambda m, b: torch.complex(m(b["x"]), m(b["x"])))
    assert verifying.verify(w, EXACT, CPU).record().passed
    zeroed = verifying.verify(w, EXACT, CPU, lambda m, at: changed_step(w, m, at, torch.zeros_like))
    assert not zeroed.passed


def test_an_optimizer_told_something_else_is_refused() -> None:
    def change(step: Step) -> None:
        for group in step.optimizer.param_groups:  # type: ignore[union-attr]
            group["amsgrad"] = True
        fresh = step.fresh

        def again() -> None:
            fresh()
            for group in step.optimizer.param_groups:  # type: ignore[union-attr]
                group["amsgrad"] = True

        step.fresh = again  # type: ignore[method-assign]

    assert any("amsgrad" in f for f in check(EXACT, change).failures)


class MakesFloat32(nn.Module):
    """Runs in float32 only, as models do that make their first state themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.zeros(x.shape, dtype=torch.float32)
        return h @ self.cell.weight + self.cell(x.float())


class Sigma(nn.Module):
    """A parameter that must stay positive: weights moved too far are not finite."""

    def __init__(self) -> None:
        super().__init__()
        self.v = nn.Parameter(torch.full((8,), 0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / self.v.sqrt()


@pytest.mark.parametrize(("kind", "reference"), [(MakesFloat32, "float32"), (Sigma, "float64")])
def test_a_model_that_cannot_be_run_in_double_or_be_moved_far_is_still_verified(
    kind: type[nn.Module], reference: str
) -> None:
    w = classifier(lambda m, b: m(b["x"]), kind)
    found = verifying.verify(w, EXACT, CPU)
    assert found.record().passed, found.record().failures
    assert found.reference == reference
    wrong = verifying.verify(w, EXACT, CPU, lambda m, at: changed_step(w, m, at, lambda y: y * 1.001))
    assert not wrong.passed


class NoDouble(nn.Module):
    """In bfloat16, with an operation that knows no float64, as grouped products are."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(8, 8).bfloat16(), nn.Linear(8, 8).bfloat16()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.inner.weight.dtype == torch.float64:
            raise RuntimeError("no product of groups in Double")
        y: torch.Tensor = self.outer(self.inner(x.to(self.inner.weight.dtype)).tanh())
        return y


def test_the_reference_of_a_model_in_16_bits_is_not_in_16_bits() -> None:
    """Its own rounding would be no error then, and no other rounding would pass."""
    w = classifier(lambda m, b: m(b["x"]), NoDouble)

    def rounded(y: torch.Tensor) -> torch.Tensor:
        return y * (1 + 2**-8) if y.dtype == torch.bfloat16 else y

    found = verifying.verify(w, EXACT, CPU, lambda m, at: changed_step(w, m, at, rounded))
    assert found.reference == "float32"
    assert found.passed, found.failures
    wrong = verifying.verify(w, EXACT, CPU, lambda m, at: changed_step(w, m, at, lambda y: rounded(y) * 1.1))
    assert not wrong.passed


def test_rewrites_pass_against_a_reference_of_the_same_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    from rung.verify.reference import Reference

    real = Reference.__init__

    def single(self: Any, *arguments: Any) -> None:
        real(self, *arguments)
        self._fall_back()

    monkeypatch.setattr(Reference, "__init__", single)
    w = workload()
    honest = Plan(passes=("sdpa", "fused-qkv", "fused-gate-up"), fused_optimizer=True)
    found = verifying.verify(w, honest, CPU).record()
    assert found.passed, found.failures
    assert found.reference == "float32"
    assert not check(EXACT, MUTATIONS["eps x 10 in the last norm"]).passed


def test_a_workload_without_a_second_shape_is_refused_before_anything_is_measured() -> None:
    from dataclasses import replace

    w = classifier(lambda m, b: m(b["x"]))
    odd = replace(w, inputs=lambda seed: {"x": w.inputs(seed)["x"], "y": torch.zeros(3)})
    with pytest.raises(WorkloadError, match="second input shape cannot be derived"):
        auditing.audit(odd, CPU)
    fixed = replace(w, forward=lambda m, b: m(b["x"]).view(6, 5))
    with pytest.raises(WorkloadError, match="on another shape it raised"):
        auditing.audit(fixed, CPU)


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated")
def test_weights_that_a_hook_works_out_of_others_are_verified() -> None:
    """deepcopy refuses what such a module keeps between its forwards."""

    def model() -> nn.Module:
        made = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.utils.weight_norm(nn.Linear(8, 4)))
        prune.l1_unstructured(made[0], "weight", 0.5)
        return made

    w = Workload(
        "pruned", model, lambda seed: torch.randn(6, 8, generator=torch.Generator().manual_seed(seed)), mode="train",
        loss=lambda output, batch: output.square().mean(), optimizer=lambda p: torch.optim.AdamW(p),
    )  # fmt: skip
    assert auditing.audit(w, CPU) == []
    assert verifying.verify(w, Plan(passes=("fused-qkv",)), CPU).passed
    found = verifying.verify(w, EXACT, CPU, lambda m, at: changed_step(w, m, at, lambda y: y * 1.1))
    assert not found.passed


class OnGraph(nn.Module):
    """A layer over the neighbours in a graph, whose matrix is in a compressed sparse layout."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)
        edges = torch.eye(6) + torch.eye(6).roll(1, 0)
        self.register_buffer("edges", edges.to_sparse_csr())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.edges @ x)


@pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:.*torch.jit.script.*is deprecated")
@pytest.mark.parametrize(
    "model",
    [OnGraph, lambda: torch.jit.script(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4)))],
    ids=["a compressed sparse buffer", "compiled by TorchScript"],
)
def test_a_model_that_deepcopy_alone_does_not_copy_rightly_is_verified(model: Callable[[], nn.Module]) -> None:
    """It takes no tensor in CSR, and what it makes of a script module's parameters no optimizer takes."""
    w = Workload(
        "odd", model, lambda seed: torch.randn(6, 8, generator=torch.Generator().manual_seed(seed)), mode="train", one_shape=True,
        loss=lambda output, batch: output.square().mean(), optimizer=lambda p: torch.optim.AdamW(p),
    )  # fmt: skip
    assert auditing.audit(w, CPU) == []
    assert verifying.verify(w, EXACT, CPU).passed
    assert not verifying.verify(w, EXACT, CPU, lambda m, at: changed_step(w, m, at, lambda y: y * 1.1)).passed


def test_a_part_that_its_author_froze_stays_frozen() -> None:
    from rung.workload import seeded_model

    def model() -> nn.Module:
        made = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
        made[1].eval()
        return made

    w = classifier(lambda m, b: m(b["x"]), model)
    from dataclasses import replace

    trained = replace(w, mode="train", loss=lambda y, b: y.sum(), optimizer=lambda p: torch.optim.SGD(p))
    assert [m.training for m in seeded_model(trained)] == [True, False]
    assert not seeded_model(w).training


def test_what_torch_replaces_when_it_is_imported_further_is_nobodys_doing() -> None:
    """In a process that compiled nothing so far."""
    script = """
import sys, torch
from rung.verify.side_effects import global_functions, restore_functions
assert "torch._dynamo" not in sys.modules
before = global_functions(torch.nn.Linear(1, 1))
import torch._dynamo
print(restore_functions(before))
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_a_gradient_that_is_rounding_alone_refuses_nobody() -> None:
    w = faint_attention.workload()
    found = verifying.verify(w, Plan(bf16=True, passes=("sdpa",)), CPU).record()
    assert found.passed, found.failures

    def without(model: nn.Module, at: Plan) -> Step:
        step = Step(w, model, at, CPU)
        for p in step.model[1].parts[0].parameters():  # type: ignore[index,union-attr]
            p.register_hook(torch.zeros_like)
        return step

    wrong = verifying.verify(w, BF16, CPU, without, ["bf16"]).record()
    # By its gradient, or by what the optimizer makes of it: torch 2.6 shows the latter alone.
    assert "of 1.parts.0." in " ".join(wrong.failures)


def test_what_is_off_by_less_than_gradients_are_anywhere_passes() -> None:
    large, none = torch.linspace(1, 2, 50).double(), torch.zeros(50).double()

    def seen(error: float, faint: float) -> Observation:
        return Observation({}, {"large": large + error, "middle": large + error, "none": none + faint}, [])

    def passes(error: float, faint: float, numerics: Numerics = "bf16") -> bool:
        return all(c.passed for c in judge(rows(seen(0, 0), seen(1e-3, 0), seen(error, faint), ""), numerics))

    assert passes(1e-3, 1e-3)
    assert passes(1e-3, 1e-2, "exact")
    assert not passes(1e-3, 2e-3)
    assert not passes(1e-2, 0.0)
    assert not passes(1e-3, math.nan)


@pytest.mark.parametrize(("own", "allowed"), [(0.9, 3), (1.1, 30)], ids=["something is left", "rounding alone"])
def test_more_is_allowed_of_what_the_untouched_model_gives_rounding_of_alone(own: float, allowed: int) -> None:
    """Of gradients. An output is what the model is for."""
    true = torch.randn(4096, generator=torch.Generator().manual_seed(0)).double()

    def passes(error: float, gradient: bool) -> bool:
        seen = [true + by * true.flip(0) for by in (0.0, own, error)]
        of = [Observation({}, {"weight": t}, []) if gradient else Observation({"output": t}, {}, []) for t in seen]
        return all(c.passed for c in judge(rows(*of, ""), "bf16") if not c.what.startswith("scale"))

    assert passes(0.95 * allowed * own, gradient=True)
    assert not passes(1.05 * allowed * own, gradient=True)
    assert not passes(1.05 * 3 * own, gradient=False)


def test_what_tf32_rounds_is_allowed_though_the_untouched_model_computes_it_in_float32() -> None:
    """As cuDNN does a 3-D convolution, whose layout decides. Twice of it is refused."""
    true = torch.randn(4096, generator=torch.Generator().manual_seed(0)).double()

    def passes(error: float, numerics: Numerics) -> bool:
        seen = [Observation({}, {"output": true * (1 + by)}, []) for by in (0.0, 3e-7, error)]
        return all(c.passed for c in judge(rows(*seen, ""), numerics))

    assert passes(3e-4, "tf32")
    assert not passes(1e-3, "tf32")
    assert not passes(3e-4, "exact")


def for_eight_rows(**changes: Any) -> Workload:
    """Of a model that refuses any other number."""

    class Fixed(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.view(8, 4))

    def inputs(seed: int) -> torch.Tensor:
        return torch.randn(8, 4, generator=torch.Generator().manual_seed(seed))

    return Workload("fixed", lambda: Fixed(4, 4), inputs, **changes)


@pytest.mark.parametrize("mode", ["train", "infer"])
def test_a_model_of_one_shape_is_verified_on_that_one(mode: str) -> None:
    training: dict[str, Any] = {
        "loss": lambda y, batch: y.square().mean(),
        "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    }
    w = for_eight_rows(one_shape=True, **(training if mode == "train" else {}))
    found = verifying.verify(w, EXACT, CPU)
    assert found.passed, found.failures
    assert found.cases == len(verifying.SEEDS)

    def scaled(model: nn.Module, at: Plan) -> Step:
        step = Step(w, model, at, CPU)
        Wrong(lambda real, batch: (lambda loss, y: (loss, y * 1.01))(*real(batch)))(step)
        return step

    found = verifying.verify(w, EXACT, CPU, scaled)
    assert not found.passed
    assert "shape 1" in " ".join(found.record().failures)


@pytest.mark.parametrize("changes", [{}, {"other_shapes": (lambda seed: torch.ones(3, 4),)}], ids=["derived", "named"])
def test_a_shape_on_which_the_untouched_model_fails_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises((WorkloadError, RuntimeError), match="8, 4"):
        verifying.verify(for_eight_rows(**changes), EXACT, CPU)


@pytest.mark.parametrize("derived", [True, False])
def test_a_candidate_that_raises_on_another_shape_names_it_and_what_to_do(derived: bool) -> None:
    def build(model: nn.Module, at: Plan) -> Step:
        step = Step(w, model, at, CPU)
        real = step._run

        def of_one_shape(batch: Any) -> Any:
            if pytree.tree_leaves(batch)[0].shape[0] != measured:
                raise ValueError("not this shape")
            return real(batch)

        step._run = of_one_shape  # type: ignore[method-assign]
        return step

    given = workload("infer")
    measured = pytree.tree_leaves(given.inputs(0))[0].shape[0]
    named = (lambda seed: pytree.tree_map(lambda t: t[:3], given.inputs(seed)),)
    w = replace(given, other_shapes=() if derived else named)
    failures = verifying.verify(w, EXACT, CPU, build).record().failures
    assert "the candidate raised ValueError: not this shape (exact, shape 2" in failures[0]
    assert any("Workload(other_shapes=" in said for said in failures) == derived


@pytest.mark.parametrize("others", [False, True])
@pytest.mark.parametrize("backwards", [False, True])
def test_a_candidate_that_stays_with_the_shape_it_saw_first_is_refused_in_either_order(
    backwards: bool, others: bool
) -> None:
    w = workload("infer")
    seen: list[int] = []  # rows of the batches, as they came

    def rows(batch: Any) -> int:
        return int(pytree.tree_leaves(batch)[0].shape[0])

    def build(model: nn.Module, at: Plan) -> Step:
        step = Step(w, model, at, CPU)

        def stays(real: Callable[[Any], Any], batch: Any) -> Any:
            seen.append(rows(batch))
            loss, y = real(batch)
            return loss, y if seen[-1] == seen[0] else torch.zeros_like(y)

        Wrong(stays)(step)
        return step

    found = verifying.verify(w, EXACT, CPU, build, backwards=backwards, others=others).record()
    first, second = (rows(make(0)) for make in shapes(w))
    assert [*dict.fromkeys(seen)] == ([second, first] if backwards else [first, second])
    assert not found.passed
    assert ("shape 1" if backwards else "shape 2") in found.failures[0]
    assert verifying.verify(w, EXACT, CPU, backwards=backwards, others=others).passed


def test_of_other_shapes_alone_nothing_is_compared_that_a_verification_of_the_first_has_compared() -> None:
    w = workload("train")
    found = verifying.verify(w, EXACT, CPU, others=True)
    alone = verifying.verify(replace(w, one_shape=True, other_shapes=()), EXACT, CPU)
    both = verifying.verify(w, EXACT, CPU)
    assert alone.cases + found.cases == both.cases + 1
    assert {(c.what, c.case) for c in both.checks} < {(c.what, c.case) for c in (*alone.checks, *found.checks)}


@pytest.mark.parametrize("mode", ["infer", "train"])
def test_a_candidate_that_is_wrong_where_it_comes_back_to_a_shape_is_refused(mode: str) -> None:
    w = workload(mode)
    seen: list[int] = []

    def build(model: nn.Module, at: Plan) -> Step:
        step = Step(w, model, at, CPU)

        def twice(real: Callable[[Any], Any], batch: Any) -> Any:
            rows = int(pytree.tree_leaves(batch)[0].shape[0])
            if not seen or seen[-1] != rows:
                seen.append(rows)
            loss, y = real(batch)
            return loss, 2 * y if seen.count(rows) > 1 else y

        Wrong(twice)(step)
        return step

    one = replace(w, one_shape=True, other_shapes=())
    assert verifying.verify(one, EXACT, CPU, build).passed
    seen.clear()
    assert not verifying.verify(w, EXACT, CPU, build, others=True).passed


class Observed(nn.Module):
    """Attaches a hook to its layer when it is first called, as models do that hand out what their layers make."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        if not self.layer._forward_hooks:
            self.layer.register_forward_hook(lambda module, args, output: output * 2)
        return self.layer(x)


@pytest.mark.parametrize("more", [0, 1])
def test_hooks_that_a_model_attaches_when_it_first_runs_are_no_change_and_one_more_is(more: int) -> None:
    w = Workload("observed", Observed, lambda s: torch.randn(3, 4, generator=torch.Generator().manual_seed(s)))

    def build(model: nn.Module, at: Plan) -> Step:
        for _ in range(more):
            model.register_forward_pre_hook(lambda module, args: None)
        return Step(w, model, at, CPU)

    found = verifying.verify(w, EXACT, CPU, build)
    assert found.failures == (["the candidate changed the model's hooks"] if more else [])


def of_inputs(extra: Callable[[torch.Generator], Any], use: Callable[[nn.Module, Any, Any], Any]) -> Workload:
    def inputs(seed: int) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(seed)
        return {"x": torch.randn(6, 4, generator=generator), "extra": extra(generator)}

    forward = lambda model, batch: use(model, batch["x"], batch["extra"])  # noqa: E731
    return Workload("inputs", lambda: nn.Linear(4, 4), inputs, forward, one_shape=True)


def gaps(generator: torch.Generator) -> torch.Tensor:
    """With missing values."""
    numbers = torch.randn(6, 4, generator=generator)
    return numbers.masked_fill(numbers > 0.5, math.nan)


def sparse(generator: torch.Generator) -> torch.Tensor:
    return torch.randn(6, 6, generator=generator).relu().to_sparse()


UNUSUAL = {
    "missing values": of_inputs(gaps, lambda model, x, extra: model(x) + extra.nan_to_num()),
    "sparse": of_inputs(sparse, lambda model, x, extra: torch.sparse.mm(extra, model(x))),
    "array": of_inputs(
        lambda generator: torch.randn(6, 4, generator=generator).numpy(),
        lambda model, x, extra: model(x) + torch.from_numpy(extra),
    ),
}


@pytest.mark.parametrize("kind", UNUSUAL)
def test_unusual_inputs_are_verified_and_may_not_be_changed(kind: str) -> None:
    w = UNUSUAL[kind]
    auditing.audit(w, CPU)
    found = verifying.verify(w, EXACT, CPU)
    assert found.passed, found.failures

    def build(model: nn.Module, at: Plan) -> Any:
        step = Step(w, model, at, CPU)

        def changes(real: Any, batch: Any) -> Any:
            result = real(batch)
            batch["extra"] *= 2
            return result

        Wrong(changes)(step)
        return step

    assert any("the candidate changes its inputs" in one for one in verifying.verify(w, EXACT, CPU, build).failures)


class Unusual(nn.Module):
    """Weights of kinds that are seldom seen."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.linear, self.kind = nn.Linear(4, 4), kind
        if kind == "expanded buffer":
            self.register_buffer("more", torch.tensor([2.0]).expand(4))
        elif kind == "expanded parameter":
            self.more = nn.Parameter(torch.randn(4, 1).expand(4, 4), requires_grad=False)
        elif kind == "sparse buffer":
            self.register_buffer("more", torch.eye(4).to_sparse())
        elif kind == "float8":
            self.more = nn.Parameter(torch.randn(4, 4).to(torch.float8_e4m3fn), requires_grad=False)
        else:
            self.more = nn.Parameter(torch.zeros(4, 0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.linear(x)
        if self.kind == "no elements":
            return y + self.more.sum()
        if self.kind == "sparse buffer":
            return torch.sparse.mm(self.more, y.T).T
        return y * self.more if self.more.dim() == 1 else y @ self.more.to(y.dtype)


@pytest.mark.parametrize("kind", ["expanded buffer", "expanded parameter", "sparse buffer", "float8", "no elements"])
def test_unusual_weights_are_verified(kind: str) -> None:
    w = Workload(
        "weights", lambda: Unusual(kind), lambda s: torch.randn(6, 4, generator=torch.Generator().manual_seed(s))
    )
    auditing.audit(w, CPU)
    found = verifying.verify(w, EXACT, CPU)
    assert found.passed, found.failures
    twice = replace(w, forward=lambda model, batch: 2 * model(batch))
    assert not verifying.verify(w, EXACT, CPU, lambda model, at: Step(twice, model, at, CPU)).passed
