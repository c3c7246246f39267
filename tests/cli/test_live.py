"""The line that says what is being done: seen on a real terminal, and nowhere else."""

import fcntl
import json
import logging
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rung.cli import live
from rung.cli.common import say
from rung.cli.live import CLEAR
from rung.records.progress import Warned
from rung.report.progress import progress_lines

COMMAND = (sys.executable, "-c", "from rung.cli.main import command; command()")
log = logging.getLogger("rung.somewhere")


@contextmanager
def terminal(columns: int = 80) -> Iterator[tuple[int, Callable[[], str]]]:
    """A terminal's file descriptor, and what was written to it."""
    ours, theirs = pty.openpty()
    os.set_inheritable(theirs, True)
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    said: list[bytes] = []

    def read() -> None:
        while True:
            try:
                some = os.read(ours, 4096)
            except OSError:  # nobody has it open any more
                return
            if not some:
                return
            said.append(some)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    closed = False

    def text() -> str:
        nonlocal closed
        if not closed:
            closed = True
            os.close(theirs)
            reader.join(10)
        return b"".join(said).decode()

    try:
        yield theirs, text
    finally:
        text()
        os.close(ours)


def shown(text: str) -> str:
    """What a reader of the terminal has in front of them at the end."""
    lines = [""]
    for part in text.replace("\r\n", "\n").split("\n"):
        lines[-1] += part
        lines.append("")
    return "\n".join(line.rpartition(CLEAR)[2] for line in lines).strip()


def test_the_line_is_below_what_is_said_and_gone_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(live, "EVERY", 0.05)
    with terminal(40) as (descriptor, text):
        with os.fdopen(os.dup(descriptor), "w") as stderr:
            monkeypatch.setattr(sys, "stderr", stderr)
            with live.live(budget=125):
                log.info("restart %d: timing", 1)
                say("a line that stays")
                time.sleep(0.2)
                log.info("verifying: %s", "x" * 100)
            say("the last")
        said = text()
    assert "0:00 of 2:05  restart 1: timing" in said
    assert shown(said) == "a line that stays\nthe last"
    assert said.count("restart 1: timing") > 2  # drawn again below what was said, and while nothing is
    widest = max(len(part) for line in said.split("\n") for part in line.split(CLEAR))
    assert widest == 39  # of 40 columns, or a terminal would go on to its next line
    assert "0:00 of 2:05  verifying: xxx" in said
    assert not log.isEnabledFor(logging.INFO)


def test_a_terminal_that_was_never_told_its_width_shows_whole_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    with terminal(0) as (descriptor, text):
        with os.fdopen(os.dup(descriptor), "w") as stderr:
            monkeypatch.setattr(sys, "stderr", stderr)
            with live.live():
                log.info("warming up")
        assert "0:00  warming up\r" in text()


def test_lines_of_a_climb_fit_the_terminal_and_stay_whole_in_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    event = Warned("the step time did not settle during warm-up: the machine or the workload drifts.")
    with terminal(40) as (descriptor, _), os.fdopen(os.dup(descriptor), "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        broken = progress_lines(event, live.line_width())
    assert broken == [
        "  note: the step time did not settle",
        "    during warm-up: the machine or the",
        "    workload drifts.",
    ]
    with (tmp_path / "log").open("w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        assert progress_lines(event, live.line_width()) == [f"  note: {event.text}"]


def screen(text: str) -> list[str]:
    """The lines of a terminal that is high enough, by the few codes that are used."""
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[[JA]|[^\x1b]", text.replace("\r\n", "\n")):
        if part == "\r":
            column = 0
        elif part == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif part == "\x1b[J":
            lines = [*lines[:row], lines[row][:column]]
        elif part == "\x1b[A":
            row -= 1
        else:
            lines[row] = f"{lines[row]:<{column}}"[:column] + part + lines[row][column + 1 :]
            column += 1
    return lines


def test_a_second_line_is_kept_below_the_first_and_nothing_is_left_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(live, "EVERY", 0.05)
    below = ["", "best so far 1.50× verified (3 s ago)"]
    with terminal(60) as (descriptor, text):
        with os.fdopen(os.dup(descriptor), "w") as stderr:
            monkeypatch.setattr(sys, "stderr", stderr)
            with live.live(None, lambda: below[0]):
                log.info("timing sdpa")
                below.pop(0)
                time.sleep(0.2)
                say("a line that stays")
                time.sleep(0.2)
            say("the last")
        said = text()
    drawn = said[: said.rindex(CLEAR)]
    assert screen(drawn) == ["a line that stays", "0:00  timing sdpa", below[0]]
    assert screen(said)[:3] == ["a line that stays", "the last", ""]


@pytest.mark.parametrize(
    ("message", "drawn"),
    [
        ("loading 型" + "号" * 40, "0:00  loading 型" + "号" * 11),  # a character takes two columns of the 39
        ("loading new\nline\x1b.py", "0:00  loading new line .py"),
    ],
)
def test_what_is_wide_or_breaks_a_line_stays_on_one(message: str, drawn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    with terminal(40) as (descriptor, text):
        with os.fdopen(os.dup(descriptor), "w", encoding="utf-8") as stderr:
            monkeypatch.setattr(sys, "stderr", stderr)
            with live.live():
                log.info(message)
        assert f"{CLEAR}{drawn}{CLEAR}" in text()


@pytest.mark.parametrize("kind", ["dumb", ""])
def test_a_terminal_that_cannot_draw_it_has_plain_lines(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setenv("TERM", kind or "dumb")
    if not kind:
        monkeypatch.delenv("TERM")
    with terminal() as (descriptor, text):
        with os.fdopen(os.dup(descriptor), "w") as stderr:
            monkeypatch.setattr(sys, "stderr", stderr)
            with live.live():
                log.info("timing")
                say("a line")
        assert text() == "a line\r\n"


@pytest.fixture
def nap(tmp_path: Path) -> str:
    """A function that needs no torch."""
    (tmp_path / "naps.py").write_text("import time\n\n\ndef nap():\n    time.sleep(0.002)\n")
    return f"{tmp_path / 'naps.py'}:nap"


def test_a_command_shows_its_phases_and_its_answer_is_whole(nap: str) -> None:
    """Nothing of the line is left, and stdout never has any of it."""
    with terminal() as (descriptor, text):
        done = subprocess.run(
            [*COMMAND, "bench", nap, "--call", "--time", "1", "--json"],
            stdout=subprocess.PIPE, stderr=descriptor, env={**os.environ, "TERM": "xterm"}, timeout=120, check=False,
        )  # fmt: skip
        said = text()
    assert done.returncode == 0
    assert json.loads(done.stdout)["status"] == "complete"
    assert all(phase in said for phase in (f"loading {nap}"[:40], "warming up", "timing: ")), said
    assert shown(said) == f"measuring {nap} ..."


def test_without_a_terminal_nothing_of_it_is_written(nap: str) -> None:
    done = subprocess.run(
        [*COMMAND, "bench", nap, "--call", "--preset", "quick", "--json"],
        capture_output=True, text=True, env={**os.environ, "TERM": "xterm"}, timeout=120, check=False,
    )  # fmt: skip
    assert done.stderr == f"measuring {nap} ...\n"
