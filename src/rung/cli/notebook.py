"""What is being done, in a notebook: one display below the cell, changed in place; what was said is kept in it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from rung.cli.doing import Doing

FEW = 12  # lines that are shown while it goes on


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
