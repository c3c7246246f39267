"""`rung doctor` as a user calls it."""

from __future__ import annotations

import json
import subprocess

import pytest

from rung.cli.main import main
from rung.records.doctor import Line
from rung.report.doctor import doctor_lines, fix_lines

LINES = [
    Line(
        "GPU",
        "power cap",
        "500 W of 750 W",
        "warn",
        False,
        "clocks fall",
        ("sudo amd-smi set --power-cap 750",),
        "docs",
    ),
    Line("system", "huge pages", "madvise", "ok", True, "", (), "kernel docs"),
    Line(
        "system",
        "IOMMU",
        "on, translating \x1b[31m",
        "note",
        None,
        "transfers are translated",
        ("# edit grub",),
        "docs",
    ),
]


def test_it_answers_on_any_machine_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json", "--wait", "0.1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kind"] == "doctor"
    assert {"group", "name", "value", "level", "default", "matters", "change", "source"} == set(found["lines"][0])
    assert main(["doctor", "--help"]) == 0
    assert "  rung doctor" in capsys.readouterr().out


def test_what_is_wrong_comes_first_and_only_that_is_explained() -> None:
    text = "\n".join(doctor_lines(LINES, 80))
    assert text.startswith("1 to change (power cap); 1 worth knowing, 0 unknown, 1 good")
    assert "! power cap: 500 W of 750 W [not the default]" in text
    assert "$ sudo amd-smi set --power-cap 750" in text
    assert "kernel docs" not in text
    assert "kernel docs" in "\n".join(doctor_lines(LINES, 80, everything=True))
    assert "\x1b" not in text


def test_fix_is_a_shell_script_that_nobody_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: pytest.fail("it ran something"))
    script = fix_lines(LINES)
    assert [line for line in script if line and not line.startswith("#")] == ["sudo amd-smi set --power-cap 750"]
    assert fix_lines(LINES[1:2])[-1] == "# Nothing."
