"""Devices and settings by name."""

from collections.abc import Iterator

import pytest
import torch

from rung.errors import UsageError
from rung.hardware import environment, pick
from rung.hardware.device import matmul_precision_name


@pytest.mark.parametrize("wanted", ["cudax", "cuda:", "cuda:x", "cuda:-1", "cuda1", "mps", ""])
def test_a_device_that_is_none_is_unknown(wanted: str) -> None:
    with pytest.raises(UsageError, match="unknown device"):
        pick(wanted)


@pytest.fixture
def precision_put_back() -> Iterator[None]:
    yield
    torch.backends.cuda.matmul.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")


@pytest.mark.usefixtures("precision_put_back")
@pytest.mark.skipif(not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="this torch has one API only")
def test_the_precision_has_a_name_whichever_api_set_it() -> None:
    for older in ("highest", "high", "medium"):
        torch.set_float32_matmul_precision(older)
        assert matmul_precision_name() == older
    torch.set_float32_matmul_precision("highest")
    for newer, name in (("tf32", "high"), ("ieee", "highest")):
        torch.backends.cuda.matmul.fp32_precision = newer
        assert matmul_precision_name() == name
        assert environment(pick("cpu"))["float32_matmul_precision"] == name
