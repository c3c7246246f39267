"""What several commands share: a target with its own options, and where runs are kept."""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rung.errors import UsageError

ROOT = Path(".rung")


def add_command(commands: Any, name: str, help_text: str, example: str) -> argparse.ArgumentParser:
    """A command's parser, with an example below its help and the options that all commands have."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=help_text,
        description=help_text[0].upper() + help_text[1:] + ".",
        epilog=example,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
    )
    parser.add_argument("-h", "--help", action="store_true", help="show this help (after a TARGET: its options, too)")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout, everything else on stderr")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


def show_help(parser: argparse.ArgumentParser, target: str | None) -> int:
    """The command's help, followed by the target's own options where one was given."""
    parser.print_help()
    if target:
        from rung.workload.load import parameters

        print(f"\noptions of {target}:")
        for name, parameter in parameters(target).items():
            default = "" if parameter.default in (inspect.Parameter.empty, None) else f" (default {parameter.default})"
            kind = str(parameter.annotation).removesuffix(" | None")
            print(f"  --{name.replace('_', '-')}  {kind}{default}")
    return 0


def target_options(rest: Sequence[str]) -> dict[str, str]:
    """`--name value`, `--name=value` and `--flag` that no command knows: they belong to the target."""
    options: dict[str, str] = {}
    words = list(rest)
    while words:
        word = words.pop(0)
        if not word.startswith("--") or word == "--":
            raise UsageError(f"unexpected argument {word!r}; options of the target are given as --name VALUE.")
        name, equals, value = word[2:].partition("=")
        if not equals:
            value = words.pop(0) if words and not words[0].startswith("--") else "true"
        options[name] = value
    return options


def share(text: str) -> float:
    """`2%` or `0.02`."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no share; write 2% or 0.02") from None
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must lie between 0 and 100%")
    return value


def no_rest(rest: Sequence[str]) -> None:
    if rest:
        raise UsageError(f"unexpected argument {rest[0]!r}; `--help` shows what the command takes.")


def need_torch() -> None:
    """One sentence instead of an import error, where torch is missing."""
    import importlib.util

    if importlib.util.find_spec("torch") is None:
        raise UsageError(
            "this needs PyTorch, which is not installed: install your ROCm or CUDA build, or `pip install torch==2.13.0` "
            "for this machine."
        )


def say(text: str = "") -> None:
    """A line of progress; stdout is kept for the answer."""
    print(text, file=sys.stderr, flush=True)
