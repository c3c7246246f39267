"""Jobs of a real SLURM: two virtual nodes on this machine, started and ended by `tools/slurm_here.py`. Skipped where it is not installed."""

import contextlib
import importlib.util
import json
import os
import re
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
from torch.optim.optimizer import register_optimizer_step_pre_hook

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

def slow() -> rung.Workload:
    # Its optimizer is slow until it is fused. While there is a file `die`, rank 1 dies once it is.

    def before_step(optimizer, args, kwargs):
        if not optimizer.defaults.get("fused"):
            time.sleep(0.02)
        elif os.path.exists("die") and os.environ.get("RANK") == "1":
            print("the last words", flush=True)
            os.kill(os.getpid(), 9)

    register_optimizer_step_pre_hook(before_step)
    return rung.Workload(
        "slow", model=lambda: torch.nn.Linear(8, 8),
        inputs=lambda seed: torch.randn(4, 8, generator=torch.Generator().manual_seed(seed)),
        loss=lambda output, batch: output.square().mean(), optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.1),
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
    """Those of this cluster: others may use the machine, too."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            line = " ".join(process.cmdline())
            if "rung.launch.rank" in line and process.environ().get("SLURM_CONF") == os.environ["SLURM_CONF"]:
                found.append(line)
    return found


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


def test_a_comparison_starts_both_sides_in_one_job(cluster: Path) -> None:
    words_ = words(
        "compare",
        "model.py:make",
        "--env",
        "A=b",
        "--device",
        "cpu",
        "--slurm",
        "2",
        "--nproc-per-node",
        "1",
        "--budget",
        "1",
        "--json",
    )
    done = run(words_)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ranks"] == 2


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


@pytest.mark.long
def test_a_job_that_makes_room_for_another_is_followed_until_it_has_run_again(cluster: Path) -> None:
    follower = subprocess.Popen(bench("--time", "2"), stderr=subprocess.PIPE, text=True)
    _running(follower, "measuring")
    urgent = ["sbatch", "--partition=urgent", "--nodes=2", "--exclusive", "--wrap=sleep 1", "--output=/dev/null"]
    subprocess.run(urgent, check=True, capture_output=True)
    said = _running(follower, "waits")
    number = re.search(r"job (\d+) waits", said)
    assert number
    until = time.monotonic() + 60
    while _ranks() and time.monotonic() < until:
        time.sleep(0.5)
    subprocess.run(["scontrol", "update", f"jobid={number[1]}", "starttime=now+10"], check=True)
    rest = follower.communicate(timeout=200)[1]
    assert follower.returncode == 0, rest
    assert f"job {number[1]} was started anew by SLURM" in said + rest
    assert rest.count("measuring") == 1


def climb(*more: str) -> "subprocess.Popen[str]":
    """A climb over two nodes, with a rank on each."""
    command = words("climb", "model.py:slow", "--device", "cpu", "--slurm", "2", "--nproc-per-node", "1")
    return subprocess.Popen(
        [*command, "--rungs", "fused-optimizer", *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def newest(cluster: Path) -> Path:
    """The run directory of the climb that began last."""
    return max((cluster / ".rung" / "jobs").glob("*-climb*/run"))


@pytest.mark.long
def test_a_climb_goes_on_without_its_follower_and_after_a_node_went_down(cluster: Path) -> None:
    follower = climb()
    _running(follower, "✓ fused-optimizer: kept")
    follower.kill()
    follower.wait()
    run_ = newest(cluster)
    (attempt,) = (run_ / "attempts").iterdir()
    made = json.loads(attempt.read_text())["comparison"]
    number = str(json.loads((run_.parent / "job.json").read_text())["job"])
    subprocess.run(["scontrol", "update", "nodename=n2", "state=down", "reason=test"], check=True)
    shown = ""
    until = time.monotonic() + 60
    while "JobState=PENDING" not in shown and time.monotonic() < until:
        time.sleep(0.5)
        shown = subprocess.run(["scontrol", "show", "job", number], capture_output=True, text=True).stdout
    subprocess.run(["scontrol", "update", "nodename=n2", "state=resume"], check=False)  # it may be back
    while _ranks() and time.monotonic() < until:
        time.sleep(0.5)
    # SLURM would wait for two minutes. Some it does need, or steps of the job that was ended keep their place.
    subprocess.run(["scontrol", "update", f"jobid={number}", "starttime=now+10"], check=True)
    again = subprocess.Popen(words("climb", "--resume", str(run_)), stderr=subprocess.PIPE, text=True)
    said = _running(again, "confirming fused-optimizer")
    again.send_signal(signal.SIGINT)
    again.communicate(timeout=90)
    assert f"this climb runs in job {number}" in said
    assert f"job {number} was started anew by SLURM" in said
    assert said.count("✓ fused-optimizer: kept") == 1
    assert json.loads(attempt.read_text())["comparison"] == made


@pytest.mark.long
def test_a_cancelled_climb_says_how_it_goes_on_and_a_rank_that_dies_ends_its_candidate(cluster: Path) -> None:
    follower = climb()
    _running(follower, "baseline:")
    follower.send_signal(signal.SIGINT)
    said = follower.communicate(timeout=90)[1]
    assert follower.returncode == 130
    again = next(line for line in said.splitlines() if line.startswith("continue with: rung ")).split()[3:]
    assert again == ["climb", "--resume", str(newest(cluster)), "--slurm", "2", "--nproc-per-node", "1"]
    refused = run(words(*again[:3]))
    assert refused.returncode == 2
    assert "give it again, as --slurm 2 --nproc-per-node 1." in refused.stderr
    (cluster / "die").touch()
    try:
        done = run(words(*again))
    finally:
        (cluster / "die").unlink()
    assert done.returncode == 0, done.stderr
    (attempt,) = (json.loads(path.read_text()) for path in (newest(cluster) / "attempts").iterdir())
    assert attempt["verdict"] == "failed"
    assert "rank 1 on " in attempt["why"]
    assert "was killed by SIGKILL" in attempt["why"]
    assert "Its last line: the last words" in attempt["why"]


ARRAY = """#!/bin/bash
#SBATCH --array=4-5 --requeue --open-mode=append --output=array-%a.log
exec {climb} --out array
"""


@pytest.mark.long
def test_tasks_of_an_array_have_runs_of_their_own_and_find_them_when_they_are_started_anew(cluster: Path) -> None:
    climb_ = words("climb", "model.py:slow", "--device", "cpu", "--rungs", "fused-optimizer", "--budget", "30")
    (cluster / "array.sh").write_text(ARRAY.format(climb=" ".join(climb_)))
    array = run(["sbatch", "--parsable", "array.sh"]).stdout.strip()
    log = cluster / "array-4.log"
    until = time.monotonic() + 90
    while not (log.exists() and "baseline:" in log.read_text()) and time.monotonic() < until:
        time.sleep(0.5)
    subprocess.run(["scontrol", "requeue", f"{array}_4"], check=True)
    time.sleep(3)  # steps that were ended keep their place for a moment
    (number,) = {
        line.split()[1] for line in run(["squeue", "-h", "-o", "%i %A"]).stdout.splitlines() if f"{array}_4" in line
    }
    subprocess.run(["scontrol", "update", f"jobid={number}", "starttime=now+5"], check=True)
    until = time.monotonic() + 150
    while run(["squeue", "-h"]).stdout.strip() and time.monotonic() < until:
        time.sleep(1)
    said = log.read_text()
    assert "SLURM started this job anew; going on with array/task4" in said
    assert said.count("measuring the baseline") == 1
    for task in (4, 5):
        manifest = json.loads((cluster / "array" / f"task{task}" / "manifest.json").read_text())
        assert manifest["status"] == "complete"


@pytest.mark.long
def test_a_climb_whose_time_is_over_stops_itself(cluster: Path) -> None:
    began = time.monotonic()
    follower = climb("--walltime", "2")
    said = follower.communicate(timeout=200)[1]
    assert follower.returncode == 130
    assert "the job is about to reach its time limit" in said
    assert f"rung climb --resume {newest(cluster)} --slurm 2 --nproc-per-node 1 --walltime 2" in said
    assert time.monotonic() - began < 180


def test_ranks_are_profiled_in_a_job_and_their_traces_read_in_another(cluster: Path) -> None:
    words_ = ["profile", "model.py:make", "--device", "cpu", "--slurm", "2", "--nproc-per-node", "1", "--out", "traces"]
    done = run(words(*words_))
    assert done.returncode == 0, done.stderr
    assert "2 ranks" in done.stdout
    done = run(words("analyze", "traces", "--slurm", "1", "--json"))
    assert json.loads(done.stdout)["ranks"] == 2


def test_ranks_meet_from_containers_on_two_nodes(
    cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Containers of a stand-in, which leaves everything where it is."""
    programs = {
        "apptainer": 'shift; while [ "${1#--}" != "$1" ]; do shift 2; done; shift; exec "$@"',
        "rung": f'exec {sys.executable} -m rung "$@"',
        "python3": f'exec {sys.executable} "$@"',
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    done = run(bench("--container", "image.sif", "--time", "2", "--json"))
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["over_ranks"]["ranks"]) == 2


@pytest.mark.skipif(importlib.util.find_spec("dask_jobqueue") is None, reason="dask-jobqueue is not installed")
def test_traces_are_reduced_by_workers_in_jobs_which_end_with_it(cluster: Path, tmp_path: Path) -> None:
    made = [sys.executable, str(ROOT / "benchmarks" / "trace" / "synthetic_ranks.py"), str(tmp_path / "ranks")]
    subprocess.run([*made, "--ranks", "4", "--steps", "3"], check=True, capture_output=True)
    asked = ["analyze", str(tmp_path / "ranks"), "--no-cache", "--json", "--engine"]
    done = run(words(*asked, "slurm://2", "--walltime", "5"))
    assert done.returncode == 0, done.stderr
    assert (json.loads(done.stdout)["ranks"], json.loads(done.stdout)["notes"]) == (4, [])
    refused = run(words(*asked, "slurm://2", "--partition", "none"))
    assert refused.returncode == 3
    assert "SLURM refuses a job with a worker: error: invalid partition specified: none" in refused.stdout
    waiting = subprocess.Popen(words(*asked, "slurm://2", "--sbatch=--begin=now+300"), stderr=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while "BeginTime" not in subprocess.run(["squeue", "-h"], capture_output=True, text=True).stdout:
        assert time.monotonic() < until
        time.sleep(0.2)
    waiting.terminate()
    waiting.wait(timeout=60)
    assert not list(cluster.glob(".rung-dask-*"))
