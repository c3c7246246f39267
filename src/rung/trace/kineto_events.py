"""From the text of some Chrome trace events to columns.

Two ways lead there. The quick one takes a whole batch, column by column, where every event has the shape that
Kineto gives it today. The careful one takes one event at a time and accepts whatever is legal; a batch goes
there when the quick way has any doubt, so both give the same table.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, Literal, get_args

import msgspec
import numpy as np
import polars as pl

from rung.trace.columns import KIND_CODE, RARE, Columns
from rung.trace.kineto_collectives import Collectives
from rung.trace.kineto_exact import integer, nanoseconds
from rung.trace.kineto_memory import NAME as MEMORY
from rung.trace.kineto_memory import Memory
from rung.trace.table import GPU_KINDS

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
_UNREAD = {
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
_ON_GPU = frozenset(KIND_CODE[kind] for kind in (*GPU_KINDS, "gpu_annotation"))
_PYTHON, _ALLOCATION, _OTHER, _OP = (KIND_CODE[kind] for kind in ("python", "allocation", "other", "cpu_op"))
_INT64 = 2**63
_NOTHING = msgspec.Raw()

_Int64 = Annotated[int, msgspec.Meta(ge=-_INT64, le=_INT64 - 1)] | None
_Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)] | None
# Literals: msgspec gives the same string object for each, no new one an event.
_Phase = Literal["X", "B", "E", "i", "I", "R", "s", "t", "f", "M", "C"]
_Category = Literal[
    "kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver", "cpu_op", "user_annotation",
    "gpu_user_annotation", "python_function", "cpu_instant_event", "ac2g", "fwdbwd", "Trace", "overhead",
    "cuda_sync", "privateuse1_runtime", "Kernel", "Memcpy", "Memset", "Runtime", "Operator",
]  # fmt: skip


class _QuickArgs(msgspec.Struct, gc=False):
    external_id: _Int64 = msgspec.field(name="External id", default=None)
    device: _Int32 = None
    stream: _Int64 = None
    correlation: _Int64 = None
    bytes: _Int64 | str = None  # now a number, now a text, in one file
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=_NOTHING)
    old_external_id: _Int64 = msgspec.field(name="external id", default=None)
    old_dims: msgspec.Raw = msgspec.field(name="Input dims", default=_NOTHING)
    dtypes: msgspec.Raw = msgspec.field(name="Input type", default=_NOTHING)
    strides: msgspec.Raw = msgspec.field(name="Input Strides", default=_NOTHING)
    concrete: msgspec.Raw = msgspec.field(name="Concrete Inputs", default=_NOTHING)
    sequence: _Int64 = msgspec.field(name="Sequence number", default=None)
    size: _Int64 = msgspec.field(name="Bytes", default=None)  # this one and those below: of [memory]
    address: _Int64 = msgspec.field(name="Addr", default=None)
    allocated: _Int64 = msgspec.field(name="Total Allocated", default=None)
    reserved: _Int64 = msgspec.field(name="Total Reserved", default=None)
    device_id: _Int64 = msgspec.field(name="Device Id", default=None)


class _Quick(msgspec.Struct, gc=False):
    ph: _Phase
    cat: _Category | None = None
    name: str = ""
    pid: int | str = ""
    tid: int | str = ""
    ts: float = np.nan
    dur: float = np.nan
    args: _QuickArgs | None = None


class _Args(msgspec.Struct, gc=False):
    device: Any = None
    stream: Any = None
    correlation: Any = None
    external_id: Any = msgspec.field(name="External id", default=None)
    old_external_id: Any = msgspec.field(name="external id", default=None)
    bytes: Any = None
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=_NOTHING)
    old_dims: msgspec.Raw = msgspec.field(name="Input dims", default=_NOTHING)
    dtypes: msgspec.Raw = msgspec.field(name="Input type", default=_NOTHING)
    strides: msgspec.Raw = msgspec.field(name="Input Strides", default=_NOTHING)
    concrete: msgspec.Raw = msgspec.field(name="Concrete Inputs", default=_NOTHING)
    sequence: Any = msgspec.field(name="Sequence number", default=None)
    size: Any = msgspec.field(name="Bytes", default=None)
    address: Any = msgspec.field(name="Addr", default=None)
    allocated: Any = msgspec.field(name="Total Allocated", default=None)
    reserved: Any = msgspec.field(name="Total Reserved", default=None)
    device_id: Any = msgspec.field(name="Device Id", default=None)
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
    ts: msgspec.Raw = _NOTHING
    dur: msgspec.Raw = _NOTHING
    args: _Args | None = None


_NO_OP = (None,) * (1 + len(RARE))
_NO_QUICK_ARGS = _QuickArgs()
_NO_ARGS = _Args()
_quick = msgspec.json.Decoder(list[_Quick]).decode
_careful = msgspec.json.Decoder(list[_Event]).decode
_CODE_OF_CATEGORY = {
    category: KIND_CODE[_KIND_OF_CATEGORY.get(category.lower(), "other")] for category in get_args(_Category)
} | {None: _OTHER}
_FOUR_DECIMALS = re.compile(rb'"(?:ts|dur)"\s*:\s*-?\d*\.\d{4}')
_ANY_DECIMALS = re.compile(rb'"(?:ts|dur)"\s*:\s*-?\d+[.eE]')


class Events:
    """The events of one trace as they come in: columns, and what was not read.

    Python frames keep no ids or sizes: profilers write none, and they are most of the events of a trace with stacks.
    """

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self.collectives = Collectives()
        self.memory = Memory()
        self.unread: Counter[str] = Counter()
        self.unread_ns: Counter[str] = Counter()  # the durations of what was not read, where there are any
        self.seen = 0
        self.phases = 0  # how many of them say what they are

    def take(self, text: bytes) -> None:
        """Reads a JSON list of events. Raises msgspec.ValidationError where it is something else, and
        msgspec.DecodeError, UnicodeDecodeError or RecursionError where it is no JSON; then nothing was taken.
        """
        self.collectives.take(text)
        if b'"Rung ' in text:  # our own writer's columns are read by the careful way alone
            return self._take_carefully(text)
        try:
            events = _quick(text)
        except msgspec.ValidationError:
            return self._take_carefully(text)
        phases = [event.ph for event in events]
        complete = events
        if phases.count("X") != len(phases):
            complete = [event for event in events if event.ph == "X"]
        memory = []
        if len(complete) != len(events):
            memory = [event for event in events if event.ph == "i" and event.name == MEMORY and event.args]
        moments = _exact([event.ts for event in memory], text) if memory else np.empty(0, dtype=np.int64)
        if moments is None or not self._add_quickly(complete, text):
            return self._take_carefully(text)
        self.seen += len(events)
        self.phases += len(events)
        if len(complete) != len(events):
            for phase, count in Counter(phases).items():
                if phase != "X":
                    self.unread[_UNREAD[phase]] += count
            for event, ts in zip(memory, moments.tolist(), strict=True):
                self.unread["instant event"] -= self.memory.add(ts, event.pid, event.tid, event.args)
            self.unread = +self.unread

    def _add_quickly(self, events: list[_Quick], text: bytes) -> bool:
        if not events:
            return True
        ts = _exact([event.ts for event in events], text)
        dur = _exact([event.dur for event in events], text)
        if ts is None or dur is None or dur.min() < 0 or int(ts.max()) + int(dur.max()) >= _INT64:
            return False
        kinds = [_CODE_OF_CATEGORY[event.cat] for event in events]
        ids: dict[str, Sequence[Any]] = {}
        dims: list[str | None] = []
        rare: dict[str, list[str | None]] = {}
        ops: list[int] = []
        pids, tids = [event.pid for event in events], [event.tid for event in events]
        if kinds.count(_PYTHON) != len(kinds):
            args = [
                event.args or _NO_QUICK_ARGS if kind != _PYTHON else _NO_QUICK_ARGS
                for event, kind in zip(events, kinds, strict=True)
            ]
            device: list[int | None] = [None] * len(events)
            stream, sequence = device.copy(), device.copy()
            for i, kind in enumerate(kinds):
                if kind in _ON_GPU:
                    # Only GPU events: Triton's cpu_ops carry a stream too, and pid and tid of host events are others.
                    device[i] = integer(args[i].device, pids[i], 2**31)
                    stream[i] = integer(args[i].stream, tids[i])
            dims = [None] * len(events)
            for i, arg in enumerate(args):
                if arg.dims is not _NOTHING:
                    dims[i] = str(arg.dims, "utf-8")  # type: ignore[arg-type]
                elif arg.old_dims is not _NOTHING:
                    dims[i] = str(arg.old_dims, "utf-8")  # type: ignore[arg-type]
            ops = [i for i, kind in enumerate(kinds) if kind == _OP]
            if ops:
                of_ops = [args[i] for i in ops]
                rare = {
                    "dtypes": [_text(arg.dtypes) for arg in of_ops],
                    "strides": [_text(arg.strides) for arg in of_ops],
                    "concrete": [_text(arg.concrete) for arg in of_ops],
                }
                for i in ops:
                    sequence[i] = args[i].sequence
            sizes = [arg.bytes for arg in args]
            if str in map(type, sizes):
                sizes = [integer(size) for size in sizes]
            ids = {
                "device": device,
                "stream": stream,
                "correlation": [arg.correlation for arg in args],
                "external_id": [
                    arg.old_external_id if arg.external_id is None else arg.external_id for arg in args
                ],
                "bytes": sizes,
                "sequence": sequence,
            }  # fmt: skip
        self.columns.add(ts, dur, kinds, [event.name for event in events], pids, tids, ids, dims, rare, ops)
        return True

    def _take_carefully(self, text: bytes) -> None:
        events = _careful(text)
        rows = [row for event in events if (row := self._row(event)) is not None]
        self.seen += len(events)
        self.phases += sum(event.ph != "" for event in events)
        if rows:
            (ts, dur, kind, name, pid, tid, dims, device, stream, correlation, external_id, size, rank, sequence,
             *rare) = zip(*rows, strict=True)  # fmt: skip
            ids: dict[str, Sequence[Any]] = {
                "device": device,
                "stream": stream,
                "correlation": correlation,
                "external_id": external_id,
                "bytes": size,
                "rank": rank,
                "sequence": sequence,
            }
            texts = dict(zip(RARE, rare, strict=True))
            self.columns.add(ts, dur, kind, name, pid, tid, ids, dims, texts, range(len(rows)))

    def _row(self, event: _Event) -> tuple[Any, ...] | None:
        if event.ph != "X":
            if event.ph == "i" and event.name == MEMORY and self._remember(event):
                return None
            self.unread[_UNREAD.get(event.ph, "event of another phase")] += 1
            return None
        ts, dur = nanoseconds(bytes(event.ts)), nanoseconds(bytes(event.dur))
        if ts is None or dur is None or ts + dur >= _INT64:
            self._count("no readable start or duration", dur)
            return None
        if dur < 0:
            self._count("negative duration", dur)
            return None
        kind = KIND_CODE[_KIND_OF_CATEGORY.get((event.cat or "").lower(), "other")]
        own = event.args or _NO_ARGS
        args = own if kind != _PYTHON or own.pid is not None else _NO_ARGS
        device = stream = None
        if kind in _ON_GPU:
            device = integer(args.device, event.pid, 2**31)
            stream = integer(args.stream, event.tid)
        elif kind == _ALLOCATION:
            device = integer(args.device, limit=2**31)
        dims = bytes(args.dims) or bytes(args.old_dims)
        return (
            ts,
            dur,
            kind,
            str(event.name),
            str(event.pid if own.pid is None else own.pid),
            str(event.tid if own.tid is None else own.tid),
            dims.decode("utf-8", "replace") if dims else None,
            device,
            stream,
            integer(args.correlation),
            integer(args.external_id, args.old_external_id),
            integer(args.bytes),
            integer(own.rank, limit=2**31),
            *((integer(own.sequence), *map(_text, (own.dtypes, own.strides, own.concrete))) if kind == _OP else _NO_OP),
        )

    def _remember(self, event: _Event) -> bool:
        ts, args = nanoseconds(bytes(event.ts)), event.args
        if ts is None or args is None or abs(ts) >= _INT64:
            return False
        pid, tid = event.pid if args.pid is None else args.pid, event.tid if args.tid is None else args.tid
        return self.memory.add(ts, pid, tid, args, integer(args.rank, limit=2**31))

    def _count(self, reason: str, dur: int | None) -> None:
        self.unread[reason] += 1
        if dur is not None and abs(dur) < _INT64:
            self.unread_ns[reason] += abs(dur)


def _text(raw: msgspec.Raw) -> str | None:
    return None if raw is _NOTHING else str(raw, "utf-8", "replace")  # type: ignore[arg-type]


def _exact(numbers: list[float], text: bytes) -> np.ndarray | None:
    """These microseconds of `text` in integer nanoseconds, or None where floats may not be what the digits say.

    Below 2**42 us a float64 is less than a quarter of a nanosecond off: its rounding is right unless it is close
    to a half. Below 2**43 (twelve weeks, and Kineto's clock starts anew after three months) it is right for up to
    three decimals. Above, up to 2**53, only whole numbers are exact.
    """
    microseconds = pl.Series(numbers, dtype=pl.Float64).to_numpy()  # twice as fast as numpy is on a list
    high = np.abs(microseconds).max()
    if not high < 2.0**53:  # as well where one is not a number
        return None
    whole = np.floor(microseconds)
    thousandths = (microseconds - whole) * 1000.0
    rounded = np.rint(thousandths)
    if high < 2.0**42:
        if (np.abs(thousandths - rounded) >= 0.5 - 1.01 * 500.0 * np.spacing(high)).any():
            return None
    elif high < 2.0**43:
        if _FOUR_DECIMALS.search(text):
            return None
    elif _ANY_DECIMALS.search(text):
        return None
    return whole.astype(np.int64) * 1000 + rounded.astype(np.int64)
