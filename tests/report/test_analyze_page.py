"""The page of a trace: the bottleneck first, a sentence of each analysis, and no line wider than the terminal."""

import json
from pathlib import Path

import polars as pl
import pytest

from rung.analysis.analyses import ANALYSES, table
from rung.analysis.kernel_names import readable
from rung.analysis.overview import overview
from rung.analysis.serving import PHASE_SCHEMA
from rung.records.analyze import Finding
from rung.records.record import plain
from rung.report.analyze import analyze_lines
from rung.report.findings import gain
from rung.report.headlines import HEADLINES, headlines
from rung.trace import Trace, read
from rung.trace.table import SCHEMA

SHARED = Path(__file__).parents[3] / "shared" / "data" / "traces"
SMALL = ("mi250_train", "mi300_vit", "mi300_vllm_graph_replay", "mi300_sglang_decode", "torch_compile_triton")


def page(trace, width=100):
    found = overview(trace)
    found.headlines = headlines(lambda name: table(name, trace))
    json.dumps(plain(found))
    return analyze_lines(found, width)


def test_every_sentence_is_of_an_analysis_and_an_empty_trace_has_none():
    empty = Trace(pl.DataFrame(schema=SCHEMA))
    assert set(HEADLINES) <= set(ANALYSES)
    assert headlines(lambda name: table(name, empty)) == {}
    assert "no timed event" in "\n".join(page(empty))


def test_a_target_that_was_missed_is_said_with_what_it_should_be():
    rows = [
        {"metric": "matrix products", "share": 0.41, "target": ">= 60%", "met": False},
        {"metric": "idle", "share": 0.2, "target": "< 5%", "met": False},
        {"metric": "exposed copies", "share": 0.0, "target": "< 1%", "met": True},
    ]
    said = HEADLINES["targets"](pl.DataFrame(rows))
    assert said == "not met: matrix products 41% (target at least 60%), idle 20% (target below 5%)"


def test_what_is_wrong_with_one_file_of_a_folder_is_said_with_its_name(tmp_path):
    whole = '{"traceEvents": [{"ph": "X", "name": "k", "cat": "kernel", "ts": 1, "dur": 2, "args": {"device": 0}}'
    (tmp_path / "rank0.json").write_text(whole + "]}")
    (tmp_path / "rank1.json").write_text(whole + ", {")
    assert any(line.startswith("note: rank1.json: the JSON is") for line in page(read(tmp_path, partial=True)))


def test_a_strangers_name_takes_no_more_than_its_place(tmp_path):
    rows = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::" + "x" * 5000, "pid": 7, "tid": 1, "ts": 0, "dur": 9},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 7, "tid": 1, "ts": 1, "dur": 2, "args": {"correlation": 1}},
        {"ph": "X", "cat": "kernel", "name": "two\nlines\tand a tab", "ts": 5, "dur": 20, "args": {"device": 0, "correlation": 1}},
    ]  # fmt: skip
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": rows}))
    lines = page(read(tmp_path / "t.json"))[1:]
    assert any(line.endswith("two lines and a tab") for line in lines)
    assert any(line.startswith("ops ") and line.endswith("xxx 100%") for line in lines)
    assert len(lines) < 25


def test_one_of_a_thing_is_not_called_many(tmp_path):
    rows = [
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 1, "dur": 2, "args": {"correlation": 1}},
        {"ph": "X", "cat": "kernel", "name": "k", "ts": 5, "dur": 20, "args": {"device": 0, "correlation": 1}},
    ]
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": rows}))
    text = "\n".join(page(read(tmp_path / "t.json")))
    assert "1 GPU event in 1 launch, the GPU" in text


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared real traces are not here")
@pytest.mark.parametrize("name", SMALL)
def test_a_real_page_fits_and_says_the_bottleneck_first(name):
    trace = read(SHARED / f"{name}.json.gz")
    for width in (80, 120, 200):
        lines = page(trace, width)
        assert max(len(line) for line in lines[1:]) <= width
    body = lines[lines.index("") + 1 :]
    assert body[0].startswith("Bottleneck: ")
    assert len(lines) < 50


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared real traces are not here")
def test_a_reader_learns_why_a_real_gpu_waits():
    text = "\n".join(page(read(SHARED / "mi300_vit.json.gz"), 200))
    assert "Bottleneck: waiting for a launch and idle, 75% of the recording" in text
    assert "the GPU waits for the host 70% of the time" in text
    assert "hipGetDevicePropertiesR0600 220 times (1.4 a launch)" in text


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("attn_fwd", "attn_fwd"),
        (
            "Cijk_Alik_Bljk_B_BS_BH_Bias_HA_S_SAV_UserArgs_MT64x32x128_MI16x16x1_SN",
            "Cijk_Alik_Bljk_B_BS_BH MT64x32x128",
        ),
        (
            "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>(int, float)",
            "vectorized_layer_norm_kernel<bf16, float>",
        ),
        (
            "void at::native::elementwise_kernel_manual_unroll<128, 8, at::native::gpu_kernel_impl_nocast<at::native::"
            "direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda(c10::BFloat16)#1}>"
            "(at::TensorIteratorBase&)::{lambda(int, bool)#1}>(int, bool)",
            "direct_copy_kernel_cuda<bf16> in elementwise_kernel_manual_unroll",
        ),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::AUnaryFunctor<float, float, float, at::native::"
            "binary_internal::MulFunctor<float> >, std::array<char*, 2ul> >(int)",
            "MulFunctor<float> in vectorized_elementwise_kernel",
        ),
        ("void cutlass::Kernel2<cutlass_75_gemm_nn>(cutlass_75_gemm_nn::Params)", "cutlass_75_gemm_nn"),
        ("Memcpy HtoD (Host -> Device)", "Memcpy HtoD (Host -> Device)"),
        ("void f<(a)1>((b)", "f<(a)1>("),
        ("", ""),
    ],
)
def test_a_kernels_name_can_be_taken_in(name, shown):
    assert readable(name) == shown


def test_a_server_is_told_by_its_phases_without_the_waiting_between_them():
    none = dict.fromkeys(PHASE_SCHEMA)
    rows = [
        {**none, "phase": "all", "time_ns": 100, "share": 1.0, "decode_tokens_per_s": 9.0},
        {**none, "phase": "prefill", "time_ns": 30, "share": 0.3, "prompt_tokens_per_s": 81920.4},
        {**none, "phase": "decode", "time_ns": 60, "share": 0.6, "decode_tokens_per_s": 2979.2},
        {**none, "phase": "idle", "time_ns": 10, "share": 0.1},
    ]
    said = HEADLINES["serving"](pl.DataFrame(rows, schema=PHASE_SCHEMA))
    assert said.startswith("decode 60% of the time (2979 decode tokens a second); prefill 30%")
    assert "idle" not in said


def finding(low: float, high: float) -> Finding:
    texts = dict.fromkeys(("finding", "evidence", "do", "what", "gives_not", "compile_safe", "verify"), "")
    return Finding(share=0.1, speedup_low=low, speedup_high=high, rungs=[], **texts)


def test_a_finding_that_makes_no_step_faster_does_not_say_so():
    assert gain(finding(1.0, 1.0)) == "throughput stays"
    assert gain(finding(1.0, 1.4)) == "at most 1.40× faster"
    assert gain(finding(1.2, 1.2)) == "1.20× faster"
    assert gain(finding(1.19, 3.19)) == "1.19–3.19× faster"
