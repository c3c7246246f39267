"""Interval arithmetic against brute force: a set of the integers that are covered."""

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from rung.analysis.intervals import covered, parents, self_times, union
from rung.analysis.nesting import callers, nearest, outermost
from rung.analysis.stabbing import holding

INTERVALS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10)), max_size=12)


def arrays(intervals):
    start = np.array([s for s, _ in intervals], dtype=np.int64)
    return start, start + np.array([d for _, d in intervals], dtype=np.int64)


def points(intervals):
    return {t for start, length in intervals for t in range(start, start + length)}


@given(INTERVALS)
def test_covered_counts_each_instant_once(intervals):
    assert covered(*arrays(intervals)) == len(points(intervals))


@given(INTERVALS)
def test_union_is_ascending_disjoint_and_covers_the_same(intervals):
    low, high = union(*arrays(intervals))
    assert (low[1:] > high[:-1]).all()
    merged = list(zip(low.tolist(), (high - low).tolist(), strict=True))
    assert points(merged) == points(intervals)


@given(INTERVALS)
def test_self_times_of_nested_calls_add_up_to_the_covered_time(lengths):
    # Properly nested calls: each next one takes the middle of the one before.
    start, end = [], []
    for base, _ in lengths:
        low, high = 100 * len(start), 100 * len(start) + 90
        for _ in range(base % 4):
            start.append(low)
            end.append(high)
            low, high = low + 10, high - 10
    low, high = np.array(start, dtype=np.int64), np.array(end, dtype=np.int64)
    _, caller = parents(low, high, np.zeros_like(low))
    assert sum(self_times(low, high, caller)) == covered(low, high)


def test_the_caller_is_the_innermost_open_call_of_the_same_thread():
    #                 outer  inner  leaf  other thread  after
    start = np.array([0, 10, 12, 11, 100])
    end = np.array([100, 50, 20, 15, 120])
    thread = np.array([1, 1, 1, 2, 1])
    order, caller = parents(start, end, thread)
    assert caller == [-1, 0, 1, -1, -1]
    assert order.index(0) < order.index(1) < order.index(2)
    assert self_times(start, end, caller) == [60, 32, 8, 4, 20]


CALLS = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 15), st.integers(0, 2)), max_size=25)


@given(CALLS)
def test_the_vectorized_nesting_is_that_of_the_loop(calls):
    start, end = arrays([(s, d) for s, d, _ in calls])
    thread = np.array([t for _, _, t in calls], dtype=np.int64)
    assert callers(start, end, thread).tolist() == parents(start, end, thread)[1]


@given(CALLS)
def test_an_item_without_length_is_inside_what_is_open_there(calls):
    start, end = arrays([*((s, d) for s, d, _ in calls), (20, 0)])
    thread = np.array([*(t for _, _, t in calls), 0], dtype=np.int64)
    assert callers(start, end, thread)[-1] == parents(start, end, thread)[1][-1]


@given(CALLS, st.data())
def test_the_nearest_and_the_outermost_are_found_by_going_up(calls, data):
    parent = np.array([data.draw(st.integers(-1, i - 1)) for i in range(len(calls))], dtype=np.int64)
    chosen = np.array([data.draw(st.booleans()) for _ in calls], dtype=bool)
    for item in range(len(calls)):
        path, at = [], item
        while at >= 0:
            path += [at] if chosen[at] else []
            at = parent[at]
        assert nearest(parent, chosen)[item] == (path[0] if path else -1)
        assert outermost(parent, chosen)[item] == (path[-1] if path else -1)


@given(INTERVALS, st.lists(st.integers(0, 40), max_size=4))
def test_a_span_holds_the_moments_from_its_start_to_before_its_end(intervals, moments):
    start, end = arrays(intervals)
    held = holding(pl.Series(start), pl.Series(end), pl.Series(sorted(moments), dtype=pl.Int64))
    assert held.tolist() == [
        any(low <= at < high for at in moments) for low, high in zip(start.tolist(), end.tolist(), strict=True)
    ]
