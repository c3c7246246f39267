"""`rung completion`: what has a shell complete Rung's commands and options."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

from rung.cli.common import add_command

ASKED = "_ARGCOMPLETE"  # set by the shell that asks what a line may go on with
EXAMPLE = """\
example:
  $ rung completion fish
  ...
  complete --command rung -f -a '(__fish_rung_complete)'

more, for this session (put the line into your shell's start-up file for all sessions):
  eval "$(rung completion bash)"
  eval "$(rung completion zsh)"
  rung completion fish | source
"""


def add(commands: Any, help_text: str) -> None:
    parser = add_command(commands, "completion", help_text, EXAMPLE, run)
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="your shell")


def run(parsed: argparse.Namespace) -> int:
    from argcomplete.shell_integration import shellcode

    print(shellcode(["rung"], shell=parsed.shell))
    return 0


def complete(parser_of: Callable[[str | None], argparse.ArgumentParser]) -> None:
    """Answers the shell, and ends the process. parser_of: the program's parser, with the options of one command."""
    import argcomplete

    before = os.environ.get("COMP_LINE", "")[: int(os.environ.get("COMP_POINT", "0"))]
    words = [word for word in before.split(" ")[1:-1] if word and not word.startswith("-")]
    argcomplete.autocomplete(parser_of(words[0] if words else None), always_complete_options="long")
