"""The library's convolutions of each channel by itself, forward and both gradients, and the input's gradient as a forward convolution.

    python benchmarks/kernels/depthwise.py

Microseconds in bfloat16, 64 images, a stride of 1; channels-last, and in brackets in the usual layout. The rung `depthwise-dgrad` comes from this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from gpu import timed

from rung.rewrites.inductor_passes.depthwise import depthwise_dgrad

IMAGES = 64
# channels, height and width, window: convnextv2_tiny, efficientnet_b0, xcit_small_12, segformer-b2
SHAPES = (
    (96, 56, 7), (192, 28, 7), (384, 14, 7), (768, 7, 7), (32, 112, 3), (240, 28, 5), (672, 14, 5), (384, 14, 3), (512, 56, 3),
)  # fmt: skip
LAYOUTS = (torch.channels_last, torch.contiguous_format)


def steps(channels: int, side: int, window: int, layout: torch.memory_format) -> Iterator[Callable[[], object]]:
    """Forward, gradient of the input, the same by a forward convolution, gradient of the weight."""
    x, slope = (
        torch.randn(IMAGES, channels, side, side, device="cuda", dtype=torch.bfloat16).to(memory_format=layout)
        for _ in range(2)
    )
    weight = torch.randn(channels, 1, window, window, device="cuda", dtype=torch.bfloat16)
    around = [window // 2] * 2

    def gradient(*wanted: bool) -> object:
        return torch.ops.aten.convolution_backward(
            slope, x, weight, None, [1, 1], around, [1, 1], False, [0, 0], channels, wanted
        )

    yield lambda: F.conv2d(x, weight, None, 1, around, 1, channels)
    yield lambda: gradient(True, False, False)
    yield lambda: depthwise_dgrad(slope, weight, around, [1, 1], layout is torch.channels_last)
    yield lambda: gradient(False, True, False)


def main() -> None:
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n")
    print(
        "| channels, size, window | forward | gradient of the input | by a forward convolution | of the weight |\n|---|---|---|---|---|"
    )
    for shape in SHAPES:
        times = zip(*([str(timed(step)) for step in steps(*shape, layout)] for layout in LAYOUTS), strict=True)
        print(
            f"| {', '.join(map(str, shape))} | {' | '.join(f'{last} ({usual})' for last, usual in times)} |", flush=True
        )


if __name__ == "__main__":
    main()
