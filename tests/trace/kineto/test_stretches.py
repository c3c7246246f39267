"""However the events are divided into stretches, the table is the same; stretches without ids or inputs share their empty columns."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rung.trace import read
from rung.trace.kineto import columns
from rung.trace.kineto.columns import KIND_CODE, TEXTS, Columns

PYTHON = [{"cat": "python_function", "name": name, "args": {"Python id": 1}} for name in ("f.py(1): f", "g.py(2): g")]
OTHERS = [
    {"cat": "cpu_op", "name": "aten::mm", "args": {"External id": 3, "Input Dims": [[2, 2]], "Input type": ["float"]}},
    {"cat": "kernel", "name": "k", "args": {"device": 0, "stream": 7, "correlation": 5}},
    {"cat": "cuda_runtime", "name": "hipLaunchKernel", "args": {"correlation": 5}},
]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.sampled_from(PYTHON + OTHERS), st.integers(1, 6), st.sampled_from([7, "8"])),
        min_size=1,
        max_size=12,
    ),
    st.integers(1, 6),
    st.integers(1, 4),
)
def test_stretches_of_any_length_make_the_same_table(tmp_path, monkeypatch, runs, flush, split):
    events = [
        {"ph": "X", "ts": i, "dur": 1, "pid": pid, "tid": pid} | event
        for i, (event, pid) in enumerate((event, pid) for event, times, pid in runs for _ in range(times))
    ]
    file = tmp_path / "t.json"
    file.write_text(json.dumps({"traceEvents": events}))
    whole = read(file).events
    # A batch of one event each is the finest that the reader can give.
    table = Columns()
    monkeypatch.setattr(columns, "_FLUSH", flush)
    monkeypatch.setattr(columns, "_SPLIT", split)
    for event in events:
        args, python = event["args"], event["cat"] == "python_function"
        code = KIND_CODE[{"python_function": "python", "cuda_runtime": "runtime"}.get(event["cat"], event["cat"])]
        ids = {"device": "device", "stream": "stream", "correlation": "correlation", "external_id": "External id"}
        texts = {"dims": "Input Dims", "dtypes": "Input type"}
        table.add(
            np.array([event["ts"] * 1000]), np.array([event["dur"] * 1000]), np.array([code], np.uint8),
            [event["name"]], [event["pid"]], [event["tid"]], np.arange(0 if python else 1),
            {column: [] if python else [args.get(key)] for column, key in ids.items()},
            {column: [] if python else [json.dumps(args[texts[column]]).encode() if texts.get(column) in args else None] for column in TEXTS},
        )  # fmt: skip
    assert table.frame().equals(whole)
    monkeypatch.undo()


GROWTH = """
import numpy as np
from rung.trace.kineto.columns import KIND_CODE, TEXTS, Columns, _FLUSH
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
def frames(stretches):
    table, times, kind = Columns(), np.arange(_FLUSH), np.full(_FLUSH, KIND_CODE["python"], np.uint8)
    for _ in range(stretches):
        places = [0] * 5 + [1] * (_FLUSH - 5)  # a few frames of another thread
        table.add(times, times, kind, ["f"] * _FLUSH, places, places, np.arange(0), {}, {column: [] for column in TEXTS})
    return table.frame()
few = frames(2)
before = resident()
many = frames(10)
print((resident() - before) / many.height)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the memory of a process is read from /proc here")
def test_frames_alone_take_the_memory_of_empty_columns_and_of_their_thread_once():
    done = subprocess.run([sys.executable, "-c", GROWTH], capture_output=True, text=True, check=True)
    # Of the columns that are not the same all over; about 70 where each stretch has all of its own.
    assert float(done.stdout) < 45
