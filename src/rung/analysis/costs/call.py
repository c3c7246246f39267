"""A call of an operator as a trace records it, what such a call costs, and how long that takes at the least on a GPU: the time at the roof."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from rung.hardware.peaks import Peaks

Dims = tuple[int, ...]

# The names that torch's profiler gives to element types (c10's, and those of C++), as precisions.
PRECISIONS = {
    "double": "fp64", "float": "fp32", "c10::Half": "fp16", "c10::BFloat16": "bf16",
    "c10::Float8_e4m3fn": "fp8", "c10::Float8_e4m3fnuz": "fp8", "c10::Float8_e5m2": "fp8", "c10::Float8_e5m2fnuz": "fp8",
    "c10::Float8_e8m0fnu": "fp8", "c10::Float4_e2m1fn_x2": "fp4",
    "c10::complex<float>": "complex64", "c10::complex<double>": "complex128",
    "long int": "int64", "long": "int64", "int": "int32", "short int": "int16", "short": "int16",
    "signed char": "int8", "char": "int8", "unsigned char": "uint8", "bool": "bool",
    "unsigned long": "uint64", "unsigned int": "uint32", "unsigned short": "uint16",
}  # fmt: skip
# Bytes an element. fp4 comes two in a byte, and a shape counts the bytes.
ITEM = {
    "fp64": 8, "fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "fp4": 1, "complex64": 8, "complex128": 16,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1, "uint64": 8, "uint32": 4, "uint16": 2,
}  # fmt: skip
# torch.dtype as an argument is recorded as the number of its ScalarType (c10/core/ScalarType.h).
SCALAR_TYPES = {
    0: "uint8", 1: "int8", 2: "int16", 3: "int32", 4: "int64", 5: "fp16", 6: "fp32", 7: "fp64", 9: "complex64",
    10: "complex128", 11: "bool", 15: "bf16", 23: "fp8", 24: "fp8", 25: "fp8", 26: "fp8",
}  # fmt: skip
_MOST = 2**60  # of anything: a shape that needs more is no shape of a real tensor
_INTEGERS = re.compile(r"-?\d{1,18}")


class Unknown(Exception):
    """What was recorded is not enough, or not what this operator takes."""


class Tensor(NamedTuple):
    """stored: distinct elements in memory, less than the product of `shape` where it is an expanded view."""

    shape: Dims
    dtype: str  # a key of ITEM
    stored: int

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def item(self) -> int:
        return ITEM[self.dtype]

    @property
    def bytes(self) -> int:
        return self.stored * self.item


@dataclass(frozen=True)
class Cost:
    """The work of one call: floating-point operations, and the bytes that it cannot avoid to move.

    flops: a multiplication and an addition count as two. bytes: every input read once, every output written once.
    precision: of the arithmetic, as in hardware/peaks.toml; matrix: whether the matrix units can do it.
    cache: of the bytes those that are read from a cache of keys and values, or written to it.
    inferred: sizes are not recorded; they follow from the names and grids of the kernels.
    """

    flops: int
    bytes: int
    precision: str = "fp32"
    matrix: bool = False
    cache: int = 0
    inferred: bool = False


Input = Tensor | tuple[Tensor, ...] | None


@dataclass(frozen=True)
class Call:
    """inputs: a tensor, a list of tensors, or None for what is no tensor; values: the texts of "Concrete Inputs".

    around: what the trace says of the call beside its inputs (analysis/around.py).
    """

    name: str
    inputs: tuple[Input, ...]
    values: tuple[str, ...] = ()
    around: str = ""

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors, those of lists too."""
        found: list[Tensor] = []
        for value in self.inputs:
            if isinstance(value, Tensor):
                found.append(value)
            elif value is not None:
                found.extend(value)
        return found

    def tensor(self, index: int, dimensions: int | None = None) -> Tensor:
        """The tensor at a position. Raises Unknown where none was recorded, or one of other dimensions."""
        value = self.maybe(index)
        if value is None or (dimensions is not None and len(value.shape) != dimensions):
            raise Unknown
        return value

    def maybe(self, index: int) -> Tensor | None:
        value = self.inputs[index] if index < len(self.inputs) else None
        return value if isinstance(value, Tensor) else None

    def tensor_list(self, index: int) -> tuple[Tensor, ...]:
        """The tensors of a list. Raises Unknown where it is empty: Kineto leaves long lists out."""
        value = self.inputs[index] if index < len(self.inputs) else None
        if not isinstance(value, tuple) or isinstance(value, Tensor) or not value:
            raise Unknown
        return value

    def text(self, index: int) -> str:
        return self.values[index] if index < len(self.values) else ""

    def integers(self, index: int) -> Dims:
        """The integers of a list or of one number; none where nothing was recorded."""
        return tuple(int(found) for found in _INTEGERS.findall(self.text(index)))

    def flag(self, index: int) -> bool:
        return self.text(index) in ("True", "true", "1")


Model = Callable[[Call], Cost]


def read_call(
    name: str,
    dims: str | None,
    dtypes: str | None,
    strides: str | None,
    concrete: str | None,
    item: str = "",
    around: str = "",
) -> Call:
    """The call that the JSON texts of an event describe. Raises Unknown where they do not.

    item: the precision of the elements of tensor lists, whose types Kineto does not record. around: as in Call.
    """
    shapes, types, steps, values = (_list(text) for text in (dims, dtypes, strides, concrete))
    if not shapes or len(types) != len(shapes):
        raise Unknown
    steps = steps if len(steps) == len(shapes) else [None] * len(shapes)
    inputs: list[Input] = []
    for shape, kind, step in zip(shapes, types, steps, strict=True):
        if kind == "TensorList":
            inputs.append(tuple(_tensors(shape, item, step)) if item else None)
        elif isinstance(kind, str) and kind in PRECISIONS:
            inputs.append(_tensor(shape, PRECISIONS[kind], step))
        else:
            inputs.append(None)
    texts = tuple(value if isinstance(value, str) else str(value) for value in values)
    return Call(name, tuple(inputs), texts, around)


def read_strides(call: Call, dtypes: str | None, strides: str | None) -> tuple[list[str], list[Any]]:
    """For each input of a call its recorded type and its strides (a list of them for a list of tensors), contiguous
    where none were recorded. Raises Unknown for strides that no tensor of that shape has.
    """
    kinds, steps = _list(dtypes), _list(strides)
    steps = steps if len(steps) == len(call.inputs) else [None] * len(call.inputs)
    found: list[Any] = []
    for value, step in zip(call.inputs, steps, strict=True):
        if isinstance(value, Tensor):
            found.append(_strides(value, step))
        elif value is not None:
            each = step if isinstance(step, list) and len(step) == len(value) else [None] * len(value)
            found.append([_strides(tensor, part) for tensor, part in zip(value, each, strict=True)])
        else:
            found.append(None)
    return [kind if isinstance(kind, str) else "" for kind in kinds], found


def _strides(tensor: Tensor, recorded: Any) -> Dims:
    if not isinstance(recorded, list) or len(recorded) != len(tensor.shape):
        return tuple(math.prod(tensor.shape[i + 1 :]) for i in range(len(tensor.shape)))
    if not all(type(step) is int and 0 <= step <= _MOST for step in recorded):
        raise Unknown
    if sum((size - 1) * step for size, step in zip(tensor.shape, recorded, strict=True) if size) > _MOST:
        raise Unknown
    return tuple(recorded)


def _list(text: str | None) -> list[Any]:
    if not text:
        return []
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        raise Unknown from None
    if not isinstance(found, list):
        raise Unknown
    return found


def _tensors(shapes: Any, dtype: str, strides: Any) -> list[Tensor]:
    if not isinstance(shapes, list):
        raise Unknown
    steps = strides if isinstance(strides, list) and len(strides) == len(shapes) else [None] * len(shapes)
    return [_tensor(shape, dtype, step) for shape, step in zip(shapes, steps, strict=True)]


def _tensor(shape: Any, dtype: str, strides: Any) -> Tensor:
    if not isinstance(shape, list) or not all(type(size) is int and 0 <= size <= _MOST for size in shape):
        raise Unknown
    known = isinstance(strides, list) and len(strides) == len(shape)
    stored = math.prod(size for i, size in enumerate(shape) if not (known and strides[i] == 0))
    if math.prod(max(size, 1) for size in shape) > _MOST:
        raise Unknown
    return Tensor(tuple(shape), dtype, stored)


def checked(cost: Cost) -> Cost:
    """The cost, unless it is more than anything real."""
    if not (0 <= cost.flops <= _MOST and 0 <= cost.bytes <= _MOST):
        raise Unknown
    return cost


def wider(*tensors: Tensor) -> str:
    """The precision that arithmetic on these is done in: the widest floating-point one, else the widest."""
    floats = [t.dtype for t in tensors if t.dtype.startswith(("fp", "bf"))]
    names = floats or [t.dtype for t in tensors]
    return max(names, key=lambda name: ITEM[name]) if names else "fp32"


def precision(dtype: str) -> str:
    """The precision whose rate applies to elements of a type: 32-bit arithmetic for integers and truth values."""
    if dtype.startswith("complex"):
        return "fp32" if dtype == "complex64" else "fp64"
    return dtype if dtype.startswith(("fp", "bf")) else "fp32"


def broadcast(*tensors: Tensor) -> Dims:
    """The shape of an elementwise result. Raises Unknown where the shapes do not go together."""
    rank = max((len(t.shape) for t in tensors), default=0)
    shape = [1] * rank
    for t in tensors:
        for i, size in enumerate(reversed(t.shape), 1):
            if size != 1:
                if shape[-i] not in (1, size):
                    raise Unknown
                shape[-i] = size
    return tuple(shape)


def words(text: str) -> list[str]:
    """The words of a text: how families name many operators."""
    return text.split()


class Roof(NamedTuple):
    """Seconds: of the arithmetic alone and of the memory traffic alone at the data sheet's peaks; and of the longer of
    the two at the peaks that benchmarks reached, the data sheet's where none is known.
    """

    compute: float
    memory: float
    measured: float

    @property
    def floor(self) -> float:
        return max(self.compute, self.memory)

    @property
    def bound(self) -> str:
        return "compute" if self.compute > self.memory else "memory"


def roof(cost: Cost, peaks: Peaks, precision: str = "") -> Roof:
    """The roof of one call, in the cost's precision or in another one that its kernels are known to use."""
    kind = precision or cost.precision
    rate = peaks.rate(kind, matrix=cost.matrix)
    reached = peaks.measured.get(kind, rate) if cost.matrix else rate
    return Roof(
        cost.flops / rate,
        cost.bytes / peaks.bandwidth,
        max(cost.flops / reached, cost.bytes / peaks.measured.get("bandwidth", peaks.bandwidth)),
    )
