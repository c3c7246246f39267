"""Networks whose gradients jump: rounding decides on which side of a kink a value lies."""

import torch
from torch import nn
from torch.nn import functional as F

from rung.engine.step import Step
from rung.hardware import pick
from rung.plan import Plan
from rung.verify.observe import Row
from rung.verify.perturb import perturbed
from rung.verify.randomness import other_randomness
from rung.verify.tolerance import MOST, allow_jumps, judge
from rung.verify.verify import verify
from rung.workload import Workload

CPU = pick("cpu")
NEAR = 4e-6


def crossed(x: torch.Tensor) -> torch.Tensor:
    """With what is as near to zero as rounding reaches on its other side."""
    return torch.where(x.detach().abs() < NEAR * x.detach().std(), -x, x)


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.second, self.norm2 = nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32)
        self.dropout, self.out = nn.Dropout(0.1), nn.Linear(32, 10)
        self.rounded = nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.first(x))), 2)
        return self.out(self.dropout(F.relu(self.rounded(self.norm2(self.second(x)))).mean((2, 3))))  # type: ignore[no-any-return]


def workload() -> Workload:
    def inputs(seed: int) -> dict[str, torch.Tensor]:
        draw = torch.Generator().manual_seed(seed)
        return {"x": torch.randn(16, 3, 32, 32, generator=draw), "y": torch.randint(0, 10, (16,), generator=draw)}

    return Workload(
        "convolutions", Convolutions, inputs, forward=lambda model, batch: model(batch["x"]),
        loss=lambda output, batch: F.cross_entropy(output, batch["y"]), optimizer=lambda p: torch.optim.SGD(p, 0.1),
    )  # fmt: skip


def rounding(model: nn.Module, plan: Plan) -> Step:
    """Its rounding takes values to the other side of their kink."""
    model.rounded.forward = crossed  # type: ignore[union-attr,assignment,method-assign]
    return Step(workload(), model, plan, CPU)


def shrinking(model: nn.Module, plan: Plan) -> Step:
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient * 0.995)
    return rounding(model, plan)


def test_a_candidate_that_rounds_otherwise_may_cross_kinks() -> None:
    found = verify(workload(), Plan(), CPU, rounding)
    assert found.passed, found.record().failures
    crossed = [check for check in found.checks if check.error > 30 * check.noise]
    assert crossed  # without what kinks may do, it would be refused
    assert all(check.what.startswith(("gradient", "change")) for check in crossed)


def test_gradients_that_are_a_little_too_small_are_refused_beside_kinks() -> None:
    found = verify(workload(), Plan(), CPU, shrinking)
    assert not found.passed
    assert any("gradient of out.weight" in failure for failure in found.record().failures)


def test_what_kinks_may_do_is_looked_for_where_it_could_be_the_reason_and_believed_up_to_a_limit() -> None:
    def passes(error: float, moved: list[float]) -> tuple[bool, int]:
        draws = iter([*moved, *[1e-6] * 16])
        asked = []

        def look(moves: object) -> list[Row]:
            asked.append(moves)
            return [Row("gradient of w", "case", next(draws), 1e-6)]

        found = allow_jumps([Row("gradient of w", "case", error, 1e-6)], look)
        return all(check.passed for check in judge(found, "exact")), len(asked)

    assert passes(2e-5, []) == (True, 0)  # rounding
    assert passes(3e-3, [1e-6, 2e-3]) == (True, 2)
    assert passes(3e-3, [1e-3]) == (False, 16)
    farther = [1e-6] * 8
    assert passes(3e-3, [*farther, 1e-6, 2e-3]) == (True, 10)
    smooth = [1e-5 * (1 + k / 10) for k in range(8)]
    assert passes(6e-5, [*smooth, *[3.5e-5] * 8]) == (False, 16), (
        "weights moved by more move a gradient by more, without any kink"
    )
    assert passes(2 * MOST, [1.0]) == (False, 0)


def test_a_gradient_that_is_rounding_alone_is_as_it_may_under_dropout() -> None:
    """That of a bias under a batch norm is zero, and its rounding is another one in another program."""

    def step(scale: float) -> Step:
        model = Convolutions()
        model.second.bias.register_hook(lambda gradient: gradient * scale)  # type: ignore[union-attr]
        return Step(workload(), model.train(), Plan(), CPU)

    batch = workload().inputs(0)
    torch.manual_seed(0)
    baseline = step(1.0)
    other = step(10.0)
    other.model.load_state_dict(baseline.model.state_dict())
    assert other_randomness(baseline, other, perturbed(baseline.model, 0, 0.0), batch, 0) is None
