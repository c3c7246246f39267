"""`rung report` without a directory shows the climb that began last."""

import shutil
from pathlib import Path

import pytest

from rung.cli.main import main

RUN = Path(__file__).parents[1] / "data" / "run_directory"


def test_without_a_directory_the_newest_climb_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report"]) == 2
    assert "there is no climb in .rung/ here: give a run directory." in capsys.readouterr().err
    for name in ("20260101-000000-a", "20260102-000000-b"):
        shutil.copytree(RUN, tmp_path / ".rung" / name)
    assert main(["report"]) == 0
    told = capsys.readouterr()
    assert "the newest of 2 climbs: .rung/20260102-000000-b; `rung runs` lists all" in told.err
    assert "report: .rung/20260102-000000-b/report.html" in told.out
