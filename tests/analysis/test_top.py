"""Rankings of GPU time: kernels, operators by shape, modules, call sites; what has none of these is in them, too."""

from pathlib import Path

import pytest
from random_traces import call, frame, on_gpu, op, trace_of

from rung.analysis.modules import layers, modules
from rung.analysis.spending import call_sites, kernels, ops
from rung.trace import read

SHARED = Path(__file__).parents[3] / "shared" / "data" / "traces"
PROGRAM = [
    frame(0, 99, "/x/site-packages/net/model.py(9): forward"),
    frame(1, 97, "nn.Module: Net_0"),
    frame(2, 40, "nn.Module: Linear_0"),
    frame(3, 38, "torch/nn/modules/linear.py(1): forward"),
    op(4, 30, "aten::linear", sequence=5),
    op(5, 20, "aten::addmm", sequence=5, dims="[[8]]", dtypes='["float"]', strides="[[1]]"),
    call(6, 2, 1),
    call(10, 2, 2),
    frame(50, 40, "nn.Module: Linear_1"),
    op(51, 20, "aten::addmm", sequence=6, dims="[[8]]", dtypes='["float"]', strides="[[1]]"),
    call(52, 2, 3),
    op(100, 30, "autograd::engine::evaluate_function: AddmmBackward0", sequence=5, tid="2"),
    op(101, 20, "aten::mm", tid="2"),
    call(102, 2, 4, tid="2"),
    call(140, 2, 5, "hipGraphLaunch"),
    on_gpu(200, 10, "gemm_a", correlation=1),
    on_gpu(210, 2, "gemm_b", correlation=2),
    on_gpu(220, 20, "gemm_a", correlation=3),
    on_gpu(240, 5, "gemm_a", correlation=4),
    on_gpu(250, 3, "gemm_c", correlation=5),
    on_gpu(260, 1, "gemm_a", correlation=77),
]


def test_kernels_by_name_with_their_statistics_and_their_origin():
    table = kernels(trace_of(*PROGRAM))
    row = table.row(0, named=True)
    assert (row["name"], row["category"], row["count"], row["time_ns"]) == ("gemm_a", "gemm", 4, 36)
    assert (row["mean_ns"], row["median_ns"], row["min_ns"], row["max_ns"], row["std_ns"]) == (9, 8, 1, 20, 8)
    assert row["unlinked_share"] == pytest.approx(1 / 36)
    assert table.filter(name="gemm_c")["graph_share"].item() == 1.0
    assert table["cumulative_share"].to_list() == pytest.approx([36 / 41, 39 / 41, 1.0])


def test_operators_by_shape_and_the_work_without_one():
    table = ops(trace_of(*PROGRAM))
    assert table.select("op", "dims", "count", "kernels", "time_ns", "mean_ns").rows() == [
        ("aten::addmm", "[[8]]", 2.0, 3.0, 32, 16),
        ("aten::mm", None, 1.0, 1.0, 5, 5),
        ("(replayed by a graph)", None, 1.0, 1.0, 3, 3),
        ("(launched outside of the trace)", None, 1.0, 1.0, 1, 1),
    ]


def test_a_backward_operator_belongs_to_the_module_of_its_forward_one():
    table = layers(trace_of(*PROGRAM))
    times = {row["module"]: (row["time_ns"], row["inclusive_ns"]) for row in table.to_dicts()}
    assert times["Net_0 / Linear_0"] == (17, 17)
    assert times["Net_0 / Linear_1"] == (20, 20)
    assert times["Net_0"] == (0, 37)
    assert table.filter(module="Net_0 / Linear_0")["backward_share"].item() == pytest.approx(5 / 17)


def test_equal_layers_are_one_kind_of_module():
    row = modules(trace_of(*PROGRAM)).filter(module="Net / Linear").row(0, named=True)
    assert (row["modules"], row["count"], row["time_ns"]) == (2, 4, 37)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("/workspace/torch/train.py(9): main", True),
        ("/home/u/torch_utils/ops.py(3): conv", True),
        ("vllm/utils/torch_utils.py(530): current_stream", True),
        ("torch/nn/functional.py(1): linear", False),
        ("torch/_ops.py(7): __call__", False),
        ("/opt/pytorch/torch/nn/modules/linear.py(1): forward", False),
        ("/env/lib/python3.12/site-packages/torch/anything.py(1): f", False),
        ("contextlib.py(3): inner", False),
    ],
)
def test_pytorchs_own_frames_are_no_call_sites_and_a_users_folder_of_that_name_is(name, shown):
    program = [
        frame(0, 20, "outer.py(1): main"),
        frame(1, 18, name),
        op(2, 10, "aten::mm"),
        call(3, 2, 1),
        on_gpu(5, 3, correlation=1),
    ]
    table = call_sites(trace_of(*program))
    assert table["call_site"].to_list() == [name if shown else "outer.py(1): main"]


def test_call_sites_are_the_users_and_start_at_the_package():
    table = call_sites(trace_of(*PROGRAM))
    assert table.select("call_site", "time_ns").rows()[0] == ("net/model.py(9): forward", 37)
    assert (
        table.filter(call_site="(no Python frame)").height == 0
    )  # the graph's launch, without a frame, says what it is
    assert table.filter(call_site="(replayed by a graph)")["time_ns"].item() == 3


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared real traces are not here")
def test_real_modules_and_lines():
    trace = read(SHARED / "mi300_vit.json.gz")
    first = modules(trace).row(0, named=True)
    assert first["module"].endswith("ViTSdpaSelfAttention")
    assert (first["modules"], first["count"]) == (12, 12)  # one attn_fwd a layer
    assert call_sites(trace)["call_site"][0] == "transformers/models/vit/modeling_vit.py(252): forward"
    training = modules(read(SHARED / "mi300_resnet_fsdp_ckpt.json.gz"), steps=3)
    assert training.filter(training["module"].str.ends_with("BatchNorm2d"))["backward_share"].max() > 0.4
