"""Jobs of a real SLURM: two virtual nodes on this machine, started and ended by `tools/slurm_here.py`. Skipped where it is not installed."""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import rung

ROOT = Path(__file__).parents[2]
_spec = importlib.util.spec_from_file_location("slurm_here", ROOT / "tools" / "slurm_here.py")
assert _spec
assert _spec.loader
slurm_here = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(slurm_here)

pytestmark = pytest.mark.skipif(bool(slurm_here.lacks()), reason=slurm_here.lacks() or "installed")

MODEL = """
import os, time, torch, rung

def make(at: int = -1, do: str = "") -> rung.Workload:
    calls = [0]

    def forward(model, batch):
        calls[0] += 1
        if calls[0] > 5 and int(os.environ.get("RANK", 0)) == at:
            print("the last words", flush=True)
            os.kill(os.getpid(), 9) if do == "die" else time.sleep(600)
        return model(batch)

    return rung.Workload(
        "ranked", model=lambda: torch.nn.Linear(8, 8), inputs=lambda seed: torch.randn(4, 8), forward=forward,
        loss=lambda output, batch: output.square().mean(), optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder to submit from."""
    folder = tmp_path_factory.mktemp("slurm")
    daemons = Path(tempfile.mkdtemp(prefix="slurm-"))  # munge's user has to reach it
    daemons.chmod(0o755)
    conf = slurm_here.start(daemons)
    (folder / "model.py").write_text(MODEL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(conf))
        patch.setenv(
            "PYTHONPATH", os.pathsep.join([str(Path(rung.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        )
        patch.chdir(folder)
        try:
            yield folder
        finally:
            slurm_here.stop(daemons)
            shutil.rmtree(daemons, ignore_errors=True)


@pytest.fixture(autouse=True)
def _nothing_is_left(cluster: Path) -> Iterator[None]:
    yield
    until = time.monotonic() + 30
    while left := _ranks():
        assert time.monotonic() < until, left
        time.sleep(0.2)
    assert not subprocess.run(["squeue", "-h"], capture_output=True, text=True).stdout.strip()


def _ranks() -> list[str]:
    lines = [" ".join(p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"])]
    return [line for line in lines if "rung.launch.rank" in line]


def words(*more: str) -> list[str]:
    return [sys.executable, "-m", "rung", *more]


def bench(*more: str, nodes: int = 2) -> list[str]:
    ranks = ["--nproc-per-node", "1"] if nodes > 1 else []
    return words("bench", "model.py:make", "--device", "cpu", "--slurm", str(nodes), *ranks, *more)


def run(command: list[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


def test_a_job_of_two_nodes_measures_its_ranks(cluster: Path) -> None:
    done = run(bench("--preset", "quick", "--json"))
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["samples"]) == 5
    assert "runs on n[1-2]" in done.stderr


def test_a_rank_that_dies_is_told_with_its_last_words(cluster: Path) -> None:
    done = run(bench("--at", "1", "--do", "die", "--preset", "quick"))
    assert done.returncode == 4
    assert "rank 1 on " in done.stderr
    assert "was killed by SIGKILL" in done.stderr
    assert "Its last line: the last words" in done.stderr


def _running(follower: "subprocess.Popen[str]", until: str) -> str:
    """The lines that it said until one of them has these words."""
    said = ""
    assert follower.stderr
    for line in follower.stderr:
        said += line
        if until in line:
            return said
    raise AssertionError(said)


def test_ctrl_c_ends_the_job_on_all_nodes(cluster: Path) -> None:
    follower = subprocess.Popen(bench("--at", "1", "--do", "sleep"), stderr=subprocess.PIPE, text=True)
    _running(follower, "measuring")
    follower.send_signal(signal.SIGINT)
    said = follower.communicate(timeout=90)[1]
    assert follower.returncode == 130
    assert "was cancelled; what it wrote is in" in said


def test_a_node_that_goes_down_is_told(cluster: Path) -> None:
    follower = subprocess.Popen(
        bench("--at", "1", "--do", "sleep", "--sbatch=--no-requeue"), stderr=subprocess.PIPE, text=True
    )
    try:
        _running(follower, "measuring")
        subprocess.run(["scontrol", "update", "nodename=n2", "state=down", "reason=test"], check=True)
        said = follower.communicate(timeout=120)[1]
    finally:
        subprocess.run(["scontrol", "update", "nodename=n2", "state=resume"], check=False)
    assert follower.returncode == 4
    assert "lost a node of n[1-2]; submit it again" in said


def test_a_climb_goes_on_without_its_follower(cluster: Path) -> None:
    small = ["--hidden-dim=32", "--num-layers=1", "--num-heads=2", "--seq-len=8", "--batch-size=2"]
    command = words("climb", "tiny-transformer", *small, "--device", "cpu", "--slurm", "1", "--rungs", "tf32")
    follower = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    _running(follower, "run directory:")
    follower.kill()
    follower.wait()
    done = run(words("climb", "--resume", str(next((cluster / ".rung" / "jobs").glob("*-climb")) / "run")))
    assert done.returncode == 0, done.stderr
    assert "this climb runs in job " in done.stderr
    assert "Run directory:" in done.stdout


def test_a_job_whose_time_is_over_stops_itself(cluster: Path) -> None:
    began = time.monotonic()
    done = run(bench("--walltime", "1", "--time", "300", nodes=1))
    assert done.returncode == 130
    assert "the time of the job is nearly over" in done.stderr
    assert time.monotonic() - began < 90
