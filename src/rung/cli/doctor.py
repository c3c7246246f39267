"""`rung doctor`: parse, call, render."""

from __future__ import annotations

import argparse
from typing import Any

from rung.cli.common import add_command, seconds
from rung.config import KEYS, Setting, settings
from rung.errors import RungError
from rung.records.doctor import NOTE, OK, WARN, Audit, Line
from rung.records.record import plain

EXAMPLE = """\
example, on a machine without a GPU:
  $ rung doctor
  1 to change (load); 2 worth knowing, 1 unknown, 8 good
  GPU
      · GPU: none found
        everything runs on the CPU; in a container, pass the GPU in (--device /dev/kfd, --gpus all)
  software
      ✓ torch: 2.13.0+cpu, built for CPU only

more:
  rung doctor --all          the reason and the source for every line, also for good ones
  rung doctor --fix          the commands that mend it, as a script
  rung doctor --wait 30      if torch takes long to import

✓ good, · worth knowing, ! costs speed or makes measurements unreliable, ? could not be read
"""


def add(commands: Any, help_text: str) -> None:
    parser = add_command(commands, "doctor", help_text, EXAMPLE, run)
    parser.add_argument("--fix", action="store_true", help="print the commands that would mend it, and change nothing")
    parser.add_argument("--all", action="store_true", help="explain every line")
    parser.add_argument(
        "--wait", type=seconds, default=2.0, metavar="SECONDS",
        help="time limit for torch and nvidia-smi (default: 2)",
    )  # fmt: skip


def run(parsed: argparse.Namespace) -> int:
    from rung.cli.tables import width
    from rung.hardware.doctor import Machine, audit
    from rung.report.doctor import doctor_lines, fix_lines, summary
    from rung.runs import to_json

    found = [*audit(Machine(wait=parsed.wait)), *options_of_files()]
    if parsed.json:
        print(to_json(plain(Audit(summary=summary(found), lines=found))))
    else:
        print("\n".join(fix_lines(found) if parsed.fix else doctor_lines(found, width(), parsed.all)))
    return 0


def options_of_files() -> list[Line]:
    """The user's defaults of options: each value, and the file that it is from."""
    try:
        found = settings()
        lines = [_line(setting, found[:k]) for k, setting in enumerate(found)]
    except RungError as error:
        return [Line("options", "files", str(error), WARN, matters="Commands that take options from it end with this.")]
    return lines or [Line("options", "files", "none: neither rung.toml nor [tool.rung] in a pyproject.toml")]


def _line(setting: Setting, before: list[Setting]) -> Line:
    commands = [setting.command] if setting.command else list(KEYS[setting.key][1])
    over = [c for c in commands if any(one.key == setting.key and one.holds_for(c) for one in before)]
    where = " and ".join(f"rung {c}" for c in commands) or "all commands"
    shown = str(setting.value).lower() if isinstance(setting.value, bool) else setting.value
    value = f"{shown} for {where}, from {setting.where}"
    hidden = any(one.key == setting.key for one in before) if not commands else over
    if hidden:
        value += f"; another value wins{' for ' + ' and '.join(f'rung {c}' for c in over) if over else ''}"
    return Line("options", setting.key, value, NOTE if hidden else OK)
