"""`rung query`: SQL over a trace and its analyses; it reads, and says what is wrong."""

import json
from pathlib import Path
from typing import Any

import pytest

from rung.cli.main import main

KERNEL = {"ph": "X", "cat": "kernel", "pid": 0, "tid": 0, "args": {"device": 0, "stream": 0}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    events = [
        KERNEL | {"name": name, "ts": ts, "dur": dur} for name, ts, dur in (("a", 0, 5), ("b", 10, 2), ("a", 20, 1))
    ]
    file = tmp_path / "t.json"
    file.write_text(json.dumps({"traceEvents": events}))
    return file


def test_events_and_analyses_are_tables(path: Path, capsys: Any) -> None:
    assert main(["query", str(path), "select name, sum(dur) as total_ns from events where kind = 'kernel' group by name order by total_ns desc"]) == 0  # fmt: skip
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["name", "total"], ["a", "6.00", "µs"], ["b", "2.00", "µs"],
    ]  # fmt: skip
    sql = "select k.name, t.total_ns from kernels k cross join timeline t where k.count = 1"
    assert main(["query", str(path), sql, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == [{"name": "b", "total_ns": 21_000}]
    assert main(["query", str(path), "with x as (select * from ops) select count(*) as n from x", "--csv", "-"]) == 0
    assert capsys.readouterr().out == "n\n1\n"


def test_coded_texts_are_texts_to_a_query(path: Path, capsys: Any) -> None:
    sql = "select pid || '/' || upper(tid) as place, count(*) as n from events where tid like '0%' and kind = 'kernel' group by place"
    assert main(["query", str(path), sql, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == [{"place": "0/0", "n": 3}]


def test_a_document_has_plain_numbers_whatever_the_arithmetic(path: Path, capsys: Any) -> None:
    sql = "select sum(dur) / 1000.0 as us, count(*) as n, date '2026-01-02' as day from events"
    assert main(["query", str(path), sql, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == [{"us": 8.0, "n": 3, "day": "2026-01-02"}]


def test_without_a_question_the_tables_are_listed(path: Path, capsys: Any) -> None:
    assert main(["query", str(path)]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0].startswith("events")
    assert "correlation" in out
    assert "memory_timeline" in out
    assert max(map(len, out.splitlines())) <= 100


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("select nothing from events", '"nothing"'),
        ("select * from nowhere", "Tables: events"),
        ("selec * from events", "Write one SELECT"),
        ("select * from (", "cannot be answered"),
        ("drop table events", "Write one SELECT"),
        ("select * from read_csv('/etc/passwd')", "none 'read_csv'"),
        ("with recursive r as (select 1 as a union all select a + 1 from r) select * from r", "cannot be recursive"),
        ("select sums(dur) from events", "did you mean sum?"),
        ("select greatest() from events", "cannot be answered"),
        ("", "SELECT"),
    ],
)
def test_what_is_no_question_about_the_trace_is_one_sentence(path: Path, capsys: Any, sql: str, said: str) -> None:
    assert main(["query", str(path), sql]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "Traceback" not in err


def test_a_misspelt_name_is_answered_with_the_one_that_is_like_it(path: Path, capsys: Any) -> None:
    assert main(["query", str(path), "select * from kernel"]) == 2
    assert "none 'kernel'. Did you mean kernels?" in capsys.readouterr().err
    assert main(["query", str(path), "select * from nothing_like_it"]) == 2
    assert "Tables: events, " in capsys.readouterr().err
    assert main(["analyze", str(path), "--show", "opps"]) == 2
    assert capsys.readouterr().err == "rung: there is no analysis 'opps'; did you mean ops?\n"


def test_wrong_use(path: Path) -> None:
    assert main(["query"]) == 2
    assert main(["query", str(path), "select 1", "more"]) == 2
    assert main(["query", str(path.with_name("none.json")), "select 1"]) == 3


def test_a_query_ends_at_its_limits(path: Path, capsys: Any) -> None:
    many = "cross join ".join(f"events e{i} " for i in range(28))  # 3^28 rows
    sql = f"select count(*) as n from (select e0.ts + e1.ts + e15.ts as x from {many}) where x > 5"
    assert main(["query", str(path), sql, "--timeout", "0.3"]) == 2
    assert "did not end within 0.3 s" in capsys.readouterr().err
    assert main(["query", str(path), f"select e0.* from {many}", "--memory", "200M", "--timeout", "60"]) == 2
    assert "more than 200 MiB of memory" in capsys.readouterr().err
    assert main(["query", str(path), "select " + "+".join(["dur"] * 20_000) + " as n from events"]) == 2
    assert "cannot be answered" in capsys.readouterr().err


def test_a_query_may_ask_for_a_table_that_it_defines_anew(path: Path, capsys: Any) -> None:
    sql = "with events as (select dur from events) select sum(dur) as n from events"
    assert main(["query", str(path), sql, "--csv", "-"]) == 0
    assert capsys.readouterr().out == "n\n8000\n"


def test_a_file_in_the_current_folder_is_not_imported(path: Path, capsys: Any, monkeypatch: Any) -> None:
    path.with_name("polars.py").write_text("raise SystemExit(99)")
    monkeypatch.chdir(path.parent)
    assert main(["query", str(path), "select count(*) as n from events", "--csv", "-"]) == 0
