"""What a real worker said, for the tests whose workers say it again."""

import pytest
import torch
from climbing import MICRO
from replayed import record


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables under which `replayed.Replayed` answers."""
    return record(MICRO, tmp_path_factory.mktemp("recorded") / "said")


@pytest.fixture(scope="session")
def fp8_on_a_cpu() -> None:
    """Older torch (2.11 is) takes one scale for a whole tensor on a CPU; on GPUs a scale a row is as old as 2.6."""
    one, eight = torch.ones(16, 1), torch.ones(16, 16).to(torch.float8_e4m3fn)
    try:
        torch._scaled_mm(eight, eight.t(), scale_a=one, scale_b=one.t(), out_dtype=torch.bfloat16)
    except RuntimeError:
        pytest.skip(f"torch {torch.__version__} has no FP8 product with a scale a row on a CPU")
