"""Launches, their latency, the queue, calls that wait, signs of compilation."""

import polars as pl
import pytest
from random_traces import call, frame, on_gpu, op, trace_of

from rung.analysis.compilation import compilation
from rung.analysis.launches import launches, runtime, syncs
from rung.analysis.runtime_roles import role
from rung.analysis.spending import durations
from rung.analysis.targets import targets

US = 1000
GEMM, POINTWISE = "Cijk_Ailk_Bljk_MT64x64", "vectorized_elementwise_kernel"


def test_figures_of_a_made_trace():
    row = launches(
        trace_of(
            call(0, US, 1), on_gpu(10 * US, 5 * US, correlation=1),
            call(12 * US, US, 2), on_gpu(32 * US, 20 * US, correlation=2),
            call(40 * US, US, 3, "hipGraphLaunch"),
            on_gpu(60 * US, 20 * US, correlation=3), on_gpu(80 * US, 20 * US, correlation=3),
            on_gpu(100 * US, 5 * US, correlation=99),
            call(50 * US, 52 * US, name="hipDeviceSynchronize"),
        ),
        steps=1,
    ).row(0, named=True)  # fmt: skip
    assert (row["kernels"], row["launches"], row["graph_kernels"], row["short_kernels"]) == (5, 3, 2, 2)
    assert (row["latency_median_ns"], row["latency_max_ns"]) == (15 * US, 20 * US)
    assert row["short_share"] == pytest.approx(10 / 70)
    assert row["gap_ns"] == (17 + 8) * US
    assert row["host_bound_ns"] == 0  # each was launched before the GPU ran dry
    assert row["sync_ns"] == 52 * US
    assert row["queue_max"] == 2
    # From 10 to 105: 2 until it starts at 32, none until 40, two until 60, one until 80.
    assert row["queue_mean"] == pytest.approx((20 * 1 + 20 * 2 + 20 * 1) / 95)
    assert row["queue_empty_share"] == pytest.approx(1 - 60 / 95)


def test_a_copy_that_the_host_waits_for_is_a_wait_as_in_syncs():
    trace = trace_of(
        call(0, 40 * US, 1, "cudaMemcpyAsync"),
        on_gpu(30 * US, 10 * US, "Memcpy DtoH (Device -> Pageable)", "memcpy", correlation=1),
        call(50 * US, 5 * US, name="cudaDeviceSynchronize"),
    )
    assert syncs(trace)["time_ns"].sum() == 45 * US
    assert launches(trace)["sync_ns"].to_list() == [45 * US]
    share = waits_of_host(trace)  # the GPU's time is that from 30 to 40 us
    assert (share["share"], share["met"]) == (1.0, False)


def waits_of_host(trace):
    return target(trace, "host waits for the GPU")


def target(trace, metric):
    return targets(trace).filter(pl.col("metric") == metric).row(0, named=True)


def test_threads_that_wait_at_once_wait_once_and_only_while_the_gpu_is_recorded():
    waits = [
        call(at * US, 60 * US, name="hipDeviceSynchronize", tid=tid) for at, tid in ((20, "1"), (30, "2"), (300, "1"))
    ]
    trace = trace_of(call(0, US, 1), on_gpu(10 * US, 100 * US, correlation=1), *waits)
    assert waits_of_host(trace)["share"] == 0.7


def step(number, ts, dur):
    return {"kind": "annotation", "name": f"ProfilerStep#{number}", "ts": ts, "dur": dur}


def test_what_the_profiler_waits_for_is_no_wait_of_the_program():
    sync = "hipDeviceSynchronize"
    trace = trace_of(
        call(0, 50, name=sync),  # as torch.profiler when it starts, and below when it stops
        step(1, 100, 200), call(110, 5, 1), on_gpu(120, 100, correlation=1), call(150, 30, name=sync),
        {"kind": "annotation", "name": "rung: end of step", "ts": 190, "dur": 100}, call(195, 90, name=sync),
        op(310, 30, "aten::item"), call(315, 20, name=sync), call(350, 7, name="hipStreamSynchronize"),
        call(400, 500, name=sync),
    )  # fmt: skip
    assert sorted(syncs(trace)["time_ns"]) == [7, 20, 30]
    assert launches(trace)["sync_ns"].to_list() == [57]
    assert waits_of_host(trace)["share"] == 0.3


def test_without_steps_every_wait_is_the_programs():
    assert syncs(trace_of(on_gpu(0, 10), call(20, 50, name="hipDeviceSynchronize")))["time_ns"].to_list() == [50]


@pytest.mark.parametrize(
    ("name", "moved", "kind", "waits"),
    [
        ("cudaMemset", "Memset (Device)", "memset", False),
        ("cudaMemsetAsync", "Memset (Device)", "memset", False),
        ("cudaMemcpyAsync", "Memcpy HtoD (Pinned -> Device)", "memcpy", False),
        ("cudaMemcpyAsync", "Memcpy DtoD (Device -> Device)", "memcpy", False),
        ("hipMemcpyAsync", "CopyDeviceToDevice", "memcpy", False),
        ("cudaMemcpyAsync", "Memcpy HtoD (Pageable -> Device)", "memcpy", True),
        ("cudaMemcpy", "Memcpy HtoD (Pinned -> Device)", "memcpy", True),
    ],
)
def test_a_copy_is_waited_for_where_its_kind_makes_the_host_wait(name, moved, kind, waits):
    trace = trace_of(call(0, 12, 1, name), on_gpu(5, 2, moved, kind, correlation=1))
    assert syncs(trace)["time_ns"].to_list() == [12] * waits


def test_a_copy_that_ends_after_its_call_was_not_waited_for():
    between = on_gpu(50, 5, "Memcpy DtoD (Device -> Device)", "memcpy", correlation=1)
    assert syncs(trace_of(call(0, 12, 1, "cudaMemcpy"), between)).is_empty()
    assert syncs(trace_of(call(0, 12, 1, "cudaMemcpy"), on_gpu(50, 5)))["time_ns"].to_list() == [12]


@pytest.mark.parametrize(("products", "other", "met"), [(60, 40, True), (59, 41, False)])
def test_matrix_products_should_take_most_of_the_time(products, other, met):
    row = target(trace_of(on_gpu(0, products, GEMM), on_gpu(products, other, POINTWISE)), "matrix products")
    assert (row["share"], row["target"], row["met"]) == (products / 100, ">= 60%", met)


@pytest.mark.parametrize("kernels", [
    [(50, "vectorized_elementwise_kernel")], [(90, "cudnn::cnn::conv2d_grouped_direct_kernel"), (5, GEMM)], [(90, "flash_fwd_kernel"), (5, GEMM)],
], ids=["neither", "convolutions", "attention"])  # fmt: skip
def test_where_other_work_multiplies_matrix_products_have_no_target(kernels):
    row = target(trace_of(*(on_gpu(100 * n, *kernel) for n, kernel in enumerate(kernels))), "matrix products")
    assert (row["target"], row["met"]) == (None, None)


def test_a_gpu_that_waits_for_the_host():
    row = launches(
        trace_of(call(0, US, 1), on_gpu(US, 9 * US, correlation=1), call(20 * US, US, 2), on_gpu(30 * US, 10 * US, correlation=2)),
        steps=2,
    ).row(0, named=True)  # fmt: skip
    assert (row["host_bound_ns"], row["gap_ns"]) == (10 * US, 10 * US)
    assert row["host_bound_share"] == pytest.approx(20 / 39)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("hipLaunchKernel", "launch"), ("hipExtModuleLaunchKernel", "launch"), ("cudaLaunchKernelExC", "launch"),
        ("cuLaunchKernelEx", "launch"), ("hipGraphLaunch", "graph launch"), ("cudaGraphLaunch", "graph launch"),
        ("hipMemcpyWithStream", "blocking copy"), ("cudaMemcpy", "blocking copy"), ("cudaMemset", "copy"), ("cuStreamSynchronize", "synchronize"),
        ("hipMemcpyAsync", "copy"), ("cudaMemsetAsync", "copy"), ("hipStreamWaitEvent", "wait"),
        ("hipMalloc", "memory"), ("cudaFree", "memory"), ("hipStreamBeginCapture", "capture"),
        ("hipModuleLoadData", "load code"), ("hipGetDevicePropertiesR0600", "query"), ("cudaEventQuery", "query"),
        ("cudaEventRecord", "other"),
    ],
)  # fmt: skip
def test_the_role_of_a_runtime_call(name, expected):
    assert role(name) == expected


def test_a_query_at_every_launch_shows():
    calls = [call(i * 10, 2, i) for i in range(5)] + [
        call(i * 10 + 5, 1, None, "hipGetDevicePropertiesR0600") for i in range(20)
    ]
    row = runtime(trace_of(*calls)).filter(role="query").row(0, named=True)
    assert (row["count"], row["per_launch"], row["time_ns"]) == (20, 4.0, 20)


def test_who_waited_is_named_and_a_copy_that_blocks_is_found():
    table = syncs(
        trace_of(
            frame(0, 100, "/x/site-packages/app/run.py(3): step"), frame(1, 98, "torch/_tensor.py(5): item"),
            op(2, 50, "aten::item"), op(3, 48, "aten::_local_scalar_dense"),
            call(4, 40, 1, "cudaMemcpyAsync"), on_gpu(30, 10, "Memcpy DtoH (Device -> Pageable)", "memcpy", correlation=1),
            call(60, 5, 2, "cudaMemcpyAsync"), on_gpu(90, 10, "Memcpy DtoH (Device -> Pinned)", "memcpy", correlation=2),
            call(70, 10, None, "cudaStreamSynchronize"),
        )
    )  # fmt: skip
    assert table.select("call", "why", "op", "call_site", "time_ns").rows() == [
        ("cudaMemcpyAsync", "blocking copy", "aten::_local_scalar_dense", "app/run.py(3): step", 40),
        ("cudaStreamSynchronize", "synchronize", None, "app/run.py(3): step", 10),
    ]


def test_the_histogram_has_every_event_once():
    table = durations(trace_of(*(on_gpu(i, dur) for i, dur in enumerate([0, 999, 1000, 4999, 5000, 20_000_000]))))
    assert table["count"].to_list() == [2, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1]
    assert table["count_share"].sum() == pytest.approx(1)
    assert durations(trace_of()).is_empty()


def test_signs_of_compilation_are_counted():
    table = compilation(
        trace_of(
            op(0, 5, "Torch-Compiled Region: 0/0"), op(10, 5, "Torch-Compiled Region: 1/0"),
            frame(20, 50, "torch/_dynamo/convert_frame.py(920): _compile"),
            call(30, 4, None, "hipModuleLoadData"), call(40, 4, None, "hipMalloc"),
        ),
        steps=2,
    )  # fmt: skip
    found = {row["sign"]: (row["per_step"], row["distinct"], row["time_ns"]) for row in table.to_dicts()}
    assert found["compiled region"] == (1.0, 2, 10)
    assert found["recompilation"] == (0.5, 1, 50)
    assert found["code loaded"] == (0.5, 1, 4)
    assert found["device memory allocated"] == (0.5, 1, 4)
    assert compilation(trace_of(on_gpu(0, 1))).is_empty()


def test_memory_that_is_allocated_is_told_from_memory_that_is_released_or_of_the_host():
    names = ("cudaMalloc", "hipMalloc", "cudaFree", "hipFreeAsync", "hipFree", "cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap",
             "cudaHostAlloc", "hipHostFree", "cuMemHostAlloc", "cudaMallocHost")  # fmt: skip
    table = compilation(trace_of(*(call(10 * n, 2, None, name) for n, name in enumerate(names))))
    assert dict(table.select("sign", "count").iter_rows()) == {
        "device memory allocated": 3,
        "device memory mapped": 2,
        "device memory released": 4,
        "host memory allocated or released": 4,
    }


def test_a_choice_that_is_looked_up_is_no_tuning():
    # As FlashInfer's autotuner does at each launch in vLLM on a B200, and Triton's.
    looked_up = ("flashinfer/autotuner.py(400): choose_one", "flashinfer/autotuner.py(246): __hash__", "triton/runtime/autotuner.py(212): run",
                 "torch/_inductor/runtime/autotune_cache.py(3): end_compile")  # fmt: skip
    assert compilation(trace_of(*(frame(i, 1, name) for i, name in enumerate(looked_up)))).is_empty()
    tuned = ("flashinfer/autotuner.py(583): _profile_single_kernel", "triton/runtime/autotuner.py(128): _bench",
             "torch/_inductor/runtime/triton_heuristics.py(1540): autotune_to_one_config")  # fmt: skip
    table = compilation(trace_of(*(frame(i, 1, name) for i, name in enumerate(tuned))))
    assert table.select("sign", "count").rows() == [("autotuning", 3)]


def test_an_unlinked_trace_has_no_latency_and_no_queue():
    row = launches(trace_of(on_gpu(0, 10), on_gpu(20, 10))).row(0, named=True)
    assert row["latency_median_ns"] is None
    assert row["queue_mean"] is None
    assert (row["launches"], row["gap_ns"], row["host_bound_ns"]) == (0, 10, 0)
    assert pl.DataFrame([row])["host_bound_share"].item() == 0
