"""A recorded call is made again with the same shapes, types, strides and numbers; a trace cannot put code into it."""

import ast
import contextlib
import io
import json
import runpy
import subprocess
import sys

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded import T, columns

from rung.analysis.replay import Replay, TensorSpec, calls_of, full_name, parsed, replay
from rung.errors import UsageError
from rung.report.replay import script
from rung.trace import read
from rung.trace.table import SCHEMA, Trace

F, I64, BF = "float", "long int", "c10::BFloat16"
ROW = {"dur": 9, "kind": "cpu_op", "pid": "1", "tid": "1"}


def recorded(*calls, **more):
    """A trace of operators, each with a launch and a kernel of 100 ns."""
    empty = dict.fromkeys(SCHEMA) | {"dur": 0, "name": "", "pid": "", "tid": ""}
    rows = []
    for i, (name, *args) in enumerate(calls):
        texts = dict(zip(("dims", "dtypes", "strides", "concrete"), columns(*args), strict=True))
        rows.append(empty | ROW | {"ts": 10 * i, "name": name} | texts)
        rows.append(
            empty | ROW | {"ts": 10 * i + 1, "dur": 1, "kind": "runtime", "name": "hipLaunchKernel", "correlation": i}
        )
        rows.append(
            empty
            | {"ts": 10**6 + i, "dur": 100, "kind": "kernel", "name": "k", "device": 0, "stream": 0, "correlation": i}
        )
    return Trace(events=pl.DataFrame(rows, schema=SCHEMA), **more)  # fmt: skip


def ran(text, path, *options):
    """The JSON that the script prints, run on the CPU in this process."""
    path.write_text(text)
    before, sys.argv = sys.argv, [str(path), "--device", "cpu", "--repeat", "1", "--json", *options]
    try:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            runpy.run_path(str(path), run_name="__main__")
    finally:
        sys.argv = before
    return json.loads(out.getvalue())


CALLS = [
    ("aten::mm", T((8, 4), BF), T((4, 6), BF, (1, 4))),
    ("aten::mm", T((8, 4)), T((4, 6)), T((8, 6))),  # the overload that writes into its third input
    ("aten::addmm", T((6,), F), T((8, 4), F), T((4, 6), F), 1, 1),
    ("aten::add", T((4, 6), F), T((6,), F), 1),
    ("aten::mul", T((4, 6), F), T((), "double")),
    ("aten::native_layer_norm", T((2, 4, 6), F), [6], T((6,), F), None, 1e-5),
    ("aten::_softmax", T((4, 6), F), -1, False),
    ("aten::gelu", T((4, 6), F), None),
    ("aten::cat", [T((4, 6), F), T((3, 6), F)], 0),
    ("aten::_foreach_add_", [T((4,), F), T((6,), F)], [T((4,), F), T((6,), F)], 1),
    ("aten::embedding", T((50, 8), F), T((2, 5), I64), -1, False, False),
    ("aten::convolution", T((2, 3, 9, 9), F), T((4, 3, 3, 3), F), None, [2, 2], [1, 1], [1, 1], False, [0, 0], 1),
    ("aten::convolution_backward", T((2, 4, 9, 9), F), T((2, 3, 9, 9), F), T((4, 3, 3, 3), F), [4], [1, 1], [1, 1],
     [1, 1], False, [0, 0], 1, [True, True, False]),
    ("aten::copy_", T((4, 6), BF), T((4, 6), F, (0, 1)), False),
    ("aten::sum", T((4, 6), F), [1], True, None),
    ("aten::index", T((9, 6), F), [T((3,), I64)]),
    ("aten::_to_copy", T((4, 6), F), 15, None, None, None, False, None),
    ("aten::linear", T((2, 4, 6), F), T((5, 6), F), T((5,), F)),
    ("aten::scaled_dot_product_attention", T((1, 2, 4, 8), F), T((1, 2, 4, 8), F), T((1, 2, 4, 8), F), None, 0.0, True,
     None, False),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(CALLS)), ids=lambda n: f"{CALLS[n][0]}-{n}")
def test_operators_run_again_as_recorded(number, tmp_path):
    pytest.importorskip("torch")
    name, *_ = CALLS[number]
    answer = ran(script(replay(recorded(CALLS[number]), name)), tmp_path / "s.py")
    assert answer["operator"] == name
    assert answer["median_ns"] > 0
    assert answer["recorded_ns"] == 100


def test_the_script_stands_alone(tmp_path):
    """In a process of its own, without the project on its path."""
    pytest.importorskip("torch")
    file = tmp_path / "s.py"
    file.write_text(script(replay(recorded(CALLS[2]), "addmm")))
    done = subprocess.run(
        [sys.executable, "-I", str(file), "--device", "cpu", "--repeat", "2"],
        capture_output=True, text=True, check=True, cwd=tmp_path,
    )  # fmt: skip
    assert "aten::addmm on cpu: median" in done.stdout
    assert "recorded: 0.10 us" in done.stdout


def test_tensors_have_the_recorded_strides_types_and_ranges(tmp_path):
    torch = pytest.importorskip("torch")
    trace = recorded(("aten::embedding", T((50, 8), BF, (1, 64)), T((2, 5), I64), -1, False, False))
    path = tmp_path / "s.py"
    path.write_text(script(replay(trace, "aten::embedding")))
    module = runpy.run_path(str(path))
    table, tokens = (module["tensor"](spec, "cpu") for spec in module["INPUTS"][:2])
    assert (table.dtype, table.stride(), table.shape) == (torch.bfloat16, (1, 64), (50, 8))
    assert (tokens.dtype, tokens.min() >= 0, tokens.max() < 50) == (torch.int64, True, True)


@pytest.mark.parametrize(
    "dtype", ["c10::Float8_e4m3fn", "c10::Float8_e5m2fnuz", "c10::Float4_e2m1fn_x2", "c10::complex<float>", "bool"]
)
def test_every_type_of_tensor_can_be_made(tmp_path, dtype):
    torch = pytest.importorskip("torch")
    path = tmp_path / "s.py"
    path.write_text(
        script(replay(recorded(("aten::_scaled_mm", T((16, 32), dtype), T((32, 16), dtype, (1, 32)))), "_scaled_mm"))
    )
    module = runpy.run_path(str(path))
    name = module["INPUTS"][1][3]
    if not hasattr(torch, name):
        pytest.skip(f"this torch has no {name}")
    made = module["tensor"](module["INPUTS"][1], "cpu")
    assert (str(made.dtype), made.stride()) == (f"torch.{name}", (1, 32))


def test_lengths_of_packed_sequences_are_equal(tmp_path):
    pytest.importorskip("torch")
    q, ends = T((96, 2, 8), BF), T((4,), "int")
    trace = recorded(("aten::_flash_attention_forward", q, q, q, ends, ends, 32, 32, 0.0, True, False))
    path = tmp_path / "s.py"
    path.write_text(script(replay(trace, "aten::_flash_attention_forward")))
    module = runpy.run_path(str(path))
    assert module["tensor"](module["INPUTS"][3], "cpu").tolist() == [0, 32, 64, 96]


def test_the_call_with_the_most_gpu_time_comes_first_and_others_can_be_chosen():
    small, large = ("aten::mm", T((2, 3)), T((3, 4))), ("aten::mm", T((5, 6)), T((6, 7)))
    trace = recorded(small, large, large, ("aten::add", T((2,)), T((2,)), 1))
    found = calls_of(trace, "aten::mm")
    assert found.select("index", "inputs", "count", "time_ns").rows() == [
        (0, "5x6 6x7 bf16", 2, 200),
        (1, "2x3 3x4 bf16", 1, 100),
    ]
    assert replay(trace, "mm").inputs[0].shape == (5, 6)
    assert replay(trace, "mm", index=1).inputs[0].shape == (2, 3)
    assert replay(trace, "mm", shapes="2x3").inputs[0].shape == (2, 3)
    for change in ({"index": 2}, {"index": -1}, {"shapes": "9x9"}, {"shapes": "2x3", "index": 1}):
        with pytest.raises(UsageError, match="different calls"):
            replay(trace, "mm", **change)
    with pytest.raises(UsageError, match="no operator aten::bmm"):
        replay(trace, "bmm")


def test_a_call_without_shapes_is_refused():
    trace = recorded(("aten::mm", T((2, 3)), T((3, 4))))
    bare = trace.events.with_columns(dims=pl.lit(None, dtype=pl.String))
    with pytest.raises(UsageError, match="record_shapes"):
        replay(Trace(events=bare), "mm")


@pytest.mark.parametrize(
    "name",
    ["", "a b", "aten::mm; import os", "aten::mm\n", "::mm", "aten::", "triton_poi_fused_add_0", "aten::é", "x" * 300],
)
def test_names_that_are_none_are_refused(name):
    with pytest.raises(UsageError, match="is not the name of a PyTorch operator"):
        full_name(name)


def test_values_are_numbers_or_nothing():
    assert parsed("3") == 3
    assert parsed("-1.5e-3") == -0.0015
    assert parsed("0.") == 0.0
    assert parsed("True") is True
    assert parsed("[1, -2]") == [1, -2]
    assert parsed("[True, False]") == [True, False]
    assert parsed("[]") == []
    assert parsed("-inf") == float("-inf")
    for text in ("", "none", "cuda:0", "__import__('os')", "[1, x]", "1e999", "9" * 40, "[" * 50, "1_0", "٣"):
        assert parsed(text) is None, text


_TEXT = st.text(max_size=20) | st.sampled_from(
    [
        '"); import os; ("',
        "@RECORD@",
        "'''",
        "__import__('os').system('x')",
        "\\",
        "\n",
        "float",
        "aten::mm",
        "[[1], [2]]",
    ]
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _TEXT, lambda x: st.lists(x, max_size=3), max_leaves=8
)


@given(st.tuples(_JSON, _JSON, _JSON, _JSON), st.lists(_TEXT, max_size=4))
def test_nothing_of_a_hostile_trace_gets_into_the_script_but_plain_numbers(columns_, values):
    texts = {
        name: json.dumps(value) for name, value in zip(("dims", "dtypes", "strides", "concrete"), columns_, strict=True)
    }
    shapes = {"dims": json.dumps([[2]] * len(values)), "dtypes": json.dumps(["Scalar"] * len(values)),
              "concrete": json.dumps(values)}  # fmt: skip
    for row in (texts, shapes):
        events = pl.DataFrame([dict.fromkeys(SCHEMA) | ROW | {"ts": 0, "name": "aten::mm"} | row], schema=SCHEMA)
        try:
            text = script(replay(Trace(events=events, devices=[{"name": "'\n"}]), "mm"))
        except UsageError:
            continue
        inputs = next(
            node.value
            for node in ast.parse(text).body
            if isinstance(node, ast.Assign) and node.targets[0].id == "INPUTS"
        )
        plain = ast.literal_eval(
            ast.unparse(inputs).replace("float('inf')", "0").replace("float('-inf')", "0").replace("float('nan')", "0")
        )
        for spec in plain:
            words = [
                word
                for word in ast.walk(ast.parse(repr(spec)))
                if isinstance(word, ast.Constant) and isinstance(word.value, str)
            ]
            assert {word.value for word in words} <= {"tensor", "tensors", "value", "normal", "below", "steps", "number", "float32", "float16",
                                                      "float64", "bfloat16", "int64", "int32", "bool"}  # fmt: skip


def test_a_record_can_only_hold_plain_values():
    call = Replay(
        "aten::mm", [TensorSpec((2,), (1,), "float32", "normal", 0), float("nan"), [1.5]], 1, 0, None, None, None
    )
    assert 'float("nan")' in script(call)
    with pytest.raises(TypeError):
        script(Replay("aten::mm", [object()], 1, 0, None, None, None))


def test_what_torch_records_can_be_made_again(tmp_path):
    """A model on the CPU, forward and backward: every operator that computes."""
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile

    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.SiLU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4))
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorder:
        x = torch.randn(6, 8)
        torch.nn.functional.cross_entropy(model(x), torch.zeros(6, dtype=torch.long)).backward()
    recorder.export_chrome_trace(str(tmp_path / "t.json"))
    trace = read(tmp_path / "t.json")
    names = ("linear", "addmm", "mm", "silu", "silu_backward", "native_layer_norm", "native_layer_norm_backward",
             "_log_softmax", "nll_loss_forward", "nll_loss_backward", "sum")  # fmt: skip
    for name in names:
        for index in range(calls_of(trace, f"aten::{name}").height):
            assert ran(script(replay(trace, name, index=index)), tmp_path / "s.py")["median_ns"] > 0
