"""A user's kernels, to be inspected."""

import torch
import triton
import triton.language as tl


@triton.jit
def double(X, Y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(Y + at, 2 * tl.load(X + at, mask=at < n), mask=at < n)


def double_example() -> dict:
    x = torch.empty(4096, device="meta", dtype=torch.bfloat16)
    return {"X": x, "Y": x, "n": 4096, "BLOCK": 1024}


def two_warps() -> dict:
    return {**double_example(), "num_warps": 2}


@triton.autotune(
    [triton.Config({"BLOCK": b, "waves_per_eu": 2}, num_warps=w) for b, w in ((512, 4), (1024, 8))], key=["n"]
)
@triton.jit
def tuned(X, Y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(Y + at, 2 * tl.load(X + at, mask=at < n), mask=at < n)


@triton.jit
def greedy(X, Y, BLOCK: tl.constexpr):
    """More values at once than the registers hold that it is told to use."""
    at = tl.arange(0, BLOCK)
    x = tl.load(X + at).to(tl.float32)
    for _ in range(3):
        x = x / tl.sum(x * x) + tl.load(X + at + BLOCK).to(tl.float32)
        tl.store(Y + at, x)
        x += tl.max(x)
    tl.store(Y + at, x)


@triton.jit
def product(X, Y, Z, BLOCK: tl.constexpr):
    row, col = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    at = row * BLOCK + col
    tl.store(Z + at, tl.dot(tl.load(X + at), tl.load(Y + at)))


def not_a_kernel() -> None: ...
