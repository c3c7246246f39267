"""Rung's own kernels, at shapes of language models and with the launch configurations that they have there."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from rung.kernels import configs
from rung.records.kernels import Function


class Launch(NamedTuple):
    """name: as `rung kernels` shows it; family: the file; kernel: the function; about: the shape it stands for; only: the one
    architecture that its configuration is made for."""

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
        *_in_types(_rope, warp),
        *_k_major(warp),
        *_in_types(_cross_entropy, warp),
        *_in_types(_decode_attention, warp),
        *_in_types(_gemv, warp),
        *_in_types(_biased_attention, warp),
        *_float32_attention(),
    ]


def _in_types(family: Callable[[int, str], Iterator[Launch]], warp: int) -> Iterator[Launch]:
    yield from family(warp, "*bf16")
    for launch in family(warp, "*fp32"):
        yield launch._replace(about=f"{launch.about}, float32")


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


def _gemv(warp: int, type: str) -> Iterator[Launch]:
    for n, k in ((128256, 2048), (28672, 4096), (2048, 8192)):
        values = {**dict.fromkeys(("X", "W", "BIAS", "Y"), type), "n": n, "k": k, "w_row": k,
                  "BIASED": False, **configs.gemv(n, k, 132, warp)}  # fmt: skip
        yield Launch("gemv_rows", "gemv", "gemv_rows", f"{n} x {k}", values)


def _biased_attention(warp: int, type: str) -> Iterator[Launch]:
    """Of vision transformers: windows, where one kernel finds all gradients, and whole images. The same with dropout, of
    text as long as blocks divide. All sequences share the bias. The blocks are chosen for sm90; the kernels run elsewhere, too."""
    family, heads, exact = "biased_attention", 12, type == "*fp32"

    def launch(kernel: str, part: str, pointers: str, strided: str, more: dict[str, Any]) -> Launch:
        strides = {f"{t}_{axis}": heads * dim for t in strided.split() for axis in ("batch", "head", "row")}
        values = {**dict.fromkeys(pointers.split(), type), **strides, **shared, **more, "LSE": "*fp32", "SEED": "*i64"}
        config = configs.biased_attention(part, length, length, dim, exact, dropout)
        about = f"{heads} heads of {dim}, {length} tokens{', dropout' if dropout else ''}"
        return Launch(f"{family}_{kernel}", f"{family}_kernels", f"{family}_{kernel}", about, values | config, "sm90")

    for length, dim, dropout in ((49, 32, False), (197, 64, False), (49, 32, True), (256, 64, True)):
        padded = -(-length // 16) * 16
        shared = {
            "heads": heads, "m": length, "n": length, "columns": padded, "scale": 0.125, "keep": 0.9,
            "bias_batch": 0, "bias_head": length * padded, "bias_row": padded, "bias_key": 1, "DROPOUT": dropout,
            "DIM": dim, "V_DIM": dim, "WIDTH": dim, "V_WIDTH": dim, "EXACT": exact,
        }  # fmt: skip
        one = length <= configs.biased_attention("forward", length, length, dim, exact, dropout)["BLOCK_N"]
        yield launch("forward", "forward", "Q K V BIAS OUT", "q k v o", {"BIAS_FIRST": one, "ONE": one})
        blocks = configs.biased_attention("q", length, length, dim, exact, dropout)
        one = length <= blocks["BLOCK_N"]  # of keys: the gradient of the bias is summed
        whole = one and length <= blocks["BLOCK_M"]
        more = {
            "GRAD_BIAS": "*fp32" if one else type, "DELTA": "*fp32", "sequences": 64, "grad_columns": padded,
            "each": 6 if one else 1, "gb_batch": heads * length * padded, "gb_head": length * padded, "gb_row": padded,
            "BIAS_GRADIENT": "sum" if one else "each", "ONE": one, "WHOLE": whole,
        }  # fmt: skip
        yield launch("backward_q", "q", "Q K V BIAS SLOPE OUT GRAD_Q GRAD_K GRAD_V", "q k v s o gq gk gv", more)
        if not whole:
            yield launch("backward_kv", "kv", "Q K V BIAS SLOPE GRAD_K GRAD_V", "q k v s gk gv", {"DELTA": "*fp32"})


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
    "biased_attention": "attention with a float bias that may learn; gradients of the bias, too; dropout",
    "rope": "rotary position embedding; half-split or interleaved pairs",
    "cross_entropy": "softmax cross-entropy; ignore_index, label smoothing",
    "decode_attention": "attention of one query a head to a cache; grouped heads, a mask over keys; forward only",
    "gemv": "linear layers of one row; forward only",
}


def functions() -> list[Function]:
    """The functions of `rung.kernels`; each has a backward pass but attention of one query and products of one row."""
    names = list(dict.fromkeys(k.name for k in launches(32)))
    return [
        Function(name=name, computes=text, kernels=[k for k in names if k.startswith(name)])
        for name, text in _COMPUTES.items()
    ]
