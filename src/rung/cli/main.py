"""`rung`: finds the command and runs it. Commands are imported when they are called, so that help is quick. Defaults of options come from the
user's files (`rung.config`); here alone they meet argparse, and what is typed still wins."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import sys
import traceback
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

from rung import __version__
from rung.cli import completion
from rung.cli.output import visible_output, write_in_any_encoding
from rung.config import TABLES, Setting, settings_of
from rung.errors import EXIT_CODES, FULL, NO_TORCH, InputError, RungError, UsageError, first_line
from rung.text import visible

# By what a user wants to do. `rung --help` and docs/reference/cli.md have this order.
GROUPS = {
    "make a model faster": {
        "climb": "make a workload faster, one verified step at a time (the main command)",
        "apply": "what does a recipe change, and does it fit my model?",
        "rungs": "what can a climb try, and what does each rung need?",
        "report": "show a run again, or compare several runs",
    },
    "measure": {
        "bench": "how long does a workload take, and how certain is that?",
        "compare": "is B faster than A, and does it compute the same?",
    },
    "find out where the time goes": {
        "profile": "record a profile: torch.profiler, rocprofv3, rocprof-compute, rocprof-sys, Nsight",
        "analyze": "where did the time of a recorded trace go?",
        "diff": "what changed between two traces?",
        "query": "query a recorded trace in SQL",
        "replay": "write a script that times one operator of a trace, with its shapes",
        "watch": "how is my training job doing: step times, stragglers, throttled GPUs?",
    },
    "plan for a GPU that you don't have": {
        "estimate": "how much work, memory and time does a model need at least?",
        "kernels": "what does a Triton kernel use on a GPU: registers, spills, occupancy?",
    },
    "look after machine and history": {
        "doctor": "check drivers, clocks and environment",
        "runs": "what was climbed and measured before, and how did it change?",
        "serve": "show the history of all runs in a browser",
        "jobs": "list, follow or cancel the SLURM jobs that Rung submitted",
    },
    "connect": {
        "mcp": "offer these commands to AI agents, over the Model Context Protocol",
        "completion": "complete commands and options in your shell",
    },
}
COMMANDS = {name: text for group in GROUPS.values() for name, text in group.items()}


BUG = 70  # Python's own 1 would say "worse" to who only reads the code

# They end with their answer: no worker, no file and no torch is left to close.
ONLY_TABLES = ("analyze", "diff", "query")

_EXIT_CODES = "\n".join(f"  {code:<3}  {text}" for code, text in EXIT_CODES.items())
EPILOG = f"""\
start here:
  rung climb tiny-transformer                 make the built-in workload faster
  rung climb model.py:make --numerics bf16    make your own faster; bfloat16 is allowed
  rung bench model.py:make --recipe FILE      measure the result again, in a fresh process

exit codes:
{_EXIT_CODES}
"""


class Parser(argparse.ArgumentParser):
    """Refuses as the commands do, so that with --json what argparse finds wrong is a document, too."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message.removeprefix('argument ')}; see `{self.prog} --help`.")


def main(argv: Sequence[str] | None = None) -> int:
    """The entry point; returns the exit code."""
    with visible_output():
        return _main(argv)


def _main(argv: Sequence[str] | None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    called, words, program = _split(arguments)
    try:
        if called is not None and called not in COMMANDS:
            near = get_close_matches(called, COMMANDS, 1)
            hint = f"did you mean `rung {near[0]}`?" if near else "`rung --help` lists them."
            raise UsageError(f"there is no command {called!r}: {hint}")
        parser = _parser(called, configured=not {"-h", "--help"} & set(words))
        if not arguments:
            parser.print_help()
            return 0
        try:
            parsed, rest = parser.parse_known_args(words)
        except SystemExit:  # --help or --version, which is printed
            return 0
        parsed.words, parsed.rest, parsed.program = words, rest, program
        return int(parsed.run(parsed))
    except RungError as error:
        # What the workload raised in its own process; what was refused says where and what by itself.
        theirs = getattr(error, "traceback", "") if getattr(error, "kind", "") != "refused" else ""
        if "--debug" in words:
            print(theirs or traceback.format_exc(), file=sys.stderr, end="")
        more = [
            *(["--debug shows the traceback"] if theirs and "--debug" not in words else []),
            *([f"logs: {error.logs}"] if error.logs else []),
        ]
        _say(f"rung: {error}" + (f" ({'; '.join(more)})" if more else ""))
        _document(str(error), error.exit_code, "--json" in words and not error.told)
        return error.exit_code
    except OSError as error:
        if error.filename is None:  # stdout itself, which is no file of ours
            raise
        if "--debug" in words:
            traceback.print_exc()
        text = f"{error.filename}: {error.strerror}; check the free space and the permissions."
        _say(f"rung: {text}")
        _document(text, InputError.exit_code, "--json" in words and not getattr(error, "told", False))
        return InputError.exit_code
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        if "--debug" in words:
            traceback.print_exc()
        _say(f"rung: {NO_TORCH}")
        _document(NO_TORCH, UsageError.exit_code, "--json" in words and not getattr(error, "told", False))
        return UsageError.exit_code
    except MemoryError as error:
        text = "there is not enough memory: use a smaller input, or a machine with more memory."
        if "--debug" in words:
            traceback.print_exc()
        _say(f"rung: {text}")
        _document(text, InputError.exit_code, "--json" in words and not getattr(error, "told", False))
        return InputError.exit_code
    except KeyboardInterrupt as stop:
        _say("rung: stopped.")
        _document("stopped by Ctrl-C or a kill", 130, "--json" in words and not getattr(stop, "told", False))
        return 130


def _split(arguments: list[str]) -> tuple[str | None, list[str], tuple[str, ...]]:
    """The command's name, the words that are ours, and those of a program: in `rung profile [options] -- COMMAND ...` what
    follows belongs to the program, whatever it looks like."""
    called = next((a for a in arguments if not a.startswith("-")), None)
    if called is not None and not {"-h", "--help", "--version"} & set(arguments[: arguments.index(called)]):
        # Options before the command are the command's, as `rung --json analyze trace.json` has them.
        before = arguments.index(called)
        end = arguments.index("--", before) if "--" in arguments[before:] else len(arguments)
        arguments = [*arguments[before:end], *arguments[:before], *arguments[end:]]
    cut = arguments.index("--") if called == "profile" and "--" in arguments else len(arguments)
    return called, arguments[:cut], tuple(arguments[cut + 1 :])


def _say(text: str) -> None:
    from rung.cli.common import say

    say(text)


def _document(error: str, exit_code: int, wanted: bool) -> None:
    if wanted:
        from rung.records.job import Refused
        from rung.records.record import plain

        print(json.dumps(plain(Refused(error=error, exit_code=exit_code)), indent=1))


def _parser(called: str | None, configured: bool = False) -> argparse.ArgumentParser:
    """The whole program's parser, with the options of the command that is called. configured: with defaults from the user's files."""
    parser = Parser(
        prog="rung",
        usage="rung [-h] [--version] COMMAND ...",
        description="Make a PyTorch workload faster on AMD and NVIDIA GPUs, and verify every step.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # `--res 64` is the target's option, and no short form of ours
    )
    parser.add_argument("--version", action="version", version=f"rung {__version__}")
    # Without `help`, argparse does not list them once more, one by one and without their groups.
    commands = parser.add_subparsers(
        title="commands",
        description=_listed(),
        help=argparse.SUPPRESS,
        prog="rung",
        dest="command",
        metavar="COMMAND",
        required=True,
    )
    # Only the command that is called is imported; the others are names and one line of help.
    for name, help_text in COMMANDS.items():
        if name == called:
            module = importlib.import_module(f"rung.cli.{name}")
            module.add(commands, help_text)
            if configured:
                set_defaults(commands.choices[name], name)
        else:
            commands.add_parser(name, help=help_text, add_help=False)
    return parser


def _listed() -> str:
    """The commands, grouped by what they are for."""
    width = max(map(len, COMMANDS))
    blocks = (
        [f"{group}:", *(f"  {name:<{width}}  {text}" for name, text in names.items())]
        for group, names in GROUPS.items()
    )
    return "\n".join("\n".join(lines) for lines in blocks)


def command() -> None:
    """The program `rung`: main, and out.

    Python would give back its modules and a trace's tables piece by piece, which is a tenth of all that `rung analyze` does
    on a small one; the system takes them at once.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, as by `>&-`: nobody wants to read it
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    write_in_any_encoding()
    if completion.ASKED in os.environ:
        completion.complete(_parser)
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read the answer has gone
        code = 0
        _forget_output()
    except Exception as error:
        if isinstance(error, OSError) and error.errno in FULL:
            code = InputError.exit_code
            _forget_output()
            print(
                f"rung: the answer could not be written: {error.strerror}; free some space and run the command again.",
                file=sys.stderr,
            )
        else:
            code = BUG
            print(visible(traceback.format_exc()), file=sys.stderr, end="")
            print(
                "rung: this is a bug in Rung; the lines above show where. Please report it with them.", file=sys.stderr
            )
            text = f"a bug in Rung: {type(error).__name__}: {first_line(error)}"
            try:
                _document(text, code, "--json" in _split(sys.argv[1:])[1] and not getattr(error, "told", False))
                sys.stdout.flush()
            except OSError:  # the exit code says it alone
                _forget_output()
    if sys.argv[1:] and sys.argv[1] in ONLY_TABLES:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _forget_output() -> None:
    """What is left to be written goes nowhere, so that the end of the process does not try once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def set_defaults(parser: argparse.ArgumentParser, command: str) -> None:
    """Has a command's parser take what the files set for it. Raises UsageError for a value that the option does not take."""
    if command not in TABLES:  # whose files are not read, either
        return
    options = {flag: action for action in parser._actions for flag in action.option_strings}
    for key, setting in settings_of(command).items():
        action = options[f"--{key}"]
        parser.set_defaults(**{action.dest: _value(action, setting)})


def _value(action: argparse.Action, setting: Setting) -> Any:
    """As if it had been typed."""
    if isinstance(setting.value, bool):
        return setting.value
    text = str(setting.value)
    convert = action.type if callable(action.type) else str
    try:
        value = convert(text)
    except (argparse.ArgumentTypeError, ValueError) as error:
        raise UsageError(f"{setting.where}: {setting.key}: {error}.") from None
    if action.choices is not None and value not in action.choices:
        known = ", ".join(map(str, action.choices))
        raise UsageError(f"{setting.where}: {setting.key} must be one of {known}, and is {text!r}.")
    return value


if __name__ == "__main__":
    command()
