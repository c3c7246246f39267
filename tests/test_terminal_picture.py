"""The picture of a terminal that benchmarks/climb/terminal_picture.py draws from a recorded command."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "climb" / "terminal_picture.py"
# As Rung writes it: a progress line of two rows is drawn again over itself, and erased for a line that stays.
PROGRESS = "\r\x1b[J0:01 loading\r\nno recipe yet\x1b[A\r"
RECORDED = f"""Script started on 2026-01-01 00:00:00+00:00 [COMMAND="stty cols 20; python3 -m rung climb m.py:make --budget 9"]\r
{PROGRESS}{PROGRESS}\r\x1b[Jone\r
{PROGRESS}\r\x1b[J  two & three, which is a longer one\r
\x1b[1;32m2.00×\x1b[0m done\r
\r

Script done on 2026-01-01 00:00:09+00:00 [COMMAND_EXIT_CODE="0"]
"""


def draw(tmp_path: Path, recorded: str, *options: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "typescript").write_bytes(recorded.encode())
    words = [sys.executable, SCRIPT, "typescript", "--columns", "20", *options, "--out", "picture.svg"]
    return subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)


def texts(tmp_path: Path) -> list[tuple[str, str | None]]:
    root = ET.parse(tmp_path / "picture.svg").getroot()
    return [(element.text or "", element.get("class")) for element in root.iter("{http://www.w3.org/2000/svg}text")]


def test_what_was_erased_is_gone_and_what_stays_is_wrapped_in_its_colours(tmp_path: Path) -> None:
    assert draw(tmp_path, RECORDED).returncode == 0
    assert texts(tmp_path) == [
        ("$ rung climb m.py:make --budget 9", "bold"),
        ("one", None),
        ("two & three, which", None),
        ("is a longer one", None),
        ("2.00×", "bold green"),
        ("done", None),
    ]


def test_a_mark_stands_for_rows_that_are_left_out(tmp_path: Path) -> None:
    assert draw(tmp_path, RECORDED, "--rows", "1-1,4-4").returncode == 0
    assert [text for text, _ in texts(tmp_path)][1:] == ["one", "⋮", "2.00×", "done"]


def test_a_sequence_that_it_does_not_know_ends_it_in_a_sentence(tmp_path: Path) -> None:
    done = draw(tmp_path, RECORDED.replace("\x1b[A", "\x1b[3;4H"))
    assert done.returncode == 2
    assert "not known here" in done.stderr.splitlines()[-1]
    assert not (tmp_path / "picture.svg").exists()
