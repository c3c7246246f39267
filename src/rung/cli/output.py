"""The way of everything that a command prints: names in a trace or a run are a stranger's, and steer no terminal."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

from rung.text import visible


class Visible:
    """A stream that writes visible text alone, and is its `stream` in all else."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        self.stream.write(visible(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextlib.contextmanager
def visible_output() -> Iterator[None]:
    """While it lasts, stdout and stderr are Visible."""
    with (
        contextlib.redirect_stdout(_cleaned(sys.stdout)),
        contextlib.redirect_stderr(_cleaned(sys.stderr)),
    ):
        yield


def _cleaned(stream: TextIO) -> TextIO:
    return stream if isinstance(stream, Visible) else Visible(stream)  # type: ignore[return-value]


def raw(stream: TextIO) -> TextIO:
    """The stream itself: for our own colors and cursor movements, and for what a user's program prints."""
    return stream.stream if isinstance(stream, Visible) else stream


@contextlib.contextmanager
def only_answers_on_stdout() -> Iterator[None]:
    """While it lasts, all that would go to stdout goes to stderr, also what other programs and libraries write there themselves."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(raw(sys.stderr)):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def can_draw(stream: TextIO) -> bool:
    """Whether it is a terminal that moves its cursor and styles text."""
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def colored() -> bool:
    """Whether styles go to stdout: to a terminal that has them, unless the user wants none (no-color.org)."""
    return can_draw(sys.stdout) and not os.environ.get("NO_COLOR")


def write_in_any_encoding() -> None:
    """Has stdout and stderr write a question mark for what their encoding lacks, as that of `LANG=en_US.ISO-8859-1` does: an answer
    without its "×" is worth more than none."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower().replace("_", "-") not in ("utf-8", "utf8"):
            stream.reconfigure(errors="replace")


def text_width() -> int:
    """Columns for lines of text: those of the terminal, from 60 to 100; 100 where there is none."""
    return max(60, min(100, shutil.get_terminal_size((100, 24)).columns))


def show_styled(text: str) -> None:
    """Prints text with our own styles in it, in which every string of others was cleaned (report/units.py)."""
    print(text, file=raw(sys.stdout))


def write_data(text: str) -> None:
    """Writes a document for a program, as CSV: exactly, unless it goes to a terminal."""
    (sys.stdout if sys.stdout.isatty() else raw(sys.stdout)).write(text)
