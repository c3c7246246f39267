"""How Rung was called, so that the commands it prints work as they stand. Below all rooms."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path


def program() -> str:
    """`rung` where a shell finds that: else the script's path, or `python -m rung`, as either was typed."""
    called = Path(sys.argv[0])
    if called.name == "rung":
        itself = sys.argv[0]  # with what leads it: a shell does not look for `./rung` on its path
    elif called.parts[-2:] == ("rung", "__main__.py"):
        itself = str(Path(sys.executable).with_name("rung"))
    else:  # a program that imports Rung
        return "rung"
    on_path = shutil.which("rung")
    if on_path and os.path.realpath(on_path) == os.path.realpath(itself):
        return "rung"
    return shlex.quote(itself) if called.name == "rung" else f"{shlex.quote(sys.orig_argv[0])} -m rung"
