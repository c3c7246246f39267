"""Findings: what fires on what, what it promises, and that the ladder has the rungs that it names."""

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
import random_traces
from hypothesis import given
from known_facts import facts_of
from made_ranks import Rank
from test_diff import trace_of, traces

from rung.analysis.applicable import Applicable
from rung.analysis.costs import FAMILY_OF
from rung.analysis.findings import catalogue, findings
from rung.analysis.overview import overview
from rung.analysis.rules import RULES
from rung.analysis.targets import targets
from rung.plan import Plan
from rung.records.analyze import Finding
from rung.records.record import record_of
from rung.report.findings import findings_blocks, findings_lines
from rung.rungs import BY_NAME, Context
from rung.trace import read
from rung.trace.table import COUNTERS

DDP = Path(__file__).parents[1] / "data" / "ddp"
SHARED = Path(__file__).parents[3] / "shared" / "data" / "traces"
real = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared real traces are not here")


def found(trace, steps=1):
    return {row["finding"]: row for row in findings(trace, steps=steps).to_dicts()}


def gpu(ts, dur, name, kind="kernel", **more):
    return {"ts": ts, "dur": dur, "name": name, "kind": kind, "device": 0, "stream": 0, **more}


def test_every_rule_has_its_texts_and_every_text_its_rule():
    assert set(catalogue()) == set(RULES)
    for name, texts in catalogue().items():
        best, worst = texts["left"]
        assert 0 <= best <= worst <= 1, name
        for key in ("what", "do", "gives_not", "compile_safe", "verify"):
            assert 0 < len(texts[key]) <= 160, (name, key)
            assert not texts[key].endswith(".")
        for key, instead in ((key, texts[key]) for key in ("inference", "compiled", "vllm", "sglang") if key in texts):
            assert instead.get("documentation", "https://").startswith("https://")
            # A server's option, and where it is.
            assert (key in ("inference", "compiled")) == ("documentation" not in instead), (name, key)
            families = [part for part in instead.values() if isinstance(part, dict)]
            for part in (instead, *families):
                assert 0 < len(part["do"]) <= 160, (name, key)
            assert set(map(str, instead)) - {"do", "documentation"} <= set(FAMILY_OF.values()), (name, key)


def test_the_ladder_has_the_rungs_and_predicts_the_same():
    parts = dict.fromkeys(("launch_gap", "attention", "gemm", "pointwise", "optimizer"), 1.0)
    context = Context(
        plan=Plan(), numerics="bf16", facts=facts_of({"gpu": True, "mode": "train"}), parts=parts, rates={}
    )
    for name, texts in catalogue().items():
        for rung in texts["rungs"]:
            assert rung in BY_NAME, (name, rung)
        if "part" in texts:
            best, worst = BY_NAME[texts["rungs"][0]].remaining(context)[texts["part"]]
            assert texts["left"][0] == pytest.approx(min(1, best), abs=0.04), name
            assert texts["left"][1] == pytest.approx(min(1, worst), abs=0.04), name


def test_the_gain_is_amdahls():
    trace = trace_of(gpu(0, 600, "vectorized_elementwise_kernel"), gpu(600, 400, "Cijk_Alik_Bljk_BBS_BH_MT64x64"))
    row = found(trace)["pointwise"]
    assert row["share"] == pytest.approx(0.6)
    best, worst = catalogue()["pointwise"]["left"]
    assert row["speedup_high"] == pytest.approx(1 / (0.4 + 0.6 * best))
    assert row["speedup_low"] == pytest.approx(1 / (0.4 + 0.6 * worst))
    assert row["rungs"] == ["compile"]


@pytest.mark.parametrize(
    ("events", "name"),
    [
        ([gpu(0, 100, "Memcpy HtoD (Pageable -> Device)", "memcpy"), gpu(100, 900, "k")], "copies"),
        ([gpu(0, 300, "batched_transpose_16x32_half"), gpu(300, 300, "igemm_fwd_gtcx3_nhwc_bf16")], "convolution_layout"),
        ([gpu(0, 900, "Cijk_Alik_Bljk_BBS_BH_MT64x64"), gpu(900, 100, "k")], "gemm_bound"),
        ([gpu(0, 900, "ncclDevKernel_Generic(x)"), gpu(900, 100, "k")], "exposed_communication"),
        ([gpu(0, 100, "multi_tensor_apply_kernel<TensorListMetadata<4>>"), gpu(100, 900, "k")], "optimizer"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_fires_on_what(events, name):
    assert name in found(trace_of(*events))
    assert name not in found(trace_of(*events, gpu(1000, 100_000, "some_other_kernel")))


def test_a_gpu_that_waits_for_launches_and_one_that_waits_for_a_sync(tmp_path):
    rank = Rank(0, 1)
    for i in range(5):
        rank.kernel("aten::relu", 1000 * i, 1000 * i + 10, 100)
    rank.write(tmp_path)
    rows = found(read(tmp_path / "rank0.json"))
    assert rows["host_bound"]["share"] == pytest.approx(0.875, abs=0.02)
    assert "sync" not in rows
    rank.add("cuda_runtime", "cudaDeviceSynchronize", 3050, 700)
    rank.write(tmp_path)
    rows = found(read(tmp_path / "rank0.json"))
    assert "sync" in rows


@pytest.mark.parametrize("call", ["cudaMalloc", "hipFreeAsync", "cuMemSetAccess", "hipMemMap", "cuMemHostAlloc"])
def test_a_gpu_that_waits_while_memory_is_allocated(call):
    us = 1000
    events = [e for k in range(3) for e in (random_traces.call(k * 200 * us - 80 * us, 70 * us, None, call), random_traces.call(k * 200 * us, us, k),
                                            random_traces.on_gpu(k * 200 * us + 10 * us, 100 * us, correlation=k))]  # fmt: skip
    rows = found(random_traces.trace_of(*events))
    assert call in rows["allocation"]["evidence"]
    assert "host_bound" not in rows


@pytest.mark.parametrize(("launch", "name"), [("hipGraphLaunch", "between_replays"), ("hipLaunchKernel", "host_bound")])
def test_a_wait_between_replays_is_not_mended_by_capturing(launch, name):
    us = 1000
    events = [e for k in range(3) for e in (random_traces.call(k * 200 * us, 5 * us, k, launch),
                                            random_traces.on_gpu(k * 200 * us + 10 * us, 100 * us, correlation=k))]  # fmt: skip
    rows = found(random_traces.trace_of(*events))
    assert {"host_bound", "between_replays"} & set(rows) == {name}
    assert ("capture" in rows[name]["rungs"]) == (name == "host_bound")
    assert "3 launches" in rows[name]["evidence"]


@real
def test_what_is_not_the_hosts_fault_is_not_blamed_on_it():
    """One kernel waits 463 ms for an event (read off the file); the products of a replay have no shapes to judge by."""
    rows = found(read(SHARED / "mi300_sglang_decode.json.gz"))
    assert "host_bound" not in rows
    assert "463 ms before resolve_future_token_ids_kernel" in rows["queued"]["evidence"]
    replay = found(read(SHARED / "mi300_vllm_graph_replay.json.gz"))["gemm_bound"]
    assert "roof" not in replay["evidence"]
    assert replay["speedup_high"] < 1.1


@real
def test_the_share_of_an_operator_does_not_depend_on_how_many_steps_there_are():
    trace = read(SHARED / "torch_compile_triton.json.gz")
    (one, two) = (found(trace, steps=steps)["far_from_roof"] for steps in (1, 2))
    assert one["share"] == pytest.approx(two["share"])
    assert one["share"] == pytest.approx(0.294, abs=0.001)


@real
def test_attention_that_is_written_out_is_one_finding():
    assert "far_from_roof" not in found(read(SHARED / "h100_timesformer.json.gz"))


def test_without_launches_idle_time_is_said_to_be_unexplained():
    rows = found(trace_of(gpu(0, 100, "Cijk_Alik_Bljk_BBS_BH_MT64x64"), gpu(300, 100, "k")))
    assert rows["unexplained_idle"]["share"] == pytest.approx(0.5)
    assert "no launch" in rows["unexplained_idle"]["evidence"]
    assert rows["unexplained_idle"]["do"].startswith("find the reason first")


def test_one_of_a_thing_and_less_than_one_a_step_are_said_so():
    trace = trace_of(gpu(0, 100, "Cijk_Alik_Bljk_BBS_BH_MT64x64"))
    assert found(trace)["gemm_bound"]["evidence"].startswith("1, Cijk")
    assert found(trace, steps=3)["gemm_bound"]["evidence"].startswith("0.33 a step, Cijk")
    copy = trace_of(gpu(0, 100, "at::native::elementwise_kernel<add>"))
    assert found(copy)["pointwise"]["evidence"].startswith("1 kernel, ")


def test_gaps_that_the_reading_of_counters_made_are_no_finding():
    counter = dict.fromkeys(COUNTERS) | {"kernel": "k", "counter": "SQ_WAVES", "value": 1.0}
    trace = replace(trace_of(gpu(0, 100, "k"), gpu(300, 100, "k")), counters=pl.DataFrame([counter], schema=COUNTERS))
    assert "unexplained_idle" not in found(trace)
    assert any("kernels ran one at a time" in note for note in overview(trace).notes)
    apart = replace(trace, meta={"passes": 2})  # as `rung profile` keeps them: times of a run without
    assert "unexplained_idle" in found(apart)
    assert overview(apart).notes == []


def test_a_straggler_is_a_finding_with_its_step_and_cause():
    trace = read(DDP / "ranks2-slow-host")
    first = findings(trace, steps=2).row(0, named=True)
    assert first["finding"] == "straggler"
    assert "rank 1" in first["evidence"]
    assert "step 2" in first["evidence"]
    assert first["rungs"] == []


@given(traces)
def test_shares_and_gains_are_possible_whatever_the_trace(trace):
    table = findings(trace)
    assert table["share"].is_between(0, 1.0001).all()
    assert (table["speedup_low"] >= 1).all()
    assert (table["speedup_high"] >= table["speedup_low"]).all()
    shares = targets(trace)["share"].drop_nulls()
    assert (shares >= 0).all()


@pytest.mark.parametrize("width", [80, 200])
def test_a_finding_is_said_whole_and_no_more_than_five_are(width):
    rows = record_of(list[Finding], findings(read(DDP / "ranks2-slow-gpu"), steps=2).to_dicts())
    lines = findings_lines(rows, width)
    assert len([line for line in lines if line[:1].isdigit()]) == min(5, len(rows))
    assert len(lines) <= {80: 24, 200: 12}[width]
    assert all(len(line) <= width for line in lines)
    said = " ".join(" ".join(lines).split())
    assert all(row.do in said and row.evidence in said for row in rows[:5])
    assert findings_lines([]) == []
    blocks = findings_blocks(rows, width)
    assert all(len(line) <= width for line in blocks)
    for question in ("evidence", "gain", "do", "rungs", "not", "compile", "verify"):
        assert len([line for line in blocks if line.startswith(f"   {question} ")]) == len(rows)


def test_targets_of_a_recorded_run():
    rows = {row["metric"]: row for row in targets(read(DDP / "ranks2-slow-gpu"), steps=2).to_dicts()}
    assert rows["matrix products"]["met"] is False  # 29 %
    assert rows["idle"]["met"] is False
    assert rows["GPU events a step"]["count"] > 600


def waiting(*names, kernel="vectorized_elementwise_kernel", server=(), devices=()):
    """Operators of these names, each with a kernel of 1 µs that the GPU waited 9 µs for."""
    rows = [{"ts": 0, "dur": 1, "kind": "python", "name": name} for name in server]
    for number, name in enumerate(names):
        ts = 10_000 * number
        rows += [
            {"ts": ts, "dur": 5000, "kind": "cpu_op", "name": name},
            {"ts": ts + 1000, "dur": 100, "kind": "runtime", "name": "cudaLaunchKernel", "correlation": number},
            gpu(ts + 2000, 1000, kernel, correlation=number),
        ]
    return replace(trace_of(*rows), devices=list(devices))


def test_inference_is_not_told_to_change_the_optimizer():
    row = found(waiting("aten::add", "aten::mul", "aten::add"))["host_bound"]
    assert row["rungs"] == ["capture", "compile"]
    assert "optimizer" not in row["do"]
    training = waiting(
        "aten::add", "AddBackward0", "Optimizer.step#Adam.step", kernel="multi_tensor_apply_kernel<Adam>"
    )
    row = found(training)["host_bound"]
    assert row["rungs"] == ["capture", "compile", "fused-optimizer"]
    assert "fused optimizer" in row["do"]
    assert "optimizer" in found(training)
    fused = waiting("aten::add", "AddBackward0", kernel="multi_tensor_apply_kernel<FusedAdamMathFunctor>")
    assert found(fused)["host_bound"]["rungs"] == ["capture", "compile"]
    assert "optimizer" not in found(
        waiting("aten::_foreach_add", kernel="multi_tensor_apply_kernel<TensorListMetadata<4>>")
    )


def test_an_operator_far_from_its_roof_is_answered_with_its_own_option():
    def slow(op, dims):
        rows = [
            {"ts": 0, "dur": 900, "kind": "cpu_op", "name": op, "dims": dims, "dtypes": '["c10::BFloat16", "c10::BFloat16"]'},
            {"ts": 0, "dur": 9, "kind": "python", "name": "/opt/vllm/v1/worker/gpu_model_runner.py(1): execute_model"},
            {"ts": 1, "dur": 1, "kind": "runtime", "name": "cudaLaunchKernel", "correlation": 1},
            gpu(10, 90_000_000, "k", correlation=1),
        ]  # fmt: skip
        return found(replace(trace_of(*rows), devices=[{"name": "NVIDIA H100 80GB HBM3", "numSms": 132}]))[
            "far_from_roof"
        ]

    row = slow("aten::mm", "[[8192, 8192], [8192, 8192]]")
    assert "--max-num-seqs" in row["do"]
    assert "attention" not in row["do"]
    fits = Applicable(waiting("aten::add", server=["/opt/vllm/v1/worker/gpu_model_runner.py(1): execute_model"]))
    entry = catalogue()["far_from_roof"]
    assert "--attention-backend" in fits.texts(entry, "attention")["do"]
    assert "moe_backend" in fits.texts(entry, "moe")["do"]
    assert "config/kernel" in fits.texts(entry, "moe")["documentation"]
    assert "engine_args" in fits.texts(entry, "attention")["documentation"]


def test_what_is_compiled_is_not_told_to_compile_and_a_chip_without_tf32_not_to_use_it():
    row = found(waiting("Torch-Compiled Region: 0/0", "aten::mul"))["host_bound"]
    assert row["rungs"] == ["capture"]
    assert "compiled code" in row["do"]
    events = [gpu(0, 900, "Cijk_Alik_Bljk_SB_MT64x64", correlation=1), gpu(900, 100, "k"),
              {"ts": 0, "dur": 9, "kind": "cpu_op", "name": "aten::mm", "dtypes": '["float", "float"]'},
              {"ts": 1, "dur": 1, "kind": "runtime", "name": "hipLaunchKernel", "correlation": 1}]  # fmt: skip
    h100 = {"name": "NVIDIA H100 80GB HBM3", "numSms": 132}
    v100 = {"name": "Tesla V100-SXM2-16GB", "numSms": 80}
    for device, rungs in ((h100, ["tf32", "bf16"]), (v100, [])):
        assert found(replace(trace_of(*events), devices=[device]))["fp32_matmul"]["rungs"] == rungs
    assert found(trace_of(*events))["fp32_matmul"]["rungs"] == ["tf32", "bf16"]  # an unknown chip


def test_products_beside_each_other_are_joined_in_transformers_alone():
    products = [gpu(0, 900, "Cijk_Alik_Bljk_BBS_BH_MT64x64"), gpu(900, 50, "k")]
    assert found(trace_of(*products))["gemm_bound"]["rungs"] == []
    attention = gpu(950, 50, "attn_fwd.kd")
    assert found(trace_of(*products, attention))["gemm_bound"]["rungs"] == ["fused-qkv", "fused-gate-up"]


@pytest.mark.parametrize(
    ("frame", "option", "documentation"),
    [("/opt/vllm/v1/worker/gpu_model_runner.py(1): execute_model", "cudagraph_capture_sizes", "docs.vllm.ai"),
     ("/sglang/python/sglang/srt/managers/scheduler.py(1): run", "--cuda-graph-max-bs", "docs.sglang.ai")],
)  # fmt: skip
def test_a_server_is_told_its_own_option_and_where_it_is_described_never_as_tried(frame, option, documentation):
    trace = waiting("aten::add", "aten::mul", server=[frame])
    row = found(trace)["host_bound"]
    assert row["rungs"] == []
    assert option in row["do"]
    assert documentation in row["documentation"]
    told = record_of(Finding, row)
    shown = " ".join(" ".join([*findings_lines([told]), *findings_blocks([told])]).split())
    assert shown.count("not tried by Rung") == 2
    assert (
        found(waiting("aten::add", "aten::mul", server=["/me/model.py(1): forward"]))["host_bound"]["documentation"]
        is None
    )


def test_without_a_gpu_there_is_nothing_to_find():
    trace = trace_of({"ts": 0, "dur": 5, "kind": "cpu_op"})
    assert findings(trace).is_empty()
    assert targets(trace).is_empty()


@real
@pytest.mark.parametrize(
    ("name", "first"),
    [("h100_timesformer", "unfused_attention"), ("mi300_bert", "host_bound"), ("v100_alexnet_train", "allocation"),
     ("mi300_resnet_fsdp_ckpt", "exposed_communication"), ("mi300_vllm_graph_replay", "gemm_bound"), ("mi300_qwen", "pointwise")],
)  # fmt: skip
def test_the_first_finding_of_real_traces(name, first):
    """Checked by hand against the timelines and categories of these traces."""
    trace = read(SHARED / f"{name}.json.gz")
    table = findings(trace)
    assert table.filter(pl.col("finding") != "far_from_roof")["finding"][0] == first
