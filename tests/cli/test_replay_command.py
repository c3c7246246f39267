"""`rung replay` on the command line."""

import ast
import json
import textwrap
from pathlib import Path

import pytest

from rung.cli.main import main
from rung.cli.replay import EXAMPLE

SHARED = Path(__file__).parents[3] / "shared" / "data" / "traces"
MM = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 10, "dur": 5, "args": {
    "Input Dims": [[4, 8], [8, 2]], "Input type": ["float", "float"], "Input Strides": [[8, 1], [1, 8]],
    "Concrete Inputs": ["", ""]}}  # fmt: skip


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": [MM], "schemaVersion": 1}))
    return str(path)


def test_a_script_is_written_and_says_how_to_run_it(trace, tmp_path, capsys):
    out = tmp_path / "mm.py"
    assert main(["replay", trace, "--op", "mm", "--out", str(out)]) == 0
    ast.parse(out.read_text())
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"python {out}" in captured.err


def test_without_a_file_the_script_goes_to_stdout_and_json_holds_it(trace, capsys):
    assert main(["replay", trace, "--op", "aten::mm"]) == 0
    text = capsys.readouterr().out
    ast.parse(text)
    assert main(["replay", trace, "--op", "aten::mm", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["calls"], found["script"]) == ("replay", 1, text)


def test_the_calls_are_listed(trace, capsys):
    assert main(["replay", trace, "--op", "mm", "--list"]) == 0
    assert "4x8 8x2 fp32" in capsys.readouterr().out
    assert main(["replay", trace, "--op", "mm", "--list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["calls"][0]["inputs"] == "4x8 8x2 fp32"


def test_a_list_has_the_calls_that_shapes_and_index_choose_from(tmp_path, capsys):
    calls = [MM | {"ts": 100 * k, "args": MM["args"] | {"Input Dims": [[4, 8], [8, n]]}} for k, n in enumerate((2, 3))]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": calls}))
    words = ["replay", str(path), "--op", "mm", "--shapes", "8x3", "--json"]
    assert main([*words, "--list"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)["calls"]
    assert (listed["index"], listed["inputs"]) == (0, "4x8 8x3 fp32")
    assert main([*words, "--index", str(listed["index"])]) == 0
    assert "(8, 3)" in json.loads(capsys.readouterr().out)["script"]


@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        (["replay"], "give a trace and an operator", 2),
        (["replay", "TRACE", "--op", "bmm"], "no operator aten::bmm", 2),
        (["replay", "TRACE", "--op", "bmm", "--list"], "no operator aten::bmm", 2),
        (["replay", "TRACE", "--op", "mm; x"], "is not the name of a PyTorch operator", 2),
        (["replay", "TRACE", "--op", "mm", "--index", "3"], "different calls", 2),
        (["replay", "TRACE", "--op", "mm", "--out", "/proc/nowhere/x.py"], "could not be written", 3),
        (["replay", "nothing.json", "--op", "mm"], "no file", 3),
    ],
)
def test_wrong_use_is_one_sentence(trace, capsys, words, said, code):
    assert main([trace if word == "TRACE" else word for word in words]) == code
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.skipif(not SHARED.is_dir(), reason="the public recordings are not here")
def test_the_example_is_what_the_command_prints(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "98")
    _, _, shown = EXAMPLE.partition("--list\n")
    assert main(["replay", str(SHARED / "mi300_vit.json.gz"), "--op", "addmm", "--list"]) == 0
    assert textwrap.dedent(shown.partition("\n\n")[0]) == capsys.readouterr().out.rstrip()
