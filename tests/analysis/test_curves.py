"""A curve with fewer points keeps its peaks, its last value and its order."""

import polars as pl
from hypothesis import given
from hypothesis import strategies as st
from random_traces import trace_of

from rung.analysis.pictures import curves
from rung.trace.table import CURVES


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.floats(0, 1e9)), min_size=1, max_size=200),
    st.sampled_from([4, 10, 50]),
)
def test_peaks_and_ends_stay(points, most):
    rows = [{"name": "power", "unit": "W", "device": 0, "ts": ts, "value": value} for ts, value in points]
    trace = trace_of()
    own = pl.DataFrame(rows, schema=CURVES)
    object.__setattr__(trace, "curves", own)
    found = curves(trace, most=most)
    assert found["value"].max() == own["value"].max()
    assert found["ts"].max() == own["ts"].max()
    assert found["ts"].is_sorted() or own.height <= most
    assert found.height <= max(most + 2, min(own.height, most))
    assert set(found.rows()) <= set(own.rows())
