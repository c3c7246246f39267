"""Cross-entropy, and cross-entropy with its output projection, against float64."""

from functools import partial

import pytest
import torch
from kernel_agreement import agree, run, strided, tensor

from rung import kernels
from rung.errors import UsageError
from rung.kernels import reference

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]


def targets(rows: int, classes: int, device: str, ignored: int = -100) -> torch.Tensor:
    found = torch.randint(0, classes, (rows,))
    found[1::3] = ignored
    return found.to(device)


def both(name: str, **options):
    return partial(getattr(kernels, name), **options), partial(getattr(reference, name), **options)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy_agrees_with_float64(reduction: str, smoothing: float, dtype: torch.dtype, device: str) -> None:
    options = {"reduction": reduction, "label_smoothing": smoothing}
    x = tensor(7, 1001, dtype=dtype, device=device)
    ours, truth = both("cross_entropy", **options)
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
    agree(*both("cross_entropy", label_smoothing=0.2), tensor(3, classes, device=device), targets(3, classes, device))


@pytest.mark.parametrize("kind", ["slice", "swapped", "columns"])
def test_strides_of_logits_do_not_matter(kind: str, device: str) -> None:
    x = strided(kind, tensor(2, 3, 55, device=device))
    agree(*both("cross_entropy"), x, torch.randint(0, 55, (2, 3)).to(device))


def test_masked_classes_and_large_logits(device: str) -> None:
    x = (tensor(4, 300, grad=False) * 1000).to(device)
    x[:, 100:200] = float("-inf")
    x[0, :299] = float("-inf")
    agree(*both("cross_entropy"), x.requires_grad_(), torch.tensor([299, 0, 250, 42]).to(device))


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


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
def test_the_fused_projection_agrees_with_float64(bias: bool, reduction: str, dtype: torch.dtype, device: str) -> None:
    ours, truth = both("linear_cross_entropy", reduction=reduction, label_smoothing=0.05)
    h, w = tensor(9, 24, dtype=dtype, device=device), tensor(130, 24, dtype=dtype, device=device)
    given = [h, w, targets(9, 130, device)] + ([tensor(130, dtype=dtype, device=device)] if bias else [])
    # Logits are rounded to the dtype, as in eager: their errors are absolute, 2^-9 of |x| <= 16 in bfloat16.
    agree(lambda *a: ours(*a).to(dtype), lambda *a: truth(*a).to(a[0].dtype), *given, tolerance={torch.float64: 1e-8, torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 6e-2}[dtype])  # fmt: skip


def test_chunks_change_nothing(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from rung.kernels.families import linear_cross_entropy as family

    monkeypatch.setattr(family, "chunk_rows", lambda *_: 3)
    given = (tensor(2, 5, 24, device=device), tensor(50, 24, device=device), targets(10, 50, device).view(2, 5), tensor(50, device=device))  # fmt: skip
    agree(*both("linear_cross_entropy"), *given)


def test_a_chunk_is_a_part_of_the_rows(device: str) -> None:
    from rung.kernels.families.linear_cross_entropy import CHUNK_BYTES, chunk_rows

    for rows, classes in ((1, 10), (4096, 128256), (100_000, 50257), (8192, 1000)):
        step = chunk_rows(rows, classes, 2)
        assert step % 256 == 0
        assert step <= 256 or step * classes * 2 <= CHUNK_BYTES
        assert -(-rows // step) == -(-rows // max(256, CHUNK_BYTES // (classes * 2) // 256 * 256))


def test_only_the_gradients_that_are_asked_for(device: str) -> None:
    h, w, t = tensor(4, 8, device=device), tensor(20, 8, device=device), targets(4, 20, device)
    for given in ((h.detach(), w, t), (h, w.detach(), t), (h.detach(), w.detach(), t)):
        agree(*both("linear_cross_entropy"), *given)
    with torch.no_grad():
        assert not kernels.linear_cross_entropy(h, w, t).requires_grad
    # Twice through the same loss: nothing of the first pass is left in the second.
    loss = kernels.linear_cross_entropy(h, w, t)
    first = torch.autograd.grad(loss, (h, w), retain_graph=True)
    second = torch.autograd.grad(loss * 2, (h, w))
    for a, b in zip(first, second, strict=True):
        assert torch.equal(2 * a, b)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_of_no_rows_the_gradients_are_zero(reduction: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from rung.kernels.families import linear_cross_entropy as family

    fake = family._forward_fake  # memory that nobody writes may hold anything
    monkeypatch.setattr(family, "_forward_fake", lambda *given: tuple(t.fill_(7.0) for t in fake(*given)))
    h, w, b = (tensor(*shape, device=device) for shape in ((0, 16), (40, 16), (40,)))
    loss = kernels.linear_cross_entropy(h, w, targets(0, 40, device), b, reduction=reduction)
    assert float(loss) == 0.0 if reduction == "sum" else torch.isnan(loss)
    d_hidden, *others = torch.autograd.grad(loss, (h, w, b))
    assert d_hidden.shape == h.shape
    assert not any(d.any() for d in others)


def test_a_sum_divided_by_no_rows_has_gradients_of_zero_as_in_torch(device: str) -> None:
    h, w, b = (tensor(*shape, device=device) for shape in ((4, 16), (40, 16), (40,)))
    target = torch.full((4,), -100, device=device)
    for sums in both("linear_cross_entropy", reduction="sum"):
        loss = sums(h, w, target, b) / (target != -100).sum()
        assert not any(d.any() for d in torch.autograd.grad(loss, (h, w, b)))


def test_a_scale_that_float16_cannot_hold_reaches_the_gradients(device: str) -> None:
    h, w = (tensor(n, 8, dtype=torch.float16, device=device) for n in (4, 20))
    loss = kernels.linear_cross_entropy(h * 0.01, w * 0.01, targets(4, 20, device))
    plain = torch.autograd.grad(loss, (h, w), retain_graph=True)
    for one, many in zip(plain, torch.autograd.grad(loss * 65536.0, (h, w)), strict=True):
        assert many.isfinite().all()
        torch.testing.assert_close(many.double() / 65536.0, one.double(), rtol=1e-2, atol=1e-6)


def test_the_fused_projection_under_autocast(device: str) -> None:
    h, w, t = tensor(4, 8, device=device), tensor(20, 8, device=device), targets(4, 20, device)
    with torch.autocast(device, dtype=torch.bfloat16):
        loss = kernels.linear_cross_entropy(h, w, t)
        eager = reference.linear_cross_entropy(h, w, t)
    assert abs(float(loss - eager)) < 1e-2
    assert [g.dtype for g in torch.autograd.grad(loss, (h, w))] == [torch.float32] * 2


def test_losses_that_do_not_fit_are_refused(device: str) -> None:
    x, t = tensor(2, 5, device=device), torch.tensor([1, 2]).to(device)
    with pytest.raises(UsageError, match="one of mean, sum, none"):
        kernels.cross_entropy(x, t, reduction="avg")
    with pytest.raises(UsageError, match="label_smoothing is 2"):
        kernels.cross_entropy(x, t, label_smoothing=2)
    with pytest.raises(UsageError, match="all but the last size"):
        kernels.cross_entropy(x, t[:1])
    with pytest.raises(UsageError, match="one of mean, sum"):
        kernels.linear_cross_entropy(x, tensor(9, 5, device=device), t, reduction="none")
    with pytest.raises(UsageError, match="do not fit"):
        kernels.linear_cross_entropy(x, tensor(9, 4, device=device), t)
