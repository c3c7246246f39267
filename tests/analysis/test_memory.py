"""Memory at its peak, what held it, and copies."""

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_traces import call, frame, on_gpu, op, trace_of

from rung.analysis.memory import BEFORE, memory, memory_peak, memory_timeline
from rung.analysis.spending import copies
from rung.trace import read
from rung.trace.table import MEMORY

SHARED = Path(__file__).parents[3] / "shared" / "data" / "traces"


def recorded(rows, *events, start=0):
    """A trace with these (ts, address, bytes) records of device 0 after `start` bytes."""
    held, records = start, []
    for ts, address, size in rows:
        held += size
        records.append((ts, 0, address, size, held, 1000, "1", "1", None))
    return replace(trace_of(*events), memory=pl.DataFrame(records, schema=MEMORY, orient="row"))


def test_the_peak_and_what_made_it():
    trace = recorded(
        [(5, 1, 100), (15, 2, 50), (20, 1, -100), (25, 3, 300), (40, 3, -300), (45, 2, -50)],
        op(0, 10, "aten::linear"), op(2, 6, "aten::empty"), op(12, 20, "aten::add"), frame(0, 30, "net.py(1): forward"),
        start=40,
    )  # fmt: skip
    row = memory(trace).row(0, named=True)
    assert (row["peak_bytes"], row["start_bytes"], row["end_bytes"], row["largest_bytes"], row["at"]) == (
        390,
        40,
        40,
        300,
        25,
    )
    assert row["unused_share"] == pytest.approx(0.61)
    assert memory_peak(trace).select("op", "tensors", "held_bytes", "call_site").rows() == [
        ("aten::add", 2, 350, "net.py(1): forward"),
        (BEFORE, None, 40, None),
    ]
    assert memory_timeline(trace)["allocated_bytes"].to_list() == [140, 190, 90, 390, 90, 40]


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8), st.data())
def test_what_is_alive_adds_up_to_the_peak(sizes, data):
    pending = [(i, size) for i, size in enumerate(sizes)]
    rows, alive = [], []
    while pending or alive:
        if pending and (not alive or data.draw(st.booleans())):
            address, size = pending.pop()
            alive.append((address, size))
            rows.append((len(rows), address, size))
        else:
            address, size = alive.pop(data.draw(st.integers(0, len(alive) - 1)))
            rows.append((len(rows), address, -size))
    trace = recorded(rows, start=7)
    assert memory_peak(trace)["held_bytes"].sum() == memory(trace)["peak_bytes"].item()


def test_without_records_the_drivers_allocations_are_the_timeline():
    trace = trace_of(
        {"kind": "allocation", "name": "hipMalloc", "ts": 1, "device": 0, "bytes": 64},
        {"kind": "allocation", "name": "hipFree", "ts": 5, "device": 0, "bytes": 64},
    )
    assert memory_timeline(trace).select("ts", "allocated_bytes").rows() == [(1, 64), (5, 0)]
    assert memory(trace).is_empty()


def test_copies_by_direction_with_their_bandwidth():
    table = copies(
        trace_of(
            call(0, 2, 1, "hipMemcpyAsync"), call(3, 90, 2, "hipMemcpyAsync"),
            on_gpu(10, 10, "Memcpy HtoD (Host -> Device)", "memcpy", correlation=1, bytes=400),
            on_gpu(30, 10, "Memcpy HtoD (Host -> Device)", "memcpy", correlation=2, bytes=200),
            on_gpu(50, 5, "MEMORY_COPY_DEVICE_TO_HOST", "memcpy"), on_gpu(60, 75, "kernel"),
        )
    )  # fmt: skip
    first, second = table.to_dicts()
    assert (first["direction"], first["ends"], first["count"], first["moved_bytes"]) == (
        "HtoD",
        "Host -> Device",
        2,
        600,
    )
    assert (first["gb_per_s"], first["share"], first["blocking"]) == (30.0, 0.2, 1)
    assert (second["direction"], second["gb_per_s"]) == ("DtoH", None)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared real traces are not here")
def test_the_scores_of_unfused_attention_hold_most_of_a_real_peak():
    trace = read(SHARED / "h100_timesformer.json.gz")
    peak = memory_peak(trace)
    assert peak["op"][:2].to_list() == ["aten::matmul", "aten::mul"]
    assert peak["share"][:2].sum() > 0.8
    assert peak["held_bytes"].sum() == memory(trace)["peak_bytes"][0]
