"""The parts of a Chrome trace event that are read, typed twice: as Kineto writes them today, and whatever is legal."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

NOTHING = msgspec.Raw()

_Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | None
_Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)] | None
# Literals: msgspec gives the same string object for each, no new one an event.
_Phase = Literal["X", "B", "E", "i", "I", "R", "s", "t", "f", "M", "C"]
Category = Literal[
    "kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver", "cpu_op", "user_annotation",
    "gpu_user_annotation", "python_function", "cpu_instant_event", "ac2g", "async_gpu", "fwdbwd", "Trace", "overhead",
    "cuda_sync", "privateuse1_runtime", "Kernel", "Memcpy", "Memset", "Runtime", "Operator",
]  # fmt: skip


class QuickArgs(msgspec.Struct, gc=False):
    external_id: _Int64 = msgspec.field(name="External id", default=None)
    device: _Int32 = None
    stream: _Int64 = None
    correlation: _Int64 = None
    bytes: _Int64 | str = None  # now a number, now a text, in one file
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=NOTHING)
    old_external_id: _Int64 = msgspec.field(name="external id", default=None)
    old_dims: msgspec.Raw = msgspec.field(name="Input dims", default=NOTHING)
    dtypes: msgspec.Raw = msgspec.field(name="Input type", default=NOTHING)
    strides: msgspec.Raw = msgspec.field(name="Input Strides", default=NOTHING)
    concrete: msgspec.Raw = msgspec.field(name="Concrete Inputs", default=NOTHING)
    sequence: _Int64 = msgspec.field(name="Sequence number", default=None)
    collective: msgspec.Raw = msgspec.field(name="Collective name", default=NOTHING)  # there is more to read
    kernel: msgspec.Raw = NOTHING  # of a launch, on ROCm
    size: _Int64 = msgspec.field(name="Bytes", default=None)  # this one and those below: of [memory]
    address: _Int64 = msgspec.field(name="Addr", default=None)
    allocated: _Int64 = msgspec.field(name="Total Allocated", default=None)
    reserved: _Int64 = msgspec.field(name="Total Reserved", default=None)
    device_id: _Int64 = msgspec.field(name="Device Id", default=None)


class Frame(msgspec.Struct, gc=False):
    """A Python frame: most events of a trace with stacks, in long stretches of nothing else. Its args are skipped."""

    ph: Literal["X"]
    cat: Literal["python_function"]
    name: str
    pid: int | str
    tid: int | str
    ts: float
    dur: float


@lru_cache(maxsize=64)  # a frame's fields are compiled for each thread: a fifth of a millisecond
def decoder_of_thread(pid: int | str, tid: int | str) -> Callable[[bytes | memoryview], list[Frame]]:
    """Decodes lists of frames of this thread alone, and refuses others as msgspec.ValidationError.

    Its ids are literals: none is made for an event, nor has to be looked at.
    """
    ids: dict[str, Any] = {"pid": Literal[pid], "tid": Literal[tid]}
    fields = [(field.name, ids.get(field.name, field.type)) for field in msgspec.structs.fields(Frame)]
    frame: Any = msgspec.defstruct("FrameOfThread", fields, gc=False)
    return msgspec.json.Decoder(list[frame]).decode


class Quick(msgspec.Struct, gc=False):
    ph: _Phase
    cat: Category | None = None
    name: str = ""
    pid: int | str = ""
    tid: int | str = ""
    ts: float = np.nan
    dur: float = np.nan
    args: QuickArgs | None = None
    id: int | str | None = None  # of a flow


class Args(msgspec.Struct, gc=False):
    device: Any = None
    stream: Any = None
    correlation: Any = None
    external_id: Any = msgspec.field(name="External id", default=None)
    old_external_id: Any = msgspec.field(name="external id", default=None)
    bytes: Any = None
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=NOTHING)
    old_dims: msgspec.Raw = msgspec.field(name="Input dims", default=NOTHING)
    dtypes: msgspec.Raw = msgspec.field(name="Input type", default=NOTHING)
    strides: msgspec.Raw = msgspec.field(name="Input Strides", default=NOTHING)
    concrete: msgspec.Raw = msgspec.field(name="Concrete Inputs", default=NOTHING)
    sequence: Any = msgspec.field(name="Sequence number", default=None)
    size: Any = msgspec.field(name="Bytes", default=None)  # this one and those below: of [memory]
    address: Any = msgspec.field(name="Addr", default=None)
    allocated: Any = msgspec.field(name="Total Allocated", default=None)
    reserved: Any = msgspec.field(name="Total Reserved", default=None)
    device_id: Any = msgspec.field(name="Device Id", default=None)
    # What our own writer of Chrome traces adds (write_chrome.py).
    rank: Any = msgspec.field(name="Rung rank", default=None)
    pid: Any = msgspec.field(name="Rung pid", default=None)
    tid: Any = msgspec.field(name="Rung tid", default=None)


class Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str | None = None
    name: Any = ""
    pid: Any = ""
    tid: Any = ""
    # Raw: a float64 cannot hold microseconds since 1970 to the nanosecond, the digits can.
    ts: msgspec.Raw = NOTHING
    dur: msgspec.Raw = NOTHING
    args: Args | None = None
    id: Any = None
