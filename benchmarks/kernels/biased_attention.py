"""Attention with a bias that learns: the kernels of Rung beside torch's, and with other blocks.

    python benchmarks/kernels/biased_attention.py

Microseconds of the GPU, forward and backward, in bfloat16, heads inside tokens. *torch* is what `scaled_dot_product_attention`
chooses; its backward contains the sum of the bias' gradient. A row of blocks is BLOCK_M x BLOCK_N, warps, stages. It changes one
of the kernels and leaves the others as `rung.kernels.configs.biased_attention` has them: that is what the rows are for.
Errors are the largest of each tensor against float64, relative to the root mean square of its values.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.nn.functional as F
from gpu import or_failed, passes, timed

from rung import kernels
from rung.kernels import configs, reference

SECONDS = 55.0  # when no more blocks are tried
STATED = "out, dq, dk, dv, dbias"


class Shape(NamedTuple):
    """bias: sequences that have one of their own, 1 where they share it; learns: whether it needs a gradient."""

    batch: int
    heads: int
    tokens: int
    width: int
    bias: int
    learns: bool

    def __str__(self) -> str:
        batch, heads, tokens, width, bias, learns = self
        return f"{batch} x {heads} x {tokens} x {width}, bias of {bias}{'' if learns else ', no gradient'}"


SHAPES = (
    Shape(64, 12, 197, 64, 1, True),
    Shape(4096, 3, 49, 32, 4096, True),
    Shape(1024, 12, 49, 32, 1, True),
    Shape(32, 12, 512, 64, 1, True),
    Shape(64, 12, 197, 64, 1, False),
)
LARGE = {
    "forward": ((64, 64, 4, 2), (64, 64, 4, 3), (128, 64, 8, 2), (128, 64, 8, 3), (128, 128, 8, 2), (64, 128, 4, 2)),
    "q": (
        (64, 64, 4, 1), (64, 64, 4, 2), (64, 64, 8, 2), (64, 32, 4, 2), (128, 64, 8, 1), (128, 64, 8, 2), (32, 256, 8, 1), (64, 256, 8, 1),
        (64, 256, 16, 1),
    ),
    "kv": ((64, 64, 4, 1), (64, 64, 4, 2), (64, 64, 4, 3), (64, 64, 8, 2), (32, 64, 4, 2), (64, 128, 8, 2), (32, 128, 8, 2)),
}  # fmt: skip
WINDOWS = {
    "forward": ((64, 64, 4, 1), (64, 64, 4, 2), (64, 64, 8, 1)),
    "q": ((64, 64, 4, 1), (64, 64, 4, 2), (64, 64, 8, 1), (64, 64, 8, 2)),
}


def drawn(shape: Shape) -> tuple[torch.Tensor, ...]:
    def t(*size: int) -> torch.Tensor:
        return torch.randn(size, device="cuda", dtype=torch.bfloat16)

    batch, heads, tokens, width, own, learns = shape
    q, k, v = (t(batch, tokens, heads, width).transpose(1, 2).requires_grad_() for _ in range(3))
    return q, k, v, t(own, heads, tokens, tokens).requires_grad_(learns)


def theirs(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, bias.expand(q.shape[0], -1, -1, -1))


def with_blocks(part: str, blocks: tuple[int, ...]) -> Any:
    """Has the kernel of this part launched with these blocks."""
    usual = configs.biased_attention
    names = ("BLOCK_M", "BLOCK_N", "num_warps", "num_stages")

    def chosen(asked: str, *sizes: Any) -> dict[str, Any]:
        return dict(zip(names, blocks, strict=True)) if asked == part else usual(asked, *sizes)

    return mock.patch.object(configs, "biased_attention", chosen)


def errors(fn: Callable[..., torch.Tensor], inputs: tuple[torch.Tensor, ...]) -> str:
    """Of a few sequences: float64 takes time and memory."""
    few = [x[: min(8, len(x))].detach().requires_grad_(x.requires_grad) for x in inputs]

    def run(fn: Callable[..., torch.Tensor], given: list[torch.Tensor]) -> list[torch.Tensor]:
        out = fn(*given)
        slope = torch.randn(out.shape, generator=torch.Generator("cuda").manual_seed(1), device="cuda").to(torch.bfloat16)
        return [out, *torch.autograd.grad(out, [x for x in given if x.requires_grad], slope.to(out.dtype))]

    truth = run(reference.biased_attention, [x.detach().double().requires_grad_(x.requires_grad) for x in few])
    found = run(fn, few)
    return ", ".join(
        f"{((a.double() - b).abs().max() / b.square().mean().sqrt()).item():.1e}"
        for a, b in zip(found, truth, strict=True)
    )


def row(label: str, fn: Callable[..., torch.Tensor], inputs: tuple[torch.Tensor, ...], checked: bool) -> None:
    def cells() -> list[str]:
        times = [str(timed(step)) for step in passes(fn, inputs)]
        return [*times, errors(fn, inputs) if checked else ""]

    found = or_failed(cells, label)
    print(f"| {label} | {' | '.join(found or ['failed', 'failed', ''])} |", flush=True)


def candidates() -> Iterator[tuple[Shape, str, tuple[int, ...]]]:
    for shape in SHAPES:
        for part, several in (LARGE if shape.tokens > 64 else WINDOWS).items():
            yield from ((shape, part, blocks) for blocks in several)


def main() -> None:
    begin = time.perf_counter()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; errors of {STATED}")
    for shape, of_shape in itertools.groupby(candidates(), lambda candidate: candidate[0]):
        inputs = drawn(shape)
        print(f"\n{shape}\n\n| | forward | backward | errors |\n|---|---|---|---|")
        row("torch", theirs, inputs, True)
        row("Rung", kernels.biased_attention, inputs, True)
        for _, part, blocks in of_shape:
            if time.perf_counter() - begin > SECONDS:
                break
            with with_blocks(part, blocks):
                m, n, *options = blocks
                label = f"{part}: {m} x {n}, {', '.join(map(str, options))}"
                row(label, kernels.biased_attention, inputs, True)
    print(f"\n{time.perf_counter() - begin:.0f} s in all", flush=True)


if __name__ == "__main__":
    main()
