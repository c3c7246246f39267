"""`rung mcp` before it serves: what it needs, and what it refuses."""

import importlib.util
from pathlib import Path

import pytest

from rung.cli.main import main
from rung.cli.mcp import NEEDED


def test_without_the_sdk_one_sentence_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rung.cli.mcp.importlib.util.find_spec", lambda name: None)
    assert main(["mcp"]) == 2
    assert capsys.readouterr().err == f"rung: {NEEDED}\n"


@pytest.mark.skipif(importlib.util.find_spec("mcp") is None, reason="the SDK is not installed: pip install 'rung[mcp]'")
def test_a_root_that_is_no_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["mcp", "--root", str(tmp_path / "file")]) == 2
    assert "is not a folder" in capsys.readouterr().err


def test_it_speaks_its_protocol_on_stdout_and_prints_no_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mcp", "--json"]) == 2
    assert "leave --json out" in capsys.readouterr().err
