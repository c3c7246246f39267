"""The category of GPU time: nothing of weight is "other" on any real trace, and operators know better than some names."""

import json
from pathlib import Path

import polars as pl
import pytest
from random_traces import call, on_gpu, op, trace_of

from rung.analysis import classifier
from rung.analysis.analyses import table
from rung.analysis.spending import categories
from rung.trace import read

SHARED = Path(__file__).parents[3] / "shared" / "data"
GOLDEN = Path(__file__).parent / "golden"
REAL = sorted([*SHARED.glob("traces/*.json.gz"), *SHARED.glob("rocprofv3/*.json.gz")])


def kinds(*events):
    return {(row["category"], row["detail"]): row["time_ns"] for row in categories(trace_of(*events)).to_dicts()}


def test_real_traces_are_here_or_that_is_said():
    if not REAL:
        pytest.skip("the shared real traces are not here")
    assert len(REAL) >= 14


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.name)
def test_less_than_three_percent_of_a_real_trace_is_other(path):
    answer = categories(read(path))
    assert answer["share"].sum() == pytest.approx(1.0)
    assert answer.filter(answer["category"] == "other")["share"].sum() < 0.03


def test_a_tensile_kernel_under_a_convolution_convolves_and_its_copies_are_layout():
    events = [
        op(0, 30, "aten::convolution_backward"), call(1, 1, 1), call(3, 1, 2),
        on_gpu(50, 5, "Cijk_Ailk_Bljk_MT64x64", correlation=1),
        on_gpu(60, 4, "void elementwise_kernel<direct_copy_kernel_cuda>", correlation=2),
        on_gpu(70, 3, "Cijk_Ailk_Bljk_MT64x64", correlation=9),
    ]  # fmt: skip
    assert kinds(*events) == {("convolution", "backward"): 5, ("convolution", "layout"): 4, ("gemm", ""): 3}


def test_what_an_attention_operator_launches_is_attention_and_a_decoding_kernel_stays_one():
    events = [
        op(0, 9, "aten::scaled_dot_product_attention"), op(1, 7, "aten::mul"), call(2, 1, 1), call(4, 1, 2),
        op(20, 9, "aten::_flash_attention_backward"), call(21, 1, 3),
        on_gpu(50, 5, "vectorized_elementwise_kernel", correlation=1),
        on_gpu(60, 4, "paged_attention_ll4mi_QKV", correlation=2),
        on_gpu(70, 3, "unknown", correlation=3),
    ]  # fmt: skip
    assert kinds(*events) == {("attention", "forward"): 5, ("attention", "decode"): 4, ("attention", "backward"): 3}


def test_unfused_attention_is_told_by_the_shapes_of_its_scores():
    scores = "[[2, 4, 8, 8], [], []]"
    events = [
        op(0, 5, "aten::_softmax", dims=scores), call(1, 1, 1),
        op(10, 5, "aten::bmm", dims="[[8, 8, 8], [8, 8, 16]]"), call(11, 1, 2),
        op(20, 5, "aten::mm", dims="[[3, 5], [5, 7]]"), call(21, 1, 3),
        on_gpu(50, 5, "softmax_warp_forward", correlation=1), on_gpu(60, 4, "Cijk_", correlation=2),
        on_gpu(70, 3, "Cijk_", correlation=3),
    ]  # fmt: skip
    assert kinds(*events) == {("attention", "unfused"): 9, ("gemm", ""): 3}


def launched(*calls):
    """Operators in a row, given as (name, shapes, concrete inputs), each with a kernel of 1 ns."""
    events = []
    for number, (name, shapes, *concrete) in enumerate(calls):
        shown = json.dumps(["", *concrete]) if concrete else None
        events += [
            op(10 * number, 5, name, dims=json.dumps([*shapes, [], []]), concrete=shown),
            call(10 * number + 1, 1, number),
            on_gpu(
                1000 + number,
                1,
                "Cijk_" if name.endswith(("mm", "matmul")) else "elementwise_kernel",
                correlation=number,
            ),
        ]
    return events


PRODUCT, WEIGHTED = ("aten::bmm", [[96, 60, 64], [96, 64, 50]]), ("aten::bmm", [[96, 60, 50], [96, 50, 64]])


@pytest.mark.parametrize(
    ("calls", "attention"),
    [
        # OWL-ViT as transformers writes it: [batch * heads, queries, keys], a mask added in four dimensions.
        (
            [PRODUCT, ("aten::add", [[8, 12, 60, 50], [8, 1, 60, 50]]), ("aten::_softmax", [[96, 60, 50]], "-1"), WEIGHTED],
            4,
        ),
        # Four query heads to a key head: queries of one product.
        (
            [("aten::bmm", [[8, 240, 64], [8, 64, 50]]), ("aten::_softmax", [[2, 4, 4, 60, 50]], "4"),
             ("aten::bmm", [[8, 240, 50], [8, 50, 64]])],
            3,
        ),
        # As Inductor compiles it: a kernel with the softmax in it between two products of a library.
        ([PRODUCT, ("triton_per_fused__softmax_2", [[96, 60, 50], [96, 60, 1]]), WEIGHTED], 3),
        # And backward, whose shapes are the same.
        (
            [PRODUCT, ("aten::_softmax", [[96, 60, 50]], "-1"), WEIGHTED,
             ("aten::_softmax_backward_data", [[96, 60, 50], [96, 60, 50]]), ("aten::bmm", [[96, 50, 60], [96, 60, 64]])],
            5,
        ),
        # No product made it; none reads it; or only one with a plain matrix does: logits, classes, gates.
        ([("aten::_softmax", [[96, 60, 50]], "-1"), WEIGHTED], 0),
        ([PRODUCT, ("aten::_softmax", [[96, 60, 50]], "-1")], 0),
        ([("aten::matmul", [[96, 60, 64], [64, 50]]), ("aten::_softmax", [[96, 60, 50]], "-1"), WEIGHTED], 0),
        ([PRODUCT, ("aten::_softmax", [[96, 60, 50]], "-1"), ("aten::matmul", [[96, 60, 50], [50, 64]])], 0),
        ([PRODUCT, ("aten::relu", [[96, 60, 50]]), WEIGHTED], 0),
        # A product of before is not one of after.
        ([WEIGHTED, PRODUCT, ("aten::_softmax", [[96, 60, 50]], "-1")], 0),
        # Four dimensions: of an image's classes, the softmax is over the second.
        ([("aten::_softmax", [[2, 21, 60, 50]], "1"), ("aten::mul", [[2, 21, 60, 50], [2, 21, 60, 50]])], 0),
        ([("aten::_softmax", [[2, 12, 60, 50]], "-1"), ("aten::mul", [[2, 12, 60, 50], [2, 12, 60, 50]])], 2),
    ],
)  # fmt: skip
def test_attention_of_any_dimensions_is_told_by_its_data_flow(calls, attention):
    found = kinds(*launched(*calls))
    assert sum(ns for (category, _), ns in found.items() if category == "attention") == attention


def test_collectives_stay_collectives_and_graphs_and_unlinked_work_go_by_their_names():
    events = [
        op(0, 9, "aten::scaled_dot_product_attention"), call(1, 1, 1), call(3, 1, 2, "hipGraphLaunch"),
        on_gpu(50, 5, "ncclDevKernel_Generic", correlation=1), on_gpu(60, 4, "Cijk_", correlation=2),
        on_gpu(70, 3, "Cijk_", correlation=8),
    ]  # fmt: skip
    assert kinds(*events) == {("communication", ""): 5, ("gemm", ""): 7}
    graph, outside = table("ops", trace_of(*events)).filter(category="gemm").sort("time_ns", descending=True)["op"]
    assert (graph, outside) == ("(replayed by a graph)", "(launched outside of the trace)")


def test_a_users_family_knows_better_than_any_operator(tmp_path):
    own = tmp_path / "own.toml"
    own.write_text('[[kernel]]\ncategory = "ours"\npatterns = ["^zz_"]\n')
    events = [op(0, 9, "aten::scaled_dot_product_attention"), call(1, 1, 1), on_gpu(50, 5, "zz_top", correlation=1)]
    classifier.use(own)
    try:
        assert kinds(*events) == {("ours", ""): 5}
    finally:
        classifier.use(None)
    assert kinds(*events) == {("attention", "forward"): 5}


def test_times_are_per_step():
    events = [on_gpu(0, 10, "attn_fwd"), on_gpu(20, 10, "attn_fwd")]
    row = categories(trace_of(*events), steps=2).row(0, named=True)
    assert (row["events"], row["time_ns"], row["mean_ns"], row["share"]) == (1.0, 10, 10, 1.0)


@pytest.mark.skipif(not REAL, reason="the shared real traces are not here")
def test_a_trace_gives_the_table_that_was_checked_by_hand():
    """On 21 November 2026, from the sums of the file's kernels by operator: gemm is aten::addmm without its memsets,
    concatenate aten::cat, normalization native_layer_norm, convolution cudnn_convolution, elementwise gelu, add, add_ and
    upsample_nearest1d; attention _softmax, bmm, mul and the copies of its scores; together with the copies that are left
    they are all of the 158.433 ms of the file.
    """
    expected = pl.read_csv(GOLDEN / "categories_h100_timesformer.csv").with_columns(pl.col("detail").fill_null(""))
    found = categories(read(SHARED / "traces" / "h100_timesformer.json.gz"))
    assert found.select(expected.columns).rows() == expected.rows()
    assert expected["time_ns"].sum() == 158_433_174
