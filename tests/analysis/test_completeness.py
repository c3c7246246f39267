"""Nothing of a trace goes unsaid: what was not read, and what is counted although it lies outside or takes no time."""

import polars as pl

from rung.analysis.overview import INSTANT, INSTANT_CALL, NO_LAUNCHES, OUTSIDE, UNLINKED, completeness
from rung.trace import Trace
from rung.trace.table import SCHEMA


def trace(*rows, **more):
    made = [dict.fromkeys(SCHEMA) | {"name": "n", "pid": "1", "tid": "1"} | row for row in rows]
    return Trace(pl.DataFrame(made, schema=SCHEMA), **more)


def kernel(ts, dur, correlation):
    return {"kind": "kernel", "ts": ts, "dur": dur, "device": 0, "stream": 0, "correlation": correlation}


def launch(ts, dur, correlation):
    return {"kind": "runtime", "ts": ts, "dur": dur, "name": "hipLaunchKernel", "correlation": correlation}


def rows(found):
    return {what: (events, time) for what, _, events, time in completeness(found).iter_rows()}


def test_each_kind_of_doubtful_event_is_counted_with_its_time():
    step = {"kind": "annotation", "ts": 100, "dur": 100, "name": "ProfilerStep#1"}
    found = trace(
        step, launch(110, 5, 1), kernel(120, 30, 1), kernel(10, 7, 99), launch(210, 0, 2), kernel(220, 40, 2),
        launch(130, 5, 3), kernel(160, 0, 3),
    )  # fmt: skip
    assert rows(found) == {UNLINKED: (1, 7), OUTSIDE: (1, 40), INSTANT: (1, 0), INSTANT_CALL: (1, 0)}
    assert completeness(found)["in_table"].all()


def test_without_launches_or_steps_nothing_is_outside():
    assert rows(trace(kernel(10, 7, 1), kernel(20, 7, 2))) == {NO_LAUNCHES: (2, 14)}
    assert rows(trace(launch(5, 1, 1), kernel(10, 7, 1))) == {}


def test_what_was_not_read_has_its_time_where_it_is_known():
    found = trace(unread={"negative duration": 2, "flow event": 5}, unread_ns={"negative duration": 90})
    assert rows(found) == {"flow event": (5, None), "negative duration": (2, 90)}
    assert not completeness(found)["in_table"].any()
