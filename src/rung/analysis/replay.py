"""One call of an operator, taken out of a trace so that it can be made again elsewhere.

A trace is a stranger's: what goes on from here are names of a checked form, integers, floats, truth values and types of a
fixed list, never a text of the trace itself.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal, NamedTuple

import polars as pl

from rung.analysis.calls import launching_calls
from rung.analysis.costs import LIST_ITEM, Unknown, cost, read_call
from rung.analysis.costs.attention import FORMS
from rung.analysis.costs.call import Call, Tensor, read_strides
from rung.analysis.nesting import nearest
from rung.analysis.origins import origins
from rung.analysis.roofline import peaks_of_trace, readable
from rung.analysis.work import INPUTS, item_of_kernel
from rung.errors import UsageError
from rung.trace.table import Trace

_NAME = re.compile(r"[A-Za-z_]\w{0,99}::[A-Za-z_]\w{0,99}", re.ASCII)
_NUMBER = re.compile(r"[-+]?\d{1,18}", re.ASCII)
_FLOAT = re.compile(r"[-+]?(\d{1,40}\.?\d{0,40}|\.\d{1,40})([eE][-+]?\d{1,3})?|[-+]?inf|nan", re.ASCII)
_MOST_INPUTS, _MOST_VALUES = 64, 512
# Where an operator's integers are places in another input: (their position, the position of that input, its dimension;
# None: the dimension that the second argument names).
_PLACES = {
    "aten::embedding": (1, 0, 0),
    "aten::_embedding_bag": (1, 0, 0),
    "aten::index_select": (2, 0, None),
    "aten::gather": (2, 0, None),
    "aten::scatter_": (2, 0, None),
    "aten::scatter_add_": (2, 0, None),
    "aten::index_add_": (2, 0, None),
    "aten::nll_loss_forward": (1, 0, 1),
    "aten::nll_loss_backward": (2, 1, 1),
}

Value = bool | int | float | None | list[bool] | list[int] | list[float]


class TensorSpec(NamedTuple):
    """fill: "normal" for random floating-point numbers, "below" for integers from 0 up to less than `high`, "steps" for
    equal steps from 0 to `high`, "number" for a number that Python passed, which lies on the host.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str  # torch's name, without "torch."
    fill: Literal["normal", "below", "steps", "number"]
    high: int


Input = TensorSpec | list[TensorSpec] | Value


@dataclass(frozen=True)
class Replay:
    """A call that can be made again: nothing in it is a text from the trace but the checked name.

    calls, gpu_ns: how often the trace made this call, and the GPU time of all of them; flops, bytes: of one, where it
    has a model; gpu: the name of the GPU in rung's own list.
    """

    op: str
    inputs: list[Input]
    calls: int
    gpu_ns: int
    flops: int | None
    bytes: int | None
    gpu: str | None


_TORCH = {
    "fp64": "float64", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16",
    "complex64": "complex64", "complex128": "complex128", "int64": "int64", "int32": "int32", "int16": "int16",
    "int8": "int8", "uint8": "uint8", "bool": "bool", "uint64": "uint64", "uint32": "uint32", "uint16": "uint16",
}  # fmt: skip
_FLOAT8 = {
    "c10::Float8_e4m3fn": "float8_e4m3fn",
    "c10::Float8_e4m3fnuz": "float8_e4m3fnuz",
    "c10::Float8_e5m2": "float8_e5m2",
    "c10::Float8_e5m2fnuz": "float8_e5m2fnuz",
    "c10::Float8_e8m0fnu": "float8_e8m0fnu",
    "c10::Float4_e2m1fn_x2": "float4_e2m1fn_x2",
}


def calls_of(trace: Trace, op: str, shapes: str = "") -> pl.DataFrame:
    """The distinct calls of an operator, the most GPU time first; shapes: only those with these words among their inputs.

    index: to choose one by, among these; inputs: readable; count; time_ns: of the GPU events launched inside these calls; INPUTS as
    recorded; item: the type of the elements of lists, where a kernel's name says it.
    """
    calls, events = launching_calls(trace), origins(trace)
    mine = nearest(calls["caller"].to_numpy(), ((calls["kind"] == "cpu_op") & (calls["name"] == op)).to_numpy())
    times = (
        events.select("dur", kernel="name", call=pl.Series(mine).gather(events["op"]))
        .filter(pl.col("call") >= 0)
        .group_by("call")
        .agg(pl.col("dur").sum(), pl.col("kernel").first())
    )
    found = (
        calls.select(*INPUTS, "kind")
        .with_row_index("call")
        .filter(pl.col("kind") == "cpu_op", pl.col("name") == op)
        .with_columns(pl.col("call").cast(pl.Int64))
        .join(times, on="call", how="left", maintain_order="left")
        .group_by(INPUTS, maintain_order=True)
        .agg(count=pl.len(), time_ns=pl.col("dur").sum(), kernel=pl.col("kernel").drop_nulls().first())
        .sort("time_ns", descending=True, maintain_order=True)
    )
    shown = [readable(dims, dtypes) for dims, dtypes in found.select("dims", "dtypes").iter_rows()]
    items = [item_of_kernel(kernel) if kernel else None for kernel in found["kernel"]]
    wanted = shapes.split()
    fits = pl.Series([all(word in (text or "").split() for word in wanted) for text in shown], dtype=pl.Boolean)
    return found.with_columns(
        inputs=pl.Series(shown, dtype=pl.String), item=pl.Series(items, dtype=pl.String)
    ).filter(fits).select(
        index=pl.int_range(pl.len()),
        inputs="inputs",
        count="count",
        time_ns="time_ns",
        **{name: pl.col(name) for name in INPUTS},
        item="item",
    )  # fmt: skip


def known_calls(trace: Trace, op: str, shapes: str = "") -> pl.DataFrame:
    """The same. Raises UsageError where the trace has no such operator at all."""
    found = calls_of(trace, op, shapes)
    if found.is_empty() and calls_of(trace, op).is_empty():
        raise UsageError(
            f"{trace.source or 'the trace'} has no operator {op}: `--show ops` of rung analyze lists them."
        )
    return found


def replay(trace: Trace, op: str, *, shapes: str = "", index: int = 0) -> Replay:
    """The call of `op` (`aten::mm`, or `mm` for short) with the most GPU time, or the `index`-th of those.

    shapes: only calls whose inputs, as `calls_of` shows them, contain these words. Raises UsageError where there is no such
    call, or where it cannot be made again.
    """
    op = full_name(op)
    chosen = known_calls(trace, op, shapes)
    if not 0 <= index < chosen.height:
        of = f" with {shapes!r} among its inputs" if shapes else ""
        raise UsageError(f"{op} has {chosen.height} different calls{of}, counted from 0: choose --index from `--list`.")
    row = chosen.row(index, named=True)
    try:
        item = LIST_ITEM.get(op) or row["item"] or "fp32"
        call = read_call(op, row["dims"], row["dtypes"], row["strides"], row["concrete"], item)
        inputs = _inputs(call, row["dtypes"], row["strides"])
    except Unknown:
        raise UsageError(f"this call of {op} has no usable shapes: record with record_shapes=True.") from None
    try:
        work = cost(call)
    except Unknown:
        work = None
    peaks = peaks_of_trace(trace)
    return Replay(op, inputs, row["count"], row["time_ns"] or 0, work.flops if work else None,
                  work.bytes if work else None, peaks.name if peaks else None)  # fmt: skip


def full_name(op: str) -> str:
    """`mm` is `aten::mm`. Raises UsageError for what is no name of an operator."""
    name = op if "::" in op else f"aten::{op}"
    if not _NAME.fullmatch(name) or name.startswith("aten::triton_"):
        raise UsageError(
            f"{op[:80]!r} is not the name of a PyTorch operator: give one like aten::mm "
            "(kernels that torch.compile generated have none)."
        )
    return name


def _inputs(call: Call, dtypes: str | None, strides: str | None) -> list[Input]:
    if len(call.inputs) > _MOST_INPUTS:
        raise Unknown
    kinds, steps = read_strides(call, dtypes, strides)
    found: list[Input] = []
    for position, (value, kind, step) in enumerate(zip(call.inputs, kinds, steps, strict=True)):
        if isinstance(value, Tensor):
            found.append(_tensor(call, position, value, kind, step))
        elif value is not None:
            if len(value) > _MOST_VALUES:
                raise Unknown
            found.append(
                [_tensor(call, position, tensor, "", step_of) for tensor, step_of in zip(value, step, strict=True)]
            )
        else:
            found.append(parsed(call.text(position)))
    return found


def _tensor(call: Call, position: int, tensor: Tensor, kind: str, strides: tuple[int, ...]) -> TensorSpec:
    dtype = _FLOAT8.get(kind) or _TORCH.get(tensor.dtype)
    if dtype is None:
        raise Unknown
    floating = dtype.startswith(("float", "bfloat", "complex"))
    if not tensor.shape and dtype in ("float64", "int64"):
        return TensorSpec((), (), dtype, "number", 2)
    if floating:
        return TensorSpec(tensor.shape, strides, dtype, "normal", 0)
    lengths = FORMS.get(call.name)
    if lengths is not None and lengths[1].lengths >= 0 and position in (lengths[1].lengths, lengths[1].lengths + 1):
        q = call.tensor(lengths[1].q + position - lengths[1].lengths)
        return TensorSpec(tensor.shape, strides, dtype, "steps", q.shape[-3] if len(q.shape) >= 3 else 0)
    return TensorSpec(tensor.shape, strides, dtype, "below", 2 if dtype == "bool" else _high(call, position))


def _high(call: Call, position: int) -> int:
    """How many places the integers of an input may name; where it is not known what they are, few enough to be safe."""
    at, of, dim = _PLACES.get(call.name, (-1, 0, 0))
    if at == position:
        table = call.tensor(of)
        chosen = dim if dim is not None else (call.integers(1) or (0,))[0]
        if -len(table.shape) <= chosen < len(table.shape):
            return max(table.shape[chosen], 1)
    sizes = [size for value in call.tensors if value.dtype.startswith(("fp", "bf")) for size in value.shape]
    return max(min(sizes, default=2), 1)


def parsed(text: str) -> Value:
    """A value that is no tensor, from its text; None for what is none of a number, a truth value and a list of these."""
    text = text.strip()
    if text.startswith("[") and text.endswith("]"):
        words = [word.strip() for word in text[1:-1].split(",")] if text[1:-1].strip() else []
        values = [_single(word) for word in words]
        if len(values) > _MOST_VALUES or any(value is None for value in values):
            return None
        return values  # type: ignore[return-value]
    return _single(text)


def _single(text: str) -> bool | int | float | None:
    if text in ("True", "False"):
        return text == "True"
    if _NUMBER.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text) and not text.lstrip("+-").isdigit():
        number = float(text)
        return number if not math.isinf(number) or "inf" in text else None
    return None
