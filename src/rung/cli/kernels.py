"""`rung kernels`: parse, call, render."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from rung.cli.common import add_command, need_torch, no_rest, say, seconds
from rung.errors import UsageError, WorkloadError

EXAMPLE = """\
examples:
  rung kernels list                                           Rung's own Triton kernels
  rung kernels inspect rms_norm --arch gfx942,sm90            what they take of a GPU: compiled here, for any GPU
  rung kernels inspect my.py:kernel x='*bf16' n=4096 BLOCK=1024 num_warps=8
  rung kernels inspect my.py:kernel --call example            example() of my.py returns the arguments as a dict
  rung kernels inspect /tmp/torchinductor_me                  what Inductor generated and Triton compiled
  rung kernels inspect output_code.log --arch gfx942          a log that was made with TORCH_LOGS=output_code
  rung kernels tune                                           launch configurations for the GPU at hand, measured and kept
  rung kernels tune rms_norm,silu_mul --dtype float32 --budget 120
  rung kernels tune rope --shape 4x16x2048x64                 for heads of 64

An argument is a type (*bf16, *fp32, *i64, i32, fp32), a number or a constexpr's value; num_warps, num_stages, waves_per_eu,
matrix_instr_nonkdim, kpack and maxnreg are options of the compiler. A kernel KERNEL whose file has a function
KERNEL_example needs no --call. Exit code 1: some registers were spilled.
"""

ACTIONS = {"list": (), "inspect": ("arch", "call"), "tune": ("shape", "dtype", "budget")}  # and what options are theirs


def add(commands: Any, help_text: str) -> None:
    parser = add_command(commands, "kernels", help_text, EXAMPLE, run, rest=True)
    parser.add_argument("action", nargs="?", choices=tuple(ACTIONS), metavar="|".join(ACTIONS))
    parser.add_argument(
        "what", nargs="?", metavar="WHAT", help="a name, FILE.py:KERNEL, a file or directory (default: all)"
    )
    parser.add_argument("given", nargs="*", metavar="NAME=VALUE", help="arguments of FILE.py:KERNEL")
    parser.add_argument("--arch", metavar="ARCH,...", help="architectures (default: gfx90a,gfx942,gfx950,sm90,sm100)")
    parser.add_argument("--call", metavar="FUNCTION", help="of FILE.py: returns the kernel's arguments as a dict")
    parser.add_argument("--shape", type=_shape, metavar="NxM...", help="tune at this shape (default: a large one)")
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), help="tune in it (default: bfloat16)")
    parser.add_argument(
        "--budget", type=seconds, metavar="SECONDS", help="begin to tune no further function after it (default: 900)"
    )


def run(parsed: argparse.Namespace) -> int:
    # What stands behind an option is no positional argument to argparse any more.
    parsed.given += [word for word in parsed.rest if not word.startswith("-")]
    no_rest([word for word in parsed.rest if word.startswith("-")])
    if parsed.action is None:
        raise UsageError("say what: `rung kernels list`, `rung kernels inspect` or `rung kernels tune`.")
    for action, options in ACTIONS.items():
        for option in options if action != parsed.action else ():
            if getattr(parsed, option):
                raise UsageError(f"--{option} is of `rung kernels {action}`.")
    return {"list": _list, "inspect": _inspect, "tune": _tune}[parsed.action](parsed)


def _list(parsed: argparse.Namespace) -> int:
    from rung.kernels.resources.own import families
    from rung.kernels.tuned import rows
    from rung.report.kernels import list_lines
    from rung.runs import to_json
    from rung.toml import TUNED, user_file

    if parsed.what or parsed.given:
        raise UsageError("`rung kernels list` takes no arguments; `rung kernels inspect` does.")
    found, own = families(), rows()
    if parsed.json:
        print(to_json({"kind": "kernels", "kernels": found, "tuned": own}))
    else:
        print("\n".join(list_lines(found, own, str(user_file(*TUNED)))))
    return 0


def _inspect(parsed: argparse.Namespace) -> int:
    from dataclasses import asdict

    from rung.cli.tables import width
    from rung.kernels.resources.compile import architectures
    from rung.kernels.resources.inspect import inspect
    from rung.kernels.resources.user import value
    from rung.report.kernels import resource_lines
    from rung.runs import to_json

    given = {}
    for text in parsed.given:
        name, equals, written = text.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"{text!r} is no argument; write NAME=VALUE, as in BLOCK=1024 or x='*bf16'.")
        given[name] = value(written)
    arches = architectures(parsed.arch) if parsed.arch else ()
    rows, failed = inspect(parsed.what, arches, given, parsed.call)
    for sentence in failed:
        print(f"rung: {sentence}", file=sys.stderr)
    if not rows:
        raise WorkloadError("no kernel could be compiled or read.")
    records = [asdict(row) for row in rows]
    if parsed.json:
        print(to_json({"kind": "kernel resources", "rows": records, "failed": failed}))
    else:
        print("\n".join(resource_lines(records, width())))
    return 1 if any(row.spills for row in rows) else 0


def _tune(parsed: argparse.Namespace) -> int:
    need_torch()
    from rung import kernels

    if not kernels.available():
        raise UsageError(
            "tuning needs Triton, which is not installed; it comes with PyTorch's builds for ROCm and CUDA."
        )
    from rung.cli.tables import width
    from rung.ladder.tune_kernels import tune_kernels
    from rung.report.kernels import tuned_line, tuned_lines
    from rung.runs import to_json

    if parsed.given:
        raise UsageError(f"{parsed.given[0]!r} is one argument too many: `rung kernels tune rope,rms_norm` tunes two.")
    names = [name for name in (parsed.what or "").split(",") if name]
    budget = 900.0 if parsed.budget is None else parsed.budget
    found = tune_kernels(names, parsed.shape, parsed.dtype or "bfloat16", budget, lambda row: say(tuned_line(row)))
    print(to_json(found) if parsed.json else "\n".join(tuned_lines(found, width())))
    return 0


def _shape(text: str) -> tuple[int, ...]:
    sizes = text.replace(" ", "").replace("×", "x").split("x")
    if not all(size.isdecimal() and int(size) for size in sizes):
        raise argparse.ArgumentTypeError(f"{text!r} is no shape; write it as in 8192x4096")
    return tuple(map(int, sizes))
