"""The page of two traces: which way a bar goes, how long it is, and both totals."""

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from made_pages import diff_page_of, document, trace

from rung.analysis.diff import diff
from rung.cli.main import main
from rung.records.diff import Changed
from rung.report.diff import diff_lines
from rung.report.diff_chart import MOST, diff_bars


def row(what: str, base: float, new: float, change: str = "slower") -> Changed:
    return Changed(
        what=what,
        change=change,
        base_ns=base,
        new_ns=new,
        delta_ns=new - base,
        delta_share=None,
        base_count=2.0,
        new_count=4.0,
        base_total_ns=0,
        new_total_ns=0,
        base_kernel=None,
        new_kernel=None,
    )


def test_a_bar_goes_left_where_time_was_saved_and_is_as_long_as_its_share_of_the_largest_change() -> None:
    picture = diff_bars([row("a", 400, 0, "vanished"), row("b", 100, 200), row("c", 5, 5, "same")], "x")
    bars = re.findall(r'<rect x="([\d.]+)%" y="\d+" width="([\d.]+)%" height="14" class="(\w+)"', picture)
    assert [css for *_, css in bars] == ["faster", "slower"]
    (left, longest, _), (begin, quarter, _) = bars
    assert float(left) + float(longest) == 50
    assert float(begin) == 50
    assert float(quarter) == float(longest) / 4
    assert "−400 ns" in picture
    assert "+100 ns" in picture
    assert "b: slower, 100 ns → 200 ns, 2 → 4 times" in picture


def test_less_than_one_a_step_is_not_rounded_before_it_is_shown(tmp_path: Path) -> None:
    few = msgspec.structs.replace(row("b", 100, 200), base_count=2 / 3, new_count=0.04)
    assert "0.667 → 0.0400 times" in diff_bars([few], "x")
    found = diff(trace(tmp_path), trace(tmp_path, slow=3.0), by=("op",)).record()
    kernels = [msgspec.structs.replace(side, steps=3, gpus=1, kernels=2) for side in (found.base, found.new)]
    found = msgspec.structs.replace(found, base=kernels[0], new=kernels[1], tables={"op": [few]})
    lines = "\n".join(diff_lines(found, width=120))
    assert re.search(r"kernels +0\.667 +0\.667", lines)
    assert "0.667->0.0400" in lines


def test_nothing_that_changed_is_no_picture_and_many_changes_are_the_first() -> None:
    assert diff_bars([row("c", 5, 5, "same")], "x") == ""
    assert diff_bars([row(f"k{k}", 0, 100) for k in range(MOST + 5)], "x").count("<g>") == MOST


def test_a_page_has_both_totals_and_a_table_of_each_kind(tmp_path: Path) -> None:
    page = diff_page_of(trace(tmp_path), trace(tmp_path, slow=3.0))
    assert re.search(r"The step is [\d.]+× slower", page)
    assert re.search(r"Base: [\d.]+ ms per step of a GPU", page)
    assert re.search(r"New: [\d.]+ ms per step of a GPU", page)
    for name in ("category", "op", "module", "kernel"):
        assert f'data-table="{name}"' in page
    assert page.count('<svg class="diffs"') == 4


def test_the_command_prints_what_it_printed_and_the_page_has_kernels_too(tmp_path: Path, capsys: Any) -> None:
    for name, slow in (("a", 1.0), ("b", 2.0)):
        (tmp_path / f"{name}.json").write_text(json.dumps(document(slow=slow)))
    command = ["diff", str(tmp_path / "a.json"), str(tmp_path / "b.json"), "--by", "op", "--json"]
    assert main(command) == 0
    before = capsys.readouterr().out
    assert main([*command, "--html", str(tmp_path / "page.html")]) == 0
    assert capsys.readouterr().out == before
    assert list(json.loads(before)["tables"]) == ["op"]
    page = (tmp_path / "page.html").read_text()
    assert 'data-table="kernel"' in page
    assert 'data-table="module"' not in page


def test_the_csv_has_every_row_of_every_table(tmp_path: Path, capsys: Any) -> None:
    for name, slow in (("a", 1.0), ("b", 2.0)):
        (tmp_path / f"{name}.json").write_text(json.dumps(document(slow=slow)))
    command = ["diff", str(tmp_path / "a.json"), str(tmp_path / "b.json")]
    assert main([*command, "--json"]) == 0
    tables = json.loads(capsys.readouterr().out)["tables"]
    assert main([*command, "--csv", "-"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(row["by"], row["what"], float(row["delta_ns"])) for row in rows] == [
        (name, row["what"], row["delta_ns"]) for name, table in tables.items() for row in table
    ]
    assert main([*command, "--csv", str(tmp_path / "diff.csv"), "--by", "op"]) == 0
    assert "by operator" in capsys.readouterr().out  # a file leaves the terminal as it is
    written = list(csv.DictReader((tmp_path / "diff.csv").open()))
    assert written == [row for row in rows if row["by"] == "op"]
    assert main([*command, "--csv", "-", "--json"]) == 2
    assert "both write to stdout" in capsys.readouterr().err


def test_parts_and_kinds_have_the_words_of_other_pages(tmp_path: Path) -> None:
    page = diff_page_of(trace(tmp_path), trace(tmp_path, slow=3.0))
    step = page[page.index("A step of a GPU") : page.index("By kind of work")]
    assert "matrix products" in step
    assert "computation" not in step
    kinds = page[page.index("By kind of work") : page.index("By operator")]
    assert ">matrix products<" in kinds
    assert ">gemm<" not in kinds
    shares = [float(share) for share in re.findall(r"<title>[^<]*, ([\d.]+)%</title>", step)]
    assert sum(shares) == pytest.approx(200, abs=1)  # each bar is the whole step


def test_long_names_that_differ_somewhere_look_different() -> None:
    names = [f"{'Cijk_Alik_' * 9}MT{size}{'_SB' * 30}" for size in (64, 128)]
    picture = diff_bars([row(name, 100, 200) for name in (*names, "x" * 200)], "x")
    shown = re.findall(r'class="name"[^>]*>([^<]+)<', picture)
    assert len(set(shown)) == 3
    assert all(len(name) <= 44 and "…" in name for name in shown)
