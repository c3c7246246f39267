"""In which precision a kernel computes."""

import torch
import triton
import triton.language as tl


@triton.jit
def single(number):
    """The number in float32. Triton passes Python's floats so, but Inductor passes them in float64 (torch 2.11), and what is
    computed with one of them would be float64 from there on."""
    return tl.full((), number, tl.float32)


@triton.jit
def wide(x):
    """x as it is computed with: float64 stays what it is, everything else becomes float32."""
    if x.dtype == tl.float64:
        return x
    else:
        return x.to(tl.float32)


def wide_dtype(x: torch.Tensor) -> torch.dtype:
    """The dtype of what is computed from x and kept for the backward pass, or added up."""
    return torch.promote_types(x.dtype, torch.float32)
