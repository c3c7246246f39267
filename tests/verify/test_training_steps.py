"""What a few optimizer steps do to the weights: which elements say who computed it, and which say nothing."""

import pytest
import torch
from torch import nn

from rung.hardware import pick
from rung.plan import Numerics
from rung.verify.sign_ambiguous import FEWEST, SignAmbiguous
from rung.verify.training import Path, Training

NAME = "weight"


def looked_at(*gradients: torch.Tensor, numerics: Numerics = "exact") -> SignAmbiguous:
    """After steps with these gradients of the one weight of a model."""
    model, ambiguous = nn.Linear(gradients[0].shape[1], gradients[0].shape[0], bias=False), SignAmbiguous(numerics)
    for gradient in gradients:
        model.weight.grad = gradient
        ambiguous.add_reference(model)
    return ambiguous


def error(ambiguous: SignAmbiguous, right: torch.Tensor, theirs: torch.Tensor) -> float:
    training = Training(3, lambda k: None, pick("cpu"))
    [row] = training.rows({NAME: right}, {NAME: right.clone()}, {NAME: theirs}, ambiguous)
    return row.error


def turned(change: torch.Tensor, *place: int) -> torch.Tensor:
    found = change.clone()
    found[place] *= -1
    return found


def test_an_element_whose_gradient_rounding_decides_may_go_the_other_way_and_no_other_may() -> None:
    torch.manual_seed(0)
    first, second = (torch.randn(30, 40) for _ in range(2))
    first[3, 4], second[5, 6] = 1e-9, 1e-9
    ambiguous, change = looked_at(first, second), torch.randn(30, 40).sign()
    assert error(ambiguous, change, turned(turned(change, 3, 4), 5, 6)) == 0
    assert error(ambiguous, change, turned(change, 7, 8)) > 0.01
    assert error(SignAmbiguous(), change, turned(change, 3, 4)) > 0.01


def test_as_few_are_left_out_as_a_thousandth_a_step() -> None:
    torch.manual_seed(0)
    ambiguous = looked_at(*(torch.randn(100, 90) for _ in range(3)))
    assert 0 < int(ambiguous.elements[NAME].sum()) <= 3 * 9


def test_what_tf32_leaves_undecided_is_left_out_where_products_are_tf32() -> None:
    """Of a norm's weight of 1024, as each of its steps' gradients is off by 0.4 %: the signs that turn are chance."""
    torch.manual_seed(0)
    right = [torch.randn(1, 1024) for _ in range(3)]
    theirs = [gradient + 0.004 * torch.randn(1, 1024) for gradient in right]
    change, other = (sum(step.sign() for step in steps) for steps in (right, theirs))
    assert error(looked_at(*right), change, other) > 0.03
    assert error(looked_at(*right, numerics="tf32"), change, other) == 0


def test_the_end_of_a_weight_that_an_optimizer_forgets_shows() -> None:
    torch.manual_seed(0)
    ambiguous, change = looked_at(torch.randn(40, 50)), torch.randn(40, 50).sign()
    forgotten = change.clone()
    forgotten.view(-1)[-3:] = 0
    assert error(ambiguous, change, forgotten) > 0.01


def test_rows_without_a_gradient_are_compared() -> None:
    """As an embedding's unused rows are: whatever moves them is wrong, or decays them."""
    gradient = torch.zeros(40, 50)
    gradient[:4] = torch.randn(4, 50)
    ambiguous, change = looked_at(gradient), gradient.sign()
    moved = change.clone()
    moved[20, 3] = 1.0
    assert error(ambiguous, change, moved) > 0.01


def test_of_few_elements_none_is_left_out() -> None:
    ambiguous = looked_at(torch.randn(1, FEWEST - 1))
    assert ambiguous.elements == {}
    assert looked_at(torch.randn(1, FEWEST)).elements[NAME].sum() == 1


def test_a_large_weight_is_judged_by_a_sample_of_it() -> None:
    torch.manual_seed(0)
    gradient = torch.randn(1500, 2000)
    gradient[777, 1] = 1e-12
    found = looked_at(gradient).elements[NAME]
    assert found[777, 1]
    assert 2000 < int(found.sum()) < 4000


def compared(right: torch.Tensor, own: torch.Tensor) -> SignAmbiguous:
    """After a step with this gradient in the reference and that one in the untouched model, in bfloat16."""
    ambiguous = looked_at(right, numerics="bf16")
    model = nn.Linear(right.shape[1], right.shape[0], bias=False)
    model.weight.grad = own
    ambiguous.add_baseline(model)
    return ambiguous


def test_of_few_elements_those_are_left_out_that_the_untouched_model_is_no_surer_of() -> None:
    torch.manual_seed(0)
    right = torch.randn(1, 32).sign() * torch.linspace(0.5, 2, 32)
    right[0, 3] = 0.01
    ambiguous, change = compared(right, right + 0.01 * torch.randn(1, 32)), right.sign()
    assert int(ambiguous.elements[NAME].sum()) == 1
    assert error(ambiguous, change, turned(change, 0, 3)) == 0
    assert error(ambiguous, change, turned(change, 0, 4)) > 0.3
    assert error(ambiguous, change, 0.9 * change) > 0.09


def test_what_is_left_out_counts_for_the_untouched_model() -> None:
    """It was chosen by that model's errors: without it, that model would never be off."""
    right = torch.ones(1, 32)
    right[0, 3] = 0.01
    ambiguous, change = compared(right, right - 0.02), torch.ones(1, 32)
    [row] = Training(1, lambda k: None, pick("cpu")).rows(
        {NAME: change}, {NAME: turned(change, 0, 3)}, {NAME: turned(change, 0, 3)}, ambiguous
    )
    assert row.error == 0
    assert row.noise == pytest.approx(2 / 32**0.5)


def test_an_element_whose_steps_cancel_out_is_measured_by_what_others_change() -> None:
    """It was the only one left of 20 in a bias of efficientnet_b0: its change had another sign, and gradients were as exact as ever."""
    right = torch.full((1, 20), 0.01)
    right[0, 0] = 1.0
    ambiguous, change = compared(right, right + 0.1), torch.ones(1, 20)
    assert int(ambiguous.elements[NAME].sum()) == 19
    change[0, 0] = 0.1
    assert error(ambiguous, change, turned(change, 0, 0)) == pytest.approx(0.2, rel=0.05)
    forgotten = change.clone()
    forgotten[0, 0] = 3.0
    assert error(ambiguous, change, forgotten) > 2.9


def test_unused_rows_are_measured_by_their_own_change_where_all_used_ones_are_left_out() -> None:
    """Their decay is next to nothing beside the steps of used rows: of a table of biases whose gradients were faint, it could be forgotten."""
    right = torch.zeros(1, 400)
    right[0, :20] = 0.01
    ambiguous, change = compared(right, right + 0.1), torch.full((1, 400), 1e-5)
    change[0, :20] = 1e-3
    assert int(ambiguous.elements[NAME].sum()) == 20
    forgotten = change.clone()
    forgotten[0, 20:] = 0
    assert error(ambiguous, change, change) == 0
    assert error(ambiguous, change, forgotten) == pytest.approx(1)
    assert error(ambiguous, change, torch.where(right == 0, 2 * change, change)) == pytest.approx(1)


def test_what_is_rounding_alone_says_nothing_and_what_has_no_gradient_is_compared() -> None:
    right, own = 1e-17 * torch.randn(4, 8), 1e-9 * torch.randn(4, 8)
    right[3] = 0
    ambiguous, change = compared(right, own), torch.ones(4, 8)
    assert error(ambiguous, change, turned(change, 0)) == 0
    assert error(ambiguous, change, turned(change, 3)) > 1


class Descent:
    """A step of a network in which every weight depends on every other."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh(), nn.Linear(4, 1, bias=False)).double()

    def fresh(self) -> None:
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5)

    def __call__(self, batch: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        self.model(batch).square().sum().backward()
        self.optimizer.step()


@pytest.mark.parametrize("kept", [True, False])
def test_what_one_step_does_to_one_element_is_not_in_the_next_steps_of_all(kept: bool) -> None:
    step, taken = Descent(), []
    weights = {name: w.detach().clone() for name, w in step.model.named_parameters()}
    path = Path(weights, 3, pick("cpu"))
    training = Training(3, lambda k: torch.full((2, 4), k + 1.0).double(), pick("cpu"))
    truth = training.change(step, lambda k: None if k else weights, after=path.keep if kept else lambda model: None)
    ends = {name: w.detach().clone() for name, w in step.model.named_parameters()}
    for name, changed in truth.items():
        torch.testing.assert_close(changed, ends[name] - weights[name])

    def slipping(step: Descent, batch: torch.Tensor) -> None:
        step(batch)
        if not taken:
            with torch.no_grad():
                step.model[0].weight[0, 0] += 0.25
        taken.append(batch)

    theirs = training.change(step, path.start, slipping)
    off = {name: theirs[name] - changed for name, changed in truth.items()}
    if kept:
        assert off["0.weight"][0, 0] == pytest.approx(0.25)
    off["0.weight"][0, 0] = 0
    assert all(bool((t.abs() < 1e-12).all()) == kept for t in off.values())
