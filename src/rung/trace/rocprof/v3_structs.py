"""The records of a rocprofv3 JSON, as far as they are read."""

from __future__ import annotations

from typing import Any

import msgspec


class Handle(msgspec.Struct, gc=False, frozen=True):
    handle: int = 0


class Ids(msgspec.Struct, gc=False, frozen=True):
    internal: int | None = None
    external: int | None = None


class Record(msgspec.Struct, gc=False):
    kind: int = -1
    operation: int = -1
    thread_id: int | None = None
    correlation_id: Ids = Ids()
    start_timestamp: int | None = None
    end_timestamp: int | None = None


class DispatchInfo(msgspec.Struct, gc=False, frozen=True):
    agent_id: Handle | None = None
    queue_id: Handle | None = None
    kernel_id: int = 0


class Dispatch(Record, gc=False):
    dispatch_info: DispatchInfo = DispatchInfo()
    stream_id: Handle | None = None  # from ROCm 7.0


class Copy(Record, gc=False):
    dst_agent_id: Handle | None = None
    src_agent_id: Handle | None = None
    bytes: int | None = None
    stream_id: Handle | None = None


class Allocation(Record, gc=False):  # of memory, or of scratch, which has a queue
    agent_id: Handle | None = None
    queue_id: Handle | None = None
    allocation_size: int | None = None


class Value(msgspec.Struct, gc=False):
    counter_id: Handle = Handle()
    value: float | None = None


class Collected(msgspec.Struct, gc=False):
    dispatch_data: Dispatch = msgspec.field(default_factory=Dispatch)
    records: list[Value] = []
    thread_id: int | None = None
    stream_id: Handle | None = None


class Kind(msgspec.Struct):
    operations: list[str] = []


class Message(msgspec.Struct, gc=False):
    key: int = 0
    value: str = ""


class Strings(msgspec.Struct):
    buffer_records: list[Kind] = []
    marker_api: list[Message] = []


class Symbol(msgspec.Struct, gc=False):
    kernel_id: int = 0
    kernel_name: str = ""
    formatted_kernel_name: str = ""
    demangled_kernel_name: str = ""
    truncated_kernel_name: str = ""


class CounterInfo(msgspec.Struct):
    id: Handle = Handle()
    name: str = ""


class CallbackRecords(msgspec.Struct):
    counter_collection: list[Collected] = []


class Process(msgspec.Struct):
    """One element of the file: what is small, decoded; the lists of records as they lie in the file."""

    metadata: dict[str, Any] = {}
    agents: list[dict[str, Any]] = []
    counters: list[CounterInfo] = []
    strings: Strings = msgspec.field(default_factory=Strings)
    kernel_symbols: list[Symbol] = []
    callback_records: CallbackRecords = msgspec.field(default_factory=CallbackRecords)
    buffer_records: dict[str, msgspec.Raw] = {}
