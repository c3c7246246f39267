"""What a terminal is shown: colors where they are wanted, and an answer in whatever encoding it has."""

import os
import pty
import subprocess
import sys

import pytest

RUNG = [sys.executable, "-m", "rung"]
ESTIMATE = ["estimate", "--hidden", "1024", "--layers", "1", "--heads", "1"]


def on_terminal(words: list[str], **variables: str) -> str:
    """What a terminal gets."""
    ours, theirs = pty.openpty()
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TERM")}
    with subprocess.Popen([*RUNG, *words], stdout=theirs, env=kept | variables) as process:
        os.close(theirs)
        said = b""
        while True:
            try:
                piece = os.read(ours, 1 << 16)
            except OSError:  # Linux says so that nobody writes any longer
                break
            if not piece:
                break
            said += piece
    os.close(ours)
    assert process.returncode == 0
    return said.decode()


@pytest.mark.parametrize(
    ("variables", "colors"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "xterm", "NO_COLOR": ""}, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
    ],
)
def test_a_terminal_gets_colors_unless_it_or_the_user_has_none(variables: dict[str, str], colors: bool) -> None:
    said = on_terminal(["rungs"], **variables)
    assert "compile" in said
    assert ("\x1b[" in said) == colors


def test_an_answer_is_printed_in_every_encoding() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run([*RUNG, *ESTIMATE], capture_output=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert b"parameters" in done.stdout
    done = subprocess.run([*RUNG, "bench", "--help"], capture_output=True, env=environment)
    assert done.returncode == 0, done.stderr
