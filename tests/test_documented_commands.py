"""The commands of README.md and of the pages for users: each parses, and runs unless its block is marked as needing a GPU.

A block ```console has commands after `$ `; ```console gpu is not run. A block ```python NAME, or of another language with a name, is a file
that the commands after it may use. All commands of a page run in one folder, in which there are a few recorded traces. Other Python blocks
must compile.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from rung.cli.main import _parser, _split
from rung.errors import RungError

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    *sorted(p for kind in ("tutorials", "how-to") for p in (ROOT / "docs" / kind).glob("*.md")),
]
# What a page's own target takes, or a target by name.
OF_TARGETS = {
        "--batch",
        "--batch-size",
        "--name",
        "--new-tokens",
        "--part",
        "--random-weights",
        "--rows",
        "--seq",
        "--size",
        "--task",
        "--train",
        "--width",
    }
DATA = ROOT / "tests/data"
TRACES = {
    "trace.json.gz": DATA / "ddp/ranks2-slow-gpu/rank0.json.gz",
    "before.json.gz": DATA / "ddp/ranks2-slow-gpu/rank0.json.gz",
    "after.json.gz": DATA / "ddp/ranks2-slow-gpu/rank1.json.gz",
}
BLOCK = re.compile(r"^```(\w+)[ ]*([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    language: str
    more: str
    text: str

    @property
    def commands(self) -> list[str]:
        """What follows `$ `; a comment at a line's end is none of it."""
        if self.language != "console":
            return []
        return [re.sub(r"\s+#\s.*$", "", line[2:]) for line in self.text.splitlines() if line.startswith("$ ")]


def blocks(page: Path) -> list[Block]:
    return [Block(*found) for found in BLOCK.findall(page.read_text())]


def of_rung(page: Path) -> list[str]:
    return [command for block in blocks(page) for command in block.commands if " rung " in f" {command}"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_python_blocks_compile(page: Path) -> None:
    for block in blocks(page):
        if block.language == "python":
            ast.parse(block.text)
        assert block.language in {"python", "console", "toml", "json", "text", "yaml"}, block


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_options_exist(page: Path) -> None:
    for command in of_rung(page):
        words = shlex.split(command)
        while "=" in words[0]:
            words.pop(0)
        assert words.pop(0) == "rung", command
        called, ours, _ = _split(words[: next((k for k, word in enumerate(words) if word in {"|", ">"}), len(words))])
        try:
            _, rest = _parser(called).parse_known_args(ours)
        except (SystemExit, RungError) as error:
            raise AssertionError(f"{command}: {error}") from None
        options = {word for word in rest if word.startswith("-")}
        assert options <= OF_TARGETS, f"{command}: no option {options - OF_TARGETS}"


@pytest.mark.parametrize(
    "page", [p for p in PAGES if any(b.commands and b.more != "gpu" for b in blocks(p))], ids=lambda p: p.stem
)
def test_commands_run(page: Path, tmp_path: Path) -> None:
    if page.name == "README.md":
        pytest.skip("its commands set up an environment; tests/test_setup.py runs them")
    for name, trace in TRACES.items():
        shutil.copy(trace, tmp_path / name)
    variables = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "RUNG_HISTORY": "off"}
    for block in blocks(page):
        if block.language != "console" and block.more:
            (tmp_path / block.more).write_text(block.text)
        for command in block.commands if block.more != "gpu" else []:
            done = subprocess.run(
                ["bash", "-c", command], cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=500
            )
            assert done.returncode == 0, f"{command}\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}"
