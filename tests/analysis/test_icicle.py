"""Icicles add up from the leaves to the root, and have the paths of the modules, operators and lines of a trace."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_traces import TRACES, call, frame, on_gpu, op, trace_of

from rung.analysis.classified import classified
from rung.analysis.icicle import BY, LEAST, REST, icicle, paths
from rung.analysis.modules import modules

SOME = settings(max_examples=15, deadline=None)


def walked(tree) -> dict[str, int]:
    """The time of each path of names."""
    found, way = {}, []
    for name, parent, time_ns in tree.nodes.select("name", "parent", "time_ns").iter_rows():
        way.append(name if parent is None else f"{way[parent]} > {name}")
        found[way[-1]] = found.get(way[-1], 0) + time_ns
    return found


@pytest.mark.parametrize("by", BY)
@SOME
@given(TRACES)
def test_children_add_up_to_their_parent_and_the_root_is_all_gpu_time(by, trace):
    tree = icicle(trace, by)
    if tree is None:
        return
    nodes = tree.nodes.with_row_index("at").cast({"at": pl.Int64})
    assert nodes["time_ns"][0] == classified(trace)["dur"].sum()
    below = nodes.drop_nulls("parent").group_by("parent").agg(pl.col("time_ns").sum())
    both = nodes.join(below, left_on="at", right_on="parent")
    assert (both["time_ns"] == both["time_ns_right"]).all()
    assert (nodes["parent"].fill_null(-1) < nodes["at"]).all()


@SOME
@given(TRACES)
def test_a_module_takes_as_long_as_its_row_says(trace):
    tree = icicle(trace, "module")
    if tree is None:
        return
    times = walked(tree)
    whole = classified(trace)["dur"].sum()
    for path, ns in modules(trace).select("module", "inclusive_ns").iter_rows():
        if ns >= LEAST * whole and ns:
            assert times[f"all GPU events > {path.replace(' / ', ' > ')}"] == ns


@given(st.lists(st.tuples(st.integers(0, 30), st.sampled_from("abc")), max_size=30))
def test_items_share_a_path_where_all_names_up_from_them_are_the_same(drawn):
    above = np.array([up - 1 if up <= k else -1 for k, (up, _) in enumerate(drawn)], dtype=np.int64)
    names = [name for _, name in drawn]

    def way(k: int) -> str:
        return names[k] if above[k] < 0 else f"{way(above[k])}/{names[k]}"

    path, up, of = paths(above, names)
    ways = [way(k) for k in range(len(names))]
    assert len(up) == len(of) == len(set(ways))
    for k, own in enumerate(path):
        assert ways[k] == ways[of[own]]
        assert up[own] == (path[above[k]] if above[k] >= 0 else -1)
        assert up[own] < own


def test_kernels_stand_below_the_operators_that_launched_them():
    trace = trace_of(
        op(0, 50, "aten::linear"), op(5, 40, "aten::addmm"), call(10, 5, 1), on_gpu(20, 70, "Cijk_MT64", correlation=1),
        call(60, 5, 2), on_gpu(90, 20, "copy", correlation=2), on_gpu(120, 10, "early", correlation=7),
    )  # fmt: skip
    assert walked(icicle(trace, "operator")) == {
        "all GPU events": 100,
        "all GPU events > aten::linear": 70,
        "all GPU events > aten::linear > aten::addmm": 70,
        "all GPU events > aten::linear > aten::addmm > Cijk_MT64": 70,
        "all GPU events > (no operator)": 20,
        "all GPU events > (no operator) > copy": 20,
        "all GPU events > (launched outside of the trace)": 10,
        "all GPU events > (launched outside of the trace) > early": 10,
    }
    assert icicle(trace, "module") is None


def test_what_cannot_be_seen_stands_together():
    small = [on_gpu(20_000_000 + 10 * k, 1, f"small{k}") for k in range(50)]
    frames = [
        frame(0, 100, "model.py(3): forward"),
        op(0, 50, "aten::mm"),
        call(1, 1, 1),
        on_gpu(10, 10_000_000, "large", correlation=1),
    ]
    nodes = icicle(trace_of(*frames, *small), "call_site").nodes
    assert nodes.filter(pl.col("name") == "(launched outside of the trace)").is_empty()
    rest = nodes.filter(pl.col("name") == REST)
    assert rest["time_ns"].to_list() == [50]
    assert rest["count"].to_list() == [50]
