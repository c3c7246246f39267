"""What is being done now, and for how long: the newest message of Rung's log, drawn again every second."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator

EVERY = 1.0  # seconds between two drawings: what is timed meanwhile is not to notice


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
