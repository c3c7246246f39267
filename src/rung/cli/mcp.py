"""`rung mcp`: parse, serve."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import os
import signal
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from rung.cli.common import add_command
from rung.errors import UsageError

NEEDED = "rung mcp needs the package mcp, 2.0 or newer: pip install 'rung[mcp]'."
COMMAND = "rung.cli.main:command"  # what runs each tool's command, in a process of its own

EXAMPLE = """\
example, in the configuration of an editor or an agent:
  {"mcpServers": {"rung": {"command": "rung", "args": ["mcp", "--root", "/home/me/project"]}}}

more:
  rung mcp                            serve the current folder on stdin and stdout
  rung mcp --root ~/project           read and write nothing outside of this folder
  rung mcp --read-only                only tools that run no code of yours and write no files

An MCP client, such as an editor or an agent, starts this command. The tools are doctor, bench,
compare, analyze, diff, query, estimate, profile and climb (docs/how-to/agents.md).
"""


def add(commands: Any, help_text: str) -> None:
    parser = add_command(commands, "mcp", help_text, EXAMPLE, run)
    parser.add_argument(
        "--root",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="confine agents to this folder (default: the current one)",
    )
    parser.add_argument("--read-only", action="store_true", help="offer only tools that run no code and write no files")


def run(parsed: argparse.Namespace) -> int:
    if parsed.json:
        raise UsageError("rung mcp speaks its protocol on stdout; leave --json out.")
    need_mcp()
    import anyio

    from rung.agents.jobs import Jobs
    from rung.agents.root import Root
    from rung.agents.server import Tools, serve
    from rung.runs import temporary_folder

    root = Root.of(parsed.root.expanduser())
    with temporary_folder("rung-mcp-") as folder:
        jobs = Jobs(COMMAND, root.folder, folder)
        with ended(jobs):
            anyio.run(serve, Tools(root, jobs, flags, parsed.read_only))
    return 0


@contextlib.contextmanager
def ended(jobs: Any) -> Iterator[None]:
    """Whatever ends the server ends its jobs: the client that goes, and a signal."""

    def stop(*_: object) -> None:
        jobs.end()
        os._exit(128 + signal.SIGTERM)  # a thread waits for stdin, which no signal interrupts

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    try:
        yield
    finally:
        jobs.end()


def need_mcp() -> None:
    """Raises UsageError where the SDK is missing or too old."""
    try:
        found = importlib.util.find_spec("mcp.server.mcpserver")
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise UsageError(NEEDED)


@lru_cache
def flags(command: str) -> frozenset[str]:
    """The options of a command's own, as `--name`."""
    commands = argparse.ArgumentParser().add_subparsers()
    importlib.import_module(f"rung.cli.{command}").add(commands, "about it")
    return frozenset(commands.choices[command]._option_string_actions)
