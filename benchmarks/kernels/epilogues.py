"""Activations in the epilogues of the libraries' kernels, beside Inductor's kernel behind a product or a convolution.

    python benchmarks/kernels/epilogues.py

Microseconds on the GPU at hand, bfloat16, of the GPU alone. *alone*: the product or convolution without what follows it. Errors are of the result
of a product and GELU against float64. `rung.rewrites.convolution_epilogues.ALIGNED` comes from this. *In training* the product is kept for GELU's
gradient as well, and going back the product with the second layer's weight is multiplied by the derivative. *By columns*: weights as GPT-2
has them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from gpu import timed

from rung.kernels.families.gelu import gelu_product, gelu_product_backward
from rung.rewrites.convolution_epilogues import convolution_relu
from rung.rewrites.epilogues import linear_gelu, linear_relu

# rows, inputs, outputs: layers of ViT-B, DiT-XL, Bloom 560M, DeiT-S, Swin-T's first stage, one sequence of BERT
PRODUCTS = (
    (12608, 768, 3072),
    (16384, 1152, 4608),
    (2048, 1024, 4096),
    (12608, 384, 1536),
    (50176, 96, 384),
    (512, 768, 3072),
)
# batch, channels, outputs, pixels a side, window, groups: layers of ResNet-50, RegNetY-3.2GF and HRNet-W18
CONVOLUTIONS = (
    (64, 64, 64, 56, 1, 1), (64, 64, 256, 56, 1, 1), (64, 64, 64, 56, 3, 1), (64, 128, 128, 28, 3, 1), (64, 256, 1024, 14, 1, 1),
    (64, 512, 512, 7, 3, 1), (64, 216, 216, 28, 3, 9), (32, 18, 18, 56, 3, 1), (32, 72, 72, 14, 3, 1),
)  # fmt: skip


def compiled(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    torch._dynamo.reset()
    return torch.compile(function, dynamic=False)


def product(rows: int, inputs: int, outputs: int) -> list[str]:
    x, weight, bias = (
        torch.randn(*size, device="cuda", dtype=torch.bfloat16)
        for size in ((rows, inputs), (outputs, inputs), (outputs,))
    )
    weight /= inputs**0.5
    gelu, relu = (
        compiled(lambda x: F.gelu(F.linear(x, weight, bias))),
        compiled(lambda x: F.relu(F.linear(x, weight, bias))),
    )
    exact = F.gelu(F.linear(x.double(), weight.double(), bias.double()))
    off = [((made.double() - exact).norm() / exact.norm()).item() for made in (gelu(x), linear_gelu(x, weight, bias))]
    calls = (
        lambda: F.linear(x, weight, bias), lambda: relu(x), lambda: linear_relu(x, weight, bias),
        lambda: gelu(x), lambda: linear_gelu(x, weight, bias),
    )  # fmt: skip
    return [*(str(timed(call)) for call in calls), *(f"{each:.2e}" for each in off)]


def trained(rows: int, inputs: int, outputs: int, by_columns: bool) -> list[str]:
    def laid(*size: int) -> torch.Tensor:
        made = torch.randn(*(size[::-1] if by_columns else size), device="cuda", dtype=torch.bfloat16) / size[1] ** 0.5
        return made.t() if by_columns else made

    x, bias, slope = (
        torch.randn(*size, device="cuda", dtype=torch.bfloat16) for size in ((rows, inputs), (outputs,), (rows, inputs))
    )
    up, down = laid(outputs, inputs), laid(inputs, outputs)

    def both(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        product = F.linear(x, up, bias)
        return F.gelu(product), product

    forward, product = compiled(both), F.linear(x, up, bias)
    backward = compiled(lambda slope: torch.ops.aten.gelu_backward(slope @ down, product))
    calls = (
        lambda: F.linear(x, up, bias), lambda: forward(x), lambda: gelu_product(x, up, bias),
        lambda: slope @ down, lambda: backward(slope), lambda: gelu_product_backward(slope, down, product),
    )  # fmt: skip
    return [str(timed(call)) for call in calls]


def convolution(batch: int, channels: int, outputs: int, pixels: int, window: int, groups: int) -> list[str]:
    def laid(*size: int) -> torch.Tensor:
        return torch.randn(*size, device="cuda", dtype=torch.bfloat16).to(memory_format=torch.channels_last)

    x, weight = laid(batch, channels, pixels, pixels), laid(outputs, channels // groups, window, window)
    bias, padding = torch.randn(outputs, device="cuda", dtype=torch.bfloat16), [window // 2] * 2
    summand = laid(batch, outputs, pixels, pixels)
    relu = compiled(lambda x: F.relu(F.conv2d(x, weight, bias, padding=padding, groups=groups)))
    added = compiled(lambda x: F.relu(F.conv2d(x, weight, bias, padding=padding, groups=groups) + summand))

    def joined(other: torch.Tensor | None) -> torch.Tensor:
        if groups == 1:
            return convolution_relu(x, weight, bias, other, (1, 1), (window // 2,) * 2, (1, 1))
        rest = (bias, [1, 1], padding, [1, 1], groups)  # what the rewrite leaves alone
        if other is None:
            return torch.cudnn_convolution_relu(x, weight, *rest)
        return torch.cudnn_convolution_add_relu(x, weight, other, 1.0, *rest)

    calls = (
        lambda: F.conv2d(x, weight, None, padding=padding, groups=groups), lambda: relu(x), lambda: joined(None),
        lambda: added(x), lambda: joined(summand),
    )  # fmt: skip
    return [str(timed(call)) for call in calls]


@torch.inference_mode()
def main() -> None:
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n")
    print(
        "| product | alone | ReLU | epilogue | GELU | epilogue | error | epilogue |\n|---|---|---|---|---|---|---|---|"
    )
    for sizes in PRODUCTS:
        print(f"| {' × '.join(map(str, sizes))} | {' | '.join(product(*sizes))} |", flush=True)
    print(
        "\n| in training | product alone | GELU | epilogue | going back alone | GELU | epilogue |\n|---|---|---|---|---|---|---|"
    )
    for sizes in (*PRODUCTS, (4096, 768, 3072)):
        for by_columns in (False, True) if sizes[1] == 768 else (False,):
            name = f"{' × '.join(map(str, sizes))}{', by columns' if by_columns else ''}"
            print(f"| {name} | {' | '.join(trained(*sizes, by_columns))} |", flush=True)
    print("\n| convolution | alone | ReLU | epilogue | sum and ReLU | epilogue |\n|---|---|---|---|---|---|")
    for batch, channels, outputs, pixels, window, groups in CONVOLUTIONS:
        name = f"{batch} × {channels} × {pixels}² to {outputs}, {window} × {window}" + (
            f", {groups} groups" if groups > 1 else ""
        )
        print(f"| {name} | {' | '.join(convolution(batch, channels, outputs, pixels, window, groups))} |", flush=True)
    poison = torch.tensor([[float("nan")], [float("inf")], [-float("inf")]], device="cuda", dtype=torch.bfloat16)
    one, nothing = (
        torch.ones(8, 1, device="cuda", dtype=torch.bfloat16),
        torch.zeros(8, device="cuda", dtype=torch.bfloat16),
    )
    for function in (linear_relu, linear_gelu):
        print(f"\n{function.__name__} of NaN, inf and -inf: {function(poison, one, nothing)[:, 0].tolist()}")


if __name__ == "__main__":
    main()
