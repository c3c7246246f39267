"""`rung serve`: parse, serve."""

from __future__ import annotations

import argparse
import contextlib
import os
from typing import Any

from rung.cli.common import add_command, say, stop_when_asked
from rung.cli.runs import STORE
from rung.errors import UsageError

HOST, PORT = "127.0.0.1", 8642

EXAMPLE = """\
example:
  $ rung serve
  http://127.0.0.1:8642/  (Ctrl-C ends it)

more:
  rung serve --port 0 --open          choose a free port, and open the page in your browser
  rung serve --host 0.0.0.0           let other machines in; the printed address has a token

To see another machine's history without opening it to the network, type
`ssh -L 8642:localhost:8642 MACHINE`. docs/internals/history.md says more.
"""


def add(commands: Any, help_text: str) -> None:
    parser = add_command(commands, "serve", help_text, EXAMPLE, run)
    parser.add_argument("--host", default=HOST, metavar="ADDRESS", help=f"listen on this address (default: {HOST}, which only this machine can reach)")  # fmt: skip
    parser.add_argument("--port", type=port, default=PORT, metavar="N", help=f"listen on this port; 0 chooses a free one (default: {PORT})")  # fmt: skip
    parser.add_argument("--token", nargs="?", const="", metavar="TOKEN",
                        help="require a token; without TOKEN a random one. With --host there is always a token")  # fmt: skip
    parser.add_argument("--store", metavar="URL", help=STORE)
    parser.add_argument("--open", action="store_true", help="open the page in your browser, if there is a display")


def port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) < 65536):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: write a number from 0 to 65535")
    return int(text)


def run(parsed: argparse.Namespace) -> int:
    if parsed.json:
        raise UsageError("rung serve answers browsers; leave --json out. `rung runs list --json` prints the history.")
    from rung.runs.history import open_history
    from rung.serve.door import Door
    from rung.serve.pages import Pages
    from rung.serve.server import Server

    store = open_history(parsed.store, say)
    if not store.entries(most=1):  # what is wrong with the file is said now, and not on a page
        say(f"nothing in {store.name} yet; `rung bench`, `compare`, `climb` and `profile` add to it.")
    stop_when_asked()
    with contextlib.suppress(KeyboardInterrupt):
        with Server(parsed.host, parsed.port, Door.of(parsed.host, parsed.token), Pages(store)) as server:
            print(f"{server.url}  (Ctrl-C ends it)", flush=True)
            if parsed.open:
                open_page(server.url)
            server.serve_forever()
    return 0


def open_page(url: str) -> None:
    """A browser of the terminal would take it over, so there is none without a display."""
    import webbrowser

    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        say("there is no display to open it on: open the address above where you have one.")
    elif not webbrowser.open(url):
        say("no browser was found: open the address above yourself.")
