"""Attention with a bias that learns: the kernels of Rung beside torch's, and with other blocks; with dropout, too.

    python benchmarks/kernels/biased_attention.py

Microseconds of the GPU, forward and backward, in bfloat16, heads inside tokens. *torch* is what `scaled_dot_product_attention`
chooses; its backward contains the sum of the bias' gradient. *by hand* are shapes with dropout: two products, a softmax and dropout, by
`torch.compile`. Other rows change one of the kernels: BLOCK_M x BLOCK_N, warps,
stages. The other kernels stay as `rung.kernels.configs.biased_attention` has them. *summed*: a program sums the bias' gradient of
several sequences in registers; *written*: that of each sequence is written, and they are added up afterwards.
Errors are the largest of each tensor against float64, relative to the root mean square of its values. With dropout that is of Rung's mask
alone.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.nn.functional as F
from gpu import or_failed, passes, timed

from rung import kernels
from rung.kernels import configs, reference


class Shape(NamedTuple):
    """bias: sequences that have one of their own, 1 where they share it; learns: whether it needs a gradient; dropout: its probability."""

    batch: int
    heads: int
    tokens: int
    width: int
    bias: int
    learns: bool
    dropout: float = 0.0

    def __str__(self) -> str:
        batch, heads, tokens, width, bias, learns, dropout = self
        less = f"{'' if learns else ', no gradient'}{f', dropout {dropout}' if dropout else ''}"
        return f"{batch} x {heads} x {tokens} x {width}, bias of {bias}{less}"


SHAPES = (
    Shape(4096, 3, 49, 32, 4096, True),
    Shape(1024, 12, 49, 32, 1, True),
    Shape(64, 12, 197, 64, 1, True),
    Shape(32, 12, 512, 64, 1, True),
    Shape(64, 12, 197, 64, 1, False),
    Shape(8, 12, 256, 64, 8, True, 0.1),  # T5, in the zoo
    Shape(16, 12, 384, 64, 16, True, 0.1),  # MPNet
    Shape(32, 12, 512, 64, 32, True, 0.1),
    Shape(1024, 12, 49, 32, 1, True, 0.1),
)
Blocks = tuple[int, int, int, int]
# The kernel that they are for, blocks, and whether the bias' gradient is summed in registers; None where that is not changed.
# What is most likely to be faster comes first: time may end before the last.
LARGE: tuple[tuple[str, Blocks, bool | None], ...] = (
    ("kv", (32, 128, 8, 2), None), ("q", (64, 32, 4, 2), None), ("forward", (64, 32, 4, 3), None),
    ("kv", (32, 64, 4, 3), None), ("forward", (128, 64, 8, 2), None), ("kv", (32, 64, 4, 1), None),
    ("q", (128, 64, 8, 2), None), ("forward", (64, 64, 4, 3), None), ("kv", (64, 64, 4, 2), None),
)  # fmt: skip
# Random words take registers.
DROPPED: tuple[tuple[str, Blocks, bool | None], ...] = (
    ("q", (64, 64, 4, 2), None), ("forward", (64, 32, 4, 2), None), ("kv", (64, 64, 4, 2), None), ("q", (64, 64, 8, 2), None),
    ("forward", (64, 64, 4, 2), None), ("kv", (16, 64, 4, 2), None), ("q", (64, 32, 4, 1), None), ("q", (128, 32, 8, 2), None),
    ("forward", (128, 64, 8, 2), None), ("kv", (32, 128, 8, 2), None),
)  # fmt: skip
# One block has all keys: forward has no loop and cares for no stages.
WINDOWS: tuple[tuple[str, Blocks, bool | None], ...] = (
    ("q", (64, 64, 4, 2), False), ("q", (64, 64, 4, 3), True), ("q", (64, 64, 4, 1), True), ("q", (64, 64, 8, 2), None),
    ("forward", (64, 64, 8, 2), None),
)  # fmt: skip


def candidates(shape: Shape) -> list[tuple[str, Blocks, bool | None]]:
    """Other blocks for the shape. Only a bias that is shared and learns has a gradient to sum."""
    summable = shape.learns and shape.bias == 1
    large = DROPPED if shape.dropout else LARGE
    return [each for each in (large if shape.tokens > 64 else WINDOWS) if summable or each[2] is None]


def drawn(shape: Shape) -> tuple[torch.Tensor, ...]:
    def t(*size: int) -> torch.Tensor:
        return torch.randn(size, device="cuda", dtype=torch.bfloat16)

    batch, heads, tokens, width, own, learns, _ = shape
    q, k, v = (t(batch, tokens, heads, width).transpose(1, 2).requires_grad_() for _ in range(3))
    return q, k, v, t(own, heads, tokens, tokens).requires_grad_(learns)


def theirs(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor, dropout_p: float) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, bias.expand(q.shape[0], -1, -1, -1), dropout_p)


@torch.compile(dynamic=False)
def by_hand(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor, dropout_p: float) -> torch.Tensor:
    weights = (q @ k.mT * q.shape[3] ** -0.5 + bias).float().softmax(-1).to(q.dtype)
    return F.dropout(weights, dropout_p) @ v


@contextlib.contextmanager
def launched(part: str, blocks: Blocks, summed: bool | None) -> Iterator[None]:
    """Has the kernel of this part launched with these blocks."""
    usual, shared_out = configs.biased_attention, configs.sequences
    names = ("BLOCK_M", "BLOCK_N", "num_warps", "num_stages")

    def chosen(asked: str, *sizes: Any) -> dict[str, Any]:
        return dict(zip(names, blocks, strict=True)) if asked == part else usual(asked, *sizes)

    def sequences(batch: int, programs: int, unit_count: int, width: int) -> int:
        if summed is None:
            return shared_out(batch, programs, unit_count, width)
        return shared_out(batch, programs, unit_count, 16) if summed else 1

    with mock.patch.multiple(configs, biased_attention=chosen, sequences=sequences):
        yield


def errors(
    fn: Callable[..., torch.Tensor], reference: Callable[..., torch.Tensor], inputs: tuple[torch.Tensor, ...]
) -> str:
    """Of a few sequences: float64 takes time and memory."""
    few = [x[: min(8, len(x))].detach().requires_grad_(x.requires_grad) for x in inputs]

    def run(fn: Callable[..., torch.Tensor], given: list[torch.Tensor]) -> list[torch.Tensor]:
        out = fn(*given)
        slope = torch.randn(out.shape, generator=torch.Generator("cuda").manual_seed(1), device="cuda").to(
            torch.bfloat16
        )
        return [out, *torch.autograd.grad(out, [x for x in given if x.requires_grad], slope.to(out.dtype))]

    truth = run(reference, [x.detach().double().requires_grad_(x.requires_grad) for x in few])
    found = run(fn, few)
    return ", ".join(
        f"{((a.double() - b).abs().max() / b.square().mean().sqrt()).item():.1e}"
        for a, b in zip(found, truth, strict=True)
    )


def row(
    label: str, fn: Callable[..., torch.Tensor], reference: Callable[..., torch.Tensor] | None, inputs: tuple[torch.Tensor, ...],
    *, together: bool = False,
) -> None:  # fmt: skip
    """together: backward is what both take without forward. Recorded alone, torch's backward with dropout reads its seed from the host's memory."""

    def both() -> object:
        own = [x.detach().requires_grad_(x.requires_grad) for x in inputs]
        made = fn(*own)
        return torch.autograd.grad(made, [x for x in own if x.requires_grad], torch.ones_like(made))

    def measured() -> list[str]:
        forward, backward = passes(fn, inputs)
        times = [timed(forward).microseconds]
        times.append(timed(both).microseconds - times[0] if together else timed(backward).microseconds)
        return [*(f"{each:.1f}" for each in times), errors(fn, reference, inputs) if reference else ""]

    found = or_failed(measured, label)
    print(f"| {label} | {' | '.join(found or ['failed', 'failed', ''])} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--shapes", default=",".join(map(str, range(len(SHAPES)))), help="which of the shapes, by number"
    )
    parser.add_argument("--seconds", type=float, default=80, help="of all shapes; each has its part for other blocks")
    options = parser.parse_args()
    begin = time.perf_counter()
    torch._functorch.config.donated_buffer = False  # a backward pass is timed again and again on one forward pass
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; errors of out, dq, dk, dv, dbias")
    shapes = [SHAPES[int(number)] for number in options.shapes.split(",")]
    for count, shape in enumerate(shapes, 1):
        inputs = drawn(shape)
        print(f"\n{shape}\n\n| | forward | backward | errors |\n|---|---|---|---|")
        p = shape.dropout
        told = {"dropout_p": p, "seed": torch.tensor([7], device="cuda") if p else None}
        ours, truth = (functools.partial(of.biased_attention, **told) for of in (kernels, reference))
        row("torch", functools.partial(theirs, dropout_p=p), None if p else truth, inputs, together=bool(p))
        if p:
            row("by hand", functools.partial(by_hand, dropout_p=p), None, inputs)
        row("Rung", ours, truth, inputs)
        for part, blocks, summed in candidates(shape):
            if time.perf_counter() - begin > options.seconds * count / len(shapes):
                break  # Triton takes a second to compile for other blocks
            m, n, *rest = blocks
            how = {None: "", True: ", summed", False: ", written"}[summed]
            with launched(part, blocks, summed):
                row(f"{part}: {m} x {n}, {', '.join(map(str, rest))}{how}", ours, truth, inputs)
        del inputs
        torch.cuda.empty_cache()
    print(f"\n{time.perf_counter() - begin:.0f} s in all", flush=True)


if __name__ == "__main__":
    main()
