"""Phases of a server: which step is what, how long it takes, what its tokens cost."""

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_traces import TRACES, call, on_gpu, op, trace_of
from recorded import T, columns

from rung.analysis.analyses import table
from rung.analysis.captures import with_captures
from rung.analysis.findings import findings
from rung.analysis.roofline import roofline
from rung.analysis.serving import serving, serving_steps
from rung.trace import read

US = 1000
SHARED = Path(__file__).parents[3] / "shared" / "data"
real = pytest.mark.skipif(
    not (SHARED / "servers").is_dir(), reason="the traces of servers (../shared/data/servers) are not here"
)


def note(ts, name, dur=5 * US, **more):
    return {"ts": ts, "dur": dur, "name": name, "kind": "annotation", **more}


def step(at, name, start, dur, number, rank=None):
    """An annotation, a launch in it, and its kernel."""
    return [
        note(at, name, rank=rank),
        call(at + US, US, number, rank=rank),
        on_gpu(start, dur, correlation=number, rank=rank),
    ]


def made(rank=None):
    """A prompt of 100 tokens, then decoding of 2 and 3, a prompt between two steps that decode, and one that drafts."""
    return [
        *step(0, "execute_context_1(100)_generation_0(0)", 10 * US, 90 * US, 1, rank),
        *step(20 * US, "execute_context_0(0)_generation_2(2)", 100 * US, 20 * US, 2, rank),
        # The sampling is launched behind the annotation.
        call(27 * US, US, 3, rank=rank), on_gpu(125 * US, 5 * US, correlation=3, rank=rank),
        *step(40 * US, "execute_context_0(0)_generation_3(3)", 140 * US, 20 * US, 4, rank),
        *step(60 * US, "step[EXTEND bs=1 toks=50]", 160 * US, 40 * US, 5, rank),
        *step(80 * US, "step[DECODE bs=4]", 200 * US, 20 * US, 6, rank),
        *step(85 * US, "execute_context_0(0)_generation_4(12)", 230 * US, 20 * US, 7, rank),
    ]  # fmt: skip


def test_phases_tokens_and_times_of_a_made_trace():
    trace = trace_of(on_gpu(0, 5 * US, correlation=99), *made())
    steps = serving_steps(trace)
    assert steps["phase"].to_list() == ["prefill", "decode", "decode", "prefill", "decode", "speculative"]
    assert steps["requests"].to_list() == [1, 2, 3, 1, 4, 4]
    assert steps["prompt_tokens"].to_list() == [100, 0, 0, 50, 0, 0]
    assert steps["decode_tokens"].to_list() == [0, 2, 3, 0, 4, 12]
    assert steps["start_ns"].to_list() == [US * at for at in (0, 90, 130, 150, 190, 220)]
    assert steps["time_ns"].to_list() == [US * time for time in (90, 40, 20, 40, 30, 20)]
    assert steps["busy_ns"].to_list() == [US * time for time in (90, 25, 20, 40, 20, 20)]
    assert steps["gap_ns"].to_list() == [US * time for time in (0, 0, 10, 0, 0, 10)]
    # From 130 to 160; the prompt between holds up the next until 220.
    assert steps["token_time_ns"].to_list() == [None, None, 30 * US, None, 60 * US, 30 * US]

    rows = {row["phase"]: row for row in serving(trace).to_dicts()}
    assert list(rows) == ["all", "prefill", "decode", "speculative"]
    assert (rows["all"]["steps"], rows["all"]["time_ns"], rows["all"]["share"]) == (6, 240 * US, 1)
    assert rows["prefill"]["prompt_tokens_per_s"] == pytest.approx(150 / 130e-6)
    assert rows["decode"]["decode_tokens_per_s"] == pytest.approx(9 / 90e-6)
    assert rows["decode"]["requests"] == 3
    assert rows["decode"]["step_median_ns"] == 30 * US
    assert (rows["decode"]["token_time_median_ns"], rows["decode"]["token_time_p90_ns"]) == (45 * US, 30 * US)
    assert rows["decode"]["token_time_max_ns"] == 60 * US
    assert rows["all"]["source"] == "annotation"
    assert rows["all"]["work_flops"] is None


def test_ranks_have_steps_of_their_own():
    alone = serving_steps(trace_of(*made()))
    both = serving_steps(trace_of(*made(0), *made(1)))
    for rank in (0, 1):
        assert both.filter(pl.col("rank") == rank).drop("rank").equals(alone.drop("rank"))
    assert serving(trace_of(*made(0), *made(1)))["share"].to_list()[0::4] == [1, 1]


def test_names_inside_each_other_are_one_step():
    inner = step(2 * US, "execute_2_context_0(sq0sk0sqsq0sqsk0)_generation_2(sq2sk30sqsq2sqsk30)", 50 * US, US, 1)
    inner[0]["dur"] = 3 * US
    (row,) = serving_steps(trace_of(note(0, "step[DECODE bs=2]", 20 * US), *inner)).to_dicts()
    assert (row["name"], row["requests"], row["context"]) == ("step[DECODE bs=2]", 2, 15)


def test_a_count_of_requests_that_were_seen_before_is_no_certain_phase():
    (row,) = serving_steps(trace_of(*step(0, "execute_new_0_cached_31", 10, 5, 1))).to_dicts()
    assert (row["phase"], row["source"]) == ("decode", "partly inferred")


def generated(*lengths, wide=(2, 8, 64), attention="aten::scaled_dot_product_attention"):
    """A program that generates: of each step an embedding of tokens and one of positions, and attention in two layers."""
    batch, heads, width = wide
    events, number = [], 0
    for i, (queries, keys) in enumerate(lengths):
        at = i * 100 * US
        events += [op(at + j * US, US, "aten::embedding") for j in (0, 1)]
        for layer in (0, 1):
            number += 1
            q, k = T((batch, heads, queries, width)), T((batch, heads, keys, width))
            begin = at + (10 + 20 * layer) * US
            names = ("dims", "dtypes", "strides", "concrete")
            said = dict(zip(names, columns(q, k, k, None, 0.0, queries == keys), strict=True))
            events += [op(begin, 10 * US, attention, **said), call(begin + US, US, number),
                       on_gpu(at + (50 + 20 * layer) * US, 10 * US, correlation=number)]  # fmt: skip
    return events


def test_shapes_tell_prompts_from_decoding_where_nothing_is_annotated():
    trace = trace_of(*generated((16, 16), (1, 17), (1, 18), (4, 22), (64, 86)))
    steps = serving_steps(trace)
    assert steps["phase"].to_list() == ["prefill", "decode", "decode", "speculative", "prefill"]
    assert set(steps["source"]) == {"shapes"}
    assert steps["context"].to_list() == [16, 17, 18, 22, 86]
    assert steps["prompt_tokens"].to_list() == [32, 0, 0, 0, 128]
    # Keys and values of two sequences, 8 heads of 64 in 16 bits, two layers; of the first step none was cached.
    assert steps["kv_cache_bytes"].to_list() == [None] + [2 * 2 * 2 * 8 * keys * 64 * 2 for keys in (17, 18, 22, 86)]
    assert steps["work_flops"].to_list()[1] == 2 * 2 * (2 * 2 * 8 * 17 * 64)
    assert steps["modelled_share"].to_list() == [1] * 5


def test_what_never_reads_a_cache_or_trains_is_no_server():
    assert serving_steps(trace_of(*generated((16, 16), (16, 16)))).is_empty()
    backward = op(900 * US, US, "autograd::engine::evaluate_function: MmBackward0")
    assert serving(trace_of(*generated((16, 16), (1, 17)), backward)).is_empty()
    assert serving(trace_of(on_gpu(0, 5))).is_empty()


@given(
    TRACES,
    st.lists(
        st.sampled_from(["step[DECODE bs=2]", "step[MIXED bs=3]", "step[IDLE bs=0]", "execute_new_1_cached_2"]),
        max_size=5,
    ),
    st.data(),
)
def test_times_of_steps_add_up_whatever_the_trace(trace, names, data):
    extra = [note(data.draw(st.integers(0, 60)), name, data.draw(st.integers(0, 20))) for name in names]
    steps = serving_steps(trace_of(*trace.events.to_dicts(), *extra))
    assert (steps["time_ns"] >= 0).all()
    assert (steps["gap_ns"] >= 0).all()
    assert (steps["busy_ns"] <= steps["gpu_ns"]).all()
    table = serving(trace_of(*trace.events.to_dicts(), *extra))
    assert table.filter(pl.col("phase") == "all")["time_ns"].sum() == steps["time_ns"].sum()
    assert table.filter(pl.col("phase") != "all")["steps"].sum() == steps.height


@real
@pytest.mark.parametrize(
    ("replayed", "captured", "keys", "heads", "width", "layers"),
    [
        ("mi300_vllm_graph_replay", "mi300_vllm_decode_capture", 55086, 8, 64, 24),  # gpt-oss-20b
        ("mi300_sglang_decode", "mi300_sglang_decode_capture_bs32", 32785, 8, 128, 36),  # Qwen3 8B
    ],
)
def test_a_real_step_reads_the_cache_of_its_sequences(replayed, captured, keys, heads, width, layers):
    trace = with_captures(read(SHARED / "traces" / f"{replayed}.json.gz"), [SHARED / "servers" / f"{captured}.json.gz"])
    everything, row = serving(trace).to_dicts()
    assert (row["phase"], row["requests"], row["decode_tokens"], row["context"]) == ("decode", 32, 32, keys / 32)
    read_, written = (layers * tokens * heads * width * 2 * 2 for tokens in (keys, 32))
    assert row["kv_cache_bytes"] == read_ + written
    modelled = roofline(trace).filter(pl.col("reason").is_null())
    assert row["work_flops"] == modelled["work_flops"].sum()
    assert row["floor_ns"] == pytest.approx(modelled["floor_ns"].sum(), rel=1e-6)
    assert row["modelled_share"] > 0.99
    assert everything["time_ns"] == row["time_ns"] == table("serving_steps", trace)["time_ns"].sum()


@real
def test_figures_of_a_real_trace_are_the_same_to_the_last_digit_each_time():
    traces = [
        read(SHARED / "traces" / f"{name}.json.gz") for name in ("mi300_sglang_decode", "mi300_vllm_graph_replay")
    ]
    for trace in traces:
        assert len({repr(serving_steps(replace(trace)).rows()) for _ in range(12)}) == 1


def served(prompt_us, gap_us, steps=10):
    """Steps of 100 µs that decode, every third behind a prompt."""
    events, at, number = [], 0, 0
    for i in range(steps):
        for name, time in [("step[EXTEND bs=1 toks=500]", prompt_us)] * (i % 3 == 2) + [("step[DECODE bs=4]", 100)]:
            number += 1
            events += step((at - 10) * US, name, at * US, time * US, number)
            at += time + gap_us
    return trace_of(op(-20 * US, US, "sglang::store_cache"), *events)


def test_prompts_that_hold_up_decoding_are_a_finding_and_gain_no_throughput():
    rows = {row["finding"]: row for row in findings(served(400, 0)).to_dicts()}
    row = rows["held_up_decoding"]
    assert row["share"] == pytest.approx(3 * 400 / (3 * 400 + 10 * 100))
    assert row["evidence"] == "3 of 9 gaps between tokens contain a prompt and take 500 µs instead of 100 µs (medians)"
    assert (row["speedup_low"], row["speedup_high"]) == (1, 1)
    assert "--chunked-prefill-size" in row["do"]
    assert row["rungs"] == []
    assert "held_up_decoding" not in set(findings(served(10, 0))["finding"])


def test_a_wait_of_the_gpu_for_the_host_says_how_much_of_it_is_before_decoding():
    rows = {row["finding"]: row for row in findings(served(100, 50)).to_dicts()}
    assert rows["host_bound"]["evidence"].endswith("% of it before decode steps, 50.0 µs each")
