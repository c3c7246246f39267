"""The kernels' tests run on the GPU that there is, else by Triton's interpreter on the CPU; the same functions."""

import pytest
import torch
from kernel_agreement import HAS_TRITON

INTERPRETED = HAS_TRITON and not torch.cuda.is_available()

if INTERPRETED:
    # Triton asks when a kernel is defined, its own library's among them: so this comes before any test, and goes again.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")

        import rung.kernels.functional  # noqa: F401


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
