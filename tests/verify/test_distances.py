"""How far tensors are apart: what is looked at in pieces is what the formula gives of the whole."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rung.engine.step import Step
from rung.hardware import pick
from rung.plan import Plan
from rung.verify import distances as far
from rung.verify import observe as observing
from rung.verify import training as trained
from rung.verify.distances import distance, distances, finite, mismatched, over, overshadowed, relative, rms, scale
from rung.verify.observe import observe, rows
from rung.verify.sign_ambiguous import SignAmbiguous
from rung.verify.training import Training
from rung.verify.verify import verify
from rung.workload import Workload, seeded_model
from rung.workload.copy_model import copy_model

NUMBERS = st.floats(-1e6, 1e6, width=32)
CPU = pick("cpu")


@st.composite
def alike(draw: st.DrawFn, count: int) -> list[torch.Tensor]:
    size = draw(st.integers(0, 23))
    return [torch.tensor(draw(st.lists(NUMBERS, min_size=size, max_size=size))) for _ in range(count)]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(far, "PIECE", 5)


@given(tensors=alike(3))
def test_distances_are_root_mean_squares_of_differences(tensors: list[torch.Tensor]) -> None:
    a, b, right = tensors
    wanted = [(t.double() - right.double()).norm() for t in (a, b)] + [right.double().norm()]
    root = max(1, right.numel()) ** 0.5
    assert distances([a, b], right) == pytest.approx([float(norm) / root for norm in wanted], rel=1e-12)
    assert distance(a, right) == pytest.approx(distances([a], right)[0])
    assert rms(right) == pytest.approx(distances([], right)[0])


@given(tensors=alike(2))
def test_factors_and_shares_are_those_of_the_whole(tensors: list[torch.Tensor]) -> None:
    a, b = tensors
    size = float(b.double() @ b.double())
    assert scale(a, b) == pytest.approx(
        abs(float(a.double() @ b.double()) / size - 1) if size else 0.0, rel=1e-9, abs=1e-9
    )
    assert mismatched(a, b) == pytest.approx(float((a != b).double().mean()) if a.numel() else 0.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 7, 11])
def test_what_is_not_finite_is_infinitely_far(bad: float, place: int) -> None:
    good, wrong = torch.ones(12), torch.ones(12)
    wrong[place] = bad
    assert (finite(good), finite(wrong)) == (True, False)
    assert distances([wrong, good], good) == [math.inf, 0.0, 1.0]
    assert (distance(wrong, good), scale(wrong, good)) == (math.inf, math.inf)


def test_another_shape_is_infinitely_far_and_the_others_are_not() -> None:
    assert distances([torch.ones(3), torch.zeros(4)], torch.ones(4)) == [math.inf, 1.0, 1.0]
    assert (mismatched(torch.ones(3), torch.ones(4)), scale(torch.ones(3), torch.ones(4))) == (math.inf, math.inf)


def test_a_sparse_tensor_is_compared_as_it_is_stored() -> None:
    right = torch.sparse_coo_tensor(torch.tensor([[1, 6]]), torch.tensor([3.0, 4.0]), (9,)).coalesce()
    other = torch.sparse_coo_tensor(torch.tensor([[1, 7]]), torch.tensor([3.0, 4.0]), (9,)).coalesce()
    assert relative(right, right) == 0.0
    assert distance(other, right) == pytest.approx((32 / 9) ** 0.5)
    assert distance(right.to_dense(), right) == math.inf


@given(tensors=alike(3), seed=st.integers(0, 100), few=st.sampled_from([0, 8, 32]))
def test_changes_of_weights_are_looked_at_without_what_rounding_tells(
    tensors: list[torch.Tensor], seed: int, few: int
) -> None:
    """In pieces as at once. few: elements, of which fewer are measured by what all of them change."""
    right, mine, theirs = (t.double() for t in tensors)
    ambiguous, left_out = (
        SignAmbiguous("bf16"),
        torch.rand(right.shape, generator=torch.Generator().manual_seed(seed)) < 0.3,
    )
    if seed % 3:
        ambiguous.elements["w"] = left_out
    else:
        left_out = torch.zeros_like(left_out)
    training = Training(3, lambda k: None, CPU)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trained, "FEW_LEFT", few)
        found = training.rows({"w": right}, {"w": mine}, {"w": theirs}, ambiguous)
    if not (bool(right.any()) or bool(theirs.any())):
        assert found == []
        return
    told, own, other = (t[~left_out] for t in (right, mine, theirs))
    most = 2 * float(right.abs().max())
    too_large = bool((theirs[left_out].abs() > most).any())
    size = max(rms(told), rms(right)) if told.numel() < few else rms(told)
    error = math.inf if too_large else over(rms(other - told), size)
    noise = max(over(rms(own - told), size), relative(mine, right))
    assert (found[0].error, found[0].noise) == (pytest.approx(error), pytest.approx(noise))


def groups(own: torch.Tensor, right: torch.Tensor) -> dict[str, list[bool]]:
    return {group.name: group.elements.tolist() for group in overshadowed(own, right)}


def test_small_elements_are_a_group_below_each_gap() -> None:
    right = torch.tensor([-1e9] * 3 + [0.5] * 6 + [1e-6] * 8 + [3.0, 0.0], dtype=torch.float64)
    below = [size < 1e9 for size in right.abs()]
    least = [size < 0.1 for size in right.abs()]
    assert groups(right.float() * (1 + 1e-6), right) == {"small elements": below, "small elements 2": least}
    few = torch.tensor([1e9] * 12 + [1.0] * 7, dtype=torch.float64)
    assert groups(few * (1 + 1e-6), few) == {}


@pytest.mark.parametrize("seed", range(20))
def test_numbers_that_are_spread_are_of_one_group(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for right in (torch.randn(300, generator=generator), torch.randn(300, generator=generator).mul(3).exp()):
        assert groups(right * (1 + 1e-6), right.double()) == {}


def test_what_rounding_changes_is_a_group_where_all_else_is_far_larger() -> None:
    right = torch.arange(1.0, 5001.0, dtype=torch.float64)
    own = right.clone()
    own[:10] *= 1 + 1e-6
    assert groups(own, right) == {"rounded elements": [True] * 10 + [False] * 4990}
    assert groups(own[:1000], right[:1000]) == {}


def test_the_smallest_number_of_a_format_is_the_same_in_the_reference() -> None:
    right = torch.tensor([torch.finfo(torch.float64).min, 2.0], dtype=torch.float64)
    for dtype in (torch.float32, torch.bfloat16):
        own = torch.tensor([torch.finfo(dtype).min, 2.0], dtype=dtype)
        assert distances([own, own], right)[:2] == [0.0, 0.0]
        assert scale(own, right) == pytest.approx(0.0, abs=1e-12)
    assert distances([-right, right * 0.5], right) == pytest.approx(
        [2 * rms_of(right), 0.5 * rms_of(right), rms_of(right)]
    )
    assert distances([torch.full((2,), 3e38)], torch.tensor([math.inf, 1.0]))[0] == math.inf


def rms_of(right: torch.Tensor) -> float:
    return float(right.abs().max()) / math.sqrt(right.numel())


class Scaled(torch.nn.Module):
    """Numbers without a dimension: one that trains, one that is frozen, one that no loss depends on, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.trained, self.unused = (torch.nn.Parameter(torch.tensor(1.5)) for _ in range(2))
        self.frozen = torch.nn.Parameter(torch.tensor(0.5), requires_grad=False)
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.trained * self.scale + self.frozen


def test_numbers_without_a_dimension_are_verified() -> None:
    workload = Workload(
        name="scaled",
        model=Scaled,
        inputs=lambda seed: torch.randn(8, 8, generator=torch.Generator().manual_seed(seed)),
        loss=lambda output, batch: output.square().mean(),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
    )
    found = verify(workload, Plan(fused_optimizer=True), CPU)
    assert found.passed, found.failures


def linear() -> Workload:
    return Workload(
        name="x",
        model=lambda: torch.nn.Linear(64, 32),
        inputs=lambda seed: torch.randn(8, 64, generator=torch.Generator().manual_seed(seed)),
        loss=lambda output, batch: output.square().mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )


def test_where_gradients_are_not_compared_it_is_known_which_there_are() -> None:
    step = Step(linear(), seeded_model(linear()), Plan(), CPU)
    seen = observe(step, None, linear().inputs(1), gradients=False)
    assert {name: g is not None and g.numel() for name, g in seen.gradients.items()} == {"weight": 0, "bias": 0}


@pytest.mark.parametrize("bad", [0.0, math.inf])
@pytest.mark.parametrize("large", [False, True])
def test_what_is_not_finite_is_seen_wherever_it_lies(monkeypatch: pytest.MonkeyPatch, large: bool, bad: float) -> None:
    """Here in gradients and the loss; the output is finite."""
    if large:
        monkeypatch.setattr(observing, "LARGE", 0)
    workload = replace(linear(), loss=lambda output, batch: output.square().mean() + bad * output.sum())
    seen = observe(Step(workload, seeded_model(workload), Plan(), CPU), None, workload.inputs(1))
    assert seen.finite == (not bad)
    assert (seen.was_finite is None) == (not large)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_what_lies_in_the_hosts_memory_is_compared_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    device = pick("cuda")
    model = seeded_model(linear()).to(device.torch_name)

    def compared() -> tuple[list[observing.Row], set[str]]:
        runs = [
            observe(
                Step(linear(), copy_model(model), Plan(), device), None, linear().inputs(seed).to(device.torch_name)
            )
            for seed in (1, 2, 3)
        ]
        return rows(*runs, "x"), {t.device.type for run in runs for t in run.values.values()}

    on_the_gpu, places = compared()
    monkeypatch.setattr(observing, "LARGE", 0)
    moved, away = compared()
    assert (places, away) == ({"cuda"}, {"cpu"})
    assert [row.what for row in moved] == [row.what for row in on_the_gpu]
    assert [row.error for row in moved] == pytest.approx([row.error for row in on_the_gpu], rel=1e-6)
