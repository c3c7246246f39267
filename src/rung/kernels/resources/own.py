"""Rung's own kernels, at shapes of language models and with the launch configurations that they have there."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from rung.kernels import configs


class Launch(NamedTuple):
    """name: as `rung kernels` shows it; family: the file; kernel: the function; about: the shape it stands for; only: the one
    architecture that it is made for."""

    name: str
    family: str
    kernel: str
    about: str
    values: dict[str, Any]
    only: str = ""


ROWS = 4096


def launches(warp: int) -> list[Launch]:
    """Every kernel at its configurations, in bfloat16 and float32; warp: threads of a warp of the architecture."""
    return [
        *_in_types(_rms_norm, warp),
        *_in_types(_layer_norm, warp),
        *_in_types(_column_sums, warp),
        *_in_types(_gated, warp),
        *_in_types(_rope, warp),
        *_k_major(warp),
        *_in_types(_cross_entropy, warp),
        *_in_types(_decode_attention, warp),
        *_float32_attention(),
    ]


def _in_types(family: Callable[[int, str], Iterator[Launch]], warp: int) -> Iterator[Launch]:
    yield from family(warp, "*bf16")
    for launch in family(warp, "*fp32"):
        yield launch._replace(about=f"{launch.about}, float32")


def _row(columns: int, warp: int, backward: bool, type: str) -> tuple[bool, dict[str, Any]]:
    longest = configs.LONGEST_ROW_BACKWARD if backward else configs.LONGEST_ROW
    config = configs.row_backward(columns, warp, _size(type)) if backward else configs.row_forward(columns, warp)
    return columns > longest, config


def _size(type: str) -> int:
    return 4 if type == "*fp32" else 2


def _rms_norm(warp: int, type: str) -> Iterator[Launch]:
    for backward in (False, True):
        for n in (128, 4096, *((8192,) if backward else ()), 16384, 65536):
            long, config = _row(n, warp, backward, type)
            wide = backward and configs.LONGEST_ROW_BACKWARD < n <= configs.LONGEST_ROW
            config = configs.row_backward_wide(warp, _size(type)) if wide else config
            kernel = f"rms_norm_{'backward' if backward else 'forward'}{'_wide' if wide else '_long' if long else ''}"
            rows = {} if long and not backward else {"n_rows": ROWS}
            shared: dict[str, Any] = {**rows, "n_cols": n, "offset": 1.0, "WEIGHT": True, "CAST_FIRST": True, **config}
            pointers = ("DY", "DS", "V", "W", "DX") if backward else ("X", "R", "W", "Y", "S")
            strides = ("dy_stride", "ds_stride", "v_stride") if backward else ("x_stride", "r_stride")
            shared |= {**dict.fromkeys(pointers, type), **dict.fromkeys(strides, n), "RSTD": "*fp32"}
            shared |= {"DW": "*fp32"} if backward else {"eps": 1e-6}
            for add in (False, True):
                flag = {"SUM_GRAD": add} if backward else {"RESIDUAL": add}
                yield Launch(f"{'add_' if add else ''}{kernel}", "rms_norm", kernel, f"{n} columns", {**shared, **flag})


def _layer_norm(warp: int, type: str) -> Iterator[Launch]:
    for backward in (False, True):
        for n in (128, 4096, 8192 if backward else 16384, 65536):
            long, config = _row(n, warp, backward, type)
            kernel = f"layer_norm_{'backward' if backward else 'forward'}{'_long' if long else ''}"
            rows = {} if long and not backward else {"n_rows": ROWS}
            values: dict[str, Any] = {**rows, "n_cols": n, "x_stride": n, "WEIGHT": True, "BIAS": True, **config}
            values |= dict.fromkeys(("DY", "X", "W", "DX") if backward else ("X", "W", "B", "Y"), type)
            values |= dict.fromkeys(("MEAN", "RSTD", "PART") if backward else ("MEAN", "RSTD"), "*fp32")
            values |= {"dy_stride": n} if backward else {"eps": 1e-5}
            yield Launch(kernel, "layer_norm", kernel, f"{n} columns", values)


def _column_sums(warp: int, type: str) -> Iterator[Launch]:
    values = {"PART": "*fp32", "SUM": type, "n_rows": 132, "n_cols": 4096, **configs.partial_sums()}
    yield Launch("column_sums", "column_sums", "column_sums_kernel", "4096 columns", values)


def _gated(warp: int, type: str) -> Iterator[Launch]:
    n = 14336
    config = configs.elementwise(n, warp)
    for act, name in enumerate(("silu_mul", "gelu_mul_tanh", "gelu_mul_erf")):
        shared = {"GATE": type, "UP": type, "n_rows": ROWS, "n_cols": n, "gate_stride": 2 * n, "up_stride": 2 * n,
                  "ACT": act, **config}  # fmt: skip
        yield Launch(f"{name}_forward", "gated", "gated_forward", f"{n} columns", {**shared, "OUT": type})
        back = {"DOUT": type, "DGATE": type, "DUP": type, "dout_stride": n, "d_stride": 2 * n, "PACKED": True}
        yield Launch(f"{name}_backward", "gated", "gated_backward", f"{n} columns", {**shared, **back})


def _rope(warp: int, type: str) -> Iterator[Launch]:
    heads, half = 32, 64
    strides = ("x_batch", "x_head", "x_token", "y_batch", "y_head", "y_token")
    values = {"X": type, "COS": type, "SIN": type, "Y": type, "heads": heads, "tokens": ROWS, "half": half,
              **dict.fromkeys(strides, 4096), "cos_batch": 0, "cos_token": 128, "sin_batch": 0, "sin_token": 128,
              "BACKWARD": False, "FULL": True, **configs.rotation(heads, half, warp)}  # fmt: skip
    for interleaved in (False, True):
        name = f"rope_{'interleaved' if interleaved else 'half_split'}"
        yield Launch(name, "rope", "rope_rotate", f"{heads} heads of 128", {**values, "INTERLEAVED": interleaved})


def _k_major(warp: int) -> Iterator[Launch]:
    n = 8192
    values = {"X": "*fp32", "Y": "*fp32", "n_rows": ROWS, "n_cols": n, "x_row": n, "x_col": 1, **configs.tiles(warp)}
    yield Launch("k_major_copy", "k_major", "k_major_copy", f"{n} columns", values)


def _cross_entropy(warp: int, type: str) -> Iterator[Launch]:
    n = 128256
    values = {"LOGITS": type, "TARGET": "*i64", "LSE": "*fp32", "n_cols": n, "row_stride": n, "ignore_index": -100,
              "smoothing": 0.1, "SMOOTH": True, **configs.classes(n, warp)}  # fmt: skip
    forward = {**values, "LOSS": "*fp32"}
    yield Launch("cross_entropy_forward", "cross_entropy", "cross_entropy_forward", f"{n} classes", forward)
    backward = {**values, "DLOSS": "*fp32", "DLOGITS": type, "d_stride": n, "dloss_stride": "i32"}
    yield Launch("cross_entropy_backward", "cross_entropy", "cross_entropy_backward", f"{n} classes", backward)


def _decode_attention(warp: int, type: str) -> Iterator[Launch]:
    heads, kv_heads, length = 32, 8, 4096
    for dim in (64, 128):
        exact = type == "*fp32"
        config = configs.decoding(kv_heads, heads // kv_heads, length, dim, dim, 132, exact)
        about = f"{heads} heads of {dim}, {length} keys"
        strides = {f"{t}_{axis}": 2048 * 64 for t in "kv" for axis in ("batch", "head")} | {"k_row": dim, "v_row": dim}
        values = {**dict.fromkeys("QKV", type), "KEEP": "*i1", **dict.fromkeys(("PART", "TOP", "SUM"), "*fp32"),
                  "kv_heads": kv_heads, "group": heads // kv_heads, "length": length, "dim": dim, "v_dim": dim,
                  "scale": 0.125, "q_batch": heads * dim, "q_head": dim, **strides, "keep_batch": 0, "keep_row": 1,
                  "MASKED": True, "EXACT": exact, **config}  # fmt: skip
        yield Launch("decode_attention_part", "decode_attention", "decode_attention_part", about, values)
        parts = -(-length // config["per_part"])
        whole = {**dict.fromkeys(("PART", "TOP", "SUM"), "*fp32"), "OUT": type, "parts": parts, "v_dim": dim,
                 "PARTS": configs.power_of_2(parts), "V_WIDTH": config["V_WIDTH"], "num_warps": 4}  # fmt: skip
        yield Launch("decode_attention_whole", "decode_attention", "decode_attention_whole", about, whole)


def _float32_attention() -> Iterator[Launch]:
    heads, kv_heads = 32, 8

    def launch(name: str, kernel: str, pointers: str, strided: str, more: dict[str, Any]) -> Launch:
        strides = {f"{t}_{axis}": 4096 for t in strided.split() for axis in ("batch", "head", "row")}
        sizes = {"heads": heads, "length": ROWS, "padded": ROWS, "WIDTH": dim, "TF32": tf32}
        values = {**dict.fromkeys(pointers.split(), "*fp32"), **strides, **sizes, **more}
        family = "float32_attention"
        about = f"{heads} heads of {dim}, {ROWS} tokens{'' if tf32 else ', no TF32'}"
        return Launch(f"{family}_{name}", family, f"{family}_{kernel}", about, values, "sm90")

    for dim, tf32 in itertools.product((64, 128), (True, False)):
        yield launch("turn", "turn", "X Y XT SUM", "x y", {"SUMMED": True, **configs.turning()})
        shared = {"group": heads // kv_heads, "scale": 0.125, "CAUSAL": True, "EVEN": True}
        more = {**shared, **configs.float32_attention("forward", dim, tf32)}
        yield launch("forward", "forward", "Q K VT OUT LSE", "q k o", more)
        for of in ("q", "k", "v"):
            more = {**shared, "OF": of, **configs.float32_attention(of, dim, tf32)}
            yield launch(f"backward_{of}", "backward", "A A2 B B2 BT LSE SUM GRAD", "a a2 b b2 g", more)


_COMPUTES = {
    "rms_norm": "x / sqrt(mean(x^2) + eps) * (offset + weight); either cast order",
    "add_rms_norm": "the same of x + residual, and that sum",
    "layer_norm": "LayerNorm over the last dimension",
    "silu_mul": "silu(gate) * up; gate and up apart or in one tensor",
    "gelu_mul": "gelu(gate) * up, by tanh or erf; gate and up apart or in one tensor",
    "rope": "rotary position embedding; half-split or interleaved pairs",
    "cross_entropy": "softmax cross-entropy; ignore_index, label smoothing",
    "decode_attention": "attention of one query a head to a cache; grouped heads, a mask over keys; forward only",
    "linear_cross_entropy": "the same of hidden @ weight.T + bias, the logits never all in memory (uses cross_entropy's)",
}


def families() -> list[dict[str, Any]]:
    """The functions of `rung.kernels`: name, what it computes, the kernels behind it; each has a backward pass but
    attention."""
    names = list(dict.fromkeys(k.name for k in launches(32)))

    def behind(name: str) -> list[str]:
        start = name if name != "linear_cross_entropy" else "cross_entropy"
        return [k for k in names if k.startswith(start)]

    return [{"name": name, "computes": text, "kernels": behind(name)} for name, text in _COMPUTES.items()]
