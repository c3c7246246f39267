"""The curves over time: exact changes at exact times."""

from dataclasses import replace

import polars as pl
from hypothesis import given
from made_traces import made, traces

from rung.trace import counter_tracks
from rung.trace.table import MEMORY, Trace

CALL = {"kind": "runtime", "name": "hipLaunchKernel"}
KERNEL = {"kind": "kernel", "device": 0, "stream": 0, "dur": 5}


def points(frame, **where):
    for column, value in where.items():
        frame = frame.filter(frame[column] == value)
    return frame.select("ts", "value").rows()


def test_a_kernel_waits_from_its_launch_to_its_start():
    trace = made(
        CALL | {"ts": 10, "correlation": 1},
        CALL | {"ts": 12, "correlation": 2},  # a graph of two kernels
        KERNEL | {"ts": 15, "correlation": 1},
        KERNEL | {"ts": 20, "correlation": 2},
        KERNEL | {"ts": 25, "correlation": 2},
        KERNEL | {"ts": 30, "correlation": 3},  # launched before the window
        CALL | {"ts": 40, "correlation": 4},
        KERNEL | {"ts": 39, "correlation": 4},  # by its clock before its launch
    )
    assert points(counter_tracks.queue_length(trace)) == [(10, 1), (12, 3), (15, 2), (20, 1), (25, 0)]


def test_ranks_and_devices_have_queues_of_their_own():
    rows = [CALL | {"ts": 10 * rank, "correlation": 1, "rank": rank} for rank in (0, 1)]
    rows += [KERNEL | {"ts": 100, "correlation": 1, "rank": rank, "device": rank} for rank in (0, 1)]
    curves = counter_tracks.queue_length(made(*rows))
    assert points(curves, device=0) == [(0, 1), (100, 0)]
    assert points(curves, device=1) == [(10, 1), (100, 0)]


def test_bandwidths_of_copies_add_up_and_end_at_zero():
    copy = {"kind": "memcpy", "device": 0, "stream": 1}
    trace = made(
        copy | {"ts": 0, "dur": 10, "bytes": 1},
        copy | {"ts": 4, "dur": 10, "bytes": 3},
        copy | {"ts": 20, "dur": 0, "bytes": 3},
        copy | {"ts": 30, "dur": 5},
    )
    found = points(counter_tracks.memory_bandwidth(trace))
    assert [ts for ts, _ in found] == [0, 4, 10, 14]
    assert [round(value, 9) for _, value in found] == [0.1, 0.4, 0.3, 0.0]
    assert found[-1][1] == 0.0  # not 5e-17


def test_memory_in_use_counts_releases_down():
    event = {"kind": "allocation", "device": 0}
    trace = made(
        event | {"ts": 5, "name": "hipMalloc", "bytes": 100},
        event | {"ts": 1, "name": "MEMORY_ALLOCATION_ALLOCATE", "bytes": 50},
        event | {"ts": 9, "name": "hipFree", "bytes": 100},
        event | {"ts": 10, "name": "[memory]", "bytes": -20},
        event | {"ts": 11, "name": "MEMORY_ALLOCATION_FREE"},
    )
    assert points(counter_tracks.memory_in_use(trace)) == [(1, 50), (5, 150), (9, 50), (10, 30)]


def test_the_allocator_s_records_are_curves_of_what_is_allocated_and_reserved():
    rows = [  # ts, device, allocated, reserved
        (1, 0, 100, 200),
        (1, 0, 150, 200),  # at one time: the later record
        (3, None, 7, None),  # host memory
        (4, 1, 10, 20),
        (5, 0, 50, 200),
        (6, 0, 50, 400),
    ]
    columns = ("ts", "device", "allocated", "reserved")
    memory = pl.DataFrame([dict(zip(columns, row, strict=True)) for row in rows], schema=MEMORY)
    curves = counter_tracks.tracks(replace(made(), memory=memory))
    assert curves.group_by("name", "device", maintain_order=True).agg("ts", "value").rows() == [
        ("allocated by tensors", 0, [1, 5], [150, 50]),
        ("allocated by tensors", 1, [4], [10]),
        ("reserved by the allocator", 0, [1, 6], [200, 400]),
        ("reserved by the allocator", 1, [4], [20]),
    ]


@given(traces())
def test_queues_and_bandwidths_are_never_negative_and_end_empty(trace):
    curves = counter_tracks.tracks(trace)
    assert dict(curves.schema) == counter_tracks.SCHEMA
    for (name, _, _), part in curves.group_by("name", "rank", "device", maintain_order=True):
        assert part["ts"].is_sorted()
        assert part["ts"].is_unique().all()
        if name != "memory in use":
            assert part["value"].min() >= 0 or part["value"].min() > -1e-3
            assert part["value"][-1] == 0


def test_a_trace_without_events_has_no_curves():
    assert counter_tracks.tracks(Trace(events=made().events)).height == 0
