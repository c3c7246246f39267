"""Thousands of damaged traces of every format: read or refused in a sentence, quickly and in little memory.

The long form: `pytest -m long tests/security`.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
RECORDED = [*(TESTS / "data").rglob("*.json.gz"), *(TESTS / "data").rglob("*.csv")]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A small file of every format that is read."""
    folder = tmp_path_factory.mktemp("formats")
    subprocess.run([sys.executable, str(TESTS / "trace/fuzz_files.py"), str(folder)], check=True, capture_output=True)
    return [str(path) for path in (*sorted(folder.iterdir()), *RECORDED)]


def run(files: list[str], cases: int, *options: str, timeout: float) -> None:
    command = [sys.executable, str(TESTS / "trace/mutations.py"), *files, "--cases", str(cases), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = re.search(r"slowest ([\d.]+) CPU-s; peak (\d+) MB", done.stdout)
    assert found, done.stdout
    assert float(found[1]) < 10
    assert int(found[2]) < 1000


def test_two_hundred_damaged_traces(files: list[str]) -> None:
    run(files, 200, timeout=120)


def test_what_is_read_of_a_damaged_trace_answers_every_analysis(files: list[str]) -> None:
    run(files, 20, "--analyze", "--seed", "1000000", timeout=120)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_twenty_thousand_damaged_traces(files: list[str]) -> None:
    run(files, 20_000, timeout=1000)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_what_is_read_of_two_thousand_damaged_traces_answers_every_analysis(files: list[str]) -> None:
    run(files, 2_000, "--analyze", "--seed", "2000000", timeout=1000)
