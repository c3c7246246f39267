"""`rung analyze`: parse, call, render."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rung.cli.common import add_command, no_rest
from rung.errors import UsageError

EXAMPLE = """\
examples:
  rung analyze trace.json.gz                     torch.profiler, rocprofv3, rocpd, rocprof, Nsight Systems, Perfetto
  rung analyze results/                          every trace in the folder, as ranks of one run
  rung analyze trace.json.gz --steps 3           times per step, where three were recorded
  rung analyze cut.json.gz --partial             what is whole before the damage
  rung analyze run.db --write trace.pftrace      the same events for Perfetto (or .json.gz for Chrome, .csv)

The format is told by the content. It needs neither torch nor a GPU.
"""

WRITERS = {".json": "write_chrome", ".pftrace": "write_perfetto", ".csv": "write_csv"}


def add(commands: Any, help_text: str) -> None:
    parser = add_command(commands, "analyze", help_text, EXAMPLE)
    parser.add_argument("paths", nargs="*", type=Path, metavar="PATH", help="a trace, a database, or a folder of them")
    parser.add_argument("--steps", type=int, default=1, metavar="N", help="how many steps were recorded (default: 1)")
    parser.add_argument("--partial", action="store_true", help="of a damaged file, read what is whole")
    parser.add_argument("--max-bytes", type=int, metavar="N", help="refuse a file that unpacks to more than this")
    parser.add_argument("--no-cache", action="store_true", help="neither keep nor use the tables of a large file")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the events: .json(.gz), .pftrace(.gz), .csv")
    parser.set_defaults(run=lambda parsed, rest: run(parser, parsed, rest))


def run(parser: argparse.ArgumentParser, parsed: argparse.Namespace, rest: Sequence[str]) -> int:
    if parsed.help:
        parser.print_help()
        return 0
    no_rest(rest)
    if not parsed.paths:
        raise UsageError("give the path of a trace, as in `rung analyze trace.json.gz`.")
    if parsed.write and len(parsed.paths) > 1:
        raise UsageError("--write takes one PATH; a folder is one.")
    write = writer(parsed.write) if parsed.write else None
    from rung.analysis.overview import overview
    from rung.report.analyze import analyze_lines
    from rung.runs import to_json
    from rung.trace import read

    answers = []
    for path in parsed.paths:
        trace = read(path, partial=parsed.partial, max_bytes=parsed.max_bytes, cache=not parsed.no_cache)
        if write:
            write(trace, parsed.write)
        answers.append(overview(trace, steps=parsed.steps))
    if parsed.json:
        print(to_json(answers if len(answers) > 1 else answers[0]))
    else:
        print("\n\n".join("\n".join(analyze_lines(found)) for found in answers))
    return 0


def writer(path: Path) -> Callable[[Any, Path], Any]:
    """The writer that a file's name asks for."""
    module = WRITERS.get(Path(path.name.removesuffix(".gz")).suffix)
    if module is None:
        raise UsageError(f"--write {path}: the name must end in {', '.join(WRITERS)} (and .gz, if it is to be packed).")
    write: Callable[[Any, Path], Any] = importlib.import_module(f"rung.trace.{module}").write
    return write
