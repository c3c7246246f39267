"""The command line: every command with its options, and the exit codes."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator

from reference.markdown import block, code, page, sentence, table
from rung.cli.common import TARGETS
from rung.cli.main import GROUPS, _parser
from rung.errors import EXIT_CODES

EVERYWHERE = ("help", "json", "debug")
SLURM = "in a SLURM job"
DEFAULT = re.compile(r"\s*\(default: ([^()]*)\)")

NO = {
    "climb": "a check during the climb refuted the recipe, and no rung is left in it",
    "compare": "B does not compute what A computes; or B is slower than `--fail-if-slower` allows; or, with `--fail-if-inconclusive`, the "
    "budget ended before there was a verdict",
    "diff": "a step of NEW takes longer than `--fail-if-slower` allows",
    "kernels": "a kernel spills registers",
}
EXAMPLES = {
    0: (
        "rung bench tiny-transformer --size tiny",
        "It was measured. `rung doctor` and `rung analyze` exit with 0 whatever they find.",
    ),
    1: (
        "rung compare model.py:make --base main --fail-if-slower 2%",
        "The working tree is slower than `main` by 2 % or more.",
    ),
    2: ("rung climb tiny-transfromer", "There is no target of this name: did you mean tiny-transformer?"),
    3: ("rung analyze notes.txt", "The file is no trace of a known format."),
    4: ("rung bench model.py:make", "`make` raised an exception."),
    70: ("rung COMMAND", "A traceback and a request to report it."),
    130: ("rung climb model.py:make", "You pressed Ctrl-C. The run directory is kept; `--resume` continues it."),
}


def cli() -> str:
    return page(
        "Command line",
        "Rung is one program with a command for each task. `rung COMMAND --help` prints what this page says of a command. Options that you "
        "type each time can come from a [file](configuration.md).",
        table(
            ["task", "command", "what it does"],
            [
                [task if name == next(iter(names)) else "", f"[{name}](#rung-{name})", sentence(text)]
                for task, names in GROUPS.items()
                for name, text in names.items()
            ],
        ),
        "## Targets",
        f"A `TARGET` is what a command runs: {TARGETS}. Options that the command does not know go to the target. "
        "`rung climb TARGET --help` lists them.",
        "## Options of every command",
        table(["option", "meaning"], [row[:2] for row in _rows(_command("climb"), EVERYWHERE)]),
        "With `--json` an error is a document, too. [JSON documents](documents.md) has the schemas, and [exit codes](exit-codes.md) the codes.",
        "## Options for SLURM",
        f"These commands can run in a SLURM job: {', '.join(code(name) for name in _slurm_commands())}.",
        table(["option", "meaning", "default"], _group_rows(_command("bench"), SLURM)),
        *(text for names in GROUPS.values() for name in names for text in _sections(_command(name), "##")),
    )


def exit_codes() -> str:
    return page(
        "Exit codes",
        "Each command ends with one of these codes. Code 1 is an answer, not an error: scripts and CI can act on it. With `--json`, a command "
        'that fails prints `{"kind": "error", "error": "one sentence", "exit_code": 4}`.',
        table(
            ["code", "meaning", "example", "what happened"],
            [
                [str(number), sentence(text), code(EXAMPLES[number][0]), EXAMPLES[number][1]]
                for number, text in EXIT_CODES.items()
            ],
        ),
        "## When is the answer no?",
        table(["command", "exit code 1 if"], [[code(f"rung {name}"), text] for name, text in NO.items()]),
        "All other commands exit with 0 when they have an answer, whatever it is.",
        "`rung profile -- PROGRAM` exits with 4 if the program fails. In a SLURM job the exit code is that of the command in the job.",
    )


def _command(name: str) -> argparse.ArgumentParser:
    return _parser(name)._subparsers._group_actions[0].choices[name]  # type: ignore[union-attr,index,no-any-return]


def _slurm_commands() -> list[str]:
    names = (name for group in GROUPS.values() for name in group)
    return [name for name in names if any(group.title == SLURM for group in _command(name)._action_groups)]


def _sections(parser: argparse.ArgumentParser, level: str) -> Iterator[str]:
    """A command, and each of its actions one level below."""
    yield f"{level} {parser.prog}"
    yield parser.description or ""
    positional = parser._get_positional_actions()
    yield block(" ".join([parser.prog, *(_typed(action) for action in positional), "[options]"]))
    positional = [action for action in positional if not isinstance(action, argparse._SubParsersAction)]
    if positional:
        yield table(["argument", "meaning", "default"], map(_row, positional))
    for group in parser._action_groups:
        rows = [] if group.title == SLURM else _group_rows(parser, group.title or "")
        if rows:
            if group.title not in ("options", "positional arguments"):
                yield f"*{sentence(group.title or '').rstrip('.')}:*"
            yield table(["option", "meaning", "default"], rows)
    if parser.epilog:
        yield block(parser.epilog)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for own in action.choices.values():
                yield from _sections(own, f"{level}#")


def _group_rows(parser: argparse.ArgumentParser, title: str) -> list[list[str]]:
    group = next(group for group in parser._action_groups if group.title == title)
    return [_row(action) for action in group._group_actions if action.option_strings and action.dest not in EVERYWHERE]


def _rows(parser: argparse.ArgumentParser, names: Iterable[str]) -> list[list[str]]:
    return [_row(action) for action in parser._actions if action.dest in names]


def _row(action: argparse.Action) -> list[str]:
    """How it is typed, what it means, its default. A help text that states the default says more than argparse knows."""
    text = (action.help or "") % {"default": action.default}
    stated = DEFAULT.search(text)
    default = stated[1] if stated else ""
    if not stated and action.default not in (None, False, "", (), [], argparse.SUPPRESS):
        default = str(action.default)
    return [code(_typed(action)), DEFAULT.sub("", text), default]


def _typed(action: argparse.Action) -> str:
    takes = action.metavar or ("|".join(map(str, action.choices)) if action.choices else action.dest.upper())
    if not action.option_strings:
        return f"[{takes}]" if action.nargs in ("?", "*") else str(takes)
    flags = ", ".join(action.option_strings)
    return flags if action.nargs == 0 else f"{flags} {takes}"
