"""What is being done now, and for how long: on a terminal, one line below all others."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
import unicodedata
from collections.abc import Callable, Iterator
from typing import TextIO

from rung.cli.output import raw
from rung.text import visible

EVERY = 1.0  # seconds between two drawings: what is timed meanwhile is not to notice
CLEAR = "\r\x1b[J"  # this line and what is below it
_shown: Live | None = None


class Live(logging.Handler):
    """Shows the newest message of Rung's log at the terminal's last line. budget: seconds, if there is one; below: what a second line
    says, which is there while it says anything."""

    def __init__(self, terminal: TextIO, budget: float | None = None, below: Callable[[], str] = lambda: "") -> None:
        super().__init__(logging.INFO)
        self._terminal, self._budget, self._below = terminal, budget, below
        self._text, self._began, self._since = "", time.monotonic(), time.monotonic()
        self._over = threading.Event()
        self._drawing = threading.Thread(target=self._draw_on, daemon=True)

    def emit(self, record: logging.LogRecord) -> None:
        self._text, self._since = record.getMessage(), time.monotonic()
        self._draw()

    def above(self, text: str) -> None:
        """A line that stays."""
        with self._own():
            self._terminal.write(f"{CLEAR}{visible(text)}\n")
            self._draw()

    def line(self) -> str:
        now = time.monotonic()
        spent = _clock(now - self._began) + (f" of {_clock(self._budget)}" if self._budget else "")
        for_ = now - self._since
        text = f"{spent}  {self._text}" + (f" ({for_:.0f} s)" if for_ >= 2 else "")
        return self._fitted(text)

    def _fitted(self, text: str) -> str:
        wide = os.get_terminal_size(self._terminal.fileno()).columns or 80  # 0: it was never told
        return _cut(text, wide - 1)

    def __enter__(self) -> Live:
        self._drawing.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._drawing.join()
        with contextlib.suppress(OSError):
            self._terminal.write(CLEAR)
            self._terminal.flush()

    def _draw(self) -> None:
        with self._own(), contextlib.suppress(OSError):  # a terminal that is gone is not drawn on
            if self._text and not self._over.is_set():
                below = self._below()
                second = f"\n{self._fitted(below)}\x1b[A\r" if below else ""
                self._terminal.write(f"{CLEAR}{self.line()}{second}")
            self._terminal.flush()

    def _draw_on(self) -> None:
        while not self._over.wait(EVERY):
            self._draw()

    @contextlib.contextmanager
    def _own(self) -> Iterator[None]:
        """No other thread writes meanwhile."""
        self.acquire()
        try:
            yield
        finally:
            self.release()


@contextlib.contextmanager
def live(budget: float | None = None, below: Callable[[], str] = lambda: "") -> Iterator[None]:
    """While it lasts, the line, and what `below` says under it, is there: on a terminal that can draw it, and nowhere else. Nothing but `say` may write."""
    global _shown
    if not sys.stderr.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        yield
        return
    log, before = logging.getLogger("rung"), logging.getLogger("rung").level
    try:
        with Live(raw(sys.stderr), budget, below) as _shown:
            log.addHandler(_shown)
            log.setLevel(logging.INFO)
            yield
    finally:
        if _shown:
            log.removeHandler(_shown)
        log.setLevel(before)
        _shown = None


def write(text: str) -> None:
    """A line on stderr, above the live one where there is one."""
    if _shown:
        _shown.above(text)
    else:
        print(text, file=sys.stderr, flush=True)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _cut(text: str, columns: int) -> str:
    """What of a text goes into so many columns, on one line: a target may be named in characters of two columns, or with a
    line break."""
    shown, left = "", columns
    for c in text:
        one = c if c.isprintable() else " "
        left -= 2 if unicodedata.east_asian_width(one) in "WF" else 1
        if left < 0:
            break
        shown += one
    return shown
