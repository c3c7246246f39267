"""Float32 training in TF32, on the GPU at hand: products by the order of their factors, and attention by who computes it.

    PYTHONPATH=src python benchmarks/kernels/tf32.py [--parts products,attention] [--tokens 8192]

The products are those of the built-in transformer's `medium`: a forward product, and the gradients of input and weight, whose
factors are read as autograd leaves them or with one of them, or both, copied so that what is summed lies side by side (K). The
copy that `k-major-wgrad` makes is timed beside them. Attention is medium's, forward and backward together, with the kernels of
`tf32-attention` beside torch's. Times are those of the
kernels alone, means over 20 calls, by torch.profiler. Prints Markdown.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.profiler import ProfilerActivity, profile

from rung.kernels.families import float32_attention
from rung.kernels.families.k_major import k_major
from rung.rewrites.attention import flex
from rung.workload.tiny_transformer import SIZES

CALLS = 20
DIM, _, TOKENS, BATCH = SIZES["medium"]
HEADS, KV_HEADS = 8, 4
WIDTHS = {"qkv": (2 * DIM, DIM), "out": (DIM, DIM), "gate+up": (8 * DIM, DIM), "down": (DIM, 4 * DIM)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="products,attention")
    parser.add_argument("--tokens", type=int, default=TOKENS * BATCH, help="of a step, for the products")
    given = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n")
    if "products" in given.parts:
        products(given.tokens)
    if "attention" in given.parts:
        attention()


def products(tokens: int) -> None:
    print(
        "| product | forward | input's gradient | weight K | weight's gradient | smaller K | larger K | both K | copy of the smaller |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for name, (out, into) in WIDTHS.items():
        x, g, w = (torch.randn(*shape, device="cuda") for shape in ((tokens, into), (tokens, out), (out, into)))
        small, large = sorted((x, g), key=Tensor.numel)
        small_k, large_k, w_k = (k_major(t, 0) for t in (small, large, w))
        factors = [
            (x, w.t()), (g, w), (g, w_k), (large.t(), small), (large.t(), small_k), (large_k.t(), small), (large_k.t(), small_k),
        ]  # fmt: skip
        flops = 2.0 * tokens * out * into
        times = [kernels(partial(torch.mm, *pair)) for pair in factors]
        cells = [f"{us:.0f} us ({flops / us / 1e6:.0f})" for us in times]
        copied = kernels(partial(k_major, small, 0))
        print(
            f"| {name} | {' | '.join(cells)} | {copied:.0f} us ({2 * small.nbytes / copied / 1e6:.2f} TB/s) |",
            flush=True,
        )
    print("\nIn brackets: TFLOP/s.\n")


def attention() -> None:
    width, groups = DIM // HEADS, HEADS // KV_HEADS
    q = torch.randn(BATCH, HEADS, TOKENS, width, device="cuda", requires_grad=True)
    k, v = (torch.randn(BATCH, KV_HEADS, TOKENS, width, device="cuda", requires_grad=True) for _ in range(2))
    slope = torch.randn_like(q)
    hidden = torch.full((TOKENS, TOKENS), float("-inf"), device="cuda").triu(1)

    def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = (t.repeat_interleave(groups, 1) for t in (k, v))
        return torch.softmax(q @ k.mT * width**-0.5 + hidden, -1) @ v

    seen = create_block_mask(lambda b, h, i, j: i >= j, None, None, TOKENS, TOKENS, device="cuda")

    def by_flex(q: Tensor, k: Tensor, v: Tensor, options: dict[str, int] | None = None) -> Tensor:
        return flex_attention(q, k, v, block_mask=seen, enable_gqa=True, kernel_options=options)

    def by_sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    def by_kernel(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return float32_attention.apply(q, k, v, True, width**-0.5, True)[0]

    truth = torch.autograd.grad(by_hand(q.double(), k.double(), v.double()), (q, k, v), slope.double())
    print("| attention | forward and backward | error of the gradients |\n|---|---|---|")
    for name, call in (
        ("by hand", by_hand), ("SDPA", by_sdpa), ("FlexAttention, torch's blocks", by_flex),
        ("FlexAttention, larger blocks", partial(by_flex, options=dict(flex.BLOCKS))), ("`tf32-attention`", by_kernel),
    ):  # fmt: skip
        compiled = torch.compile(call)

        def step(compiled: Callable[..., Tensor] = compiled) -> tuple[Tensor, ...]:
            return torch.autograd.grad(compiled(q, k, v), (q, k, v), slope)

        errors = [float((a - b).norm() / b.norm()) for a, b in zip(step(), truth, strict=True)]
        print(f"| {name} | {kernels(step):.0f} us | {max(errors):.1e} |", flush=True)


def kernels(call: Callable[[], object]) -> float:
    """Microseconds of all kernels of a call."""
    for _ in range(5):
        call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(CALLS):
            call()
        torch.cuda.synchronize()
    return sum(event.self_device_time_total for event in seen.key_averages()) / CALLS


if __name__ == "__main__":
    main()
