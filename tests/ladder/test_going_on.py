"""After a failure, a budget, a kill at any moment: a climb goes on. Its processes, pipes and files are real, and what its
workers say was recorded."""

import contextlib
import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from climbing import MICRO, attempts, descendants, left_running
from replayed import command

from rung.records.climb import ClimbRun, NotBegun
from rung.runs import Run

MOMENTS = int(os.environ.get("RUNG_TEST_KILLS", "2"))  # more find more


class Climbing:
    """`rung climb` in a folder, with the workers that were recorded."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self.where: dict[str, Any] = {"cwd": folder, "env": {**os.environ, **env}}

    def __call__(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(command("climb", *arguments), capture_output=True, text=True, timeout=280, **self.where)

    def started(self, *arguments: str) -> "subprocess.Popen[bytes]":
        nothing = subprocess.DEVNULL
        return subprocess.Popen(
            command("climb", *arguments), stdout=nothing, stderr=nothing, start_new_session=True, **self.where
        )


@pytest.fixture
def climb(tmp_path: Path, recorded: dict[str, str]) -> Climbing:
    return Climbing(tmp_path, recorded)


@pytest.mark.parametrize(
    ("fused", "kind", "says"),
    [
        ("die", "killed", "SIGKILL"),
        ("hang", "hung", "deadline"),
    ],
)
def test_a_candidate_that_fails_is_a_failed_rung_and_the_climb_goes_on(
    climb: Climbing, fused: str, kind: str, says: str
) -> None:
    deadline = "8" if fused == "hang" else "200"
    done = climb(MICRO, "--fused", fused, "--rungs", "fused-optimizer,sdpa", "--deadline", deadline, "--json")
    assert done.returncode == 0, done.stderr
    assert isinstance(msgspec.json.decode(done.stdout, type=ClimbRun | NotBegun), ClimbRun)
    data = json.loads(done.stdout)
    first, second = data["attempts"]
    assert first["verdict"] == "failed"
    assert first["why"].startswith(f"{kind}: ")
    assert says in first["why"]
    assert second["verdict"] == "inapplicable"
    assert data["manifest"]["status"] == "complete"
    assert data["result"]["kept"] == []


def test_a_dry_run_plans_and_can_be_gone_on_with_past_a_candidate_that_fails(climb: Climbing) -> None:
    asked = [MICRO, "--fused", "raise", "--rungs", "fused-optimizer,sdpa"]
    done = climb(*asked, "--dry-run", "--json", "--out", "run")
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["attempts"] == []
    assert msgspec.json.decode(done.stdout, type=ClimbRun).plan is not None
    assert data["manifest"]["status"] == "planned"
    plan = {p["rung"]: p for p in data["plan"]["rungs"]}
    assert plan["fused-optimizer"]["prediction"]["high"] > 1
    assert plan["sdpa"]["verdict"] == "inapplicable"
    assert "Predicted" in done.stderr

    done = climb("--resume", "run", "--json")
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    first, second = data["attempts"]
    assert first["verdict"] == "failed"
    assert first["why"].startswith("raised: ")
    assert "no step today" in first["why"]
    assert second["verdict"] == "inapplicable"
    assert data["manifest"]["status"] == "complete"
    assert data["result"]["kept"] == []


def test_a_climb_of_an_earlier_version_is_gone_on_with_in_todays_names(climb: Climbing, tmp_path: Path) -> None:
    done = climb(MICRO, "--rungs", "fused-optimizer,lean-sdpa", "--dry-run", "--out", "run")
    assert "the rung lean-sdpa is called sdpa-no-mask now" in done.stderr
    manifest = tmp_path / "run" / "manifest.json"
    assert '"sdpa-no-mask"' in manifest.read_text()
    manifest.write_text(manifest.read_text().replace('"sdpa-no-mask"', '"lean-sdpa"'))
    done = climb("--resume", "run", "--json")
    assert done.returncode == 0, done.stderr
    assert [a["rung"] for a in json.loads(done.stdout)["attempts"]] == ["fused-optimizer", "sdpa-no-mask"]


def test_a_budget_ends_the_climb_and_resume_goes_on(climb: Climbing, tmp_path: Path) -> None:
    ended = climb(MICRO, "--rungs", "tf32,fused-optimizer,sdpa", "--budget", "0.001", "--out", "run")
    assert ended.returncode == 0, ended.stderr
    assert "budget" in ended.stdout
    assert attempts(tmp_path / "run") == {}
    before = Run.open_(tmp_path / "run").data()["result"]["seconds"]
    done = climb("--resume", "run", "--budget", "1000")
    assert done.returncode == 0, done.stderr
    data = Run.open_(tmp_path / "run").data()
    assert data["result"]["seconds"] > before + sum(a["seconds"] for a in data["attempts"])  # both sittings
    made = attempts(tmp_path / "run")
    assert list(made) == ["tf32", "fused-optimizer", "sdpa"]
    assert made["fused-optimizer"]["verdict"] == "kept"


def status(run: Path) -> str:
    """How the run stands, for a report that reads all of it; nothing where it has not come so far."""
    if not (run / "manifest.json").exists():
        return ""
    data = Run.open_(run).data()
    assert data["manifest"]["target"] == MICRO
    return str(data["manifest"]["status"])


def killed(climb: "subprocess.Popen[bytes]", chance: random.Random, one_of_its_own: bool) -> list[psutil.Process]:
    """Kills it, before that one of its workers if so asked; what it had started by then."""
    theirs = descendants(climb.pid)
    if one_of_its_own and theirs:
        with contextlib.suppress(psutil.NoSuchProcess):
            chance.choice(theirs).kill()
        time.sleep(chance.uniform(0, 1))
    climb.send_signal(signal.SIGSTOP)  # it starts no more, so that all that it has started are seen
    theirs = list({*theirs, *descendants(climb.pid)})
    climb.kill()
    climb.wait()
    return theirs


@pytest.mark.timeout(600)
def test_killed_at_random_moments_a_climb_can_always_be_gone_on_with(climb: Climbing, tmp_path: Path) -> None:
    chance, asked = random.Random(), (MICRO, "--rungs", "fused-optimizer", "--out")
    began = time.monotonic()
    assert climb(*asked, "undisturbed").returncode == 0
    whole = time.monotonic() - began  # on this machine: the moments lie in all parts of a climb
    runs = [tmp_path / "run-0"]

    def arguments() -> tuple[str, ...]:
        return ("--resume", runs[-1].name) if status(runs[-1]) else (*asked, runs[-1].name)

    for moment in range(MOMENTS):
        process = climb.started(*arguments())
        time.sleep(chance.uniform(0.02, 0.5) * whole)
        left = left_running(killed(process, chance, moment % 2 == 1))
        assert not left, f"moment {moment}: left running: {left}"
        if status(runs[-1]) == "complete" or (runs[-1].exists() and not status(runs[-1])):
            runs.append(tmp_path / f"run-{moment + 1}")  # it came to its end, or nothing was measured yet
    if status(runs[-1]) != "complete":
        done = climb(*arguments())
        assert done.returncode == 0, done.stderr
    for run in filter(status, runs):
        assert status(run) == "complete"
        verdict = attempts(run)["fused-optimizer"]["verdict"]
        assert verdict in ("kept", "failed")  # failed: its worker was killed
        assert Run.open_(run).read("result.json")["kept"] == ["fused-optimizer"] * (verdict == "kept")
