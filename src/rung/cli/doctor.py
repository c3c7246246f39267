"""`rung doctor`: parse, call, render."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from rung.cli.common import add_command, seconds

EXAMPLE = """\
examples:
  rung doctor                what costs speed, or makes figures dishonest, and how to change it
  rung doctor --all          why and whose word, for what is as it should be, too
  rung doctor --fix          the commands as a script; it changes nothing by itself
  rung doctor --wait 30      more time for torch, whose import may be slow

✓ as it should be, · worth knowing, ! costs speed or honesty, ? could not be read
"""


def add(commands: Any, help_text: str) -> None:
    parser = add_command(commands, "doctor", help_text, EXAMPLE, run)
    parser.add_argument(
        "--fix", action="store_true", help="print the commands that would change it, and change nothing"
    )
    parser.add_argument("--all", action="store_true", help="explain every line")
    parser.add_argument(
        "--wait", type=seconds, default=2.0, metavar="SECONDS",
        help="how long torch and nvidia-smi may take to answer (default: 2)",
    )  # fmt: skip


def run(parsed: argparse.Namespace) -> int:
    from rung.cli.tables import width
    from rung.hardware.doctor import Machine, audit
    from rung.report.doctor import doctor_lines, fix_lines, summary
    from rung.runs import to_json

    found = audit(Machine(wait=parsed.wait))
    if parsed.json:
        print(to_json({"kind": "doctor", "summary": summary(found), "lines": [asdict(line) for line in found]}))
    else:
        print("\n".join(fix_lines(found) if parsed.fix else doctor_lines(found, width(), parsed.all)))
    return 0
