"""`rung replay`: parse, call, render."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rung.cli import tables
from rung.cli.common import add_command, opened, say
from rung.errors import UsageError

EXAMPLE = """\
example, a public recording of an MI300X:
  $ rung replay mi300_vit.json.gz --op addmm --list
  index  inputs                      count     time  concrete
      0  768 788x768 768x768 bf16       48   409 µs  ["","","","1","1"]
      1  768 788x3072 3072x768 bf16     12   274 µs  ["","","","1","1"]
      2  3072 788x768 768x3072 bf16     12   251 µs  ["","","","1","1"]
      3  768 4x768 768x768 bf16          1  7.50 µs  ["","","","1","1"]
  (no room for: strides)

more:
  rung replay trace.json.gz --op mm --out mm.py      write a script that times the first call
  rung replay trace.json.gz --op mm --shapes 8944x1024 --index 1 --out mm.py
  python mm.py                                       run it on any machine with PyTorch

Record the trace with record_shapes=True. The script holds shapes, types, strides and numbers from
the trace, but none of your code and data.
"""


def add(commands: Any, help_text: str) -> None:
    parser = add_command(commands, "replay", help_text, EXAMPLE, run)
    parser.add_argument("path", nargs="?", type=Path, metavar="TRACE", help="a torch.profiler trace")
    parser.add_argument("--op", metavar="NAME", help="the operator, as in aten::mm, or mm for short")
    parser.add_argument("--list", action="store_true", help="list the operator's calls instead of writing a script")
    parser.add_argument("--shapes", default="", metavar="WORDS", help="only calls whose inputs contain these words")
    parser.add_argument("--index", type=int, default=0, metavar="N", help="which call of the list (default: 0)")
    tables.add_captures(parser)
    tables.add_limit(parser)
    parser.add_argument("--out", type=Path, metavar="FILE", help="where to write the script (default: stdout)")


def run(parsed: argparse.Namespace) -> int:
    if parsed.path is None or parsed.op is None:
        raise UsageError("give a trace and an operator, as in `rung replay trace.json.gz --op aten::mm`.")
    from rung.analysis.replay import full_name, known_calls, replay
    from rung.records.analyze import Calls, Script
    from rung.records.record import plain
    from rung.report.replay import script
    from rung.runs import to_json, write_whole

    trace = opened(parsed.path, parsed.capture, max_bytes=parsed.max_bytes)
    if parsed.list:
        found = known_calls(trace, full_name(parsed.op), parsed.shapes)
        if parsed.json:
            print(to_json(plain(Calls(op=full_name(parsed.op), calls=found.to_dicts()))))
        else:
            print(tables.shown(found.select("index", "inputs", "count", "time_ns", "concrete", "strides"), None))
        return 0
    call = replay(trace, parsed.op, shapes=parsed.shapes, index=parsed.index)
    text = script(call)
    if parsed.out:
        write_whole(parsed.out, text)
        say(f"{parsed.out}: times {call.op}; run it with `python {parsed.out}`")
    if parsed.json:
        print(to_json(plain(Script(op=call.op, calls=call.calls, gpu_ns=call.gpu_ns, script=text))))
    elif not parsed.out:
        print(text, end="")
    return 0
