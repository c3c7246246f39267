"""Products of one row with a weight against float64: shapes, strides, blocks of columns, bias."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernel_agreement import TOLERANCE, error, launched, strided, tensor, wide

from rung import kernels
from rung.errors import UsageError
from rung.kernels import configs, reference

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def close(x, weight, bias=None):
    found = kernels.gemv(x, weight, bias)
    truth = reference.gemv(wide(x), wide(weight), wide(bias))
    assert found.dtype == x.dtype
    assert found.shape == truth.shape
    assert error(found, truth) <= TOLERANCE[x.dtype]


def drawn(n, k, dtype=torch.float32, device="cpu"):
    return [tensor(*shape, dtype=dtype, device=device, grad=False) for shape in ((1, k), (n, k), (n,))]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_it_agrees_with_float64(dtype: torch.dtype, device: str) -> None:
    x, weight, bias = drawn(37, 300, dtype, device)
    close(x, weight)
    close(x, weight, bias)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(n=st.integers(0, 70), k=st.integers(0, 400), biased=st.booleans())
def test_any_shape_of_a_weight(n: int, k: int, biased: bool, device: str) -> None:
    x, weight, bias = drawn(n, k, device=device)
    close(x, weight, bias if biased else None)


@pytest.mark.parametrize(("block_n", "block_k"), [(2, 128), (8, 512)])
def test_rows_and_columns_that_no_block_divides(
    block_n: int, block_k: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"BLOCK_N": block_n, "BLOCK_K": block_k, "num_warps": 4, "num_stages": 1}
    monkeypatch.setattr(configs, "gemv", lambda *_: config)
    close(*drawn(13, 333, device=device))
    close(*drawn(16, 512, device=device))


def test_a_long_row_is_read_in_blocks(device: str) -> None:
    assert configs.gemv(3, 40000, 132, 32)["BLOCK_K"] < 40000
    close(*drawn(3, 40000, device=device))


def test_a_part_of_a_weight_is_read_where_it_lies(device: str) -> None:
    x, weight, bias = drawn(20, 48, device=device)
    close(strided("slice", x), strided("slice", weight), bias.repeat_interleave(2)[::2])
    close(strided("columns", x), strided("columns", weight))
    close(x[:, None], weight, bias)
    close(x[0], weight, bias)


def test_what_lies_beside_a_row_does_not_count(device: str) -> None:
    whole = torch.full((40, 100), float("nan"), device=device)
    x, weight, bias = drawn(21, 70, device=device)
    whole[5:26, 10:80] = weight
    near = torch.full((3, 100), float("nan"), device=device)
    near[1:2, 10:80] = x
    close(near[1:2, 10:80], whole[5:26, 10:80], bias)


@pytest.mark.parametrize("n", [1, 2048, 3072, 16384, 128256])
@pytest.mark.parametrize("k", [1024, 2048, 4096, 14336, 28672])
@pytest.mark.parametrize("warp", [32, 64])
def test_a_program_has_loads_in_flight_and_every_multiprocessor_several_programs(n: int, k: int, warp: int) -> None:
    config = configs.gemv(n, k, 132, warp)
    elements = config["BLOCK_N"] * config["BLOCK_K"]
    threads = config["num_warps"] * warp
    assert elements <= 64 * threads
    assert config["BLOCK_N"] == 1 or n / config["BLOCK_N"] >= 4 * 132
    assert n < 4 * 132 * 8 or elements >= 32 * threads


def test_the_rule_is_what_is_launched(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, bias = drawn(9, 50, torch.float16, device)
    wanted = configs.gemv(9, 50, configs.units(x.device), configs.warp_size(x.device))
    taken = launched(monkeypatch, "gemv")
    kernels.gemv(x, weight, bias)
    assert taken == [wanted]


def test_what_does_not_fit_is_refused(device: str) -> None:
    x, weight, bias = drawn(9, 50, device=device)
    with pytest.raises(UsageError, match="do not fit"):
        kernels.gemv(x[:, 1:], weight)
    with pytest.raises(UsageError, match="do not fit"):
        kernels.gemv(x, weight[0])
    with pytest.raises(UsageError, match="do not fit"):
        kernels.gemv(x, weight, bias[1:])
    with pytest.raises(UsageError, match="2 rows; the kernel takes one"):
        kernels.gemv(x.expand(2, 50), weight)
    with pytest.raises(UsageError, match="0 rows"):
        kernels.gemv(x[:0], weight)
    with pytest.raises(UsageError, match="one dtype"):
        kernels.gemv(x, weight.half())
    with pytest.raises(UsageError, match="one dtype"):
        kernels.gemv(x, weight, bias.half())
    with pytest.raises(UsageError, match="none in float64"):
        kernels.gemv(x.double(), weight.double())
    with pytest.raises(UsageError, match="no gradient"):
        kernels.gemv(x, weight.requires_grad_())
    with torch.no_grad():
        close(x, weight)
