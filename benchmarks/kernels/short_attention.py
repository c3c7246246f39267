"""torch's kernels for attention over short sequences, each by itself, going forward and back.

    python benchmarks/kernels/short_attention.py

Microseconds of each kernel, forward + backward, in bfloat16, heads inside tokens, as windows of an image have them; *mask*: a float mask a
head, of which no gradient is asked. A dash: the kernel does not take it. `rung.rewrites.attention.short.LONGEST` comes from this.
"""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F
from gpu import passes, timed
from torch.nn.attention import SDPBackend, sdpa_kernel

KERNELS = (SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION)
# batch, heads, tokens, width of a head, whether there is a mask
SHAPES = (
    (4096, 8, 16, 32, False), (4096, 8, 32, 64, False), (2048, 2, 49, 32, True), (2048, 2, 49, 32, False), (1024, 4, 64, 32, True),
    (512, 8, 64, 64, False), (512, 8, 77, 64, False), (512, 8, 96, 32, True), (256, 8, 128, 64, False), (256, 12, 144, 32, True),
)  # fmt: skip


def times(kernel: SDPBackend, batch: int, heads: int, tokens: int, width: int, masked: bool) -> str:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(kernel):
            return F.scaled_dot_product_attention(q, k, v, mask)

    q, k, v = (
        torch.randn(batch, tokens, heads, width, device="cuda", dtype=torch.bfloat16).transpose(1, 2).requires_grad_()
        for _ in range(3)
    )
    mask = torch.randn(1, heads, tokens, tokens, device="cuda", dtype=torch.bfloat16) if masked else None
    try:
        return " + ".join(str(timed(step)) for step in passes(attend, (q, k, v)))
    except RuntimeError:
        return "–"


def main() -> None:
    warnings.simplefilter("ignore")  # of kernels that are not taken
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n")
    print("| batch, heads, tokens, width | mask | cuDNN | memory-efficient | flash |\n|---|---|---|---|---|")
    for *shape, masked in SHAPES:
        row = [times(kernel, *shape, masked) for kernel in KERNELS]
        print(f"| {', '.join(map(str, shape))} | {'yes' if masked else 'no'} | {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
