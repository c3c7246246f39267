"""Matrix products by cuBLASLt, for the epilogues that torch has no operator for.

torch loads this library for its own products. It is called through its C interface here: nothing is compiled, and the memory and the stream
are torch's. Of the algorithms that the library proposes for a product the fastest is taken, since its first proposal takes up to 1.2 times
as long (benchmarks/kernels/epilogues.py). Two processes may find another one fastest, so with `torch.use_deterministic_algorithms` it is the
first. Source of names and numbers: cuBLAS documentation, "Using the cuBLASLt API"; cublasLt.h.
"""

from __future__ import annotations

import ctypes
import math
import threading
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

GELU_AUX_BIAS = 164  # D = gelu(A B + bias) in its form with tanh, and A B + bias is written as well
DGELU = 192  # D = (A B) times gelu' of what that wrote

_COMPUTE_FLOAT32, _FLOAT32 = 68, 0
_TYPES = {torch.float16: 2, torch.bfloat16: 14}
_TRANSPOSE_A, _TRANSPOSE_B, _EPILOGUE, _BIAS, _AUX, _AUX_ROW = 3, 4, 7, 8, 11, 12  # of the description of a product
_WORKSPACE, _REDUCTIONS, _ALIGNMENTS = 1, 3, (5, 6, 7, 8)  # of what is asked for; the last are of A, B, C and D
_REDUCTIONS_IN_FLOAT32 = 2
_PROPOSALS, _PROPOSAL_BYTES = 8, 96  # cublasLtMatmulHeuristicResult_t begins with the algorithm
_WORKSPACE_BYTES = 32 << 20  # NVIDIA recommends as much for Hopper
_ROUNDS = 4  # calls of each proposal that are timed, the shortest of which counts


def multiply(
    left: torch.Tensor,
    right: torch.Tensor,
    out: torch.Tensor,
    epilogue: int,
    aux: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> bool:
    """Writes left @ right to `out` through an epilogue. False where the library has no such product: nothing was written then.

    left [M, K] and right [K, N], in lines; out and aux [M, N] and bias [N], contiguous; all on one GPU, in float16 or bfloat16. GELU_AUX_BIAS
    writes aux, DGELU reads it.
    """
    takes = out.is_cuda and readable(left, right, out, aux, bias) and _library() is not None
    product = _product(_Shape.of(left, right, out, aux, bias, epilogue)) if takes else None
    if product is None:
        return False
    with torch.cuda.device(out.device):
        return product(left, right, out, aux, bias)


def readable(
    left: torch.Tensor, right: torch.Tensor, out: torch.Tensor, aux: torch.Tensor, bias: torch.Tensor | None
) -> bool:
    """Whether these are what `multiply` says, in memory, too: the library is given addresses, and reads whatever lies there."""
    written = [out, aux] if bias is None else [out, aux, bias]
    if any((each.dtype, each.device) != (out.dtype, out.device) for each in (left, right, *written)):
        return False
    (rows, columns), inner = out.shape, left.shape[1]
    sizes = [(rows, inner), (inner, columns), (rows, columns), (rows, columns), (columns,)]
    if any(each.shape != size for each, size in zip((left, right, *written), sizes, strict=False)):
        return False
    # It asks for rows of `aux` of whole 16 bytes.
    if out.dtype not in _TYPES or columns % 8 or not min(rows, columns, inner):
        return False
    return in_lines(left) and in_lines(right) and all(each.is_contiguous() for each in written)


def in_lines(matrix: torch.Tensor) -> bool:
    """Whether the numbers of each row, or of each column, lie next to one another, and each line behind the one before. Not so are lines that
    are broadcast, as the gradient of a sum is, and windows that overlap."""
    (rows, columns), (down, across) = matrix.shape, matrix.stride()
    if across == 1 and (down >= columns or rows == 1):
        return True
    return bool(down == 1 and (across >= rows or columns == 1))


@dataclass(frozen=True)
class _Shape:
    """What the choice of an algorithm depends on.

    The library counts along columns. So its D is `out` the other way, its A is `right`, and its B is `left`.
    """

    rows: int
    columns: int
    inner: int
    right_by_columns: bool
    right_step: int  # from one of the lines in which it lies to the next, in numbers
    left_by_columns: bool
    left_step: int
    dtype: torch.dtype
    alignment: int  # bytes
    epilogue: int
    device: int

    @classmethod
    def of(
        cls,
        left: torch.Tensor,
        right: torch.Tensor,
        out: torch.Tensor,
        aux: torch.Tensor,
        bias: torch.Tensor | None,
        epilogue: int,
    ) -> _Shape:
        addresses = [each.data_ptr() for each in (left, right, out, aux, bias) if each is not None]
        alignment = min(256, *(address & -address for address in addresses))
        device = torch.cuda.current_device() if out.device.index is None else out.device.index
        (rows, columns), inner = out.shape, left.shape[1]
        return cls(rows, columns, inner, *_lines(right), *_lines(left), out.dtype, alignment, epilogue, device)


def _lines(matrix: torch.Tensor) -> tuple[bool, int]:
    """Whether it lies by columns, and the step from one line to the next. Where one line is all, its length is one that the library takes."""
    by_columns = matrix.stride(1) != 1
    step, length = (matrix.stride(1), matrix.shape[0]) if by_columns else (matrix.stride(0), matrix.shape[1])
    return by_columns, max(step, length)


@cache
def _product(shape: _Shape) -> _Product | None:
    with torch.cuda.device(shape.device):
        product = _Product(shape)
    return product if product.count else None


class _Product:
    """A product of one shape, with the library's proposals for it."""

    def __init__(self, shape: _Shape) -> None:
        self._description = _made("MatmulDesc", _COMPUTE_FLOAT32, _FLOAT32)
        self._describe(_TRANSPOSE_A, ctypes.c_int32(shape.right_by_columns))
        self._describe(_TRANSPOSE_B, ctypes.c_int32(shape.left_by_columns))
        self._describe(_EPILOGUE, ctypes.c_int32(shape.epilogue))
        self._describe(_AUX_ROW, ctypes.c_int64(shape.columns))
        self._point(shape.alignment, shape.alignment)  # read for their alignment alone, as long as nothing runs
        a, b, d = (shape.columns, shape.inner), (shape.inner, shape.rows), (shape.columns, shape.rows)
        self._a = _layout(shape.dtype, a[::-1] if shape.right_by_columns else a, shape.right_step)
        self._b = _layout(shape.dtype, b[::-1] if shape.left_by_columns else b, shape.left_step)
        self._d = _layout(shape.dtype, d, shape.columns)
        self._proposals = (ctypes.c_uint8 * (_PROPOSALS * _PROPOSAL_BYTES))()
        self.count = self._ask(shape.alignment)
        self._fastest: int | None = None
        self._lock = threading.Lock()  # the description has the addresses of one call at a time

    def _describe(self, attribute: int, value: Any) -> None:
        _call("MatmulDescSetAttribute", self._description, attribute, *_bytes(value))

    def _point(self, aux: int, bias: int | None) -> None:
        self._describe(_AUX, ctypes.c_void_p(aux))
        self._describe(_BIAS, ctypes.c_void_p(bias))

    def _ask(self, alignment: int) -> int:
        """How many algorithms the library proposes, the one that it takes for the fastest first."""
        wanted, count = _made("MatmulPreference"), ctypes.c_int()
        _call("MatmulPreferenceSetAttribute", wanted, _WORKSPACE, *_bytes(ctypes.c_size_t(_WORKSPACE_BYTES)))
        _call("MatmulPreferenceSetAttribute", wanted, _REDUCTIONS, *_bytes(ctypes.c_uint32(_REDUCTIONS_IN_FLOAT32)))
        for attribute in _ALIGNMENTS:
            _call("MatmulPreferenceSetAttribute", wanted, attribute, *_bytes(ctypes.c_uint32(alignment)))
        found = _status(
            "MatmulAlgoGetHeuristic", _handle(), self._description, self._a, self._b, self._d, self._d, wanted,
            _PROPOSALS, ctypes.byref(self._proposals), ctypes.byref(count),
        )  # fmt: skip
        _call("MatmulPreferenceDestroy", wanted)
        return 0 if found else count.value

    def __call__(
        self,
        left: torch.Tensor,
        right: torch.Tensor,
        out: torch.Tensor,
        aux: torch.Tensor,
        bias: torch.Tensor | None,
    ) -> bool:
        workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=out.device)
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        one, zero = ctypes.c_float(1.0), ctypes.c_float(0.0)
        a, b, d, w = (ctypes.c_void_p(each.data_ptr()) for each in (right, left, out, workspace))

        def run(proposal: int) -> bool:
            algorithm = ctypes.c_void_p(ctypes.addressof(self._proposals) + proposal * _PROPOSAL_BYTES)
            return not _status(
                "Matmul", _handle(), self._description, ctypes.byref(one), a, self._a, b, self._b, ctypes.byref(zero),
                d, self._d, d, self._d, algorithm, w, ctypes.c_size_t(_WORKSPACE_BYTES), stream,
            )  # fmt: skip

        with self._lock:
            self._point(aux.data_ptr(), None if bias is None else bias.data_ptr())
            if torch.are_deterministic_algorithms_enabled():
                return run(0)
            if self._fastest is None and not torch.cuda.is_current_stream_capturing():
                self._fastest = self._timed(run)
            return run(self._fastest or 0)

    def _timed(self, run: Any) -> int:
        """The proposal that takes the shortest time."""
        shortest, fastest = math.inf, 0
        for proposal in range(self.count):
            for _ in range(_ROUNDS):
                start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                start.record()
                ran = run(proposal)
                end.record()
                end.synchronize()
                if ran and start.elapsed_time(end) < shortest:
                    shortest, fastest = start.elapsed_time(end), proposal
        return fastest


def _layout(dtype: torch.dtype, shape: tuple[int, int], step: int) -> ctypes.c_void_p:
    return _made("MatrixLayout", _TYPES[dtype], *(ctypes.c_uint64(n) for n in shape), ctypes.c_int64(step))


@cache
def _library() -> ctypes.CDLL | None:
    """What torch has loaded; None where its GPUs are not NVIDIA's."""
    if torch.version.cuda is None:
        return None
    try:
        return ctypes.CDLL(f"libcublasLt.so.{torch.version.cuda.partition('.')[0]}")
    except OSError:
        return None


def _handle() -> ctypes.c_void_p:
    return _handle_of(torch.cuda.current_device())


@cache
def _handle_of(device: int) -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    _call("Create", ctypes.byref(handle))
    return handle


def _made(kind: str, *arguments: Any) -> ctypes.c_void_p:
    made = ctypes.c_void_p()
    _call(f"{kind}Create", ctypes.byref(made), *arguments)
    return made


def _bytes(value: Any) -> tuple[Any, ctypes.c_size_t]:
    return ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value))


def _call(function: str, *arguments: Any) -> None:
    if status := _status(function, *arguments):
        raise RuntimeError(f"cublasLt{function} failed with status {status}.")


def _status(function: str, *arguments: Any) -> int:
    return int(getattr(_library(), f"cublasLt{function}")(*arguments))
