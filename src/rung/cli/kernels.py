"""`rung kernels`: parse, call, render."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from rung.cli.common import add_command, no_rest
from rung.cli.output import only_answers_on_stdout
from rung.errors import UsageError, WorkloadError

EXAMPLE = """\
example, without a GPU:
  $ rung kernels inspect rope --arch sm90
  sm90: registers of a thread, shared memory of a block, resident is warps on a multiprocessor
  kernel            for              warps  registers  spilled  shared  resident  limited by
  rope_half_split   32 heads of 128      8         40        0       0     48/64  registers
  rope_interleaved  32 heads of 128      8         40        0       0     48/64  registers

more:
  rung kernels list                                      Rung's own Triton kernels
  rung kernels inspect my.py:kernel x='*bf16' n=4096 BLOCK=1024 num_warps=8
  rung kernels inspect my.py:kernel --call example       example() in my.py returns the arguments
  rung kernels inspect /tmp/torchinductor_me             what Inductor generated and Triton compiled
  rung kernels inspect output_code.log --arch gfx942     a log of TORCH_LOGS=output_code

An argument is a type (*bf16, *fp32, *i64, i32, fp32), a number, or the value of a constexpr.
num_warps, num_stages, waves_per_eu, matrix_instr_nonkdim, kpack and maxnreg are compiler options.
If the file has a function KERNEL_example, you don't need --call. Exit code 1: registers spilled.
"""

ACTIONS = {"list": (), "inspect": ("arch", "call")}  # and what options are theirs


def add(commands: Any, help_text: str) -> None:
    parser = add_command(commands, "kernels", help_text, EXAMPLE, run, rest=True)
    parser.add_argument("action", nargs="?", choices=tuple(ACTIONS), metavar="|".join(ACTIONS))
    parser.add_argument(
        "what", nargs="?", metavar="WHAT", help="a name, FILE.py:KERNEL, a file or directory (default: all)"
    )
    parser.add_argument("given", nargs="*", metavar="NAME=VALUE", help="arguments of FILE.py:KERNEL")
    parser.add_argument("--arch", metavar="ARCH,...", help="architectures (default: gfx90a,gfx942,gfx950,sm90,sm100)")
    parser.add_argument(
        "--call", metavar="FUNCTION", help="function in FILE.py that returns the kernel's arguments as a dict"
    )


def run(parsed: argparse.Namespace) -> int:
    # What stands behind an option is no positional argument to argparse any more.
    parsed.given += [word for word in parsed.rest if not word.startswith("-")]
    no_rest([word for word in parsed.rest if word.startswith("-")])
    if parsed.action is None:
        raise UsageError("say what: `rung kernels list` or `rung kernels inspect`.")
    for action, options in ACTIONS.items():
        for option in options if action != parsed.action else ():
            if getattr(parsed, option):
                raise UsageError(f"--{option} is an option of `rung kernels {action}`.")
    return {"list": _list, "inspect": _inspect}[parsed.action](parsed)


def _list(parsed: argparse.Namespace) -> int:
    from rung.kernels.resources.own import functions
    from rung.records.kernels import Kernels
    from rung.records.record import plain
    from rung.report.kernels import list_lines
    from rung.runs import to_json

    if parsed.what or parsed.given:
        raise UsageError("`rung kernels list` takes no arguments; `rung kernels inspect` does.")
    found = functions()
    if parsed.json:
        print(to_json(plain(Kernels(kernels=found))))
    else:
        print("\n".join(list_lines(found)))
    return 0


def _inspect(parsed: argparse.Namespace) -> int:
    from rung.cli.tables import width
    from rung.kernels.resources.compile import architectures
    from rung.kernels.resources.inspect import inspect
    from rung.kernels.resources.user import value
    from rung.records.kernels import Inspected
    from rung.records.record import plain
    from rung.report.kernels import resource_lines
    from rung.runs import to_json

    given = {}
    for text in parsed.given:
        name, equals, written = text.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"{text!r} is not an argument; write NAME=VALUE, as in BLOCK=1024 or x='*bf16'.")
        given[name] = value(written)
    arches = architectures(parsed.arch) if parsed.arch else ()
    with only_answers_on_stdout():  # Triton prints the code that it could not assemble, and a user's file what it likes
        rows, failed = inspect(parsed.what, arches, given, parsed.call)
    for sentence in failed:
        print(f"rung: {sentence}", file=sys.stderr)
    if not rows:
        raise WorkloadError("no kernel could be compiled or read.")
    if parsed.json:
        print(to_json(plain(Inspected(rows=rows, failed=failed))))
    else:
        print("\n".join(resource_lines(rows, width())))
    return 1 if any(row.spills for row in rows) else 0
