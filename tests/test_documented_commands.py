"""The commands of README.md and of the pages for users: each parses, and runs unless its block is marked as needing a GPU.

A block ```console has commands after `$ `. Words behind it say what they need: `gpu`, `setup` and `network` are not run, and a block that names Python
packages is run where these are installed. A block ```python NAME, or of another language with a name, is a file that the commands after it may use.
All commands of a page run in one folder, a git repository with a workload and a few recorded traces (and a climb's run directory, where one is
asked for); of a climb its dry run, on short sequences and with little time to measure, and all of it behind the marker `long`. Other Python blocks must compile.
No command is indented by four spaces, where nothing would run it.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
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
WORKLOAD = """
import torch

import rung


def make() -> rung.Workload:
    return rung.Workload(
        name="work",
        model=lambda: torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU()),
        inputs=lambda seed: torch.randn(8, 16, generator=torch.Generator().manual_seed(seed)),
        one_shape=True,
    )
"""
# The files are committed as they are at first, which is the revision `origin/main`.
COMMIT = "git init -q && git add -A && git -c user.name=a -c user.email=a@b commit -qm first && git update-ref refs/remotes/origin/main HEAD"
NOT_HERE = {"gpu", "setup", "network"}
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

    @property
    def run(self) -> list[str]:
        """The commands that can run here."""
        needs = set(self.more.split()) if self.commands else set()
        here = not needs & NOT_HERE and all(importlib.util.find_spec(package) for package in needs)
        return self.commands if here else []


def blocks(page: Path) -> list[Block]:
    return [Block(*found) for found in BLOCK.findall(page.read_text())]


def of_rung(page: Path) -> list[str]:
    return [command for block in blocks(page) for command in block.commands if " rung " in f" {command}"]


RUN = [p for p in PAGES if any(block.run for block in blocks(p))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_python_blocks_compile(page: Path) -> None:
    for block in blocks(page):
        if block.language == "python":
            ast.parse(block.text)
        assert block.language in {"python", "console", "toml", "json", "text", "yaml"}, block


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_command_is_indented_instead_of_fenced(page: Path) -> None:
    assert not re.findall(r"^\n    \S.*$", BLOCK.sub("", page.read_text()), re.MULTILINE)


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
            if isinstance(error, SystemExit) and error.code == 0:  # of --help
                continue
            raise AssertionError(f"{command}: {error}") from None
        options = {word for word in rest if word.startswith("-")}
        assert options <= OF_TARGETS, f"{command}: no option {options - OF_TARGETS}"


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.stem)
def test_commands_run(page: Path, tmp_path: Path) -> None:
    run_all(page, tmp_path, short)


@pytest.mark.long
@pytest.mark.parametrize("page", [p for p in RUN if any("rung climb" in c for c in of_rung(p))], ids=lambda p: p.stem)
def test_climbs_run(page: Path, tmp_path: Path) -> None:
    run_all(page, tmp_path, patient)


def short(command: str, folder: Path) -> str:
    """Little is measured. A climb ends with its plan, and a recipe is put where it would leave one."""
    # A climb has a plan once the model was loaded and timed, which takes a busy machine many seconds.
    seconds = 60 if command.startswith("rung climb ") else 1
    command = re.sub(r"(--time |--budget )\d+", rf"\g<1>{seconds}", command)
    command = re.sub(r"\bbudget=\d+", "budget=20", command)
    command = command.replace(" tiny-transformer ", " tiny-transformer --seq-len 16 ")
    if not command.startswith("rung climb "):
        return command
    left = folder / ".rung/climbed"
    left.mkdir(parents=True, exist_ok=True)
    (left / "recipe.toml").write_text('schema = 1\nmode = "train"\nrungs = ["fused-optimizer"]\n')
    return f"{command} --dry-run"


def patient(command: str, folder: Path) -> str:
    """The command with a budget for a machine that others use."""
    return re.sub(r"(?<=--budget )\d+", lambda seconds: str(4 * int(seconds[0])), command)


def run_all(page: Path, folder: Path, adapted: Callable[[str, Path], str]) -> None:
    for name, trace in TRACES.items():
        shutil.copy(trace, folder / name)
    if any(".rung/RUN" in command for block in blocks(page) for command in block.run):
        shutil.copytree(DATA / "run_directory", folder / ".rung/RUN")
    (folder / "work.py").write_text(WORKLOAD)
    subprocess.run(["bash", "-c", COMMIT], cwd=folder, check=True)
    variables = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "RUNG_HISTORY": "off"}
    for block in blocks(page):
        if block.language != "console" and block.more:
            (folder / block.more).write_text(adapted(block.text, folder))
        for command in block.run:
            words = ["bash", "-c", adapted(command, folder)]
            done = subprocess.run(words, cwd=folder, env=variables, capture_output=True, text=True, timeout=900)
            assert done.returncode == 0, f"{command}\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}"


@pytest.mark.parametrize(
    ("page", "says"),
    [
        ("README.md", "Give the path that the climb printed after 'Recipe:'."),
        ("docs/tutorials/first-climb.md", "There is no recipe in .rung: no climb has kept anything yet."),
    ],
)
def test_a_program_without_a_recipe_ends_with_a_sentence(page: str, says: str, tmp_path: Path) -> None:
    for block in blocks(ROOT / page):
        if block.language == "python" and block.more:
            (tmp_path / block.more).write_text(block.text)
    done = subprocess.run([sys.executable, "use.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, f"{says}\n")
