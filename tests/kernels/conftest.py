"""The kernels' tests run on the GPU that there is, else by Triton's interpreter on the CPU; the same functions."""

import pytest
import torch
from kernel_agreement import HAS_TRITON

INTERPRETED = (
    HAS_TRITON and not torch.cuda.is_available()
)  # then tests/conftest.py has defined them for the interpreter


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> str:
    """Where the kernels run; skips without Triton."""
    if not HAS_TRITON:
        pytest.skip("Triton is not installed")
    if INTERPRETED:
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    return "cpu" if INTERPRETED else "cuda"


@pytest.fixture(autouse=True)
def _one_seed() -> None:
    torch.manual_seed(0)
