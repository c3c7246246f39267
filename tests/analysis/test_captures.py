"""Kernels replayed by a graph get the operators that captured them: where that is certain, and nowhere else."""

import csv
import json
from pathlib import Path

import polars as pl
import pytest

from rung.analysis.analyses import table
from rung.analysis.captures import joined, with_captures
from rung.analysis.diff import diff
from rung.analysis.origins import op_column, origins
from rung.analysis.roofline import coverage, roofline
from rung.cli.main import main
from rung.errors import InputError
from rung.trace import read

SHARED = Path(__file__).parents[3] / "shared" / "data"
SERVERS = SHARED / "servers"
real = pytest.mark.skipif(not SERVERS.is_dir(), reason="the traces of servers (../shared/data/servers) are not here")
BF = "c10::BFloat16"


def host(name, ts, dur, cat="cpu_op", **args):
    return {"ph": "X", "cat": cat, "name": name, "pid": 9, "tid": 9, "ts": ts, "dur": dur, "args": args}


def mm(ts, m, k, n, name="aten::mm"):
    """A product around the launch at the next microsecond."""
    return host(name, ts, 5, **{"Input Dims": [[m, k], [k, n]], "Input type": [BF, BF], "Concrete Inputs": ["", ""]})


def launch(ts, correlation, kernel, name="hipLaunchKernel"):
    named = {"kernel": kernel, "grid": [8, 1, 1]} if kernel else {}
    return host(name, ts, 1, "cuda_runtime", correlation=correlation, **named)


def capture(*kernels, start=0, first=10, label="", around=()):
    """What a process does to capture a graph. kernels: (kernel, m) for a product of m rows, or the name of a runtime call."""
    events = [host("hipStreamBeginCapture", start, 1, "cuda_runtime", correlation=first)]
    ts = start + 10
    for number, what in enumerate(kernels, first + 1):
        if isinstance(what, str):
            events.append(launch(ts + 1, number, None, what))
        else:
            events += [mm(ts, what[1], 64, 32), launch(ts + 1, number, what[0])]
        ts += 10
    events.append(host("hipStreamEndCapture", ts, 1, "cuda_runtime", correlation=number + 1))
    if label:
        events.append(host(label, start - 1, ts + 5 - start, "user_annotation"))
    return events + [host(name, low + start, high - low, "python_function") for name, low, high in around]


def replay(*names, start=10_000, correlation=1000, annotation=""):
    """A launch of a graph, and its kernels of 1 µs each."""
    events = [host("hipGraphLaunch", start, 5, "cuda_runtime", correlation=correlation)]
    for number, name in enumerate(names):
        events.append(
            {"ph": "X", "cat": "gpu_memcpy" if name.startswith("Memcpy") else "kernel", "name": name, "pid": 0, "tid": 0,
             "ts": start + 10 + 2 * number, "dur": 1, "args": {"device": 0, "stream": 0, "correlation": correlation}}
        )  # fmt: skip
    return [*events, *([host(annotation, start - 1, 50, "user_annotation")] if annotation else [])]


@pytest.fixture
def write(tmp_path):
    def written(name, *parts):
        events = [event for part in parts for event in part]
        devices = [{"name": "AMD Instinct MI300X", "numSms": 304, "warpSize": 64}]
        text = json.dumps({"baseTimeNanoseconds": 1, "deviceProperties": devices, "traceEvents": events})
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return written


def ops(trace):
    return {(row["op"], row["dims"]): (row["count"], row["time_ns"]) for row in table("ops", trace).to_dicts()}


def dims(m):
    return json.dumps([[m, 64], [64, 32]])


def test_every_replay_has_the_operators_shapes_and_work_of_the_capture(write):
    given = write(
        "c.json", capture(("gemm_a", 4), "hipMemcpyAsync", ("gemm_a", 8), around=[("model.py(3): go", 5, 18)])
    )
    names = ("gemm_a", "Memcpy DtoD (Device -> Device)", "gemm_a")
    path = write("t.json", replay(*names), replay(*names, start=20_000, correlation=1001))
    trace = with_captures(read(path), [given])
    assert ops(trace) == {
        ("aten::mm", dims(4)): (2, 2000), ("aten::mm", dims(8)): (2, 2000), ("(replayed by a graph)", None): (2, 2000)
    }  # fmt: skip
    found = {row["dims"]: row for row in roofline(trace).to_dicts()}
    assert found[dims(8)]["work_flops"] == 2 * (2 * 8 * 64 * 32)
    assert found[dims(8)]["count"] == 2
    assert found[None]["reason"] == "replayed by a graph"
    assert joined(trace).notes == ("6 of 6 kernels replayed by graphs have the operators that c.json recorded.",)
    sites = {row["call_site"]: row["time_ns"] for row in table("call_sites", trace).to_dicts()}
    assert sites == {"model.py(3): go": 2000, "(replayed by a graph)": 4000}
    assert table("kernels", trace)["category"].to_list() == ["gemm", "copy"]


def test_the_host_of_a_capture_is_not_that_of_the_replay(write):
    trace = read(write("t.json", replay("gemm_a")))
    both = with_captures(trace, [write("c.json", capture(("gemm_a", 4)))])
    for name in ("launches", "runtime", "syncs", "compilation", "timeline", "idle"):
        assert table(name, both).equals(table(name, trace))


def test_two_captures_of_other_shapes_are_ambiguous_unless_the_step_says_its_size(write):
    four = write("four.json", capture(("gemm_a", 4), label="capture_4_FULL"))
    eight = write("eight.json", capture(("gemm_a", 8), label="capture_8_FULL"))
    trace = with_captures(read(write("t.json", replay("gemm_a"))), [four, eight])
    assert ops(trace) == {("(replayed by a graph)", None): (1, 1000)}
    (note,) = joined(trace).notes
    assert note.startswith(
        "1 replayed kernels fit four.json (batch size 4) and eight.json (batch size 8), whose operators differ"
    )
    for step in ("step[DECODE bs=8]", "execute_8_context_0(sq0sk0sqsq0sqsk0)_generation_8(sq8sk9sqsq8sqsk9)"):
        trace = with_captures(read(write("t.json", replay("gemm_a", annotation=step))), [four, eight])
        assert ops(trace) == {("aten::mm", dims(8)): (1, 1000)}


def test_kernels_in_another_order_are_joined_where_their_name_says_enough(write):
    given = write("c.json", capture(("gemm_a", 4), ("gemm_b", 8), ("gemm_b", 16), ("gemm_c", 2)))
    trace = with_captures(read(write("t.json", replay("gemm_b", "gemm_c", "gemm_a", "gemm_b"))), [given])
    assert ops(trace) == {
        ("aten::mm", dims(4)): (1, 1000), ("aten::mm", dims(2)): (1, 1000), ("(replayed by a graph)", None): (2, 2000)
    }  # fmt: skip
    assert "ran in another order" in joined(trace).notes[-1]


def test_a_kernel_that_differs_stays_without_an_operator(write):
    given = write("c.json", capture(*[("gemm_a", 4)] * 10))
    trace = with_captures(read(write("t.json", replay(*["gemm_a"] * 9, "gemm_b"))), [given])
    assert ops(trace) == {("aten::mm", dims(4)): (9, 9000), ("(replayed by a graph)", None): (1, 1000)}
    assert "kernel 10 is gemm_b, but gemm_a was captured" in joined(trace).notes[-1]
    trace = with_captures(read(write("t.json", replay(*["gemm_a"] * 8, "gemm_b", "gemm_b"))), [given])
    assert joined(trace).notes == ("10 replayed kernels fit no graph captured in c.json.",)


def test_a_replay_whose_last_record_was_lost_is_joined_and_one_that_may_begin_anywhere_is_not(write):
    # As Kineto recorded FLUX.1 on an MI300X: 1,566 kernels of each replay, 1,567 captured, the last one a product.
    names = [f"k{i}" for i in range(12)]
    given = write("c.json", capture(*[(name, rows) for rows, name in enumerate(names, 8)]))
    for first, last in ((0, 11), (1, 12)):
        trace = with_captures(read(write("t.json", replay(*names[first:last]))), [given])
        assert ops(trace) == {("aten::mm", dims(rows)): (1, 1000) for rows in range(8 + first, 8 + last)}
    for kept in (names[:6] + names[7:], names[:9]):  # one from the middle; too many
        trace = with_captures(read(write("t.json", replay(*kept))), [given])
        assert joined(trace).notes[0].startswith(f"{len(kept)} replayed kernels fit no graph")
    alike = write("c.json", capture(*[("k", rows) for rows in range(8, 20)]))
    trace = with_captures(read(write("t.json", replay(*["k"] * 11))), [alike])
    assert joined(trace).notes[0].startswith("11 replayed kernels fit no graph")


def test_layers_that_are_alike_are_told_apart_by_their_turn(write):
    layers = [
        capture(("gemm_a", 4), start=100 * i, first=10 * i, around=[(f"layer.py({i}): forward", 5, 25)])
        for i in range(2)
    ]
    given = write("c.json", *layers)
    turns = [replay("gemm_a", start=10_000 + 100 * i, correlation=1000 + i) for i in range(4)]
    trace = with_captures(read(write("t.json", *turns)), [given])
    sites = {row["call_site"]: row["time_ns"] for row in table("call_sites", trace).to_dicts()}
    assert sites == {"layer.py(0): forward": 2000, "layer.py(1): forward": 2000}
    trace = with_captures(read(write("t.json", *turns[:3])), [given])
    assert ops(trace) == {("aten::mm", dims(4)): (3, 3000)}
    assert table("call_sites", trace)["call_site"].to_list() == ["(replayed by a graph)"]
    assert "an uncertain module and line of Python" in joined(trace).notes[-1]


def test_launches_that_name_no_kernel_join_nothing_and_say_so(write):
    given = write("c.json", capture("cudaLaunchKernel"))
    trace = with_captures(read(write("t.json", replay("gemm_a"))), [given])
    assert ops(trace) == {("(replayed by a graph)", None): (1, 1000)}
    assert "1 of 1 captured launches do not name their kernels" in joined(trace).notes[-1]


def test_a_file_without_a_capture_is_refused(write):
    trace = read(write("t.json", replay("gemm_a")))
    with pytest.raises(InputError, match="has no capture of a graph in it"):
        with_captures(trace, [write("c.json", [mm(0, 1, 1, 1)])])


def test_what_lies_beside_is_taken_where_it_is_certainly_the_same_process(write):
    path = write("t.json", replay("gemm_a", "gemm_b"))
    events = capture(("gemm_a", 4), ("gemm_b", 8))
    write("other.json", events)  # does not say that it is a capture
    assert with_captures(read(path), []).captured is None
    write("capture_4.json", events)
    trace = with_captures(read(path), [])
    assert ("aten::mm", dims(8)) in ops(trace)
    assert joined(trace).notes[0].endswith("a file beside the trace from the same process.")
    for other in (
        [event | {"pid": 10} for event in events],  # of another process
        capture(("gemm_a", 4), ("gemm_b", 8), start=30_000),  # of a later one with the same id
        capture(("gemm_a", 4), ("gemm_b", 8), first=2000),
        capture(("gemm_a", 4), ("gemm_c", 8)),
    ):
        write("capture_4.json", other)
        assert with_captures(read(path), []).captured is None
    write("capture_4.json", events)
    write("capture_8.json", capture(("gemm_a", 8), ("gemm_b", 16)))
    assert with_captures(read(path), []).captured is None  # which of the two, nothing says


def test_commands_take_captures(write, capsys, tmp_path):
    given, path = write("c.json", capture(("gemm_a", 4))), write("t.json", replay("gemm_a"))
    assert main(["query", str(path), "select op from ops", "--capture", str(given), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == [{"op": "aten::mm"}]
    assert main(["analyze", str(tmp_path), "--capture", str(given), "--show", "ops", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [row["op"] for row in answer["tables"]["ops"]] == ["aten::mm"]
    assert answer["notes"] == ["1 of 1 kernels replayed by graphs have the operators that c.json recorded."]
    assert main(["replay", str(path), "--op", "mm", "--list", "--capture", str(given), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["calls"][0]["time_ns"] == 1000
    assert (
        main(
            [
                "diff",
                str(path),
                str(path),
                "--base-capture",
                str(given),
                "--new-capture",
                str(given),
                "--by",
                "op",
                "--json",
            ]
        )
        == 0
    )
    assert [row["what"] for row in json.loads(capsys.readouterr().out)["tables"]["op"]] == ["aten::mm"]
    assert main(["analyze", str(path), str(path), "--capture", str(given)]) == 2


PAIRS = {
    "vllm": ("mi300_vllm_graph_replay", "mi300_vllm_decode_capture", "vllm_decode_full", 421),
    "sglang": ("mi300_sglang_decode", "mi300_sglang_decode_capture_bs32", "sglang_decode", 544),
}


@pytest.fixture(scope="module", params=PAIRS)
def pair(request):
    if not SERVERS.is_dir():
        pytest.skip("the traces of servers (../shared/data/servers) are not here")
    replayed, captured, peer, kernels = PAIRS[request.param]
    trace = with_captures(read(SHARED / "traces" / f"{replayed}.json.gz"), [SERVERS / f"{captured}.json.gz"])
    return trace, peer, kernels


def peers(name, what):
    with (SERVERS / f"tracelens_{name}_{what}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_real_pairs_are_joined_whole(pair):
    trace, _, kernels = pair
    (note,) = joined(trace).notes
    assert note.startswith(f"{kernels} of {kernels} kernels")
    assert joined(trace).proven
    assert 1 - coverage(roofline(trace))["share"] <= 0.05
    own = table("ops", trace)
    assert own["time_ns"].sum() == table("kernels", trace)["time_ns"].sum()
    assert not own["op"].str.contains("replayed").any()
    assert diff(trace, trace).ratio == 1


def test_products_of_real_pairs_are_those_of_tracelens(pair):
    trace, peer, _ = pair
    found = {row["dims"]: row for row in roofline(trace).filter(pl.col("family") == "gemm").to_dicts()}
    rows = [row for row in peers(peer, "GEMM") if row["name"].startswith("aten::")]
    assert rows
    for row in rows:
        mine = found[row["Input Dims_first"].replace(" ", "")]
        count = int(row["name_count"])
        m, n, k = (int(row[f"param: {letter}"]) for letter in "MNK")
        bias = m * n if row["param: bias"] == "True" else 0  # it counts the additions of the bias
        assert mine["count"] == count
        assert mine["work_flops"] == count * 2 * m * n * k
        assert float(row["GFLOPS_first"]) * 1e9 == pytest.approx(2 * m * n * k + bias)
        assert mine["time_ns"] / 1e3 == pytest.approx(float(row["Kernel Time (µs)_sum"]), abs=0.02)
        # Its rate is the mean of those of single calls, ours is all work in all time.
        each = origins(trace).filter(op_column(trace, "dims") == mine["dims"])["dur"]
        rates = float(row["GFLOPS_first"]) / each * 1e6
        assert rates.mean() == pytest.approx(float(row["TFLOPS/s_mean"]), rel=1e-4)
        assert mine["tflop_per_s"] == pytest.approx(2 * m * n * k / each.mean() / 1e3)


def test_attention_of_real_pairs_is_that_of_tracelens(pair):
    trace, peer, _ = pair
    (mine,) = roofline(trace).filter(pl.col("family") == "attention").to_dicts()
    rows = [row for row in peers(peer, "InferenceAttention_fwd") if float(row["GFLOPS_first"])]
    count = sum(int(row["name_count"]) for row in rows)
    assert mine["count"] == count
    assert mine["work_flops"] == pytest.approx(count * float(rows[0]["GFLOPS_first"]) * 1e9)
    assert mine["moved_bytes"] == pytest.approx(count * float(rows[0]["Data Moved (MB)_first"]) * 2**20)
    assert mine["time_ns"] / 1e3 == pytest.approx(sum(float(row["Kernel Time (µs)_sum"]) for row in rows), abs=0.02)


@real
def test_experts_of_a_real_pair_are_as_wide_as_their_grid_says():
    trace = with_captures(
        read(SHARED / "traces/mi300_vllm_graph_replay.json.gz"), [SERVERS / "mi300_vllm_decode_capture.json.gz"]
    )
    (mine,) = roofline(trace).filter(pl.col("family") == "moe").to_dicts()
    # 32 tokens of 4 experts each; 1748 = 38 x 46 blocks of 128 columns: 5,888 at most. 6,144 would be 38 x 48.
    assert mine["work_flops"] == 24 * 2 * 128 * 3072 * (5824 + 2912)
    theirs = sum(float(row["GFLOPS_first"]) * 1e9 for row in peers("vllm_decode_full", "MoE_unfused_fwd"))
    assert theirs == 2 * 128 * 3072 * (6144 + 3072)
