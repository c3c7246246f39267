"""Mixtures of experts whose operator is given no weights: what the names and grids of its kernels tell of these.

A grid has tiles of rows times tiles of columns. Those of rows follow from the tokens, since each expert may begin a tile of
its own; those of columns bound the width of the experts, and the formats of the weights allow few widths within a tile.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from rung.analysis.costs.call import Call, Cost, Model, Unknown, precision


class _Experts(NamedTuple):
    """pairs: of token and expert, of all ranks; local: experts whose weights lie here, of all.

    up, down: the least and the most columns of both products. gated: half of the first one's are gates. step: the depth of the
    second product is a multiple of it. bits: of an element of the weights, its share of a scale included, of both.
    kind: the precision of the arithmetic, "" where it is that of the activations.
    """

    pairs: int
    local: int
    up: range
    down: range
    gated: bool
    step: int
    bits: tuple[float, float]
    kind: str = ""


def forward(call: Call) -> Cost:
    """vllm::moe_forward(hidden_states [tokens, n], router_logits [tokens, experts], ...).

    The first product has n rows of weights and the second n columns. Where several widths fit, the least is counted. The
    experts of other ranks get their share of the choices.
    """
    x, scores = call.tensor(0, 2), call.tensor(1, 2)
    if not call.around:
        raise Unknown
    said: dict[str, Any] = msgspec.json.decode(call.around)
    (tokens, width), experts = x.shape, scores.shape[1]
    if scores.shape[0] != tokens:
        raise Unknown
    names = [name for name, _ in said["kernels"]]
    read = next((read for pattern, read in _READERS.items() if any(map(pattern.match, names))), None)
    if read is None:
        raise Unknown
    found = read(said, tokens, experts)
    halves = 1 + found.gated
    inner = -(-found.up.start // (halves * found.step)) * found.step
    if halves * inner not in found.up or width not in found.down:
        raise Unknown
    pairs = found.pairs * found.local // experts
    bits = found.bits[0] * width * halves * inner + found.bits[1] * inner * width
    moved = 2 * x.bytes + scores.bytes + round(min(found.local, pairs) * bits / 8)
    kind = found.kind or precision(x.dtype)
    return Cost(2 * pairs * width * (halves + 1) * inner, moved, kind, matrix=True, inferred=True)


# triton_kernels' product of experts: types of result, activations and weights; rows, columns and depth of a tile, and into how
# many parts the depth is divided (triton_kernels/matmul_ogs.py).
_OGS = re.compile(r"^_matmul_ogs_[NT]{3}_(\w+?)x(\w+?)x(\w+?)_(\d+)x(\d+)x(\d+)x(\d+)(_swiglu)?$")
# Bits of an element. Elements of the mx formats share a scale of 8 bits by 32 (OCP Microscaling Formats 1.0, section 5).
_BITS = {"bf16": 16.0, "fp16": 16.0, "fp8": 8.0, "mxfp8": 8.25, "mxfp4": 4.25}
_BLOCK = 32


def _of_triton(said: dict[str, Any], tokens: int, experts: int) -> _Experts:
    """Tiles of rows are counted in triton_kernels/routing.py."""
    (up, of_up), (down, of_down) = _both(said, _OGS)
    pairs = tokens * _chosen(said, experts)
    if not up[8] or down[8]:
        raise Unknown
    step = _BLOCK if up[3].startswith("mx") else 1  # the second product's scales are along its depth
    return _Experts(
        pairs,
        experts,
        up=_triton_columns(up, of_up, pairs, experts),
        down=_triton_columns(down, of_down, pairs, experts),
        gated=True,
        step=step,
        bits=(_BITS[up[3]], _BITS[down[3]]),
    )


def _triton_columns(product: re.Match[str], grid: list[int], pairs: int, experts: int) -> range:
    rows, columns, parts = int(product[4]), int(product[5]), int(product[7])
    tiles = pairs if pairs <= experts else experts - 1 - (experts - pairs - 1) // rows
    across, left = divmod(grid[0], tiles * parts)
    if left or not across:
        raise Unknown
    return range((across - 1) * columns + 1, across * columns + 1)


# trtllm-gen's batched product, of FlashInfer and TensorRT-LLM: types of result, weights and activations; a tile's columns and
# rows, which change places in the result (transOut); the cluster. "bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256u2_..._swiGlu_...".
_TYPES = "|".join(("MxE4m3", "MxE2m1", "MxInt4", "E4m3", "E2m1", "Bfloat16", "Fp16"))
_BMM = re.compile(
    rf"^bmm_(?:{_TYPES})_({_TYPES})({_TYPES})_(?:cast\w+?_)?Fp32_(?:.*?_)?t(\d+)x(\d+)x\d+(?:u2)?_"
    r".*?_(?:cga|c)(\d+)x1x1_.*transOut"
)
# Bits of an element of the weights; E2m1 is NVIDIA's fp4, of which 16 share a scale of 8 bits, and int4 shares one of 16 bits by 32.
_WEIGHT_BITS = {"MxE4m3": 8.25, "MxE2m1": 4.25, "MxInt4": 4.5, "E4m3": 8.0, "E2m1": 4.5, "Bfloat16": 16.0, "Fp16": 16.0}
_NARROW = {"MxE4m3": "fp8", "E4m3": "fp8", "MxE2m1": "fp4", "E2m1": "fp4"}
_GATED = re.compile(r"Glu(_|$)")
# The gate as a kernel of its own, behind a product with DeepSeek's scales.
_UNFUSED = re.compile(r"^(?:void )?moe::dev::activation::")


def _of_trtllm(said: dict[str, Any], tokens: int, experts: int) -> _Experts:
    """The grid is [tiles of columns, tiles of rows, parts of the depth] (getGridDim in trtllmGen_bmm_export/BatchedGemmInterface.h of
    TensorRT-LLM). Scales of a row are stored by fours, so depths are multiples of 4 times what shares one, and of 128 without
    (checkAndUpdateGemmOptions in GemmOptions.h there, csrc/trtllm_fused_moe_kernel_launcher.cu of FlashInfer)."""
    (up, of_up), (down, of_down) = _both(said, _BMM)
    gated = bool(_GATED.search(up.string)) or any(_UNFUSED.match(name) for name, _ in said["kernels"])
    rows, tiles = int(up[4]), of_up[1]
    if _GATED.search(down.string) or int(down[4]) != rows or of_down[1] != tiles:
        raise Unknown
    chosen, local = _routing(tokens, experts, tiles, rows, alone=said["alone"])
    weights, values = up[1], up[2]
    kinds = {_NARROW.get(weights, ""), _NARROW.get(values, "")}
    return _Experts(
        tokens * chosen,
        local,
        up=_trtllm_columns(up, of_up),
        down=_trtllm_columns(down, of_down),
        gated=gated,
        step=64 if weights == "E2m1" else 128,
        bits=(_WEIGHT_BITS[weights], _WEIGHT_BITS[down[1]]),
        kind="" if "" in kinds else max(kinds),  # fp8 by fp4 runs at the rate of fp8
    )


def _trtllm_columns(product: re.Match[str], grid: list[int]) -> range:
    columns, cluster = int(product[3]), int(product[5])
    return range((grid[0] - cluster) * columns + 1, grid[0] * columns + 1)


def _routing(tokens: int, experts: int, tiles: int, rows: int, *, alone: bool) -> tuple[int, int]:
    """The experts of a token and those of this rank that make so many tiles of rows, if there is one answer.

    alone: no other rank can have experts. Else each rank may have an equal part of them.
    """
    parts = [experts] if alone else [experts // n for n in range(1, experts + 1) if experts % n == 0]
    answers = {(chosen, local) for local in parts for chosen in _choices(tokens, experts, local, tiles, rows)}
    if len(answers) != 1:
        raise Unknown
    return answers.pop()


def _choices(tokens: int, experts: int, local: int, tiles: int, rows: int) -> Iterator[int]:
    """Most tiles begin where every expert has one token and one expert has all others (getMaxNumCtasInBatchDim in FlashInfer's
    include/flashinfer/trtllm/fused_moe/runner.h)."""
    least = tiles if tiles <= local else local + (tiles - local) * rows
    for chosen in range(max(1, least // tokens), min(experts, _MOST_CHOSEN) + 1):
        pairs = tokens * chosen
        found = pairs if pairs <= local else local + (pairs - local) // rows
        if found == tiles:
            yield chosen
        elif found > tiles:
            return


_MOST_CHOSEN = 32  # experts of a token that FlashInfer's routing supports

# DeepGEMM's grouped product: columns, depth and number of experts are compiled in, and stand in the name behind a number of rows of 0
# or, before 2025-07, first; the experts behind the tile on Blackwell (deep_gemm/include/deep_gemm/impls/*.cuh). GemmType 1 and 5:
# rows of all experts in one list; 2: a list for each. "void deep_gemm::sm90_fp8_gemm_1d2d_impl<(cute::UMMA::Major)0, 0u, 4096u, ...".
_SIZE = r"(?:\(unsigned int\))?(\d+)u?, "
_ANY = r"(?:\(unsigned int\))?\d+u?, "
_DEEP = re.compile(
    r"^(?:void )?deep_gemm::(?:"
    rf"sm90_(?:fp8|bf16)_gemm\w*<(?:.*?\W)??(?:0u|\(unsigned int\)0), {_SIZE}{_SIZE}{_SIZE}"
    rf"|sm100_(?:fp8|fp8_fp4|bf16)_gemm\w*<(?:.*?\W)??(?:0u|\(unsigned int\)0), {_SIZE}{_SIZE}{_ANY * 3}{_SIZE}"
    rf"|fp8_gemm_kernel<{_SIZE}{_SIZE}{_ANY * 5}{_SIZE}"
    r").*\(deep_gemm::GemmType\)[125]\b"
)


def _of_deepgemm(said: dict[str, Any], tokens: int, experts: int) -> _Experts:
    (up, _), (down, _) = _both(said, _DEEP)
    if "e2m1" in up.string or "e2m1" in down.string:  # weights of 4 bits: their scales are in no name
        raise Unknown
    (columns, width, local), (out, inner, again) = ([int(n) for n in found.groups() if n] for found in (up, down))
    # With experts of other ranks, what these send here is not known.
    if out != width or (local, again) != (experts, experts) or columns not in (inner, 2 * inner):
        raise Unknown
    narrow = "fp8" in up[0]
    return _Experts(
        tokens * _chosen(said, experts), local, range(columns, columns + 1), range(out, out + 1), columns == 2 * inner,
        step=inner, bits=(8.0, 8.0) if narrow else (16.0, 16.0), kind="fp8" if narrow else "",
    )  # fmt: skip


def _both(said: dict[str, Any], pattern: re.Pattern[str]) -> list[tuple[re.Match[str], list[int]]]:
    """The two products and their grids."""
    found = [(match, grid) for name, grid in said["kernels"] if (match := pattern.match(name))]
    if len(found) != 2:
        raise Unknown
    return found


def _chosen(said: dict[str, Any], experts: int) -> int:
    """The experts of a token, as the routing says."""
    found = set(said["chosen"])
    if len(found) != 1 or not 0 < (chosen := found.pop()) <= experts:
        raise Unknown
    return int(chosen)


_READERS = {_BMM: _of_trtllm, _OGS: _of_triton, _DEEP: _of_deepgemm}

MODELS: dict[str, Model] = {"vllm::moe_forward": forward, "vllm::moe_forward_shared": forward}


def tells(kernel: str) -> bool:
    """Whether the name of a kernel, or its grid, says more of the experts than their operator."""
    return any(pattern.match(kernel) for pattern in (_UNFUSED, *_READERS))
