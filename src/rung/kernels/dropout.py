"""Which attention weights dropout keeps, in plain PyTorch: what the kernels draw, for references and tests.

A seed and the place of a weight determine its random number. So no mask is stored: the backward kernels draw the same numbers again.
The generator is Philox4x32 (Salmon et al. 2011) with 7 rounds, the fewest that pass BigCrush, as in FlashAttention.
Each call gives 8 numbers of 16 bits. They belong to the weights of a cell: rows r and r + 8 of 16, keys k, k + 8, k + 16 and k + 24 of
32. A thread holds all of a cell in its part of a matrix product on NVIDIA GPUs, and so calls the generator once for it.
"""

from __future__ import annotations

import torch

ROUNDS = 7
STEPS = 1 << 16  # of a probability
_WORD = 0xFFFFFFFF


def keep_probability(dropout_p: float) -> float:
    """1 - dropout_p to the nearest multiple of 2^-16. What is kept is divided by this, so that its expectation is exact."""
    return round(STEPS * (1.0 - dropout_p)) / STEPS


def draw_seed(device: torch.device) -> torch.Tensor:
    """A seed by torch's generator of the device: `torch.manual_seed` fixes it, a replayed graph draws another, and the host does not wait."""
    return torch.randint(1 << 62, (1,), device=device)


def keep_mask(seed: torch.Tensor, shape: tuple[int, int, int, int], dropout_p: float) -> torch.Tensor:
    """Which weights are kept, of (batch, heads, queries, keys)."""
    batch, heads, m, n = shape
    head = torch.arange(batch * heads, device=seed.device).view(batch, heads, 1, 1)
    row = torch.arange(m, device=seed.device).view(m, 1)
    key = torch.arange(n, device=seed.device)
    cell_row, cell_key = row // 16 * 8 + row % 8, key // 32 * 8 + key % 8
    words = philox((cell_key, cell_row, head, torch.zeros_like(head)), seed & _WORD, seed >> 32 & _WORD)
    lower, upper = (torch.where(key // 16 % 2 == 0, *words[k : k + 2]) for k in (0, 2))
    word = torch.where(row // 8 % 2 == 0, lower, upper)
    number = torch.where(key // 8 % 2 == 0, word % STEPS, word // STEPS)
    return number < round(keep_probability(dropout_p) * STEPS)


def philox(
    counter: tuple[torch.Tensor, ...], low: torch.Tensor, high: torch.Tensor, rounds: int = ROUNDS
) -> tuple[torch.Tensor, ...]:
    """Four words of 32 bits for a counter of four and a key of two, all in int64."""
    c0, c1, c2, c3 = counter
    for k in range(rounds):
        key0, key1 = low + k * 0x9E3779B9 & _WORD, high + k * 0xBB67AE85 & _WORD
        (upper0, lower0), (upper1, lower1) = _product(c2, 0xCD9E8D57), _product(c0, 0xD2511F53)
        c0, c1, c2, c3 = upper0 ^ c1 ^ key0, lower0, upper1 ^ c3 ^ key1, lower1
    return c0, c1, c2, c3


def _product(word: torch.Tensor, by: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The upper and the lower 32 bits of a product of two words. By halves: int64 would overflow, and compiled code need not wrap."""
    lower = (word & 0xFFFF) * by
    upper = (word >> 16) * by + (lower >> 16)
    return upper >> 16, (upper & 0xFFFF) << 16 | lower & 0xFFFF
