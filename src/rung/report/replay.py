"""The script that makes a recorded call again."""

from __future__ import annotations

import math
from importlib import resources
from typing import Any

from rung.analysis.replay import Input, Replay, TensorSpec

_MARK = "@RECORD@"


def script(call: Replay) -> str:
    """A Python program that needs torch alone. Nothing of the trace stands in it but literals."""
    lines = [f"OPERATOR = {call.op!r}", "INPUTS = ["]
    lines += [f"    {_input(value)}," for value in call.inputs]
    recorded = call.gpu_ns // call.calls if call.calls and call.gpu_ns else None
    lines += [
        "]",
        f"RECORDED_NS = {_literal(recorded)}  # GPU time a call, the mean of {int(call.calls)}",
        f"RECORDED_GPU = {_literal(call.gpu)}",
        f"FLOPS, BYTES = {_literal(call.flops)}, {_literal(call.bytes)}  # of a call, by its shapes",
    ]
    template = resources.files("rung.report").joinpath("replay_script.txt").read_text("utf-8")
    return template.replace(_MARK, "\n".join(lines))


def _input(value: Input) -> str:
    if isinstance(value, TensorSpec):
        return _literal(("tensor", *value))
    if isinstance(value, list) and value and isinstance(value[0], TensorSpec):
        return _literal(("tensors", [("tensor", *each) for each in value]))
    return _literal(("value", value))


def _literal(value: Any) -> str:
    """Python source of plain values, also of the floats that have no literal."""
    if isinstance(value, tuple):
        return f"({', '.join(map(_literal, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value!r}")'
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    raise TypeError(f"{type(value).__name__} is not a plain value")
