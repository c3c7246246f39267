"""Reads the Chrome trace that torch.profiler (Kineto) writes, on ROCm and on CUDA."""

from __future__ import annotations

import gzip
import re
import zlib
from collections import Counter
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from rung.errors import InputError
from rung.trace.table import GPU_KINDS, SCHEMA, Trace

_KIND_OF_CATEGORY = {
    "kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "memcpy": "memcpy",
    "gpu_memset": "memset",
    "memset": "memset",
    "cuda_runtime": "runtime",  # ROCm writes its hip… calls under this name too
    "cuda_driver": "runtime",
    "hip_runtime": "runtime",
    "runtime": "runtime",
    "cpu_op": "cpu_op",
    "operator": "cpu_op",
    "user_annotation": "annotation",
    "gpu_user_annotation": "gpu_annotation",
    "python_function": "python",
    "allocation": "allocation",  # of our own writer
}
_PHASES = {
    "B": "begin or end event",
    "E": "begin or end event",
    "i": "instant event",
    "I": "instant event",
    "R": "instant event",
    "s": "flow event",
    "t": "flow event",
    "f": "flow event",
    "M": "metadata event",
    "C": "counter event",
    "": "event without a phase",
}
_INT64 = 2**63
_ON_GPU = frozenset((*GPU_KINDS, "gpu_annotation"))
# Kineto prints the bandwidth of a copy of no duration as a bare inf or nan, which is not JSON.
_NOT_A_NUMBER = re.compile(rb":\s*-?(?:nan|inf|infinity)\s*(?=[,}])", re.IGNORECASE)


class _Args(msgspec.Struct, gc=False):
    device: Any = None
    stream: Any = None
    correlation: Any = None
    external_id: Any = msgspec.field(name="External id", default=None)
    old_external_id: Any = msgspec.field(name="external id", default=None)
    bytes: Any = None
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw())
    old_dims: msgspec.Raw = msgspec.field(name="Input dims", default=msgspec.Raw())
    # What our own writer of Chrome traces adds (write_chrome.py).
    rank: Any = msgspec.field(name="Rung rank", default=None)
    pid: Any = msgspec.field(name="Rung pid", default=None)
    tid: Any = msgspec.field(name="Rung tid", default=None)


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str | None = None
    name: Any = ""
    pid: Any = ""
    tid: Any = ""
    # Raw: a float64 cannot hold microseconds since 1970 to the nanosecond, the digits can.
    ts: msgspec.Raw = msgspec.Raw()
    dur: msgspec.Raw = msgspec.Raw()
    args: _Args | None = None


class _File(msgspec.Struct):
    events: list[_Event] = msgspec.field(name="traceEvents")
    devices: list[dict[str, Any]] | None = msgspec.field(name="deviceProperties", default=None)


_NO_ARGS = _Args()


def read(path: str | Path) -> Trace:
    """The trace in `path`: Chrome trace JSON as torch.profiler exports it, plain or gzip.

    Compression is told by content, not by the file's name. A trace without events is a valid empty trace.
    Raises InputError when the file is missing, empty, cut off or something else.
    """
    data = _content(Path(path))
    parsed = _parse(data, path)
    if parsed.events and not any(event.ph for event in parsed.events):
        raise _not_a_trace(path, "its events have no phase (ph)")
    frame, unread = _table(parsed.events)
    return Trace(events=frame, devices=parsed.devices or [], source=str(path), unread=unread)


def _content(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"There is no file {path}: check the path of the trace.") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a directory: name the trace file in it.") from None
    except OSError as error:
        raise InputError(f"{path} could not be read ({error.strerror}): check its permissions and disk.") from None
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except (EOFError, OSError, zlib.error) as error:
            raise InputError(
                f"{path} is a damaged or cut-off gzip file ({error}): copy or record the trace again."
            ) from None
    if not data.strip():
        raise InputError(f"{path} is empty: record the trace again.")
    return data


def _parse(data: bytes, path: str | Path) -> _File:
    # Some tools write the list of events alone; the Chrome format allows it.
    bare_list = data.lstrip()[:1] == b"["
    try:
        try:
            return _decode(data, bare_list)
        except msgspec.ValidationError:
            raise
        except (msgspec.DecodeError, UnicodeDecodeError):
            repaired = _NOT_A_NUMBER.sub(b": null", data.decode("utf-8", "replace").encode())
            return _decode(repaired, bare_list)
    except msgspec.ValidationError as error:
        raise _not_a_trace(path, str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if data.lstrip()[:1] not in (b"{", b"["):
            raise _not_a_trace(path, "it is not JSON") from None
        raise InputError(
            f"{path} is not complete JSON, it seems cut off or damaged ({error}): copy or record the trace again."
        ) from None


def _decode(data: bytes, bare_list: bool) -> _File:
    if bare_list:
        return _File(events=msgspec.json.decode(data, type=list[_Event]))
    return msgspec.json.decode(data, type=_File)


def _not_a_trace(path: str | Path, why: str) -> InputError:
    return InputError(
        f"{path} is not a torch.profiler trace ({why}): give a file written by torch.profiler's export_chrome_trace."
    )


def _table(events: list[_Event]) -> tuple[pl.DataFrame, dict[str, int]]:
    unread: Counter[str] = Counter()
    columns: dict[str, list[Any]] = {name: [] for name in SCHEMA}
    append = [columns[name].append for name in SCHEMA]
    for event in events:
        if event.ph != "X":
            unread[_PHASES.get(event.ph, "event of another phase")] += 1
            continue
        ts, dur = _nanoseconds(bytes(event.ts)), _nanoseconds(bytes(event.dur))
        if ts is None or dur is None:
            unread["no readable start or duration"] += 1
            continue
        if dur < 0:
            unread["negative duration"] += 1
            continue
        if ts + dur >= _INT64:
            unread["no readable start or duration"] += 1
            continue
        args = event.args or _NO_ARGS
        kind = _KIND_OF_CATEGORY.get((event.cat or "").lower(), "other")
        device = stream = None
        if kind in _ON_GPU:
            # Only GPU events: Triton's cpu_ops carry a stream too, and pid and tid of host events are others.
            device = _integer(args.device, event.pid, 2**31)
            stream = _integer(args.stream, event.tid)
        elif kind == "allocation":
            device = _integer(args.device, limit=2**31)
        dims = bytes(args.dims) or bytes(args.old_dims)
        row = (
            ts,
            dur,
            kind,
            str(event.name),
            str(event.pid if args.pid is None else args.pid),
            str(event.tid if args.tid is None else args.tid),
            device,
            stream,
            _integer(args.correlation),
            _integer(args.external_id, args.old_external_id),
            dims.decode("utf-8", "replace") if dims else None,
            _integer(args.bytes),
            _integer(args.rank, limit=2**31),
        )
        for add, value in zip(append, row, strict=True):
            add(value)
    return pl.DataFrame(columns, schema=SCHEMA), dict(unread)


def _nanoseconds(text: bytes) -> int | None:
    """Integer nanoseconds of a JSON number of microseconds, by its digits; None when it is no number."""
    whole, _, fraction = text.partition(b".")
    if whole.isdigit() and len(fraction) <= 3 and (fraction.isdigit() or not fraction) and len(whole) <= 16:
        return int(whole) * 1000 + int(fraction.ljust(3, b"0"))
    try:
        exact = Decimal(text.decode())
        # A huge exponent would cost memory for a number that no clock shows.
        if not exact.is_finite() or (exact and exact.adjusted() >= 16):
            return None
        return int(exact.scaleb(3).to_integral_value())
    except (InvalidOperation, ValueError):
        return None


def _integer(value: Any, otherwise: Any = None, limit: int = _INT64) -> int | None:
    """`value` as an integer that fits its column, or `otherwise` where it is absent."""
    if value is None:
        if otherwise is None:
            return None
        value = otherwise
    if isinstance(value, str):
        try:
            value = int(value)
        except ValueError:
            return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and -limit <= value < limit else None
