"""`rung analyze`: any trace on one screen, in one document, in another format; damage is one sentence."""

import contextlib
import errno
import gzip
import itertools
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from rung.analysis.analyses import ANALYSES, described, table
from rung.cli.main import main
from rung.trace import read

DDP = Path(__file__).parents[1] / "data" / "ddp"


def event(kind: str, name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": kind, "name": name, "pid": 0 if "device" in args else 7, "tid": 1, "ts": ts, "dur": dur,
            "args": args}  # fmt: skip


def trace(rank: int | None = None) -> dict[str, Any]:
    facts: dict[str, Any] = {"distributedInfo": {"rank": rank, "world_size": 2}} if rank is not None else {}
    return facts | {
        "traceEvents": [
            event("cuda_runtime", "hipLaunchKernel", 0, 2, correlation=1),
            event("kernel", "Cijk_Ailk_Bljk_MT64x64", 5, 30, device=0, stream=0, correlation=1),
            event("kernel", "vectorized_elementwise_kernel", 45, 10, device=0, stream=0, correlation=9),
            {"ph": "s", "name": "ac2g", "ts": 1, "pid": 7, "tid": 1, "id": 1},
        ]
    }


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "t.json.gz"
    file.write_bytes(gzip.compress(json.dumps(trace()).encode(), mtime=0))
    return file


def test_one_screen_says_what_it_is_how_busy_it_was_and_what_is_left_out(path: Path, capsys: Any) -> None:
    assert main(["analyze", str(path)]) == 0
    out = capsys.readouterr().out
    assert out.replace("\n  ", " ").startswith(f"{path}: kineto, 3 events")
    assert "not in the table: 1 x flow event" in out
    assert "GPU 0: 50.0 µs, of it computation 80%" in out
    assert "25% of GPU time (1 x) was launched outside the recorded window" in out
    assert "matrix products       30.0 µs   60%" in out
    assert "Cijk_Ailk_Bljk_MT64x64" in out


@pytest.mark.parametrize("folder", ["ranks2-slow-gpu", "ranks2-slow-gpu/rank0.json.gz"])
def test_top_says_how_many_kernels_the_screen_has(folder: str, capsys: Any) -> None:
    def most(*words: str) -> int:
        assert main(["analyze", str(DDP / folder), "--no-cache", *words]) == 0
        text = capsys.readouterr().out.partition("  most time:\n")[2]
        return len(text.partition("\n\n")[0].splitlines())

    assert most("--top", "3") == 3 < most() < most("--top", "0")


@pytest.mark.parametrize("folder", ["ranks2-slow-gpu", "ranks2-slow-gpu/rank0.json.gz"])
def test_kinds_of_work_have_the_names_of_every_report(folder: str, capsys: Any) -> None:
    assert main(["analyze", str(DDP / folder), "--no-cache", "--top", "0"]) == 0
    text = capsys.readouterr().out
    rows = text.partition("  most time:\n")[2].partition("\n\n")[0]
    lines = text[text.index("\ncategories ") :].splitlines()[1:]
    headline = [lines[0], *itertools.takewhile(lambda line: line.startswith("   "), lines[1:])]  # as it is wrapped
    for shown in (rows, " ".join(" ".join(headline).split())):
        assert "matrix products" in shown
        assert "pointwise: elementwise" in shown
        assert not re.search(r"\bgemm\b", shown)
    assert len({re.search(r" [\d.k ]+ x  ", row).end() for row in rows.splitlines()}) == 1  # type: ignore[union-attr]


def test_tables_have_these_names_too_and_what_a_query_reads_has_its_own(tmp_path: Path, capsys: Any) -> None:
    trace, page = str(DDP / "ranks2-slow-gpu" / "rank0.json.gz"), tmp_path / "page.html"
    asked = ["analyze", trace, "--no-cache", "--show", "ops"]
    assert main([*asked, "--html", str(page)]) == 0
    shown = capsys.readouterr().out
    assert "matrix products" in shown
    assert not re.search(r"\bgemm\b", shown)
    assert '<td data-v="gemm">matrix products</td>' in page.read_text()
    for raw in ([*asked, "--json"], [*asked, "--csv", "-"], ["query", trace, "select category, op from ops"]):
        assert main(raw) == 0
        assert re.search(r"\bgemm\b", capsys.readouterr().out)


def test_the_document_has_the_same_in_nanoseconds(path: Path, capsys: Any) -> None:
    assert main(["analyze", str(path), "--json", "--steps", "2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["unread"] == {"flow event": 1}
    part = found["parts"][0]
    assert part["timeline"][0]["total_ns"] == 50_000
    assert part["breakdown"]["parts"]["gemm"] == 15_000


def test_the_ranks_of_a_folder_are_told_apart(tmp_path: Path, capsys: Any) -> None:
    for rank in (0, 1):
        (tmp_path / f"r{rank}.json").write_text(json.dumps(trace(rank)))
    assert main(["analyze", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "2 ranks" in out
    assert "rank      step  compute" in out
    assert "   1" in [line[:4] for line in out.splitlines()]


@pytest.mark.parametrize("name", ["out.json.gz", "out.pftrace"])
def test_what_is_written_in_another_format_is_read_back_the_same(path: Path, name: str, capsys: Any) -> None:
    assert main(["analyze", str(path), "--write", str(path.with_name(name))]) == 0
    columns = ["ts", "dur", "kind", "name", "device", "stream", "correlation"]
    first, second = (read(p).events.select(columns).sort("ts") for p in (path, path.with_name(name)))
    assert first.equals(second)


def test_a_csv_has_a_row_an_event(path: Path) -> None:
    assert main(["analyze", str(path), "--write", str(path.with_name("out.csv"))]) == 0
    assert len(path.with_name("out.csv").read_text().splitlines()) == 4


def test_a_table_is_written_whole_or_what_was_there_stays(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = path.with_name("ops.csv")
    asked = ["analyze", str(path), "--show", "kernels", "--csv", str(file)]
    assert main(asked) == 0
    before = file.read_text()
    assert "Cijk_Ailk_Bljk_MT64x64" in before

    def full(table: pl.DataFrame, to: Any, **options: Any) -> None:
        with open(to, "wb") if isinstance(to, Path) else contextlib.nullcontext(to) as out:
            out.write(b"half of a")
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pl.DataFrame, "write_csv", full)
    assert main(asked) == 3
    assert file.read_text() == before
    assert {f.name for f in path.parent.iterdir()} == {path.name, file.name}


def test_a_table_goes_through_a_pipe_and_a_link_which_stay(path: Path, tmp_path: Path) -> None:
    pipe, link, file = tmp_path / "pipe", tmp_path / "link.csv", tmp_path / "file.csv"
    os.mkfifo(pipe)
    link.symlink_to(file)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    asked = ["analyze", str(path), "--show", "kernels", "--csv"]
    assert main([*asked, str(pipe)]) == 0
    through = os.read(reader, 1 << 16).decode()
    os.close(reader)
    assert pipe.is_fifo()
    assert main([*asked, str(link)]) == 0
    assert link.is_symlink()
    assert through == file.read_text()
    assert "Cijk_Ailk_Bljk_MT64x64" in through


def test_a_csv_that_cannot_be_written_is_a_sentence(path: Path, tmp_path: Path, capsys: Any) -> None:
    assert main(["analyze", str(path), "--show", "ops", "--csv", str(tmp_path)]) == 3
    assert "could not be written" in capsys.readouterr().err


def test_damage_is_a_sentence_that_names_the_way_out(path: Path, capsys: Any) -> None:
    path.write_bytes(path.read_bytes()[:-20])
    assert main(["analyze", str(path)]) == 3
    said = capsys.readouterr().err
    assert str(path) in said
    assert "--partial" in said
    assert main(["analyze", str(path), "--partial"]) == 0
    out = capsys.readouterr().out
    assert "note: " in out
    assert "not in the table: events after the cut, number unknown" in out


def test_wrong_use_is_a_sentence(path: Path, capsys: Any) -> None:
    assert main(["analyze"]) == 2
    assert main(["analyze", str(path), "--write", "x.xyz"]) == 2
    assert main(["analyze", str(path), str(path), "--write", "x.csv"]) == 2
    assert main(["analyze", str(path), "--show", "nothing"]) == 2
    assert main(["analyze", str(path), "--csv", "-"]) == 2
    assert main(["analyze", str(path.with_name("none.json"))]) == 3
    assert "Traceback" not in capsys.readouterr().err


def test_a_table_is_shown_written_and_in_the_document(path: Path, capsys: Any) -> None:
    assert main(["analyze", str(path), "--show", "timeline"]) == 0
    assert "50.0 µs" in capsys.readouterr().out
    assert main(["analyze", str(path), "--show", "timeline", "--csv", "-"]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith(",0,,50000,40000,")
    assert main(["analyze", str(path), "--show", "timeline", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tables"]["timeline"][0]["busy_ns"] == 40_000


def test_the_analyses_are_listed_and_each_says_what_its_columns_are(path: Path, capsys: Any) -> None:
    assert main(["analyze", "--show", "list", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == list(ANALYSES)
    assert all(described(name) for name in ANALYSES)


@pytest.mark.parametrize("name", ANALYSES)
def test_every_analysis_has_an_answer_for_a_small_trace_and_for_an_empty_one(name: str, path: Path) -> None:
    trace = read(path)
    answers = [table(name, t, steps=1) for t in (trace, replace(trace, events=trace.events.clear()))]
    assert answers[0].schema == answers[1].schema
    for column, dtype in answers[0].schema.items():
        assert dtype == pl.Int64 or not column.endswith(("_ns", "_bytes")), column
        assert dtype == pl.Float64 or not column.endswith("share"), column
