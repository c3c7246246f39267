"""The list of rungs: on the terminal, as JSON, and as the table of docs/reference/rungs.md."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from rung.cli.main import main
from rung.records.climb import Attempt
from rung.records.record import record_of
from rung.report.ladder import LEVELS, markdown, needs, outcomes
from rung.rungs import BY_NAME, LADDER


def test_the_table_has_a_row_for_every_rung_and_four_cells_in_each() -> None:
    rows = [line.split(" | ") for line in markdown(LADDER).splitlines()[2:]]
    assert [row[0] for row in rows] == [f"| `{rung.name}`" for rung in LADDER]
    assert {len(row) for row in rows} == {4}


@pytest.mark.parametrize("width", [60, 100, 200])
def test_every_rung_is_listed_once_and_no_line_is_too_long(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.chdir(tmp_path)
    assert main(["rungs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    head, *named = [line.split()[0] for line in lines if line.startswith("  ") and line[2] != " "]
    assert head == "rung"
    assert sorted(named) == sorted(BY_NAME)
    assert max(map(len, lines)) <= width
    assert [line for line in lines if line.startswith("Level")] == [f"Level {k}: {what}" for k, what in LEVELS.items()]


def rows(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, list[str]]:
    """By the name of a rung, the cells of its row."""
    assert main(["rungs", *words]) == 0
    cells = [re.split(r"\s{2,}", line.strip()) for line in capsys.readouterr().out.splitlines()]
    return {row[0]: row[1:] for row in cells}


def test_a_row_has_what_a_rung_does_and_its_needs_as_far_as_there_is_room(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)
    found = rows(capsys)
    assert found["rung"] == ["what it does", "needs"]
    assert found["compile"] == ["torch.compile"]
    assert found["ddp-gradient-views"] == ["gradients as views of the buckets", "several ranks; data-parallel ranks"]
    assert found["bf16-gradients"][1] == "a GPU; several ranks ..."


def test_the_table_has_a_column_for_how_often_a_rung_was_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    (tmp_path / "climb" / "attempts").mkdir(parents=True)
    (tmp_path / "climb" / "manifest.json").write_text("{}")
    attempt = json.dumps({"number": 1, "against": "baseline", **ATTEMPTS[1]})
    (tmp_path / "climb" / "attempts" / "01-compile.json").write_text(attempt)
    found = rows(capsys, "--in", str(tmp_path))
    assert found["rung"] == ["what it does", "kept here", "needs"]
    assert found["compile"] == ["torch.compile", "0 of 1"]


def test_a_rung_by_itself_says_what_it_changes_and_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rungs", "triton-cross-entropy"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for said in (
        "level 4, Triton kernels",
        "needs training; cross-entropy; torch.compile;",
        "replaces fused-cross-entropy",
    ):
        assert said in text


def test_a_gpu_is_not_named_beside_what_says_more() -> None:
    assert needs(BY_NAME["hw-queues"]) == "AMD GPUs"
    assert needs(BY_NAME["compile"]) == ""
    assert needs(BY_NAME["capture"]).startswith("a GPU")


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["fused-kv"], 2, "did you mean fused-qkv"),
        (["banana"], 2, "`rung rungs` lists"),
        (["capture", "--level", "4"], 2, "none of these is of level 4"),
        (["--in", "nowhere"], 3, "nowhere is not a folder"),
    ],
)
def test_what_is_not_there_is_refused(
    words: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rungs", *words]) == code
    assert says in capsys.readouterr().err


ATTEMPTS: list[dict[str, Any]] = [
    {"rung": "together", "verdict": "kept", "log": "x", "members": ["compile", "fused-qkv"], "without": ["fused-qkv"]},
    {"rung": "compile", "verdict": "reverted", "log": "x"},
    {"rung": "compile", "verdict": "inconclusive", "log": "x"},
    {"rung": "capture", "verdict": "no-op"},  # nothing ran
]


def test_outcomes_are_counted_over_what_was_decided() -> None:
    found = outcomes(record_of(Attempt, {"number": 1, "against": "baseline", **attempt}) for attempt in ATTEMPTS)
    assert {name: str(one) for name, one in found.items()} == {"compile": "1 of 2", "fused-qkv": "0 of 1"}


def test_climbs_of_a_folder_are_counted_and_a_damaged_one_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, attempt in (("good", json.dumps({"number": 1, "against": "baseline", **ATTEMPTS[1]})), ("bad", "{")):
        (tmp_path / name / "attempts").mkdir(parents=True)
        (tmp_path / name / "manifest.json").write_text("{}")
        (tmp_path / name / "attempts" / "01-compile.json").write_text(attempt)
    assert main(["rungs", "compile", "--in", str(tmp_path), "--json"]) == 0
    out, err = capsys.readouterr()
    (rung,) = json.loads(out)
    assert (rung["kept"], rung["decided"], rung["numerics"]) == (0, 1, "reassociated")
    assert "not counted" in err
    assert "bad" in err
