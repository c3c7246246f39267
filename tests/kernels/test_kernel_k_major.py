"""The copy that turns a factor of a product: values stay, and what is summed lies side by side."""

import pytest
import torch
from kernel_agreement import strided, tensor


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["contiguous", "slice", "columns"])
@pytest.mark.parametrize("shape", [(1, 1), (64, 64), (65, 130), (3, 200), (129, 1)], ids=str)
def test_either_dimension_of_any_matrix_is_put_side_by_side(
    shape: tuple[int, int], kind: str, dtype: torch.dtype, device: str
) -> None:
    from rung.kernels.families.k_major import k_major

    x = strided(kind, tensor(*shape, dtype=dtype, device=device, grad=False))
    for dim in (0, 1):
        made = k_major(x, dim)
        assert made.stride() == ((1, shape[0]) if dim == 0 else (shape[1], 1))
        assert made.dtype == dtype
        assert torch.equal(made, x)


def test_what_is_traced_has_the_strides_that_a_run_has(device: str) -> None:
    from rung.kernels.families import k_major  # noqa: F401

    for dim in (0, 1):
        torch.library.opcheck(torch.ops.rung.k_major.default, (torch.randn(5, 7, device=device), dim))
