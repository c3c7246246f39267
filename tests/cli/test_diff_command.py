import json
from pathlib import Path

import pytest

from rung.cli.main import main
from rung.report import breakdowns

DDP = Path(__file__).parents[1] / "data" / "ddp"


def run(capsys, *arguments):
    code = main([str(a) for a in arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_two_folders_of_ranks_on_one_screen(capsys):
    code, out, err = run(capsys, "diff", DDP / "ranks2-slow-gpu", DDP / "ranks2-slow-host")
    assert (code, err) == (0, "")
    assert "2 ranks" in out
    assert "slower" in out
    assert "aten::mm" in out
    assert all(len(line) <= 100 for line in out.splitlines() if "data/ddp" not in line)


def test_json_is_one_document_that_adds_up(capsys):
    code, out, _ = run(capsys, "diff", DDP / "ranks2-slow-gpu", DDP / "ranks2-slow-host", "--json", "--by", "op,shape")
    found = json.loads(out)
    assert code == 0
    assert list(found["tables"]) == ["op", "shape"]
    for side in ("base", "new"):
        for table in found["tables"].values():
            assert sum(row[f"{side}_total_ns"] for row in table) == found[side]["busy_ns"]


def test_the_exit_code_says_slower(capsys):
    slow, quick = DDP / "ranks2-slow-host", DDP / "ranks2-slow-gpu"
    assert run(capsys, "diff", quick, slow, "--fail-if-slower", "--json")[0] == 1
    assert run(capsys, "diff", quick, slow, "--fail-if-slower", "99.9%", "--json")[0] == 1
    assert run(capsys, "diff", slow, quick, "--fail-if-slower")[0] == 0
    assert run(capsys, "diff", quick, quick, "--fail-if-slower")[0] == 0


def test_traces_of_a_cpu_are_compared_by_operator(capsys, tmp_path):
    for name, dur in (("base", 400), ("new", 300)):
        events = [
            {
                "ph": "X",
                "cat": "user_annotation",
                "name": "ProfilerStep#1",
                "pid": 1,
                "tid": 1,
                "ts": 0,
                "dur": dur + 100,
            },
            {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 50, "dur": dur},
        ]
        (tmp_path / f"{name}.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    files = [tmp_path / "base.json", tmp_path / "new.json"]
    code, out, err = run(capsys, "diff", *files)
    assert (code, err) == (0, "")
    assert "The step is 1.25× faster." in out
    assert "times are CPU time" in out
    assert [line.split()[:2] for line in out.splitlines() if "aten::mm" in line] == [["aten::mm", "faster"]]
    assert "kernels" not in out
    assert run(capsys, "diff", *files, "--html", tmp_path / "page.html")[0] == 0
    page = (tmp_path / "page.html").read_text()
    assert "<h2>A step</h2>" in page
    assert "Python and dispatch" in page
    assert 'data-table="kernel"' not in page
    code, out, err = run(capsys, "diff", files[0], DDP / "ranks2-slow-gpu")
    assert (code, out) == (2, "")
    assert "base.json has no GPU events, but the other trace has" in err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["one.json"], 2, "give two traces"),
        ([DDP / "ranks2-slow-gpu", DDP / "ranks2-slow-gpu", "--by", "colour"], 2, "choose from category"),
        ([DDP / "ranks2-slow-gpu", "nowhere.json"], 3, "nowhere.json"),
        ([DDP / "ranks2-slow-gpu", DDP / "ranks2-slow-gpu", "--new-steps", "0"], 2, "1 or more"),
    ],
    ids=["one", "by", "missing", "steps"],
)
def test_wrong_use_is_one_sentence(capsys, arguments, code, said):
    got, out, err = run(capsys, "diff", *arguments)
    assert (got, out) == (code, "")
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("width", [80, 200])
def test_it_fits_the_terminal(capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    out = run(capsys, "diff", DDP / "ranks2-slow-gpu", DDP / "ranks2-slow-host")[1]
    assert all(len(line) <= width for line in out.splitlines() if "data/ddp" not in line)


@pytest.mark.parametrize("width", [50, 70])
def test_a_head_is_as_long_as_its_rows_on_a_narrow_terminal(capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    lines = run(capsys, "diff", DDP / "ranks2-slow-gpu", DDP / "ranks2-slow-host", "--by", "op")[1].splitlines()
    k = next(k for k, line in enumerate(lines) if line.startswith("by operator"))
    assert lines[k].endswith("count")
    assert len(lines[k]) == len(lines[k + 1])


def test_kinds_of_work_have_the_names_of_every_report(capsys):
    names = [DDP / "ranks2-slow-gpu", DDP / "ranks2-slow-host", "--by", "category"]
    text = run(capsys, "diff", *names)[1]
    assert "matrix products" in text
    assert "gemm" not in text
    assert breakdowns.kind("elementwise") == "pointwise: elementwise"
    assert '"gemm"' in run(capsys, "diff", *names, "--json")[1]  # what a query asks for


def test_kernels_are_called_as_on_the_page_of_one_trace(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    names = [DDP / "ranks2-slow-gpu", DDP / "ranks2-slow-host", "--by", "kernel"]
    text = run(capsys, "diff", *names)[1]
    assert "MulFunctor<float> in elementwise_kernel" in text
    assert "void at::native" not in text
    assert "void at::native" in run(capsys, "diff", *names, "--json")[1]
