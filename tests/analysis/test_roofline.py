"""Every nanosecond of GPU time is some operator's or in a row that says why not; work is counted once."""

from pathlib import Path

import polars as pl
import pytest
from recorded import T, columns

from rung.analysis.analyses import table
from rung.analysis.roofline import SCHEMA, coverage, peaks_of_trace, readable, roofline
from rung.trace import read
from rung.trace.table import GPU_KINDS, Trace
from rung.trace.table import SCHEMA as EVENTS

SHARED = Path(__file__).parents[3] / "shared" / "data" / "traces"
GOLDEN = Path(__file__).parent / "golden"
MI300X = {"name": "AMD Instinct MI300X", "numSms": 304, "warpSize": 64}
BF = "c10::BFloat16"
X, W = T((256, 512)), T((512, 128))


def op(ts, dur, name, *args):
    row = {"ts": ts, "dur": dur, "kind": "cpu_op", "name": name, "pid": "1", "tid": "1"}
    return row | (dict(zip(("dims", "dtypes", "strides", "concrete"), columns(*args), strict=True)) if args else {})


def launch(ts, correlation, name="hipLaunchKernel"):
    return {"ts": ts, "dur": 1, "kind": "runtime", "name": name, "pid": "1", "tid": "1", "correlation": correlation}


def kernel(ts, dur, correlation, name="k", kind="kernel"):
    return {"ts": ts, "dur": dur, "kind": kind, "name": name, "pid": "0", "tid": "0", "device": 0, "stream": 0,
            "correlation": correlation}  # fmt: skip


def trace(*rows, devices=(MI300X,)):
    empty = dict.fromkeys(EVENTS) | {"dur": 0, "name": "", "pid": "", "tid": ""}
    return Trace(events=pl.DataFrame([empty | row for row in rows], schema=EVENTS), devices=list(devices))


def rows(found):
    return {row["op"]: row for row in found.to_dicts()}


def test_rates_floor_and_bound_of_one_product():
    found = roofline(trace(op(0, 9, "aten::mm", X, W), launch(1, 7), kernel(20, 1000, 7)))
    (row,) = found.to_dicts()
    flops, moved = 2 * 256 * 512 * 128, 2 * (256 * 512 + 512 * 128 + 256 * 128)
    assert found.schema == SCHEMA
    assert (row["work_flops"], row["moved_bytes"], row["time_ns"], row["count"]) == (flops, moved, 1000, 1)
    assert row["tflop_per_s"] == pytest.approx(flops / 1e-6 / 1e12)
    assert row["tb_per_s"] == pytest.approx(moved / 1e-6 / 1e12)
    assert row["intensity"] == pytest.approx(flops / moved)
    assert row["bound"] == "memory"  # 71 FLOP a byte are less than the 246 at which an MI300X turns
    assert row["floor_ns"] == round(moved / 5324.8e9 * 1e9)
    assert row["roof_share"] == pytest.approx(moved / 5324.8e9 / 1e-6)
    assert row["measured_floor_ns"] >= row["floor_ns"]
    assert row["fits_cache"]
    assert row["inputs"] == "256x512 512x128 bf16"


def test_a_large_product_is_bound_by_arithmetic_and_the_measured_rate_is_lower():
    large = T((8192, 8192))
    (row,) = roofline(trace(op(0, 9, "aten::mm", large, large), launch(1, 7), kernel(20, 10**6, 7))).to_dicts()
    assert row["bound"] == "compute"
    assert row["floor_ns"] == round(2 * 8192**3 / 1307.4e12 * 1e9)
    assert row["measured_floor_ns"] == round(2 * 8192**3 / 708e12 * 1e9)


def test_time_goes_to_the_innermost_operator_with_a_model_and_is_counted_once():
    found = rows(
        roofline(
            trace(
                op(0, 100, "aten::linear", X, T((128, 512))),
                op(10, 50, "aten::addmm", T((128,)), X, W),
                launch(20, 1),
                launch(30, 2),
                kernel(200, 70, 1),
                kernel(300, 5, 2),
            )
        )
    )
    assert list(found) == ["aten::addmm"]
    assert (found["aten::addmm"]["time_ns"], found["aten::addmm"]["gpu_events"]) == (75, 2)
    assert found["aten::addmm"]["work_flops"] == 2 * 256 * 512 * 128


def test_an_operator_without_a_model_passes_its_time_to_one_around_it():
    inner = [op(10, 50, "mylib::special_gemm"), launch(20, 1), kernel(200, 70, 1)]
    found = rows(roofline(trace(op(0, 100, "aten::linear", X, T((128, 512))), *inner)))
    assert list(found) == ["aten::linear"]
    alone = rows(roofline(trace(*inner)))
    assert alone["mylib::special_gemm"]["reason"] == "no shapes recorded"
    shaped = rows(roofline(trace(op(10, 50, "mylib::special_gemm", X), *inner[1:])))
    assert shaped["mylib::special_gemm"]["reason"] == "no model"


def test_but_not_where_parts_of_that_one_are_already_counted():
    found = rows(
        roofline(
            trace(
                op(0, 100, "aten::linear", X, T((128, 512))),
                op(10, 20, "aten::mm", X, W),
                launch(15, 1),
                op(40, 20, "mylib::special_bias", X),
                launch(45, 2),
                kernel(200, 70, 1),
                kernel(300, 5, 2),
            )
        )
    )
    assert set(found) == {"aten::mm", "mylib::special_bias"}
    assert sum(row["work_flops"] or 0 for row in found.values()) == 2 * 256 * 512 * 128


def test_what_no_operator_answers_for_has_rows_that_say_why():
    found = roofline(
        trace(
            op(0, 30, "aten::mm", X, W),
            launch(1, 1),
            launch(2, 2),
            launch(40, 3, "hipGraphLaunch"),
            launch(50, 4),
            kernel(100, 10, 1),
            kernel(120, 20, 2, "ncclDevKernel_Generic"),
            kernel(150, 30, 3),
            kernel(190, 31, 3),
            kernel(230, 40, 4),
            kernel(90, 50, 99),
        )
    )
    assert {row["op"]: row["time_ns"] for row in found.to_dicts()} == {
        "(replayed by a graph)": 61,
        "(launched outside of the trace)": 50,
        "(no operator)": 40,
        "(collective)": 20,
        "aten::mm": 10,
    }
    assert found["share"].sum() == pytest.approx(1)
    facts = coverage(found)
    assert facts["total_ns"] == 181 == sum(v for k, v in facts.items() if k.endswith("_ns") and k != "total_ns")
    assert facts["share"] == pytest.approx(10 / 181)
    assert facts["operator_share"] == 1


def test_with_several_steps_times_work_and_counts_are_per_step_and_rates_are_not():
    calls = [(op(10 * i, 9, "aten::mm", X, W), launch(10 * i + 1, i), kernel(9000 + 100 * i, 100, i)) for i in range(6)]
    whole, step = (
        roofline(trace(*(row for call in calls for row in call)), steps=n).row(0, named=True) for n in (1, 3)
    )
    for column in ("time_ns", "count", "gpu_events", "work_flops", "moved_bytes"):
        assert step[column] * 3 == whole[column]
    assert step["floor_ns"] == pytest.approx(whole["floor_ns"] / 3, abs=1)
    for column in ("tflop_per_s", "tb_per_s", "roof_share", "intensity", "share", "bound"):
        assert step[column] == pytest.approx(whole[column])


def test_calls_that_differ_in_a_scalar_are_one_row_and_other_strides_are_another():
    def fill(ts, value, tensor=X):
        return op(ts, 9, "aten::fill_", tensor, value), launch(ts + 1, ts), kernel(ts + 1000, 5, ts)

    found = roofline(trace(*fill(0, 1.5), *fill(10, 2.5), *fill(20, 2.5, T((256, 512), BF, (1, 256)))))
    assert found["count"].to_list() == [2, 1]


def test_copies_to_and_from_the_host_are_not_measured_against_the_gpu():
    copy = op(0, 9, "aten::copy_", X, X)
    (row,) = roofline(trace(copy, launch(1, 7), kernel(9, 99, 7, "Memcpy HtoD (Host -> Device)", "memcpy"))).to_dicts()
    assert (row["bound"], row["floor_ns"], row["moved_bytes"]) == ("host link", None, 2 * 2 * 256 * 512)
    (row,) = roofline(
        trace(copy, launch(1, 7), kernel(9, 99, 7, "Memcpy DtoD (Device -> Device)", "memcpy"))
    ).to_dicts()
    assert row["bound"] == "memory"


def test_products_in_tf32_are_told_by_their_kernels():
    call = op(0, 9, "aten::mm", T((256, 512), "float"), T((512, 128), "float"))
    for name, precision in (("sm80_xmma_gemm_f32f32_tf32f32_f32_tn", "tf32"), ("ampere_sgemm_128x128_tn", "fp32")):
        (row,) = roofline(trace(call, launch(1, 7), kernel(20, 1000, 7, name))).to_dicts()
        assert row["precision"] == precision


def test_but_a_product_of_another_type_keeps_it():
    name = "cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_nn_align1"
    (row,) = roofline(trace(op(0, 9, "aten::mm", X, W), launch(1, 7), kernel(20, 1000, 7, name))).to_dicts()
    assert row["precision"] == "bf16"


def test_types_of_lists_are_told_by_their_kernels():
    call = op(0, 9, "aten::cat", [X, X], 0)
    name = (
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::(anonymous namespace)::OpaqueType<4u>>"
    )
    (row,) = roofline(trace(call, launch(1, 7), kernel(20, 1000, 7, name))).to_dicts()
    assert row["moved_bytes"] == 2 * 4 * 2 * 256 * 512
    (row,) = roofline(trace(call, launch(1, 7), kernel(20, 1000, 7, "unknown"))).to_dicts()
    assert row["reason"] == "no model"


def test_without_a_known_gpu_there_is_work_but_no_roof():
    (row,) = roofline(trace(op(0, 9, "aten::mm", X, W), launch(1, 7), kernel(20, 1000, 7), devices=())).to_dicts()
    assert row["tflop_per_s"] > 0
    assert row["bound"] is row["floor_ns"] is row["roof_share"] is None


def test_a_trace_without_gpu_events_has_no_rows():
    found = roofline(trace(op(0, 9, "aten::mm", X, W)))
    assert found.is_empty()
    assert found.schema == SCHEMA
    assert coverage(found)["operator_share"] == 0
    assert roofline(trace()).is_empty()


def test_inputs_are_readable_whatever_they_are():
    assert (
        readable("[[2,3],[],[[4],[5,6]],[3]]", '["float","Scalar","TensorList","long int"]')
        == "2x3 2 tensors 3 fp32/int64"
    )
    for dims, dtypes in (
        (None, None),
        ("[", "["),
        ("{}", "[]"),
        ("[[1]]", '["a","b"]'),
        ("[" * 9999, None),
        ("3", "3"),
    ):
        assert readable(dims, dtypes) is None


def test_collectives_have_the_bytes_of_their_bus_bandwidth_and_no_floor():
    """Two ranks, two steps: the same operations as `communication` has, of whose durations this is the sum."""
    recorded = read(Path(__file__).parents[1] / "data" / "ddp" / "ranks2-one-bucket")
    (row,) = roofline(recorded, steps=2).filter(pl.col("family") == "collective").to_dicts()
    (said,) = table("communication", recorded, steps=2).to_dicts()
    assert (row["op"], row["bound"], row["count"]) == ("all_reduce", "network", 2)  # a step, one on each rank
    assert row["moved_bytes"] == 2 * said["size_bytes"]  # 2 (n - 1) / n is 1 for two ranks
    assert row["time_ns"] == pytest.approx(2 * (said["transfer_ns"] + said["waiting_ns"]), abs=2)
    assert row["tb_per_s"] * 1000 == pytest.approx(row["moved_bytes"] / row["time_ns"])
    assert row["floor_ns"] is row["reason"] is None


needs_traces = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared real traces are not here")


# Nearly all of their time is replayed by graphs, whose kernels have no shapes.
NO_SHAPES = ("mi300_sglang_decode", "mi300_vllm_graph_replay")


@needs_traces
def test_no_time_of_real_traces_is_lost_and_what_operators_answer_for_is_modelled():
    told = []
    for path in sorted(SHARED.glob("*.json.gz")):
        recorded = read(path)
        found = table("roofline", recorded)
        gpu = recorded.events.filter(pl.col("kind").is_in(GPU_KINDS))
        assert found["time_ns"].sum() == gpu["dur"].sum(), path
        assert found["gpu_events"].sum() == gpu.height, path
        facts = coverage(found)
        told.append(
            f"{path.name}: {facts['operator_share']:.1%} of what operators launched, {facts['linked_share']:.1%} of what is "
            f"linked, {facts['share']:.1%} of all"
        )
        shapes = recorded.events["dims"].drop_nulls().len() and path.name.removesuffix(".json.gz") not in NO_SHAPES
        assert (facts["linked_share"] >= 0.9) == bool(shapes), "\n".join(told)
        if recorded.events["dims"].drop_nulls().len() and facts["modelled_ns"] + facts["unknown_ns"]:
            assert facts["operator_share"] >= 0.9, "\n".join([*told, str(found.filter(pl.col("reason").is_not_null()))])
    print("\n".join(told))
    assert len(told) > 10


@needs_traces
def test_nothing_real_is_faster_than_its_floor():
    """Work that was counted too high would be: these are recordings on MI210, MI300X and H100."""
    held = 0
    for path in sorted(SHARED.glob("*.json.gz")):
        found = roofline(read(path)).filter(pl.col("floor_ns").is_not_null(), ~pl.col("fits_cache"))
        held += found.height
        assert found.filter(pl.col("roof_share") > 1).is_empty(), path
        assert found.filter(pl.col("measured_floor_ns") > pl.col("time_ns")).is_empty(), path
    assert held > 40


@needs_traces
@pytest.mark.parametrize("name", ["mi300_bert", "torch_compile_triton"])
def test_two_traces_give_the_tables_that_were_checked_by_hand(name):
    """Operations and bytes of every row were worked out with pencil and paper from its shapes, the floors from the
    peaks of an MI300X (1307.4 TFLOP/s bf16, 5324.8 GB/s), on 21 November 2026.
    """
    expected = pl.read_csv(GOLDEN / f"roofline_{name}.csv")
    found = roofline(read(SHARED / f"{name}.json.gz"))
    assert peaks_of_trace(read(SHARED / f"{name}.json.gz")).name == "MI300X"
    assert found.select(expected.columns).rows() == expected.rows()


def test_who_communicates_is_told_by_the_operator_first_and_its_work_by_the_algorithm():
    buffer = T((32, 4096))
    found = trace(
        op(0, 9, "symm_mem::multimem_all_reduce_", buffer) | {"external_id": 1}, launch(1, 1),
        kernel(100, 1000, 1, "a_kernel_of_tomorrow") | {"external_id": 1},
        kernel(1200, 10, 1, "Memcpy DtoD (Device -> Device)", "memcpy") | {"external_id": 1},
        op(20, 9, "_C_custom_ar::all_reduce", None, buffer, buffer) | {"external_id": 2}, launch(21, 2),
        kernel(2000, 500, 2, "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)") | {"external_id": 2},
        op(40, 9, "aten::copy_", buffer, buffer) | {"external_id": 3}, launch(41, 3), kernel(3000, 7, 3, "vectorized_elementwise_kernel") | {"external_id": 3},
    )  # fmt: skip
    size = 32 * 4096 * 2
    (whole,) = table("timeline", found).to_dicts()
    assert (whole["communication_ns"], whole["memcpy_ns"], whole["computation_ns"]) == (1500, 10, 7)
    kinds = {
        row["detail"]: row["time_ns"]
        for row in table("categories", found).to_dicts()
        if row["category"] == "communication"
    }
    assert kinds == {"all-reduce": 1500}
    one_shot = table("communication", found).filter(pl.col("algorithm") == "one-shot").row(0, named=True)
    assert (one_shot["size_bytes"], one_shot["group_size"]) == (size, 8)
    assert one_shot["bus_gb_per_s"] == pytest.approx(size * 2 * 7 / 8 / 500)
    assert one_shot["link_gb_per_s"] == pytest.approx(size * 7 / 500)
    row = rows(roofline(found))["all_reduce"]
    assert (row["bound"], row["moved_bytes"], row["time_ns"]) == ("network", size * 7, 500)
    assert rows(roofline(found))["(collective)"]["time_ns"] == 1000  # among how many, nothing says


def before_the_recording(took, *, last="k15"):
    """16 kernels whose launches the trace lacks, and the same 16 (the last by another name, perhaps) launched by products."""
    outside = [kernel(100 * i, took, 100 + i, f"k{i}") for i in range(15)] + [kernel(1500, took, 115, last)]
    ops = [op(5000 + 100 * i, 50, "aten::mm", X, W) for i in range(16)]
    launches = [launch(5010 + 100 * i, 200 + i) for i in range(16)]
    return trace(*outside, *ops, *launches, *(kernel(10_000 + 100 * i, 50, 200 + i, f"k{i}") for i in range(16)))


def test_work_from_before_the_recording_is_told_by_recorded_work_that_is_the_same():
    found = roofline(before_the_recording(50))
    assert found.select("op", "inferred", "time_ns", "count", "reason").rows() == [
        ("aten::mm", False, 800, 16.0, None),
        ("aten::mm", True, 800, 16.0, None),
    ]
    for other in (before_the_recording(60), before_the_recording(50, last="another")):  # slower; not the same kernels
        rest = rows(roofline(other))["(launched outside of the trace)"]
        assert (rest["gpu_events"], rest["reason"]) == (16, "launched outside of the trace")


def test_groups_of_one_size_say_among_how_many_ranks_a_collective_is():
    buffer = T((32, 4096))
    found = trace(
        op(0, 9, "symm_mem::multimem_all_reduce_", buffer) | {"external_id": 1}, launch(1, 1),
        kernel(100, 1000, 1, "multimem_all_reduce_kernel<c10::BFloat16, 16>") | {"external_id": 1},
    )  # fmt: skip
    for sizes, known in (((8, 8, 1), True), ((8, 4), False), (("8", [8]), False)):
        found.meta["distributedInfo"] = {"pg_config": [{"pg_size": size} for size in sizes]}
        again = Trace(events=found.events, devices=found.devices, meta=dict(found.meta))
        assert ("all_reduce" in rows(roofline(again))) == known
