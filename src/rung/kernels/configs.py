"""Launch configurations: how much of a problem one program takes, and by how many warps.

Plain rules. These kernels wait for memory; what matters is that a thread has 16 bytes or more in
flight, that nothing spills and that enough programs fit a multiprocessor, which `rung kernels inspect` shows for every
architecture. A warp is 64 threads on AMD's CDNA and 32 elsewhere, so the rules count threads. Of the kernels that AMD's
GPUs run, only attention of one query has a matrix product, and that one is of 16 rows: `matrix_instr_nonkdim` has nothing to choose. `waves_per_eu` stays unset: only the backward passes of
the norms lie just above a step of the register file (64 to 83 registers), and told to fit 8 waves the compiler spills.
"""

from typing import Any

import torch

LONGEST_ROW = 16384  # columns: a longer row is walked in blocks
LONGEST_ROW_BACKWARD = 8192  # the gradient of the weight stays in registers, too


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


def _warps(elements: int, each: int, warp: int, most: int = 1024) -> int:
    """Warps such that a thread has about `each` elements; 128 threads at least."""
    return max(1, min(most, max(128, power_of_2(elements // each))) // warp)


def row_forward(columns: int, warp: int) -> dict[str, Any]:
    """Norms: whole rows, several of them where they are short; blocks of a row where it is long."""
    if columns > LONGEST_ROW:
        return {"BLOCK": 4096, "num_warps": _warps(4096, 16, warp)}
    block = power_of_2(columns)
    count = max(1, min(32, 2048 // block))
    return {"ROWS": count, "BLOCK": block, "num_warps": _warps(count * block, 16, warp)}


def row_backward(columns: int, warp: int, size: int = 2) -> dict[str, Any]:
    """The same with the row's gradient, and the weight's gradient summed up over the rows of a program. size: bytes of an
    element."""
    long = columns > LONGEST_ROW_BACKWARD
    block = 8192 if long else power_of_2(columns)
    count = 1 if long else max(1, min(32, 2048 // block))
    # Rows on their way at once, less one. With NVIDIA's asynchronous copies the next row waits in shared memory and costs no
    # registers; on AMD it would wait in registers, 8 to 14 more of them, which costs resident waves. Of rows that leave
    # room for one program on a multiprocessor, two wait: nobody else asks for memory while that program adds up. Of float32
    # these would be 192 KiB, which not every GPU has; so would be one of float64.
    stages = {} if long else {"STAGES": 1 if warp == 64 or size == 8 else 3 if block == 8192 and size == 2 else 2}
    return {"ROWS": count, "BLOCK": block, **stages, "num_warps": _warps(count * block, 8, warp)}


def row_backward_wide(warp: int, size: int = 2) -> dict[str, Any]:
    """RMSNorm's rows of 8193 to 16384: one a program, its weight's gradient in registers. size: bytes of an element; float32
    spills on NVIDIA where a thread has 128 registers and 32 elements, and does not where it has twice as many of both."""
    each = 16 if warp == 64 else 32 if size == 2 else 64
    return {"BLOCK": LONGEST_ROW, "num_warps": _warps(LONGEST_ROW, each, warp)}


def programs(row_count: int, config: dict[str, Any], warp: int, unit_count: int) -> int:
    """How many programs share the rows where each keeps a partial sum: as many as run at once
    (with 64 registers a thread, as these kernels have: 32 waves on a compute unit, 1024 threads on a multiprocessor; one where
    a thread has 64 elements and so all registers that a thread can have)."""
    threads = config["num_warps"] * warp
    full = config["BLOCK"] >= 64 * threads
    resident = 1 if full else max(1, (2048 if warp == 64 else 1024) // threads)
    # A partial sum is read again: one for 4 rows or more, if that leaves no unit idle.
    most = max(min(row_count, unit_count), row_count // 4)
    return max(1, min(-(-row_count // config.get("ROWS", 1)), most, resident * unit_count))


def partial_sums() -> dict[str, Any]:
    """The sum of the programs' sums: few columns each, so that many programs share it."""
    return {"ROWS": 64, "BLOCK": 32, "num_warps": 4}


def elementwise(columns: int, warp: int) -> dict[str, Any]:
    """Pointwise kernels on rows: tiles of 2048 elements."""
    block = power_of_2(columns, 2048)
    return {"ROWS": max(1, 2048 // block), "BLOCK": block, "num_warps": _warps(2048, 8, warp)}


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
