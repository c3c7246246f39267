"""Random event tables for the tests of the writers."""

import polars as pl
from hypothesis import strategies as st

from rung.trace.table import COUNTERS, KINDS, SCHEMA, Trace

ON_GPU = ("kernel", "memcpy", "memset", "gpu_annotation")
_ids = st.integers(0, 2**63 - 1) | st.integers(0, 5)
_text = st.text(max_size=12) | st.sampled_from(["k", 'a "b" \\ \n', "µ", "1", "007"])
_dims = st.sampled_from([None, "[[2, 3], []]", "[]", '[[1],"Scalar"]'])


@st.composite
def events(draw):
    kind = draw(st.sampled_from(KINDS))
    gpu = kind in ON_GPU
    place = st.integers(0, 3)
    device = draw(place) if gpu else draw(place | st.none()) if kind == "allocation" else None
    return (
        draw(st.integers(0, 40) | st.integers(0, 2**61)),
        draw(st.integers(0, 40) | st.integers(0, 2**60)),
        kind,
        draw(_text),
        draw(st.sampled_from(["1", "2", "77", "host", ""])),
        draw(st.sampled_from(["0", "1", "main", ""])),
        device,
        draw(place) if gpu else None,
        draw(_ids | st.none()),
        draw(_ids | st.none()),
        draw(_dims),
        draw(st.integers(0, 2**40) | st.integers(-(2**40), -1) | st.none()),
        draw(st.integers(0, 2) | st.none()),
        *((draw(_dims), draw(_dims), draw(_dims), draw(_ids | st.none())) if kind == "cpu_op" else (None,) * 4),
    )


@st.composite
def traces(draw):
    rows = draw(st.lists(events(), max_size=9))
    counted = draw(
        st.lists(
            st.tuples(
                st.integers(0, 5),
                st.integers(0, 3),
                st.sampled_from(["k", "x"]),
                st.sampled_from(["SQ_WAVES", "GRBM_COUNT"]),
                st.floats(allow_nan=False),
                st.none() | st.integers(0, 2),
            ),
            max_size=4,
        )
    )
    return Trace(
        events=pl.DataFrame(rows, schema=SCHEMA, orient="row"),
        counters=pl.DataFrame(counted, schema=COUNTERS, orient="row"),
        devices=draw(st.sampled_from([[], [{"id": 0, "name": "MI300X"}]])),
    )


def in_order(frame):
    """A table without the order of its rows."""
    return frame.sort(frame.columns, nulls_last=True)


def made(*rows, **more):
    """A trace of rows given as dictionaries; what they leave out is null, or empty where it is a text."""
    empty = dict.fromkeys(SCHEMA) | {"dur": 0, "name": "", "pid": "", "tid": ""}
    return Trace(events=pl.DataFrame([empty | row for row in rows], schema=SCHEMA), **more)
