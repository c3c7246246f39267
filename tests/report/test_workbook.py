"""A workbook of tables: every sheet there, values as they are, texts never formulas."""

import importlib.util
import io
import json
import re
import zipfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import polars as pl
import pytest
from made_pages import HOSTILE, document

from rung.cli.main import main
from rung.report.workbook import write_workbook

SHEETS = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"


def sheets(file: Any) -> dict[str, list[list[Any]]]:
    """Of each sheet the rows of its cells, read from the file's XML: numbers as numbers, and a formula as a tuple."""
    with zipfile.ZipFile(file) as packed:
        shared = ET.fromstring(packed.read("xl/sharedStrings.xml"))
        texts = ["".join(t.text or "" for t in item.iter(f"{SHEETS}t")) for item in shared]
        book = ET.fromstring(packed.read("xl/workbook.xml"))
        names = [str(sheet.get("name")) for sheet in book.iter(f"{SHEETS}sheet")]
        found: dict[str, list[list[Any]]] = {}
        for number, name in enumerate(names, 1):
            rows = []
            for row in ET.fromstring(packed.read(f"xl/worksheets/sheet{number}.xml")).iter(f"{SHEETS}row"):
                cells: list[Any] = []
                for cell in row:
                    value = cell.findtext(f"{SHEETS}v")
                    if cell.find(f"{SHEETS}f") is not None:
                        cells.append(("formula", value))
                    else:
                        cells.append(texts[int(value or 0)] if cell.get("t") == "s" else value and float(value))
                rows.append(cells)
            found[name] = rows
    return found


@pytest.fixture
def xlsxwriter() -> Any:
    return pytest.importorskip("xlsxwriter", reason="xlsxwriter is not installed (the extra `xlsx`)")


def test_each_table_is_a_sheet_and_the_first_lists_them(xlsxwriter: Any) -> None:
    file = io.BytesIO()
    frame = pl.DataFrame(
        {"name": ["a", "b"], "time_ns": [3, 2**52], "share": [0.25, float("nan")], "with": [["x", "y"], None]}
    )
    write_workbook({"kernels": ("Which?", frame), "k" * 40: ("Long?", frame.head(0))}, file)
    found = sheets(file)
    assert list(found) == ["tables", "kernels", "k" * 31]
    assert found["tables"][1:] == [["kernels", 2, "Which?"], ["k" * 40, 0, "Long?"]]
    assert found["kernels"] == [["name", "time_ns", "share", "with"], ["a", 3, 0.25, "x, y"], ["b", 2**52]]


def test_names_of_strangers_are_texts_and_no_formulas(xlsxwriter: Any) -> None:
    file = io.BytesIO()
    names = [*HOSTILE, "=1+1", "@SUM(A1)", "https://example.org", "12", "x" * 40_000]
    write_workbook({"kernels": ("", pl.DataFrame({"name": names}))}, file)
    cells = [row[0] for row in sheets(file)["kernels"][1:]]
    assert all(isinstance(cell, str) for cell in cells)
    assert cells[0] == HOSTILE[0]
    assert "=1+1" in cells
    assert "12" in cells
    assert max(map(len, cells)) == 32_767
    assert not re.search(r"[\x1b\u202e\u2066]", "".join(cells))


def test_the_command_writes_it_beside_the_tables(xlsxwriter: Any, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "t.json").write_text(json.dumps(document()))
    assert main(["analyze", str(tmp_path / "t.json"), "--out", str(tmp_path / "out"), "--xlsx"]) == 0
    assert "workbook: " in capsys.readouterr().err
    written = {path.stem for path in (tmp_path / "out").glob("*.csv")}
    assert set(sheets(tmp_path / "out" / "tables.xlsx")) == written | {"tables"}


def test_without_the_package_it_says_what_to_install_before_anything_is_read(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "xlsxwriter" else real(name, *rest)
    )
    (tmp_path / "t.json").write_text(json.dumps(document()))
    assert main(["analyze", str(tmp_path / "t.json"), "--out", str(tmp_path / "out"), "--xlsx"]) == 2
    assert "pip install 'rung[xlsx]'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert main(["analyze", str(tmp_path / "t.json"), "--xlsx"]) == 2
    assert "add --out DIR" in capsys.readouterr().err
