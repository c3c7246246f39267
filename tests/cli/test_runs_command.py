"""`rung runs`: a climb that goes on is told from one whose process is gone."""

import json
from pathlib import Path
from typing import Any

import pytest

from rung.cli.climb import stopped
from rung.cli.main import main
from rung.runs import Run

MANIFEST: dict[str, Any] = {
    "schema": 1, "status": "running", "why": "", "target": "x", "numerics": "exact", "request": {},
    "workload": {"name": "small", "mode": "train"}, "environment": {"torch": "2.13", "device": {"name": "chip", "memory": 1}},
    "facts": {"gpu": False, "mode": "train", "rates": {}, "matches": {}, "skipped": [], "graph_breaks": [], "without_gradient": []},
}  # fmt: skip


def test_a_climb_that_goes_on_is_running_and_one_that_was_killed_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run.create(tmp_path, "x")
    run.write("manifest.json", MANIFEST)

    def listed(*options: str) -> str:
        assert main(["runs", "--in", str(tmp_path), *options]) == 0
        return capsys.readouterr().out

    run.lock()
    assert listed().rstrip().endswith("small (train, exact)  running")
    assert json.loads(listed("--json"))[0]["running"] is True
    run.unlock()
    assert listed().rstrip().endswith("small (train, exact)  interrupted")
    assert json.loads(listed("--json"))[0]["running"] is False


def test_a_folder_that_is_not_there_is_no_folder_without_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["runs", "--in", str(tmp_path)]) == 0
    assert main(["runs", "--in", str(tmp_path / "typo")]) == 3
    assert "typo is not a folder" in capsys.readouterr().err


def test_a_climb_that_is_stopped_says_what_it_leaves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run.create(tmp_path, "x", tmp_path / "my run")
    run.write("manifest.json", MANIFEST)
    assert stopped(run, False) == 130
    assert "stopped; there is no recipe yet." in capsys.readouterr().err
    run.write("result.json", {"kept": ["compile", "sdpa"], "status": "provisional", "speedup": {"value": 1.8}})
    assert stopped(run, False) == 130
    said = capsys.readouterr().err
    recipe = tmp_path / "my run" / "recipe.toml"
    assert f"the best so far is in {recipe}: compile + sdpa, 1.80× over the untouched model, provisional." in said
    assert said.rstrip().endswith(f"continue with: rung climb --resume '{tmp_path / 'my run'}'")
    assert (tmp_path / "my run" / "report.html").is_file()
