"""A climb of a job of ranks: what is timed is the job, what is kept was verified over its ranks, and a rank that dies ends its candidate alone."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from climbing import MICRO, attempts, descendants, left_running
from climbing import rung as climbed
from replayed import PARALLEL, command

from rung.recipes.recipe import Recipe

START = Path(__file__).parents[1] / "launch" / "start_ranks.py"  # without torch, which torchrun takes seconds to load


def launcher(count: int) -> str:
    return f"{sys.executable} {START} {count} {count}"


def replayed(
    folder: Path, recorded: dict[str, str], *words: str, ranks: int = 2, **more: str
) -> "subprocess.CompletedProcess[str]":
    """A climb whose ranks say again what a real worker said."""
    # A copy: what is measured is kept in the run directory.
    arguments = ["climb", MICRO, "--launcher", launcher(ranks), "--rungs", "fused-optimizer", "--out", "run"]
    return subprocess.run(
        command(*arguments, *words),
        cwd=folder,
        env=os.environ | recorded | more,
        capture_output=True,
        text=True,
        timeout=120,
    )


def manifest(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "run/manifest.json").read_text())
    return found


def test_what_is_kept_was_verified_in_one_process_and_over_the_ranks(tmp_path: Path, recorded: dict[str, str]) -> None:
    done = replayed(tmp_path, recorded)
    assert done.returncode == 0, done.stderr
    record = attempts(tmp_path / "run")["fused-optimizer"]
    assert record["verdict"] == "kept"
    assert record["verification"]["precisions"] == ["exact", "exact over 2 ranks"]
    assert "2 ranks (ddp)" in done.stdout
    assert "--launcher" in done.stdout  # of the line that measures it again
    assert "2 ranks (ddp)" in (tmp_path / "run/report.html").read_text()
    assert manifest(tmp_path)["facts"]["ranks"] == 2
    recipe = Recipe.read(tmp_path / "run/recipe.toml")
    assert (recipe.made_on["ranks"], recipe.made_on["parallel"]) == ("2", "ddp")
    assert recipe.status == "confirmed"


def test_a_candidate_that_one_rank_refuses_is_reverted(tmp_path: Path, recorded: dict[str, str]) -> None:
    done = replayed(tmp_path, recorded, "--fused", "wrong ranks")
    record = attempts(tmp_path / "run")["fused-optimizer"]
    assert record["verdict"] == "reverted", done.stderr
    assert "rank 1: gradient of 0.weight is off" in record["why"]


def test_a_rank_that_dies_ends_its_candidate_and_not_the_climb(tmp_path: Path, recorded: dict[str, str]) -> None:
    done = replayed(tmp_path, recorded, "--fused", "one dies")
    assert done.returncode == 0, done.stderr
    record = attempts(tmp_path / "run")["fused-optimizer"]
    assert record["verdict"] == "failed"
    assert f"rank 1 on {os.uname().nodename} was killed by SIGKILL" in record["why"]
    assert manifest(tmp_path)["status"] == "complete"


@pytest.mark.parametrize(
    ("words", "parallel", "says"),
    [
        (["--fused", "apart"], "ddp", "does not train one model: the weights of the ranks diverge."),
        ([], "own", "leave --launcher out"),
    ],
)
def test_a_job_that_cannot_be_verified_is_refused(
    words: list[str], parallel: str, says: str, tmp_path: Path, recorded: dict[str, str]
) -> None:
    done = replayed(tmp_path, recorded, *words, **{PARALLEL: parallel})
    assert done.returncode not in (0, 130)
    assert says in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory, recorded: dict[str, str]) -> Path:
    """A climb over two ranks that can be gone on with."""
    folder = tmp_path_factory.mktemp("planned")
    assert replayed(folder, recorded, "--dry-run").returncode == 0
    return folder / "run"


def test_as_many_ranks_go_on_as_began(planned: Path, tmp_path: Path, recorded: dict[str, str]) -> None:
    shutil.copytree(planned, tmp_path / "run")
    words = command("climb", "--resume", "run", "--launcher", launcher(3))
    done = subprocess.run(words, cwd=tmp_path, env=os.environ | recorded, capture_output=True, text=True, timeout=120)
    assert "begun over 2 ranks, and now there are 3" in done.stderr
    assert done.returncode == 2


def test_a_file_does_not_decide_which_command_starts_the_ranks(
    planned: Path, tmp_path: Path, recorded: dict[str, str]
) -> None:
    shutil.copytree(planned, tmp_path / "run")
    file = tmp_path / "run/manifest.json"
    ran = tmp_path / "ran"
    file.write_text(file.read_text().replace(launcher(2), f"touch {ran}"))
    done = subprocess.run(
        command("climb", "--resume", "run"), cwd=tmp_path, env=os.environ | recorded, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert f"give it again, as --launcher 'touch {ran}'" in done.stderr
    assert not ran.exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--nproc-per-node", "2", "--jobs", "2"], "nothing runs next to ranks"),
        (["--nproc-per-node", "2", "--devices", "0,1"], "leave one out"),
        (["--nproc-per-node", "1"], "is one process"),
        (["--nproc-per-node", "2,4"], "give one number"),
        (["--nproc-per-node", "2", "--launcher", "mpirun"], "not both"),
    ],
)
def test_what_does_not_go_together_is_said(words: list[str], says: str, tmp_path: Path) -> None:
    done = climbed("climb", MICRO, *words, cwd=tmp_path)
    assert done.returncode == 2
    assert says in done.stderr


def test_ctrl_c_leaves_no_rank(tmp_path: Path, recorded: dict[str, str]) -> None:
    """Of torchrun's, the last of which would wait for an hour."""
    words = command("climb", MICRO, "--fused", "hang", "--rungs", "fused-optimizer", "--nproc-per-node", "2")
    words += ["--device", "cpu", "--out", "run"]
    env = os.environ | recorded
    with subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, text=True, env=env) as climb:
        assert climb.stderr is not None
        assert any(line.startswith("measuring the baseline") for line in climb.stderr)
        theirs = descendants(climb.pid)
        assert len(theirs) >= 3  # the launcher and its ranks
        climb.send_signal(signal.SIGINT)
        began, rest = time.monotonic(), climb.stderr.read()
    assert climb.returncode == 130
    assert "rung climb --resume run\n" in rest
    assert not left_running(theirs)
    assert time.monotonic() - began < 60
