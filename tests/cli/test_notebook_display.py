"""What is being done, in a notebook: one display of the cell, changed in place."""

import logging
import sys
import threading
import time
import types
from typing import Any

import pytest

import rung.cli.live as display
from rung.cli.common import say
from rung.cli.live import live

log = logging.getLogger("rung.somewhere")
CELL = """
import logging, time
import rung.cli.live as display
from rung.cli.common import say
from rung.cli.live import live
display.EVERY = 0.05
with live(60, lambda: "best so far 1.50x"):
    logging.getLogger("rung.somewhere").info("timing <sdpa>")
    say("a line that stays")
    time.sleep(0.3)
say("the last")
"""


class Shown:
    """What a notebook has in front of the reader: every state of its display, the newest last."""

    def __init__(self) -> None:
        self.states: list[str] = []
        self.displays = 0
        self.threads: set[int] = set()

    def display(self, html: str, display_id: bool) -> "Shown":
        self.displays += 1
        self.update(html)
        return self

    def update(self, html: str) -> None:
        self.threads.add(threading.get_ident())
        self.states.append(html)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Shown:
    """In the place of IPython, as a kernel has it."""
    found = Shown()
    ipython: Any = types.ModuleType("IPython")
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=object())
    drawn: Any = types.ModuleType("IPython.display")
    drawn.HTML, drawn.display = str, found.display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", drawn)
    monkeypatch.setattr(display, "EVERY", 0.02)
    return found


def test_one_display_changes_in_place_and_keeps_what_was_said(shown: Shown, capsys: pytest.CaptureFixture[str]) -> None:
    with live(60, lambda: "best so far <1.50×>"):
        log.info("timing %s", "<sdpa>")
        say("a line that <stays>")
        time.sleep(0.2)
    assert shown.displays == 1
    assert len(shown.states) > 4  # drawn again while nothing is said
    assert len(shown.threads) == 2
    during, end = shown.states[-2:]
    assert "0:00 of 1:00  timing &lt;sdpa&gt;" in during
    assert "a line that &lt;stays&gt;" in during
    assert "best so far &lt;1.50×&gt;" in during
    assert "<summary>done after 0:00 of 1:00</summary>" in end
    assert "a line that &lt;stays&gt;" in end
    assert "sdpa" not in end
    assert capsys.readouterr().err == ""
    say("the last")
    assert capsys.readouterr().err == "the last\n"


def test_only_the_newest_lines_are_shown_until_it_ends_and_what_stops_it_is_said_to_have(shown: Shown) -> None:
    def fails() -> None:
        with live():
            for k in range(40):
                say(f"line {k}.")
            log.info("timing")
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        fails()
    during, end = shown.states[-2:]
    assert all("line 39." in state and "line 20." not in state for state in (during, end))
    assert "timing" in during
    assert "<p>stopped after" in end
    assert "timing" not in end


def test_a_shell_on_a_terminal_is_no_notebook(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: types.SimpleNamespace())
    with live():
        log.info("timing")
    assert shown.displays == 0


def test_a_real_kernel_has_one_output_of_it_in_the_cell() -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    display, stderr = notebook.cells[0].outputs
    assert "<summary>done after 0:00 of 1:00</summary>" in display.data["text/html"]
    assert ">a line that stays</pre>" in display.data["text/html"]
    assert stderr.text == "the last\n"
