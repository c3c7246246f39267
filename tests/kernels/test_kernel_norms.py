"""RMSNorm, add + RMSNorm and LayerNorm against float64: dtypes, strides, odd sizes, rows longer than a block."""

from functools import partial

import pytest
import torch
from kernel_agreement import agree, error, launched, run, strided, tensor, wide

from rung import kernels
from rung.errors import UsageError
from rung.kernels import configs, reference

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
NORMS = ["rms_norm", "add_rms_norm", "layer_norm"]


def inputs(name: str, shape: tuple[int, ...], dtype: torch.dtype, device: str, kind: str = "contiguous"):
    x = [strided(kind, tensor(*shape, dtype=dtype, device=device)) for _ in range(2 if name == "add_rms_norm" else 1)]
    parameters = [tensor(shape[-1], dtype=dtype, device=device) for _ in range(2 if name == "layer_norm" else 1)]
    return (*x, *parameters)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NORMS)
def test_a_norm_and_its_gradients_agree_with_float64(name: str, dtype: torch.dtype, device: str) -> None:
    agree(getattr(kernels, name), getattr(reference, name), *inputs(name, (3, 5, 100), dtype, device))


@pytest.mark.parametrize("kind", ["slice", "swapped", "columns"])
@pytest.mark.parametrize("name", NORMS)
def test_strides_do_not_matter(name: str, kind: str, device: str) -> None:
    agree(getattr(kernels, name), getattr(reference, name), *inputs(name, (4, 3, 33), torch.float32, device, kind))


@pytest.mark.parametrize("columns", [5, 2049, 16385])
@pytest.mark.parametrize("name", NORMS)
def test_sizes_that_fit_no_block(name: str, columns: int, device: str) -> None:
    agree(getattr(kernels, name), getattr(reference, name), *inputs(name, (3, columns), torch.float32, device))


@pytest.mark.parametrize("columns", [100, 8200])
@pytest.mark.parametrize("name", NORMS)
def test_more_rows_than_all_programs_take_at_once(name: str, columns: int, device: str) -> None:
    """Each program adds up the weight's gradient over several rounds, the last one not full."""
    shape = (11 if columns > configs.LONGEST_ROW_BACKWARD else 300, columns)
    agree(getattr(kernels, name), getattr(reference, name), *inputs(name, shape, torch.float32, device))


@pytest.mark.parametrize("name", NORMS)
def test_rows_of_one(name: str, device: str) -> None:
    """No gradient is left but rounding, so the values alone are compared."""
    given = [x.detach() for x in inputs(name, (3, 1), torch.float32, device)]
    agree(getattr(kernels, name), getattr(reference, name), *given)


@pytest.mark.parametrize(("columns", "dtype"), [*((64, dtype) for dtype in DTYPES), (16400, torch.float16)], ids=str)
@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("cast_first", [False, True])
def test_both_cast_orders_and_the_offset_of_the_weight(
    cast_first: bool, offset: float, dtype: torch.dtype, columns: int, device: str
) -> None:
    options = {"offset": offset, "cast_first": cast_first}
    agree(
        partial(kernels.rms_norm, **options), partial(reference.rms_norm, **options),
        *inputs("rms_norm", (3, columns), dtype, device),
    )  # fmt: skip


def test_the_cast_orders_round_as_eager_does(device: str) -> None:
    """Bit for bit, where the arithmetic before is exact: rows of +1 and -1, whose norm is 1."""
    x = torch.randint(0, 2, (4, 64)).mul(2).sub(1).to(device, torch.float16)
    weight = torch.randn(64).to(device, torch.float16)
    for cast_first in (False, True):
        options = {"eps": 1e-12, "offset": 1.0, "cast_first": cast_first}
        found, eager = kernels.rms_norm(x, weight, **options), reference.rms_norm(x, weight, **options)
        if not cast_first:
            assert torch.equal(found, eager)
        else:  # eager rounds 1 + w by itself, too
            assert error(found, eager.double()) < 1e-2
    wide_weight = weight.float()
    assert kernels.rms_norm(x, wide_weight, cast_first=True).dtype == torch.float32
    assert kernels.rms_norm(x, wide_weight, cast_first=False).dtype == torch.float16


@pytest.mark.parametrize("name", NORMS)
def test_without_parameters(name: str, device: str) -> None:
    count = 2 if name == "add_rms_norm" else 1
    agree(getattr(kernels, name), getattr(reference, name), *inputs(name, (5, 40), torch.float32, device)[:count])


def test_layer_norm_of_values_far_from_zero(device: str) -> None:
    """mean(x^2) - mean^2 would have nothing left here."""
    x = (torch.randn(4, 256) + 1000).to(device)
    truth = reference.layer_norm(x.double())
    assert error(kernels.layer_norm(x), truth) < 2 * max(error(reference.layer_norm(x), truth), 1e-6)


@pytest.mark.parametrize("name", NORMS)
def test_no_less_precise_than_eager(name: str, device: str) -> None:
    """Root mean square error against float64: what is rounded once is not worse than what is rounded often.

    In float16: the interpreter does not round to bfloat16, it truncates.
    """
    given = inputs(name, (64, 96), torch.float16, device)
    ours, eager = run(getattr(kernels, name), given), run(getattr(reference, name), given)
    truth = run(getattr(reference, name), tuple(map(wide, given)))
    for a, b, c in zip(ours, eager, truth, strict=True):
        assert (a.double() - c).square().mean() <= 1.05 * (b.double() - c).square().mean() + 1e-12


def test_one_gradient_alone(device: str) -> None:
    """The sum of add + RMSNorm without the norm, and the norm without the sum."""
    given = inputs("add_rms_norm", (4, 48), torch.float32, device)
    for k in (0, 1):
        agree(lambda *a, k=k: kernels.add_rms_norm(*a)[k], lambda *a, k=k: reference.add_rms_norm(*a)[k] * 1.0, *given[:2 if k else 3])  # fmt: skip


def test_no_rows(device: str) -> None:
    x, w = tensor(0, 16, device=device), tensor(16, device=device)
    assert [tuple(t.shape) for t in run(kernels.rms_norm, (x, w))] == [(0, 16), (0, 16), (16,)]
    assert float(run(kernels.rms_norm, (x, w))[2].abs().sum()) == 0


def test_what_does_not_fit_is_refused(device: str) -> None:
    x = tensor(2, 8, device=device)
    with pytest.raises(UsageError, match=r"weight is float32 \(9,\)"):
        kernels.rms_norm(x, tensor(9, device=device))
    with pytest.raises(UsageError, match="one shape and one dtype"):
        kernels.add_rms_norm(x, x.half())
    with pytest.raises(UsageError, match="weight is float64 and others are not"):
        kernels.layer_norm(x, tensor(8, dtype=torch.float64, device=device))
    with pytest.raises(UsageError, match=r"x is torch\.complex64; the kernels take"):
        kernels.layer_norm(x.to(torch.complex64))
    with pytest.raises(UsageError, match=r"x is torch\.int64; the kernels take"):
        kernels.layer_norm(x.long())


@pytest.mark.parametrize("dtype", DTYPES[:3], ids=str)
def test_long_rows_are_launched_with_the_configuration_of_their_dtype(
    dtype: torch.dtype, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = configs.row_backward_wide(configs.warp_size(torch.device(device)), dtype.itemsize)
    taken = launched(monkeypatch, "row_backward_wide")
    run(kernels.rms_norm, inputs("rms_norm", (2, 8200), dtype, device))
    assert taken == [wanted]


def test_as_many_programs_share_rows_as_fit_the_gpu() -> None:
    for size, programs in ((2, 264), (4, 132)):  # in float32 one needs all registers of a multiprocessor
        assert configs.programs(4096, configs.row_backward_wide(32, size), 32, 132) == programs
        assert configs.programs(4096, configs.row_backward_wide(64, size), 64, 304) == 608


def test_two_rows_wait_only_where_they_fit_the_smallest_shared_memory() -> None:
    """100 KiB on sm86, sm89 and sm120; a waiting row is x, dy and, with a sum, its gradient. In float32 one row waits."""
    for size in (2, 4):
        config = configs.row_backward(8192, 32, size)
        assert (config["STAGES"] - 1) * 3 * config["BLOCK"] * size <= 100 * 1024
    assert configs.row_backward(8192, 32, 2)["STAGES"] == 3
