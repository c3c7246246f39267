"""Random traces of a program on a GPU: frames, operators, launches and their work, in any relation to each other."""

import polars as pl
from hypothesis import strategies as st

from rung.trace import Trace
from rung.trace.table import SCHEMA

NAMES = ("Cijk_Ailk_Bljk_MT64x64", "attn_fwd", "ncclDevKernel_Generic", "vectorized_elementwise_kernel", "unknown")
OPS = ("aten::mm", "aten::convolution", "aten::_softmax", "MulBackward0", "DataLoader", "aten::item")
CALLS = ("hipLaunchKernel", "hipGraphLaunch", "hipMemcpyAsync", "hipDeviceSynchronize", "hipGetDevice")
FRAMES = (
    "nn.Module: Linear_0",
    "nn.Module: Block_1",
    "model.py(3): forward",
    "torch/nn/functional.py(1): linear",
    "<built-in>",
)


def trace_of(*events):
    """A trace of rows given as dictionaries; what they leave out is null, or "1" for the thread."""
    blank = dict.fromkeys(SCHEMA) | {"pid": "1", "tid": "1", "name": "k", "dur": 0}
    return Trace(pl.DataFrame([blank | event for event in events], schema=SCHEMA))


def on_gpu(ts, dur, name="k", kind="kernel", **more):
    return {"ts": ts, "dur": dur, "name": name, "kind": kind, "device": 0, "stream": 0, **more}


def call(ts, dur, correlation=None, name="hipLaunchKernel", **more):
    return {"ts": ts, "dur": dur, "name": name, "kind": "runtime", "correlation": correlation, **more}


def op(ts, dur, name, **more):
    return {"ts": ts, "dur": dur, "name": name, "kind": "cpu_op", **more}


def frame(ts, dur, name, **more):
    return {"ts": ts, "dur": dur, "name": name, "kind": "python", **more}


_time, _length = st.integers(0, 60), st.integers(0, 20)


@st.composite
def host_events(draw):
    kind = draw(st.sampled_from([call, op, frame]))
    more = {"tid": draw(st.sampled_from(["1", "2"]))}
    if kind is call:
        return call(draw(_time), draw(_length), draw(st.integers(0, 6)), draw(st.sampled_from(CALLS)), **more)
    more["sequence"] = draw(st.none() | st.integers(0, 3)) if kind is op else None
    return kind(draw(_time), draw(_length), draw(st.sampled_from(OPS if kind is op else FRAMES)), **more)


@st.composite
def gpu_events(draw):
    kind = draw(st.sampled_from(["kernel", "kernel", "memcpy", "memset"]))
    name = {"memcpy": "Memcpy HtoD (Host -> Device)", "memset": "Memset (Device)"}.get(kind) or draw(
        st.sampled_from(NAMES)
    )
    return on_gpu(draw(_time), draw(_length), name, kind, device=draw(st.integers(0, 1)), stream=draw(st.integers(0, 2)),
                  correlation=draw(st.none() | st.integers(0, 7)), bytes=draw(st.none() | st.integers(0, 9)))  # fmt: skip


TRACES = st.builds(
    lambda host, gpu: trace_of(*host, *gpu),
    st.lists(host_events(), max_size=14),
    st.lists(gpu_events(), min_size=1, max_size=10),
)
