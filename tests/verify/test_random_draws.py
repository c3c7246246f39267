"""Workloads whose forward draws random numbers: noise, time steps, masks."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rung.engine.step import Step
from rung.errors import WorkloadError
from rung.hardware import pick
from rung.plan import Plan
from rung.verify.audit import audit, called
from rung.verify.verdict import Verification
from rung.verify.verify import verify
from rung.workload import Workload

CPU = pick("cpu")
WIDTH = 16


class Autoencoder(nn.Module):
    """Variational: what it decodes is drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean, log = self.encode(x).chunk(2, -1)
        return self.decode(mean + (log / 2).exp() * self.noise(log))  # type: ignore[no-any-return]

    def noise(self, like: torch.Tensor) -> torch.Tensor:
        return torch.randn_like(like)


class Denoiser(Autoencoder):
    """Diffusion: a step, and noise of its size."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        t = torch.randint(0, 10, (len(x), 1))
        noised = x + t.to(x.dtype) / 10 * self.noise(x)
        return self.decode(torch.tanh(self.encode(noised)[:, :WIDTH])) * (1 + t)


class Masked(Autoencoder):
    """A masked autoencoder: which elements it sees is decided by the order of what is drawn."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = torch.rand(x.shape).argsort(-1)[:, : WIDTH // 2]
        return self.decode(torch.tanh(self.encode(torch.zeros_like(x).scatter(1, seen, x.gather(1, seen)))[:, :WIDTH]))  # type: ignore[no-any-return]


class Sampled(Autoencoder):
    """Chosen rows, a mask of ones and zeros, and Gumbel noise."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = torch.multinomial(torch.ones(len(x)), len(x), replacement=True)
        gumbel = -torch.empty_like(x).exponential_().log()
        kept = torch.bernoulli(torch.full_like(x, 0.5))
        return self.decode(torch.softmax(self.encode(x[rows])[:, :WIDTH] + gumbel, -1) * kept)  # type: ignore[no-any-return]


class Mixed(Autoencoder):
    """Mixup: a share of a beta distribution, of which torch draws a Dirichlet's."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        share = torch.distributions.Beta(0.4, 0.4).sample().to(x.dtype)
        mixed = share * x + (1 - share) * x[torch.randperm(len(x))]
        return self.decode(torch.tanh(self.encode(mixed)[:, :WIDTH]))  # type: ignore[no-any-return]


class OfImages(Autoencoder):
    """Noise in the layout of a convolution's output, which Inductor would have channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 1, 3, padding=1)  # type: ignore[assignment]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.encode(x.reshape(-1, 1, 4, 4))
        return self.decode(h + self.noise(h)).reshape(x.shape)  # type: ignore[no-any-return]


class SkippedByChance(Autoencoder):
    """A layer that has no gradient in some runs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.encode(x)[:, :WIDTH])
        return x + h if torch.rand(()) < 0.5 else x + self.decode(h)


class FixedDropout(Autoencoder):
    """A rate that is written into the call."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.decode(F.dropout(torch.tanh(self.encode(x)[:, :WIDTH]), 0.3))  # type: ignore[no-any-return]


class PutsBack(Autoencoder):
    """torch's generator is where it was before."""

    def noise(self, like: torch.Tensor) -> torch.Tensor:
        with torch.random.fork_rng():
            return torch.randn_like(like)


class OwnGenerator(Autoencoder):
    def noise(self, like: torch.Tensor) -> torch.Tensor:
        return torch.randn(like.shape, dtype=like.dtype, generator=torch.Generator().manual_seed(3))


class GeneratorFromTheSeed(Autoencoder):
    def noise(self, like: torch.Tensor) -> torch.Tensor:
        own = torch.Generator().manual_seed(torch.initial_seed())
        return torch.randn(like.shape, dtype=like.dtype, generator=own)


ASIDE = [PutsBack, OwnGenerator, GeneratorFromTheSeed]  # torch's generator does not say that they draw
MODELS = [Autoencoder, Denoiser, Masked, Sampled, Mixed, OfImages, SkippedByChance, FixedDropout, *ASIDE]


def workload(
    model: Callable[[], nn.Module] = Autoencoder, mode: str = "train", dtype: torch.dtype | None = None
) -> Workload:
    def inputs(seed: int) -> torch.Tensor:
        x = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(seed))
        return x if dtype is None else x.to(dtype)

    training: dict[str, Any] = {
        "loss": lambda output, x: F.mse_loss(output.float(), x.float()),
        "optimizer": lambda p: torch.optim.AdamW(p, 1e-3),
    }
    return Workload(
        "draws", lambda: model().to(dtype or torch.float32), inputs, **(training if mode == "train" else {})
    )


@pytest.mark.parametrize("model", MODELS)
def test_a_forward_that_draws_is_told_from_one_with_dropout(model: Callable[[], nn.Module]) -> None:
    assert called(workload(model), CPU).draws
    assert not called(workload(lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.1))), CPU).draws


@pytest.mark.parametrize("mode", ["train", "infer"])
@pytest.mark.parametrize("model", MODELS)
def test_an_untouched_workload_that_draws_is_verified_as_exactly_as_others(
    model: Callable[[], nn.Module], mode: str
) -> None:
    w = workload(model, mode)
    audit(w, CPU, random=True)
    found = verify(w, Plan(), CPU)
    assert found.passed, found.record().failures
    assert found.reference == "float64"
    assert max(c.noise for c in found.checks if not c.what.startswith("change")) < 1e-5, (
        "the reference has other random numbers"
    )


@pytest.mark.parametrize("model", [Autoencoder, Denoiser, FixedDropout])
def test_numbers_that_are_drawn_in_bfloat16_are_the_same_in_the_reference(model: Callable[[], nn.Module]) -> None:
    w = workload(model, dtype=torch.bfloat16)
    audit(w, CPU, random=True)
    found = verify(w, Plan(), CPU)
    assert found.passed, found.record().failures
    assert max(c.noise for c in found.checks if c.what == "loss") < 0.02


class OfAllKinds(OfImages):
    """What compiled code draws by operators of its own, unless it is told otherwise."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = torch.multinomial(torch.ones(len(x)), len(x), replacement=True)
        gumbel = -torch.empty_like(x).exponential_().log()
        h = self.encode(x[rows].reshape(-1, 1, 4, 4))
        y = self.decode(F.dropout(h + self.noise(h), 0.3)).reshape(x.shape)
        return torch.softmax(y + gumbel, -1) * torch.bernoulli(torch.full_like(x, 0.5))  # type: ignore[no-any-return]


def test_compiled_code_is_compared_on_the_numbers_that_the_untouched_model_draws() -> None:
    found = verify(replace(workload(OfAllKinds), one_shape=True), Plan(compile=True), CPU)
    assert found.passed, found.record().failures


def against(
    change: Callable[[Any], None], model: Callable[[], nn.Module] = Autoencoder, mode: str = "train"
) -> Verification:
    """A candidate whose model is changed."""

    def build(made: nn.Module, plan: Plan) -> Step:
        step = Step(workload(model, mode), made, plan, CPU)
        change(step)
        return step

    return verify(workload(model, mode), Plan(), CPU, build)


def noise(drawn: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Step], None]:
    def change(step: Step) -> None:
        step.model.noise = drawn  # type: ignore[assignment]

    return change


@pytest.mark.parametrize("mode", ["train", "infer"])
@pytest.mark.parametrize(
    "drawn",
    [
        torch.zeros_like,
        lambda like: 1.05 * torch.randn_like(like),
        lambda like: torch.randn_like(like).abs(),
        lambda like: (2 * torch.rand_like(like) - 1) * 3**0.5,
    ],
)
def test_other_random_numbers_are_refused(drawn: Callable[[torch.Tensor], torch.Tensor], mode: str) -> None:
    found = against(noise(drawn), mode=mode)
    assert found.record().failures[0].startswith("output is off by"), found.record().failures


@pytest.mark.parametrize("model", [Autoencoder, *ASIDE])
def test_a_mistake_beside_the_random_numbers_is_refused(model: Callable[[], nn.Module]) -> None:
    def change(step: Step) -> None:
        forward = step.model.encode.forward  # type: ignore[union-attr]
        step.model.encode.forward = lambda x: forward(x) * 1.001  # type: ignore[union-attr,method-assign,operator]

    assert against(change, model).wrong


@pytest.mark.parametrize("model", ASIDE)
def test_numbers_of_another_generator_that_are_lost_are_refused(model: Callable[[], nn.Module]) -> None:
    assert against(noise(torch.zeros_like), model).wrong


@pytest.mark.parametrize("mode", ["train", "infer"])
def test_numbers_that_are_drawn_once_and_kept_are_refused(mode: str) -> None:
    """As a graph would replay them that does not move its generator on: equal to the untouched model's from one seed."""

    def change(step: Step) -> None:
        run = step._run

        def same(batch: Any) -> Any:
            if torch.initial_seed() == 0:  # of the runs that are drawn as they come
                torch.manual_seed(0)
            return run(batch)

        step._run = same  # type: ignore[assignment]

    found = against(change, mode=mode)
    assert any("the same results in every run" in said for said in found.record().failures), found.record().failures


class Noisy(Autoencoder):
    """A layer that learns how large its noise is: all of it begins at one number."""

    def __init__(self) -> None:
        super().__init__()
        self.size = nn.Parameter(torch.full((WIDTH, WIDTH), 0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.decode(torch.tanh(F.linear(x, self.encode.weight[:WIDTH] + self.size * self.noise(self.size))))  # type: ignore[no-any-return]


def test_a_gradient_through_noise_of_one_size_is_compared() -> None:
    def change(step: Step) -> None:
        step.model.size.register_hook(lambda gradient: 1.01 * gradient)  # type: ignore[union-attr]

    assert verify(workload(Noisy), Plan(), CPU).passed
    assert any(said.startswith("gradient of size is off") for said in against(change, Noisy).record().failures)


def test_more_random_numbers_than_the_untouched_model_draws_are_refused() -> None:
    def also(like: torch.Tensor) -> torch.Tensor:
        torch.randn(3)
        return torch.randn_like(like)

    assert against(noise(also)).wrong


def test_a_candidate_that_keeps_the_seed_from_being_set_is_refused_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "manual_seed", torch.manual_seed)  # whatever comes of it

    def unseeded(like: torch.Tensor) -> torch.Tensor:
        torch.manual_seed = lambda seed: torch.default_generator  # type: ignore[assignment]
        return torch.randn_like(like)

    found = against(noise(unseeded)).record().failures
    assert "the candidate replaces torch.manual_seed for the whole process" in found, found


class DependsOnWeights(Autoencoder):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.decode(x) * torch.bernoulli(torch.sigmoid(10 * self.encode(x)[:, :WIDTH]))  # type: ignore[no-any-return]


class SampledOnItsOwn(Autoencoder):
    """From one seed always, so only float64 would draw others."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        likely = torch.sigmoid(10 * self.encode(x)[:, :WIDTH])
        return self.decode(x) * torch.bernoulli(likely, generator=torch.Generator().manual_seed(3))  # type: ignore[no-any-return]


class OfNumpy(Autoencoder):
    def noise(self, like: torch.Tensor) -> torch.Tensor:
        return torch.full_like(like, np.random.default_rng().normal())


class InAttention(Autoencoder):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = self.decode(x)[None, None]
        return F.scaled_dot_product_attention(q, q, q, dropout_p=0.3)[0, 0]


@pytest.mark.parametrize(
    ("model", "random", "says"),
    [
        (DependsOnWeights, True, "what is drawn depends on the weights"),
        (SampledOnItsOwn, True, "its forward draws random numbers, and what is drawn depends on the weights"),
        (OfNumpy, True, "random numbers of numpy or Python"),
        (Autoencoder, False, "depends on torch's random state, so no candidate"),
    ],
)
def test_numbers_that_nobody_else_can_be_given_are_refused_with_the_reason(
    model: Callable[[], nn.Module], random: bool, says: str
) -> None:
    with pytest.raises(WorkloadError, match=says):
        audit(workload(model), CPU, random=random)


def test_a_workload_whose_numbers_depend_on_its_weights_is_compared_with_nothing() -> None:
    """Though nobody has audited it."""
    with pytest.raises(WorkloadError, match="depends on the weights"):
        verify(workload(DependsOnWeights), Plan(), CPU)


def test_dropout_within_attention_on_a_cpu_is_a_random_number_like_others() -> None:
    audit(workload(InAttention), CPU, random=True)
    found = verify(workload(InAttention), Plan(), CPU)
    assert found.passed, found.record().failures


def test_a_workload_that_draws_and_has_dropout_is_verified_without_and_with_it() -> None:
    class Both(Autoencoder):
        def __init__(self) -> None:
            super().__init__()
            self.dropout = nn.Dropout(0.5)

        def noise(self, like: torch.Tensor) -> torch.Tensor:
            return self.dropout(torch.randn_like(like))  # type: ignore[no-any-return]

    def lost(step: Step) -> None:
        step.model.dropout.forward = lambda x: x  # type: ignore[union-attr,method-assign]

    audit(workload(Both), CPU, random=True)
    assert verify(workload(Both), Plan(), CPU).passed
    assert any("has another distribution" in said for said in against(lost, Both).record().failures)


def test_another_shape_draws_numbers_of_its_own() -> None:
    w = workload()
    found = verify(replace(w, other_shapes=(lambda seed: w.inputs(seed)[:5],)), Plan(), CPU)
    assert found.passed, found.record().failures
