"""`rung`: finds the command and runs it. Commands are imported when they are called, so that help is quick. Defaults of options come from the
user's files (`rung.config`); here alone they meet argparse, and what is typed still wins."""

from __future__ import annotations

import argparse
import contextlib
import errno
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
from rung.cli.output import visible_output
from rung.config import TABLES, Setting, settings_of
from rung.errors import NO_TORCH, InputError, RungError, UsageError, first_line
from rung.text import visible

COMMANDS = {
    "climb": "make a workload faster, step by step, and prove it (the main job)",
    "apply": "what does a recipe change, and was it made for this?",
    "bench": "how long does a workload take, and how sure are we?",
    "compare": "is B faster than A, and does it compute the same?",
    "profile": "record what happens: torch.profiler, rocprofv3, rocprof-compute, rocprof-sys, Nsight",
    "analyze": "where did the time of a recorded trace go?",
    "diff": "what changed between two traces?",
    "query": "ask a recorded trace in SQL",
    "estimate": "what does a model cost by its configuration: work, memory, time at the roof?",
    "replay": "write a script that times one operator of a trace, with its shapes",
    "kernels": "Rung's Triton kernels, and what any Triton kernel takes of a GPU that need not be here",
    "doctor": "is this machine set up to be fast, and to measure honestly?",
    "report": "show a run again, or several side by side: on the terminal, and as a page",
    "watch": "how does a training job stand, while it runs: step times, stragglers, throttled GPUs?",
    "jobs": "the jobs of SLURM that were submitted from here: list, follow, cancel",
    "runs": "list what was climbed before; the history of all runs, and its trends",
    "serve": "show the history of all runs in a browser",
    "rungs": "list what a climb can try, and what each rung needs",
    "mcp": "serve these commands to AI agents, over the Model Context Protocol",
    "completion": "print what has your shell complete commands and options",
}

FULL = (errno.ENOSPC, errno.EDQUOT)

MISTAKE = 70  # Python's own 1 would say "worse" to who only reads the code

# They end with their answer: no worker, no file and no torch is left to close.
ONLY_TABLES = ("analyze", "diff", "query")

EPILOG = """\
start here:
  rung climb tiny-transformer                 climb the built-in workload on the best device there is
  rung climb model.py:make --numerics bf16    climb your own; bfloat16 is allowed
  rung bench model.py:make --recipe FILE      measure what a climb found, in a fresh process

exit codes: 0 done; 1 the answer is "worse" or "not equal"; 2 used wrongly; 3 input unreadable; 4 workload failed;
70 a mistake of rung's own; 130 stopped by Ctrl-C or a kill
"""


class Parser(argparse.ArgumentParser):
    """Refuses as the commands do, so that with --json what argparse finds wrong is a document, too."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        raise UsageError(f"{message}; `{self.prog} --help` says more.")


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
        parsed, rest = parser.parse_known_args(words)
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
        text = f"{error.filename}: {error.strerror}; see that there is room and that it may be read and written."
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
        text = "there is not enough memory for this: give a smaller input, or use a machine with more memory."
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
        description="Makes a PyTorch workload faster on AMD and NVIDIA GPUs, and proves every step.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # `--res 64` is the target's option, and no short form of ours
    )
    parser.add_argument("--version", action="version", version=f"rung {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
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


def command() -> None:
    """The program `rung`: main, and out.

    Python would give back its modules and a trace's tables piece by piece, which is a tenth of all that `rung analyze` does
    on a small one; the system takes them at once.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, as by `>&-`: nobody wants to read it
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
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
            print(f"rung: the answer could not be written: {error.strerror}; make room and ask again.", file=sys.stderr)
        else:
            code = MISTAKE
            print(visible(traceback.format_exc()), file=sys.stderr, end="")
            print("rung: this is a mistake of rung's own; the lines above say where.", file=sys.stderr)
            text = f"a mistake of rung's own: {type(error).__name__}: {first_line(error)}"
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
