"""`rung runs ACTION` as a user calls them, over what `rung bench`, `compare` and `profile` have added."""

from __future__ import annotations

import csv
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rung.cli.climb import stopped
from rung.cli.main import main
from rung.records.history import Entry, Measured
from rung.runs import Run
from rung.runs.sqlite import SqliteHistory, history_file

FUNCTIONS = """
def one(n: int = 9):
    return sum(range(n))

def added(x):
    return x + x

def doubled(x):
    return 2 * x

def make(seed):
    import torch
    return {"x": torch.randn(64, generator=torch.Generator().manual_seed(seed))}
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with functions to time, and a history of its own."""
    monkeypatch.setenv("RUNG_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ops.py").write_text(FUNCTIONS)
    return tmp_path


def measured(count: int, change_at: int = 10**9, target: str = "ops.py:one") -> None:
    """A history of so many measurements, 10 % slower from one on."""
    noise = np.random.default_rng(2).normal(size=count) * 0.004
    for k in range(count):
        value = 2e6 * math.exp(noise[k]) * (1.1 if k >= change_at else 1)
        figure = Measured(name="time", target=str(Path(target).absolute()), options={"n": "9"}, variant={"mode": "call"}, unit="ns",
                          value=value, low=value * 0.99, high=value * 1.01)  # fmt: skip
        SqliteHistory().add(
            Entry(created=f"2026-01-{k + 1:02}T03:04:05+00:00", of="bench", target=target, status="complete", answer="",
                  command=f"rung bench {target}", host="node", device="MI300X", folder=str(Path.cwd()), measured=[figure],
                  environment={"torch": "2.13" if k < change_at else "2.14"}, document={"kind": "bench"})
        )  # fmt: skip


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(["runs", *words]) == code
    out, err = capsys.readouterr()
    return out if code == 0 else err


def document(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    return json.loads(said(capsys, *words, "--json"))


def test_what_is_measured_is_in_the_history(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "ops.py:one", "--call", "--n", "20", "--time", "0.2"]) == 0
    assert (
        main(["compare", "ops.py:added", "ops.py:doubled", "--call", "--inputs", "ops.py:make", "--budget", "0.2"]) == 0
    )
    assert main(["bench", "ops.py:one", "--call", "--preset", "sanity"]) == 0
    capsys.readouterr()
    found = document(capsys, "list")["entries"]
    assert said(capsys, "list", "--of", "climb", "--tag", "none") == (
        f"no entry of rung climb with the tag none in {history_file()}; `rung runs list` without options shows what it has.\n"
    )
    assert [(entry["of"], entry["target"]) for entry in found] == [
        ("bench", "ops.py:one"),
        ("compare", "ops.py:added | ops.py:doubled"),
        ("bench", "ops.py:one"),
    ]
    assert [one["name"] for one in found[2]["measured"]] == ["time", "memory"]
    assert found[2]["measured"][0]["target"] == f"{here}/ops.py:one"
    assert found[2]["measured"][0]["options"] == {"n": "20"}
    assert found[0]["measured"] == []  # a first impression
    assert {one["name"] for one in found[1]["measured"]} >= {"time", "speedup"}


def test_a_result_that_nobody_reads_to_its_end_is_in_the_history(capsys: pytest.CaptureFixture[str]) -> None:
    """As in `rung bench ... | head -1`."""
    asked = [sys.executable, "-u", "-m", "rung", "bench", "ops.py:one", "--call", "--preset", "sanity"]
    read, write = os.pipe()
    os.close(read)
    assert subprocess.run(asked, stdout=write, stderr=subprocess.DEVNULL, check=False).returncode == 0
    os.close(write)
    assert len(document(capsys, "list")["entries"]) == 1


def test_a_recording_and_a_climb_that_was_stopped_are_in_the_history(here: Path, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    from test_runs_command import MANIFEST

    run = Run.create(here, "x", here / "run")
    run.write("manifest.json", MANIFEST | {"status": "interrupted"})
    assert stopped(run, True) == 130
    capsys.readouterr()
    [entry] = document(capsys, "list")["entries"]
    assert (entry["of"], entry["status"], entry["directory"]) == ("climb", "interrupted", f"{here}/run")
    shutil.rmtree(here / "run")
    assert "would remove entry 1: its directory is gone" in said(capsys, "gc")
    assert "removed entry 1" in said(capsys, "gc", "--yes")
    assert said(capsys, "list").startswith(f"nothing in {history_file()} yet")


def test_a_history_that_cannot_be_kept_is_a_note_and_no_failure(here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    (here / "file").write_text("")
    asked = ["bench", "ops.py:one", "--call", "--preset", "sanity", "--json"]
    monkeypatch.setenv("RUNG_DATA", str(here / "file"))
    assert main(asked) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["kind"] == "bench"
    assert "note: this run was not added to the history: the history" in err
    assert "could not be written" in err
    monkeypatch.setenv("RUNG_DATA", str(here / "data"))
    monkeypatch.setenv("RUNG_HISTORY", "off")
    assert main(asked) == 0
    assert "history" not in capsys.readouterr().err
    assert not (here / "data").exists()


def test_a_trend_is_a_chart_a_document_and_a_page(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured(14, 9)
    text = said(capsys, "trend", "ops.py:one", "--n", "9", "--html", "trend.html")
    assert "from entry 10 on, 2026-01-10 03:04" in text
    assert "differs in torch: 2.13 and 2.14" in text
    [series] = document(capsys, "trend")["series"]
    assert [(change["at"], change["entry"]) for change in series["changes"]] == [(9, 10)]
    assert "from entry 10 on" in (here / "trend.html").read_text()
    assert "trend of" not in said(capsys, "trend", "ops.py:one", "--n", "8", code=2)
    assert "no memory of ops.py:one with these options" in said(
        capsys, "trend", "ops.py:one", "--figure", "memory", code=2
    )
    assert "14 measurements" in said(capsys, "trend")


def test_two_entries_are_compared_by_number_and_by_tag(capsys: pytest.CaptureFixture[str]) -> None:
    measured(10, 5)
    assert (
        said(capsys, "tag", "2", "before", "2026/base")
        == "entry      2, 2026-01-02 03:04 UTC, tags: 2026/base, before\n"
    )
    found = document(capsys, "compare", "before", "9")
    assert found["verdict"] == "slower"
    assert found["differs"] == {"torch": ["2.13", "2.14"]}
    assert "slower" in said(capsys, "compare", "before", "9")
    assert [entry["id"] for entry in document(capsys, "list", "--tag", "before")["entries"]] == [2]
    said(capsys, "tag", "2", "before", "--remove")
    assert "no entry with the tag 'before'" in said(capsys, "compare", "before", "9", code=2)
    assert "no entry 99" in said(capsys, "show", "99", code=2)
    assert "is not a tag" in said(capsys, "tag", "2", "7", code=2)


def test_entries_of_different_things_are_compared_with_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    measured(1)
    measured(1, target="ops.py:two")
    assert "note: A is of something else: " in said(capsys, "compare", "1", "2")


def test_all_of_it_can_be_taken_out(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured(3)
    whole = document(capsys, "export")
    assert [entry["id"] for entry in whole["entries"]] == [1, 2, 3]
    assert whole["entries"][0]["document"] == {"kind": "bench"}
    said(capsys, "export", "--csv", "--out", "history.csv")
    rows = list(csv.DictReader((here / "history.csv").open()))
    assert [row["entry"] for row in rows] == ["1", "2", "3"]
    assert float(rows[0]["value"]) == whole["entries"][0]["measured"][0]["value"]
    assert "command    rung bench ops.py:one" in said(capsys, "show", "3")


def test_json_may_stand_before_the_action(capsys: pytest.CaptureFixture[str]) -> None:
    measured(1)
    assert main(["runs", "--json", "list"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "history"
    assert "--in belongs to `rung runs` without an action" in said(capsys, "--in", ".rung2", "list", code=2)


def test_a_newer_history_is_refused_by_who_reads_it(capsys: pytest.CaptureFixture[str]) -> None:
    import sqlite3

    measured(1)
    db = sqlite3.connect(history_file())
    db.execute("PRAGMA user_version = 99")
    db.close()
    assert "was written by a newer Rung" in said(capsys, "list", code=3)
