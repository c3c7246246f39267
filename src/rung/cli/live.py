"""What is being done now, while it lasts: on a terminal, one line below all others; in a notebook, a display that changes in place."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TextIO

from rung.cli.output import can_draw, raw
from rung.text import visible

EVERY = 1.0  # seconds between two drawings: what is timed meanwhile is not to notice
CLEAR = "\r\x1b[J"  # this line and what is below it
FEW = 12  # lines that are shown of a cell while it goes on
_shown: Doing | None = None


class Doing(logging.Handler):
    """While it is entered, it draws. budget: seconds, if there is one; below: what a second line says, which is there while it says
    anything."""

    def __init__(self, budget: float | None = None, below: Callable[[], str] = lambda: "") -> None:
        super().__init__(logging.INFO)
        self.below = below
        self._budget = budget
        self._text, self._began, self._since = "", time.monotonic(), time.monotonic()
        self._over = threading.Event()
        self._drawing = threading.Thread(target=self._draw_on, daemon=True)

    def above(self, text: str) -> None:
        """Shows a line that stays."""
        raise NotImplementedError

    def draw(self) -> None:
        """Shows what is being done. Called by several threads, one at a time."""
        raise NotImplementedError

    def ended(self, stopped: bool) -> None:
        """Takes away what does not stay. stopped: by an exception."""
        raise NotImplementedError

    def emit(self, record: logging.LogRecord) -> None:
        self._text, self._since = record.getMessage(), time.monotonic()
        self._draw()

    def line(self) -> str:
        """What is being done; empty where nothing was told yet."""
        for_ = time.monotonic() - self._since
        return self._text and f"{self.spent()}  {self._text}" + (f" ({for_:.0f} s)" if for_ >= 2 else "")

    def spent(self) -> str:
        """Such as "1:05 of 10:00"."""
        return _clock(time.monotonic() - self._began) + (f" of {_clock(self._budget)}" if self._budget else "")

    def __enter__(self) -> Doing:
        self._drawing.start()
        return self

    def __exit__(self, kind: object, *exc: object) -> None:
        self._over.set()
        self._drawing.join()
        with self.alone():
            self.ended(kind is not None)

    def _draw(self) -> None:
        with self.alone():
            if not self._over.is_set():
                self.draw()

    def _draw_on(self) -> None:
        while not self._over.wait(EVERY):
            self._draw()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """No other thread draws meanwhile."""
        self.acquire()
        try:
            yield
        finally:
            self.release()


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class Live(Doing):
    """The last line of a terminal."""

    def __init__(self, terminal: TextIO, budget: float | None = None, below: Callable[[], str] = lambda: "") -> None:
        super().__init__(budget, below)
        self._terminal = terminal

    def above(self, text: str) -> None:
        with self.alone():
            self._terminal.write(f"{CLEAR}{visible(text)}\n")
            self.draw()

    def draw(self) -> None:
        with contextlib.suppress(OSError):  # a terminal that is gone is not drawn on
            if line := self.line():
                below = self.below()
                second = f"\n{self._fitted(below)}\x1b[A\r" if below else ""
                self._terminal.write(f"{CLEAR}{self._fitted(line)}{second}")
            self._terminal.flush()

    def ended(self, stopped: bool) -> None:
        with contextlib.suppress(OSError):
            self._terminal.write(CLEAR)
            self._terminal.flush()

    def _fitted(self, text: str) -> str:
        return _cut(text, _columns(self._terminal) - 1)


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook, which draws HTML. A shell of IPython on a terminal is none."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return getattr(shell, "kernel", None) is not None


class Cell(Doing):
    """A display of the cell that runs."""

    def __init__(self, budget: float | None = None, below: Callable[[], str] = lambda: "") -> None:
        super().__init__(budget, below)
        self._lines: list[str] = []
        self._display: Any = None

    def above(self, text: str) -> None:
        with self.alone():
            self._lines.append(text)
            self.draw()

    def draw(self) -> None:
        self._show(self.line(), self._lines[-FEW:], self.below())

    def ended(self, stopped: bool) -> None:
        if stopped:  # the last lines say why, and how to go on
            self._show(f"stopped after {self.spent()}", self._lines[-FEW:])
        else:
            self._show(f"done after {self.spent()}", self._lines, folded=True)

    def _show(self, now: str, lines: Sequence[str], below: str = "", folded: bool = False) -> None:
        from IPython.display import HTML, display  # what runs in a kernel has it

        from rung.report.notebook import progress

        html = progress(now, lines, below, folded)
        if self._display is None:
            self._display = display(HTML(html), display_id=True)
        else:
            self._display.update(HTML(html))


@contextlib.contextmanager
def live(budget: float | None = None, below: Callable[[], str] = lambda: "") -> Iterator[None]:
    """While it lasts, the line, and what `below` says under it, is there: in a notebook, on a terminal that can draw it, and nowhere else.
    Nothing but `say` may write."""
    global _shown
    if in_notebook():
        surface: Doing = Cell(budget, below)
    elif can_draw(sys.stderr):
        surface = Live(raw(sys.stderr), budget, below)
    else:
        yield
        return
    log, before = logging.getLogger("rung"), logging.getLogger("rung").level
    try:
        with surface as _shown:
            log.addHandler(_shown)
            log.setLevel(logging.INFO)
            yield
    finally:
        if _shown:
            log.removeHandler(_shown)
        log.setLevel(before)
        _shown = None


def line_width() -> int | None:
    """The columns of the terminal that `write` shows a line on; None where it shows it in a notebook or writes it to a file."""
    return _columns(sys.stderr) if sys.stderr.isatty() and not in_notebook() else None


def _columns(terminal: TextIO) -> int:
    return os.get_terminal_size(terminal.fileno()).columns or 80  # 0: it was never told


def write(text: str) -> None:
    """A line on stderr, above the live one where there is one; in a notebook, of its display."""
    if _shown:
        _shown.above(text)
    else:
        print(text, file=sys.stderr, flush=True)


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
