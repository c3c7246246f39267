"""Float32 proper, whichever of torch's settings the process was given before, and the settings as they were afterwards."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from rung.hardware.device import cpu
from rung.verify.reference import full_precision, own_precision
from rung.workload import Workload

cudnn = torch.backends.cudnn
newer = pytest.mark.skipif(not hasattr(cudnn, "conv"), reason="this torch has the older setting only")


@pytest.fixture(autouse=True)
def convolutions_put_back() -> Iterator[None]:
    yield
    if hasattr(cudnn, "conv"):
        torch.backends.fp32_precision = cudnn.fp32_precision = "none"
        for kind in (cudnn.conv, cudnn.rnn):
            kind.fp32_precision = "tf32"
    cudnn.allow_tf32 = True


@pytest.mark.parametrize("allowed", [True, False])
def test_convolutions_in_tf32_are_in_float32_inside(allowed: bool) -> None:
    cudnn.allow_tf32 = allowed
    with full_precision():
        assert not cudnn.allow_tf32
        assert not hasattr(cudnn, "conv") or cudnn.conv.fp32_precision != "tf32"
    assert cudnn.allow_tf32 == allowed


@newer
@pytest.mark.parametrize(("conv", "rnn"), [("ieee", "tf32"), ("tf32", "ieee"), ("tf32", "tf32")])
def test_convolutions_that_were_told_apart_from_recurrent_layers_stay_so(conv: str, rnn: str) -> None:
    """The older setting raises where the two differ."""
    cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision = conv, rnn
    with full_precision():
        assert "tf32" not in (cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision)
    assert (cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision) == (conv, rnn)


@newer
def test_tf32_for_all_backends_is_off_inside() -> None:
    torch.backends.fp32_precision = "tf32"
    with full_precision():
        assert (cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision) == ("ieee", "ieee")
    assert (cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision) == ("tf32", "tf32")


@pytest.mark.parametrize(("dtype", "own"), [(torch.float16, "bf16"), (torch.float32, "exact"), (torch.int64, "exact")])
def test_a_module_without_weights_has_the_precision_of_its_inputs(dtype: torch.dtype, own: str) -> None:
    workload = Workload("product", nn.Identity, lambda seed: (torch.ones(2, 2, dtype=dtype), 3))
    assert own_precision(workload, nn.Identity(), cpu()) == own
