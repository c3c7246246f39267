"""From the text of some Chrome trace events to columns.

Two ways lead there. The quick one takes a whole batch, column by column, where every event has the shape that
Kineto gives it today. The careful one takes one event at a time and accepts whatever is legal; a batch goes
there when the quick way has any doubt, so both give the same table.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, get_args

import msgspec
import numpy as np

from rung.trace.kineto.collectives import Collectives
from rung.trace.kineto.columns import IDS, KIND_CODE, TEXTS, Array, Columns
from rung.trace.kineto.exact import exact, integer, nanoseconds
from rung.trace.kineto.flows import Flows
from rung.trace.kineto.grids import Grids, wanted
from rung.trace.kineto.memory import NAME as MEMORY
from rung.trace.kineto.memory import Memory
from rung.trace.kineto.structs import NOTHING, Args, Category, Event, Frame, Quick, QuickArgs, decoder_of_thread
from rung.trace.kineto.text import TooLong
from rung.trace.source import MAX_EVENTS
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
_ON_GPU = np.isin(list(KIND_CODE), (*GPU_KINDS, "gpu_annotation"))  # by code
_PYTHON, _ALLOCATION, _OTHER = (KIND_CODE[kind] for kind in ("python", "allocation", "other"))
_INT64 = 2**63
OURS = "rung"  # the `writer` of traces that write_chrome made
Buffer = bytes | memoryview
_NO_QUICK_ARGS = QuickArgs()
_NO_ROWS = np.empty(0, np.int64)
_NO_TEXTS: dict[str, Sequence[bytes | None]] = dict.fromkeys(TEXTS, ())
_NO_ARGS = Args()
_frames = msgspec.json.Decoder(list[Frame]).decode
_THREAD = re.compile(rb'"pid"\s*:\s*(-?\d{1,18})\s*,\s*"tid"\s*:\s*(-?\d{1,18})\b')
_FIRST = 1 << 12  # bytes in which the ids of the first event stand
_quick = msgspec.json.Decoder(list[Quick]).decode
_careful = msgspec.json.Decoder(list[Event]).decode
_CODE_OF_CATEGORY = {
    category: KIND_CODE[_KIND_OF_CATEGORY.get(category.lower(), "other")] for category in get_args(Category)
} | {None: _OTHER}


class Events:
    """The events of one trace as they come in: columns, and what was not read.

    Python frames keep no ids or sizes: profilers write none, and they are most of the events of a trace with stacks.
    top: what stands before the list of events in the file, when `take` is called. most: of events; TooLong is raised for more.
    """

    def __init__(self, columns: Columns, top: Mapping[str, Any] = MappingProxyType({}), most: int = MAX_EVENTS) -> None:
        self.columns = columns
        self._most = most
        self._top = top
        self.collectives = Collectives()
        self.grids = Grids()
        self.memory = Memory()
        self.unread: Counter[str] = Counter()
        self.unread_ns: Counter[str] = Counter()  # the durations of what was not read, where there are any
        self.flows = Flows()
        self.seen = 0
        self.phases = 0  # how many of them say what they are

    def take(self, text: Buffer) -> None:
        """Reads a JSON list of events. Raises msgspec.ValidationError where it is something else, and
        msgspec.DecodeError, UnicodeDecodeError or RecursionError where it is no JSON; then nothing was taken.
        """
        if self.seen > self._most:
            raise TooLong(self._most, "events")
        if self._top.get("writer") == OURS:  # its own columns are read by the careful way alone
            return self._take_carefully(text)
        try:
            return self._take_frames(text)
        except msgspec.ValidationError:  # at the first event that is none
            pass
        try:
            events = _quick(text)
        except msgspec.ValidationError:
            return self._take_carefully(text)
        phases = [event.ph for event in events]
        complete, others = events, []
        if phases.count("X") != len(phases):
            complete = [event for event in events if event.ph == "X"]
            others = [event for event in events if event.ph != "X"]
        flows = [event for event in others if _is_flow(event)]
        flow_ts = exact([event.ts for event in flows], text, b"ts") if flows else ()
        memory = [event for event in others if event.ph == "i" and event.name == MEMORY and event.args]
        moments = exact([event.ts for event in memory], text, b"ts") if memory else np.empty(0, np.int64)
        if flow_ts is None or moments is None or not self._add_quickly(complete, text):
            return self._take_carefully(text)
        self.seen += len(events)
        self.phases += len(events)
        for phase, count in Counter(event.ph for event in others).items():
            self.unread[_UNREAD[phase]] += count
        if memory:
            places = [(event.pid, event.tid) for event in memory]
            args = [event.args for event in memory]
            self.unread["instant event"] -= self.memory.add_all(moments.tolist(), places, args)  # type: ignore[arg-type]
            self.unread = +self.unread  # without what is none after all
        if flows:
            self.flows.add(flow_ts, *zip(*[(e.ph, e.id, e.pid, e.tid) for e in flows], strict=True))

    def _take_frames(self, text: Buffer) -> None:
        frames, pids, tids = _frames_and_threads(text)
        if not frames:
            return
        times = _times(frames, text)
        if times is None:
            return self._take_carefully(text)
        self.seen += len(frames)
        self.phases += len(frames)
        kinds = np.full(len(frames), _PYTHON, np.uint8)
        self.columns.add(*times, kinds, [frame.name for frame in frames], pids, tids, _NO_ROWS, {}, _NO_TEXTS)

    def _add_quickly(self, events: list[Quick], text: Buffer) -> bool:
        if not events:
            return True
        times = _times(events, text)
        if times is None:
            return False
        kinds = np.frombuffer(bytes([_CODE_OF_CATEGORY[event.cat] for event in events]), np.uint8)
        names = [event.name for event in events]
        pids, tids = [event.pid for event in events], [event.tid for event in events]
        rows = np.flatnonzero(kinds != _PYTHON)
        args = [events[row].args or _NO_QUICK_ARGS for row in rows.tolist()]
        device: list[int | None] = [None] * len(args)
        stream = device.copy()
        # Only GPU events: Triton's cpu_ops carry a stream too, and pid and tid of host events are others.
        on_gpu = np.flatnonzero(_ON_GPU[kinds[rows]])
        gpu = rows[on_gpu].tolist()
        for i, row in zip(on_gpu.tolist(), gpu, strict=True):
            device[i] = integer(args[i].device, pids[row], 2**31)
            stream[i] = integer(args[i].stream, tids[row])
        sizes = [arg.bytes for arg in args]
        if str in map(type, sizes):
            sizes = [integer(size) for size in sizes]
        ids: dict[str, Sequence[Any]] = {
            "device": device,
            "stream": stream,
            "correlation": [arg.correlation for arg in args],
            "external_id": [arg.old_external_id if arg.external_id is None else arg.external_id for arg in args],
            "bytes": sizes,
            "sequence": [arg.sequence for arg in args],
        }
        texts = {
            "dims": _texts([arg.old_dims if arg.dims is NOTHING else arg.dims for arg in args]),
            "dtypes": _texts([arg.dtypes for arg in args]),
            "strides": _texts([arg.strides for arg in args]),
            "concrete": _texts([arg.concrete for arg in args]),
        }
        self.columns.add(*times, kinds, names, pids, tids, rows, ids, texts)
        if any(arg.collective is not NOTHING for arg in args):
            self.collectives.take(text)
        if wanted([names[row] for row in gpu], [arg.kernel for arg in args if arg.kernel is not NOTHING]):
            self.grids.take(text)
        return True

    def _take_carefully(self, text: Buffer) -> None:
        events = _careful(text)
        self.collectives.take(text)
        self.grids.take(text)
        rows = [row for event in events if (row := self._row(event)) is not None]
        self.seen += len(events)
        self.phases += sum(event.ph != "" for event in events)
        flows = [
            (ts, event.ph, str(event.id), str(event.pid), str(event.tid))
            for event in events
            if _is_flow(event) and (ts := nanoseconds(bytes(event.ts))) is not None and abs(ts) < _INT64
        ]
        if flows:
            self.flows.add(*zip(*flows, strict=True))
        if rows:
            starts, dur, kind, name, pid, tid, *rest = zip(*rows, strict=True)
            self.columns.add(
                np.array(starts, np.int64),
                np.array(dur, np.int64),
                np.array(kind, np.uint8),
                name,
                pid,
                tid,
                np.arange(len(rows)),
                dict(zip(IDS, rest, strict=False)),
                dict(zip(TEXTS, rest[len(IDS) :], strict=True)),
            )

    def _row(self, event: Event) -> tuple[Any, ...] | None:
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
        if _ON_GPU[kind]:
            device = integer(args.device, event.pid, 2**31)
            stream = integer(args.stream, event.tid)
        elif kind == _ALLOCATION:
            device = integer(args.device, limit=2**31)
        return (
            ts,
            dur,
            kind,
            str(event.name),
            str(event.pid if own.pid is None else own.pid),
            str(event.tid if own.tid is None else own.tid),
            device,
            stream,
            integer(args.correlation),
            integer(args.external_id, args.old_external_id),
            integer(args.bytes),
            integer(own.rank, limit=2**31),
            integer(args.sequence),
            *_texts([args.old_dims if args.dims is NOTHING else args.dims, args.dtypes, args.strides, args.concrete]),
        )

    def _remember(self, event: Event) -> bool:
        ts, args = nanoseconds(bytes(event.ts)), event.args
        if ts is None or args is None or abs(ts) >= _INT64:
            return False
        pid, tid = event.pid if args.pid is None else args.pid, event.tid if args.tid is None else args.tid
        return self.memory.add(ts, pid, tid, args, integer(args.rank, limit=2**31))

    def _count(self, reason: str, dur: int | None) -> None:
        self.unread[reason] += 1
        if dur is not None and abs(dur) < _INT64:
            self.unread_ns[reason] += abs(dur)


def _frames_and_threads(text: Buffer) -> tuple[list[Frame], list[int | str], list[int | str]]:
    """Python frames, and the ids of their processes and threads. Raises msgspec.ValidationError where there is anything else."""
    if found := _THREAD.search(text, 0, _FIRST):
        pid, tid = map(int, found.groups())
        with contextlib.suppress(msgspec.ValidationError):  # there are several threads, or no frames
            frames = decoder_of_thread(pid, tid)(text)
            return frames, [pid] * len(frames), [tid] * len(frames)
    frames = _frames(text)
    return frames, [frame.pid for frame in frames], [frame.tid for frame in frames]


def _times(events: Sequence[Frame | Quick], text: Buffer) -> tuple[Array, Array] | None:
    """Starts and durations in ns; None where floats may not be what the digits say, or they are no times of events."""
    ts = exact([event.ts for event in events], text, b"ts")
    dur = exact([event.dur for event in events], text, b"dur")
    if ts is None or dur is None or dur.min() < 0 or int(ts.max()) + int(dur.max()) >= _INT64:
        return None
    return ts, dur


def _is_flow(event: Quick | Event) -> bool:
    """Whether this may be an end of an arrow from a launch; those from an operator to its gradient are others."""
    return event.ph in ("s", "f") and event.id is not None and event.cat != "fwdbwd"


def _texts(values: list[msgspec.Raw]) -> list[bytes | None]:
    """JSON values as they stand in the file, None where there is none."""
    return [None if raw is NOTHING else bytes(raw) for raw in values]
