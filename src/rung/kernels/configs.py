"""Launch configurations: how much of a problem one program takes, and by how many warps.

Plain rules. These kernels wait for memory; what matters is that a thread has 16 bytes or more in
flight, that nothing spills and that enough programs fit a multiprocessor, which `rung kernels inspect` shows for every
architecture. A warp is 64 threads on AMD's CDNA and 32 elsewhere, so the rules count threads. Of the kernels that have
configurations for AMD's GPUs, only attention of one query has a matrix product, and that one is of 16 rows: `matrix_instr_nonkdim` has nothing to choose. `waves_per_eu` stays unset: the
others need 64 registers or fewer, which leave room for 8 waves, as many as a SIMD holds. `gemv` needs more, because it fills registers with loads.
"""

from typing import Any

import torch

WIDEST = 128  # elements of a head that `biased_attention` takes
ROW = 16  # elements, of which rows that `biased_attention` aligns are a multiple: Triton reads whole vectors of them


def padded(columns: int) -> int:
    """The length of such a row."""
    return (columns + ROW - 1) // ROW * ROW


def holds_bias(rows: int, columns: int) -> bool:
    """Whether `biased_attention` reaches all of a head's bias, and of its gradient, by offsets of 32 bits."""
    return rows * padded(columns) < 2**31


def power_of_2(n: int, most: int | None = None) -> int:
    """The smallest power of 2 that is not below n, at most `most`: a size that is traced as a symbol is then not asked for more than
    whether it is that large."""
    if most is not None and n >= most:
        return most
    return 1 << max(0, int(n) - 1).bit_length()


def warp_size(device: torch.device) -> int:
    """Threads of a warp (a wave)."""
    if device.type == "cuda" and torch.version.hip:
        return int(getattr(torch.cuda.get_device_properties(device), "warp_size", 64))
    return 32


def units(device: torch.device) -> int:
    """Multiprocessors (compute units) of the device."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


def _warps(elements: int, each: int, warp: int) -> int:
    """Warps such that a thread has about `each` elements; 128 threads at least, 1024 at most."""
    return max(1, min(1024, max(128, power_of_2(elements // each))) // warp)


def tiles(warp: int) -> dict[str, Any]:
    """Copies that change the order of dimensions: tiles that are cache lines both ways."""
    return {"ROWS": 64, "COLS": 64, "num_warps": _warps(64 * 64, 16, warp)}


def turning() -> dict[str, Any]:
    """Attention's copies with the tokens of a head side by side."""
    return {"ROWS": 32, "num_warps": 4}


def float32_attention(part: str, dim: int, tf32: bool) -> dict[str, Any]:
    """Attention in float32 on sm90. part: forward, or the gradient of q, k or v. M rows of what is found stay in a program, N
    of what they meet come in a block: the quickest, on one H100, of those that spill nothing where PADDED divides the length."""
    if not tf32:  # on the plain units, for what is to be exact and not fast
        if dim > 64 and part in ("q", "k"):  # two products of rows: a larger block spills
            return {"M": 16, "N": 16, "STAGES": 1, "num_warps": 8}
        return {"M": 32, "N": 16, "STAGES": 1, "num_warps": 4}
    small = {"M": 64, "N": 64, "STAGES": 1, "num_warps": 4}  # two programs a multiprocessor: one computes, one loads
    if dim <= 64:
        return {"M": 128, "N": 64, "STAGES": 2, "num_warps": 8} if part == "v" else small
    return {
        "forward": small,
        "q": {"M": 64, "N": 32, "STAGES": 1, "num_warps": 4},
        "k": {"M": 128, "N": 32, "STAGES": 2, "num_warps": 8},
        "v": {"M": 128, "N": 32, "STAGES": 3, "num_warps": 8},
    }[part]


def biased_attention(part: str, m: int, n: int, width: int, exact: bool, dropout: bool) -> dict[str, Any]:
    """Attention with a bias: blocks of queries (BLOCK_M) and keys (BLOCK_N). part: forward; q, which also finds the gradient of the
    bias; kv. m, n: queries, keys; width: of a head, to the next power of 2. exact: in float32, on the plain units. Chosen by what
    the compiler says of sm90 and by benchmarks/kernels/biased_attention.py on one H200: for 64 x 12 x 197 x 64, 32 queries a block
    instead of 64 in kv make backward 189 us instead of 209, and nothing tried for q or forward was better by more than 3 %.
    64 rows are those of 4 warps, as a matrix product of Hopper has 16 a warp. With dropout, random words take registers beside the products:
    in q, 64 x 64 would leave room for 8 warps instead of 12 (214 registers, not 146), and forward of 32 x 12 x 512 x 64 takes 173 us
    with 64 queries a block and 203 with 128. Windows keep 4 warps in q, though 24 bytes spill there: with 8, Triton 3.2 ends the process."""
    if exact and part == "q":  # four operands stay in registers: more threads have fewer each
        return {"BLOCK_M": 16, "BLOCK_N": 16, "num_warps": 8, "num_stages": 1}
    if exact:
        side = 16 if width > 64 else 32
        rows = 16 if part == "kv" else side  # with 32, Triton 3.6 spills
        return {"BLOCK_M": rows, "BLOCK_N": side, "num_warps": 4, "num_stages": 1}
    if m <= 64 and n <= 64 and width <= 64:  # windows of an image: one block, and in backward one kernel
        rows, keys = (max(16, power_of_2(length, 64)) for length in (m, n))
        return {"BLOCK_M": rows, "BLOCK_N": keys, "num_warps": 4, "num_stages": 2}
    if part == "forward" and m > 256 and not dropout:
        return {"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 8, "num_stages": 3 if width <= 64 else 2}
    if part == "q" and (width > 64 or dropout) and n > 64:
        return {"BLOCK_M": 64, "BLOCK_N": 32, "num_warps": 4, "num_stages": 2}
    if part == "kv":
        return {"BLOCK_M": 32, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2}
    return {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2}


def sequences(batch: int, programs: int, unit_count: int, width: int) -> int:
    """Of how many sequences a program of `biased_attention` sums the gradient of the bias, where one sequence needs so many programs:
    as few as leave every multiprocessor four programs, so that the last ones do not have the GPU for themselves. 1: none, each
    sequence is written and they are added up later. That is for wide heads, beside which the sum finds no registers."""
    if width > 32:
        return 1
    splits = max(1, -(-4 * unit_count // max(1, programs)))
    return max(1, -(-batch // splits))


def rotation(heads: int, half: int, warp: int) -> dict[str, Any]:
    """RoPE: one token and some of its heads."""
    width = max(1, power_of_2(half))
    count = max(1, min(power_of_2(heads), 2048 // width))
    return {"HEADS": count, "HALF": width, "num_warps": _warps(2 * count * width, 16, warp)}


def classes(columns: int, warp: int) -> dict[str, Any]:
    """Cross-entropy: a row of logits in blocks."""
    block = max(128, power_of_2(columns, 4096))
    return {"BLOCK": block, "num_warps": _warps(block, 8, warp)}


def decoding(
    pairs: int, group: int, length: int, dim: int, v_dim: int, unit_count: int, exact: bool = False
) -> dict[str, Any]:
    """One query a head against a cache: `pairs` of a sequence and a key head. 64 keys a block; as many parts of the keys
    as give every multiprocessor two programs, at most 128. 16 rows of queries are the least that a matrix product takes.
    exact: in float32, on NVIDIA's plain units, where a thread keeps both factors in registers: fewer keys, more threads."""
    block = 32 if exact else 64
    parts = max(1, min(-(-2 * unit_count // max(1, pairs)), -(-length // block), 128))
    return {
        "per_part": max(1, -(-length // (parts * block))) * block,
        "ROWS": max(16, power_of_2(group)),
        "BLOCK": block,
        "WIDTH": max(16, power_of_2(dim)),
        "V_WIDTH": max(16, power_of_2(v_dim)),
        "num_warps": 8 if exact else 4,
        "num_stages": 2,
    }


def gemv(n: int, k: int, unit_count: int, warp: int) -> dict[str, Any]:
    """One row times a weight of n rows and k columns, which is read once. A program takes four rows of it, 1,024 or 2,048 columns at a time, of
    which the next load while these are summed: in 16 bits a thread has 4 or 8 loads of 16 bytes in flight. Two rows, or one, where
    multiprocessors would have less than 4 programs each. Chosen by benchmarks/kernels/gemv.py on one H200."""
    block = power_of_2(k, 1024 if k <= 2048 else 2048)
    rows = max(1, min(4, power_of_2(n // (4 * unit_count) + 1) // 2))
    threads = min(128, rows * block // 32)
    return {"BLOCK_N": rows, "BLOCK_K": block, "num_warps": max(1, threads // warp), "num_stages": 1}
