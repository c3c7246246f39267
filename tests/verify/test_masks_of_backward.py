"""A backward pass that draws another dropout mask than its forward pass is refused, where finite differences can tell."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rung import kernels
from rung.engine.cuda_graph import WARM_CALLS
from rung.engine.step import Step
from rung.hardware import pick
from rung.hardware.device import Device, to_device
from rung.kernels import reference
from rung.kernels.dropout import draw_seed
from rung.plan import Plan
from rung.verify import gradcheck
from rung.verify.gradcheck import other_masks
from rung.verify.perturb import perturbed
from rung.verify.randomness import active, without_dropout
from rung.verify.reference import full_precision
from rung.verify.verify import verify
from rung.workload import Workload, seeded_model

CPU = pick("cpu")
EAGER = Plan()
SAYS = "backward pass uses another dropout mask"


class DrawsTwice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, p: float) -> torch.Tensor:
        ctx.p = p
        return F.dropout(x, p)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return F.dropout(gradients[0], ctx.p), None


@torch.library.custom_op("rung_tests::draws_twice", mutates_args=())
def draws_twice(x: torch.Tensor, p: float) -> torch.Tensor:
    return F.dropout(x, p).clone()


draws_twice.register_fake(lambda x, p: torch.empty_like(x))
draws_twice.register_autograd(
    lambda ctx, gradient: (F.dropout(gradient, ctx.p), None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "p", inputs[1]),
)


class Dropout(nn.Module):
    """Of a right backward pass, until `apply` is another."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.dropout, self.apply_it = p, F.dropout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.apply_it(x, self.dropout)


class Layer(nn.Module):
    def __init__(self, width: int, p: float, activation: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.of_attention, self.residual, self.residual2 = Dropout(p), Dropout(p), Dropout(p)
        self.activation = activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (each(x).unflatten(-1, (2, -1)).transpose(1, 2) for each in (self.query, self.key, self.value))
        weights = self.of_attention((q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1))
        x = self.norm(x + self.residual(self.out((weights @ v).transpose(1, 2).flatten(2))))
        return self.norm2(x + self.residual2(self.down(self.activation(self.up(x)))))


class Transformer(nn.Module):
    """Post-norm, its head tied to its embedding."""

    def __init__(
        self, layers: int = 4, p: float = 0.1, activation: Callable[[torch.Tensor], torch.Tensor] = F.gelu
    ) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(50, 16), nn.Linear(16, 50, bias=False)
        self.head.weight = self.embedding.weight
        self.layers = nn.Sequential(*(Layer(16, p, activation) for _ in range(layers)))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.embedding(tokens)))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(50, 16), nn.LSTM(16, 16, 2, dropout=0.1, batch_first=True)
        self.dropout, self.head = Dropout(0.1), nn.Linear(16, 50)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.dropout(self.lstm(self.embedding(tokens))[0]))


def perceptron() -> nn.Module:
    return nn.Sequential(
        nn.Linear(16, 32), nn.ReLU(), Dropout(0.1), nn.Linear(32, 32), nn.ReLU(), Dropout(0.1), nn.Linear(32, 8)
    )


def convolutions() -> nn.Module:
    def block(before: int, after: int) -> Iterator[nn.Module]:
        yield from (nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), Dropout(0.1))

    return nn.Sequential(*block(3, 8), *block(8, 8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 8))


class Rounded(nn.Module):
    """Its gradient is a straight-through estimate, and no derivative."""

    def __init__(self) -> None:
        super().__init__()
        self.model = perceptron()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.model(x)
        return y + (y.round() - y).detach()


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(16, 16), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean, scale = self.encoder(x).chunk(2, -1)
        return self.decoder(mean + scale.exp() * torch.randn_like(scale))


def workload(model: Callable[[], nn.Module], **other: Any) -> Workload:
    def inputs(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        random = torch.Generator().manual_seed(seed)
        if model is convolutions:
            return torch.randn(8, 3, 8, 8, generator=random), torch.randint(8, (8,), generator=random)
        if model is Biased:
            return torch.randn(16, 4, 16, generator=random), torch.randint(8, (16,), generator=random)
        if isinstance(made, (Transformer, Recurrent)):
            return torch.randint(50, (4, 12), generator=random), torch.randint(50, (4, 12), generator=random)
        return torch.randn(16, 16, generator=random), torch.randint(8, (16,), generator=random)

    made = model()
    return Workload(
        name="drops",
        model=model,
        inputs=inputs,
        mode="train",
        forward=lambda model, batch: model(batch[0]),
        loss=lambda output, batch: F.cross_entropy(output.flatten(0, -2), batch[1].flatten()),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        **other,
    )


def asked(
    w: Workload,
    change: Callable[[nn.Module], object] = lambda model: None,
    plan: Plan = EAGER,
    device: Device = CPU,
) -> tuple[str | None, int]:
    """What is said of a candidate, and how many steps it took."""
    models = (seeded_model(w).to(device.torch_name) for _ in range(2))
    weights = perturbed(seeded_model(w).to(device.torch_name), 0, 0.0)
    baseline, candidate = (Step(w, model, at, device) for model, at in zip(models, (EAGER, plan), strict=True))
    change(candidate.model)
    batch = to_device(w.inputs(11), device)
    for _ in range(WARM_CALLS + 1 if plan.capture else 0):
        candidate(batch)
    count, run = [0], candidate._run

    def counted(batch: Any) -> Any:
        count[0] += 1
        return run(batch)

    candidate._run = counted  # type: ignore[assignment]
    with full_precision():
        return other_masks(baseline, candidate, weights, batch), count[0]


def another(path: str, how: Callable[..., torch.Tensor] = DrawsTwice.apply) -> Callable[[nn.Module], None]:
    def change(model: nn.Module) -> None:
        model.get_submodule(path).apply_it = how  # type: ignore[assignment]

    return change


def everywhere(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, Dropout):
            module.apply_it = DrawsTwice.apply


@pytest.mark.parametrize(
    ("model", "path"),
    [
        (perceptron, "2"),
        (perceptron, "5"),
        (convolutions, "3"),
        (convolutions, "7"),
        (Recurrent, "dropout"),
        (Transformer, "layers.0.of_attention"),
        (Transformer, "layers.2.of_attention"),
        (Transformer, "layers.2.residual"),
        (Transformer, "layers.3.residual2"),
        (lambda: Transformer(12), "layers.6.of_attention"),
    ],
)
def test_one_mask_of_several_is_refused(model: Callable[[], nn.Module], path: str) -> None:
    said, _ = asked(workload(model), another(path))
    assert said
    assert SAYS in said


RIGHT = [
    perceptron,
    lambda: nn.Sequential(*(layer for _ in range(10) for layer in (nn.Linear(16, 16), nn.ReLU(), Dropout(0.1)))),
    lambda: nn.Sequential(nn.Linear(16, 32), nn.Tanh(), Dropout(0.5), nn.Linear(32, 8)),
    convolutions,
    Recurrent,
    Transformer,
    lambda: Transformer(activation=F.relu),
    lambda: Transformer(12),
    Noisy,
    lambda: nn.Sequential(nn.Linear(16, 8)),
]


@pytest.mark.parametrize("model", RIGHT)
def test_right_backward_passes_are_let_pass(model: Callable[[], nn.Module]) -> None:
    assert asked(workload(model))[0] is None


def test_a_right_backward_pass_takes_a_few_steps() -> None:
    assert asked(workload(Transformer)) == (None, 10)


@pytest.mark.parametrize("model", [perceptron, Transformer])
def test_clipped_gradients_are_taken_as_they_were(model: Callable[[], nn.Module]) -> None:
    w = workload(model, max_grad_norm=0.01)
    assert asked(w)[0] is None
    assert SAYS in (asked(w, everywhere)[0] or "")


def test_lack_of_memory_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: Any, **more: Any) -> None:
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr("rung.verify.gradcheck.observe", full)
    assert asked(workload(perceptron), everywhere)[0] is None


def test_one_set_of_gradients_is_held_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made: weakref.WeakSet[Any] = weakref.WeakSet()
    most = [0]

    class Counted(gradcheck._Masked):
        def __init__(self, *given: Any) -> None:
            made.add(self)
            most[0] = max(most[0], len(made))
            super().__init__(*given)

    monkeypatch.setattr(gradcheck, "_Masked", Counted)
    assert SAYS in (asked(workload(perceptron), another("2"))[0] or "")
    assert most == [1]


def test_noise_that_is_drawn_twice_is_refused() -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, mean: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(scale)
            return mean + scale.exp() * torch.randn_like(scale)

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            (scale,) = ctx.saved_tensors
            return gradients[0], gradients[0] * scale.exp() * torch.randn_like(scale)

    class Wrong(Noisy):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.decoder(Twice.apply(*self.encoder(x).chunk(2, -1)))

    assert SAYS in (asked(workload(Noisy), lambda model: setattr(model, "__class__", Wrong))[0] or "")


def test_where_gradients_are_no_derivative_nothing_is_said() -> None:
    w = workload(Rounded)
    assert asked(w)[0] is None
    assert asked(w, everywhere)[0] is None


def test_numbers_that_do_not_follow_the_seed_are_not_refused() -> None:
    own = torch.Generator().manual_seed(5)

    def drop(x: torch.Tensor, p: float) -> torch.Tensor:
        return x * (torch.rand(x.shape, generator=own) >= p) / (1 - p)

    assert asked(workload(perceptron), another("2", drop))[0] is None


def test_compiled_code_is_asked_too() -> None:
    w, plan = workload(lambda: nn.Sequential(nn.Linear(16, 32), Dropout(0.1), nn.Linear(32, 8))), Plan(compile=True)
    assert asked(w, plan=plan)[0] is None
    assert SAYS in (asked(w, another("1", draws_twice), plan)[0] or "")


class OtherSeed(torch.autograd.Function):
    """Attention whose backward pass finds its mask anew, from the seed of its forward pass and `further`."""

    @staticmethod
    def forward(ctx: Any, further: int, *given: torch.Tensor) -> torch.Tensor:
        seed = draw_seed(given[0].device)
        ctx.save_for_backward(*given, seed + further)
        return attention(*given, dropout_p=0.1, seed=seed)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        *saved, seed = ctx.saved_tensors
        given = [t.detach().requires_grad_() for t in saved]
        with torch.enable_grad():
            result = attention(*given, dropout_p=0.1, seed=seed)
        return None, *torch.autograd.grad(result, given, gradients)


def attention(q: torch.Tensor, *others: torch.Tensor, **how: Any) -> torch.Tensor:
    return (kernels if q.is_cuda else reference).biased_attention(q, *others, **how)


class Biased(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project, self.out, self.dropout = nn.Linear(16, 48), nn.Linear(16, 8), 0.1
        self.bias = nn.Parameter(torch.zeros(1, 1, 4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.attend(*self.project(x.view(-1, 1, 4, 16)).chunk(3, -1), self.bias)).mean((1, 2))

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.dropout((q @ k.mT / 4 + bias).softmax(-1), self.dropout) @ v


def fused(further: int) -> Callable[[nn.Module], None]:
    return lambda model: setattr(model, "attend", lambda *given: OtherSeed.apply(further, *given))


def test_a_mask_from_another_seed_is_refused() -> None:
    w = workload(Biased)
    assert asked(w, fused(0))[0] is None
    assert SAYS in (asked(w, fused(1))[0] or "")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("capture", [False, True])
def test_kernels_and_recorded_steps_are_asked_too(capture: bool) -> None:
    plan, gpu, w = Plan(capture=capture), pick("cuda"), workload(Biased)

    def kernel(model: nn.Module) -> None:
        model.attend = lambda *given: kernels.biased_attention(*given, dropout_p=0.1)  # type: ignore[assignment]

    assert asked(w, kernel, plan, gpu)[0] is None
    assert asked(w, fused(0), plan, gpu)[0] is None
    assert SAYS in (asked(w, fused(1), plan, gpu)[0] or "")
    assert asked(workload(Transformer), plan=plan, device=gpu)[0] is None
    assert SAYS in (asked(workload(Transformer), another("layers.2.of_attention"), plan, gpu)[0] or "")


def test_verification_refuses_another_mask_alone() -> None:
    """Its outputs and gradients are distributed as the untouched model's."""
    w = replace(workload(perceptron), one_shape=True)

    def failures(change: Callable[[nn.Module], None]) -> list[str]:
        def build(model: nn.Module, at: Plan) -> Step:
            step = Step(w if active(model) else without_dropout(w), model, at, CPU)
            change(step.model)
            return step

        found = verify(w, EAGER, CPU, build)
        assert found.checks
        return found.record().failures

    assert failures(lambda model: None) == []
    (said,) = failures(everywhere)
    assert SAYS in said
