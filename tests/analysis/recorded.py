"""Calls of operators, written down as Kineto does."""

import json
import math
from typing import NamedTuple

from rung.analysis.costs import Cost, cost, read_call


class T(NamedTuple):
    """A tensor argument."""

    shape: tuple[int, ...]
    dtype: str = "c10::BFloat16"
    strides: tuple[int, ...] | None = None

    @property
    def steps(self):
        return list(self.strides or (math.prod(self.shape[i + 1 :]) for i in range(len(self.shape))))


def columns(*args):
    """The texts dims, dtypes, strides and concrete of a call with these arguments."""
    dims, dtypes, strides, concrete = [], [], [], []
    for arg in args:
        if isinstance(arg, T):
            entry = (list(arg.shape), arg.dtype, arg.steps, "")
        elif isinstance(arg, list) and arg and isinstance(arg[0], T):
            entry = ([list(t.shape) for t in arg], "TensorList", [t.steps for t in arg], "")
        elif isinstance(arg, list):
            entry = ([], "ScalarList", [], str(arg))
        elif arg is None:
            entry = ([], "", [], "")
        else:
            entry = ([], "Scalar", [], str(arg))
        for column, value in zip((dims, dtypes, strides, concrete), entry, strict=True):
            column.append(value)
    return tuple(json.dumps(column) for column in (dims, dtypes, strides, concrete))


def priced(name, *args, item="", around="") -> Cost:
    return cost(read_call(name, *columns(*args), item, around))
