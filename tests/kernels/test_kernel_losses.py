"""Cross-entropy against float64."""

from functools import partial

import pytest
import torch
from kernel_agreement import agree, run, strided, tensor, wide

from rung import kernels
from rung.errors import UsageError
from rung.kernels import reference

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]


def targets(rows: int, classes: int, device: str, ignored: int = -100) -> torch.Tensor:
    found = torch.randint(0, classes, (rows,))
    found[1::3] = ignored
    return found.to(device)


def both(**options):
    return partial(kernels.cross_entropy, **options), partial(reference.cross_entropy, **options)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy_agrees_with_float64(reduction: str, smoothing: float, dtype: torch.dtype, device: str) -> None:
    options = {"reduction": reduction, "label_smoothing": smoothing}
    x = tensor(7, 1001, dtype=dtype, device=device)
    ours, truth = both(**options)
    # The loss itself is float32: as close as float32 allows. The gradient has the dtype of the logits.
    # The smoothing is a float32 number in any of them.
    tolerance = 1e-7 if smoothing and dtype == torch.float64 else None
    given = x, targets(7, 1001, device)
    agree(lambda *a: ours(*a).to(dtype), lambda *a: truth(*a).to(a[0].dtype), *given, tolerance=tolerance)


def test_the_loss_is_float32_whatever_the_logits_are(device: str) -> None:
    x, t = tensor(7, 1001, dtype=torch.bfloat16, device=device), targets(7, 1001, device)
    loss = kernels.cross_entropy(x, t)
    assert loss.dtype == torch.float32
    assert abs(float(loss) - float(reference.cross_entropy(x.double(), t))) < 1e-5


@pytest.mark.parametrize("classes", [1, 5, 128, 8193, 20000])
def test_any_number_of_classes(classes: int, device: str) -> None:
    agree(*both(label_smoothing=0.2), tensor(3, classes, device=device), targets(3, classes, device))


@pytest.mark.parametrize("kind", ["slice", "swapped", "columns"])
def test_strides_of_logits_do_not_matter(kind: str, device: str) -> None:
    x = strided(kind, tensor(2, 3, 55, device=device))
    agree(*both(), x, torch.randint(0, 55, (2, 3)).to(device))


def test_masked_classes_and_large_logits(device: str) -> None:
    x = (tensor(4, 300, grad=False) * 1000).to(device)
    x[:, 100:200] = float("-inf")
    x[0, :299] = float("-inf")
    agree(*both(), x.requires_grad_(), torch.tensor([299, 0, 250, 42]).to(device))


def test_what_is_ignored_counts_for_nothing(device: str) -> None:
    x = tensor(4, 10, device=device)
    loss, dx = run(partial(kernels.cross_entropy, ignore_index=3), (x, torch.tensor([3, 1, 3, 2]).to(device)))
    assert torch.isfinite(loss)
    assert float(dx[0].abs().sum() + dx[2].abs().sum()) == 0
    assert torch.isnan(kernels.cross_entropy(x, torch.full((4,), -100).to(device)))  # as torch: the mean of nothing


@pytest.mark.parametrize("bad", [10, -1, 1 << 40])
def test_a_target_that_is_no_class_shows(bad: int, device: str) -> None:
    loss, dx = run(partial(kernels.cross_entropy, reduction="none"), (tensor(2, 10, device=device), torch.tensor([1, bad]).to(device)))  # fmt: skip
    assert torch.isnan(loss).tolist() == [False, True]
    assert torch.isnan(dx).any(1).tolist() == [False, True]


def test_no_less_precise_than_eager(device: str) -> None:
    """Root mean square error of the gradient against float64. In float16: the interpreter truncates to bfloat16."""
    x, t = tensor(64, 96, dtype=torch.float16, device=device), targets(64, 96, device)
    ours, truth = both(reduction="sum")
    dx, eager, exact = (run(fn, (given, t))[1].double() for fn, given in ((ours, x), (truth, x), (truth, wide(x))))
    assert (dx - exact).square().mean() <= 1.05 * (eager - exact).square().mean()


def test_no_rows(device: str) -> None:
    x, t = tensor(0, 16, device=device), targets(0, 16, device)
    for reduction, loss in (("none", torch.zeros(0)), ("sum", torch.zeros(())), ("mean", torch.tensor(torch.nan))):
        found, dx = run(partial(kernels.cross_entropy, reduction=reduction), (x, t))
        torch.testing.assert_close(found.cpu(), loss, equal_nan=True)
        assert dx.shape == x.shape


def test_losses_that_do_not_fit_are_refused(device: str) -> None:
    x, t = tensor(2, 5, device=device), torch.tensor([1, 2]).to(device)
    with pytest.raises(UsageError, match="one of mean, sum, none"):
        kernels.cross_entropy(x, t, reduction="avg")
    with pytest.raises(UsageError, match="label_smoothing is 2"):
        kernels.cross_entropy(x, t, label_smoothing=2)
    with pytest.raises(UsageError, match="all but the last size"):
        kernels.cross_entropy(x, t[:1])
    with pytest.raises(UsageError, match=r"logits is torch\.complex64; the kernels take"):
        kernels.cross_entropy(x.to(torch.complex64), t)
    with pytest.raises(UsageError, match=r"logits is torch\.int64; the kernels take"):
        kernels.cross_entropy(x.long(), t)
