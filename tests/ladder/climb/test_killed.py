"""A climb that is killed at any moment: what is on the disk is whole, nothing is left running, and it goes on from there."""

import contextlib
import os
import random
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from climbing import MICRO, command

import rung
from rung.recipes.recipe import Recipe
from rung.runs import Run
from rung.workload.load import load

COMMAND = command("climb")  # in few rounds: what is killed here need not be exact
ENDED = 400.0  # seconds within which a sitting that is not killed ends, on a machine that does other work as well


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A variable by which every process that a climb started is found, whatever it did to its group."""
    value = uuid.uuid4().hex
    monkeypatch.setenv("RUNG_TEST_MARK", value)
    yield value
    for process in started(value):
        process.kill()


def started(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get("RUNG_TEST_MARK") == mark:
                found.append(process)
    return found


def killed_after(seconds: float, arguments: list[str], mark: str) -> bool:
    """Whether it had to be killed; nothing of it goes on."""
    climb = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        climb.wait(seconds)
    except subprocess.TimeoutExpired:
        climb.kill()
        climb.wait()
    until = time.monotonic() + 10
    while (
        left := [p for p in started(mark) if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    ) and time.monotonic() < until:
        time.sleep(0.05)
    assert not left
    return climb.returncode < 0


def check(directory: Path) -> None:
    """Every file is whole, and a recipe can be read."""
    if not (directory / "manifest.json").exists():
        return
    data = Run.open_(directory).data()
    if (directory / "recipe.toml").exists():
        assert Recipe.read(directory / "recipe.toml").status in ("provisional", "verified", "confirmed")
        assert data["result"]["kept"]


def killed_often(directory: Path, times: int, mark: str, shortest: float, longest: float) -> int:
    """How many sittings were killed until the climb had come to its end."""
    moments = random.Random(times)
    for number in range(1, times + 1):
        directory, arguments = sitting(directory)
        was_killed = killed_after(moments.uniform(shortest, longest), arguments, mark)
        check(directory)
        if not was_killed:
            return number
        if not begun(directory):  # a slow machine: later, so that there is something to lose
            shortest, longest = 1.5 * shortest, 1.5 * longest
    directory, arguments = sitting(directory)
    killed_after(ENDED, arguments, mark)
    check(directory)
    manifest = Run.open_(directory).data()["manifest"]
    assert manifest["status"] == "complete"
    recipe = Recipe.read(directory / "recipe.toml")
    assert recipe.status in ("verified", "confirmed")
    rung.apply(load(MICRO), recipe).step(load(MICRO).inputs(0))
    return times


def begun(directory: Path) -> bool:
    return (directory / "manifest.json").exists()


def sitting(directory: Path) -> tuple[Path, list[str]]:
    """The directory to climb in, and the command's words: a climb that was killed before it had anything to go on with begins
    again, beside it."""
    if begun(directory):
        return directory, ["--resume", str(directory)]
    directory = directory.with_name(f"{directory.name}x") if directory.exists() else directory
    return directory, [MICRO, "--rungs", "fused-optimizer", "--seconds", "0.004", "--out", str(directory)]


@pytest.mark.long  # tests/ladder/test_going_on.py kills one at random moments, too
def test_a_climb_that_is_killed_again_and_again_loses_nothing_and_ends(tmp_path: Path, mark: str) -> None:
    killed_often(tmp_path / "run", 2, mark, 4.0, 9.0)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_kill_at_fifty_moments(tmp_path: Path, mark: str) -> None:
    killed = 0
    while killed < 50:
        killed += killed_often(tmp_path / f"run{killed}", 10, mark, 0.5, 20.0)
