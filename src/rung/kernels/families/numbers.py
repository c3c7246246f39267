"""Numbers that a kernel is called with."""

import triton
import triton.language as tl


@triton.jit
def single(number):
    """The number in float32. Triton passes Python's floats so, but Inductor passes them in float64 (torch 2.11), and what is
    computed with one of them would be float64 from there on."""
    return tl.full((), number, tl.float32)
