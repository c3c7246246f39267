"""A command in a job: its script, what is said of the job, its answer; by a stand-in for SLURM's programs."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rung
from rung.launch.slurm import RECORD, State, Submission, Wanted, _code, _shown, look, script, why
from rung.records.slurm_job import SlurmJob

EARLIER = Path(__file__).parents[1] / "data" / "run_directory"
SOURCES = str(Path(rung.__file__).parents[1])
Run = Callable[..., "subprocess.CompletedProcess[str]"]
TRACE = {
    "traceEvents": [
        {
            "ph": "X",
            "cat": "kernel",
            "name": "k",
            "pid": 0,
            "tid": 7,
            "ts": 1,
            "dur": 5,
            "args": {"device": 0, "stream": 7},
        }
    ]
}


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to submit from, with a trace in it, and the programs on the path."""
    programs, work = tmp_path / "bin", tmp_path / "work"
    for folder in (programs, work, tmp_path / "jobs"):
        folder.mkdir()
    standin = programs / "standin"
    standin.write_text(f"#!{sys.executable}\n" + (Path(__file__).parent / "slurm_standin.py").read_text())
    standin.chmod(0o755)
    for name in ("sbatch", "scontrol", "scancel", "sacct"):
        (programs / name).symlink_to(standin)
    (work / "trace.json").write_text(json.dumps(TRACE))
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("STANDIN_JOBS", str(tmp_path / "jobs"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [SOURCES, os.environ.get("PYTHONPATH")])))
    monkeypatch.chdir(work)
    return work


def words(*more: str) -> list[str]:
    return [sys.executable, "-m", "rung", *more]


def run(*more: str, env: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(words(*more), capture_output=True, text=True, timeout=120, env={**os.environ, **(env or {})})


def test_a_command_runs_in_a_job_and_its_answer_is_printed(cluster: Path) -> None:
    here, there = run("analyze", "trace.json", "--json"), run("analyze", "trace.json", "--json", "--slurm", "1")
    assert there.returncode == 0, there.stderr
    assert {**json.loads(there.stdout), "seconds": 0} == {**json.loads(here.stdout), "seconds": 0}
    assert "job 1 was submitted" in there.stderr
    assert "job 1 has ended on n1" in there.stderr
    listed = json.loads(run("jobs", "--json").stdout)
    assert [(job["job"], job["state"], job["words"]) for job in listed] == [
        (1, "completed", ["analyze", "trace.json", "--json"])
    ]


def test_what_fails_in_a_job_fails_here_with_its_words(cluster: Path) -> None:
    done = run("analyze", "missing.json", "--slurm", "1")
    assert done.returncode == 3
    assert "missing.json" in done.stderr
    assert "job 1 has failed on n1" in done.stderr


def test_what_slurm_refuses_is_told(cluster: Path) -> None:
    done = run("analyze", "trace.json", "--slurm", "1", "--partition", "none")
    assert done.returncode == 4
    assert "rung: sbatch: sbatch: error: invalid partition specified: none" in done.stderr


def test_a_job_that_slurm_ended_is_told_after_what_it_answered(cluster: Path) -> None:
    done = run("analyze", "trace.json", "--slurm", "1", "--walltime", "10:00", env={"STANDIN_STATE": "TIMEOUT"})
    assert done.returncode == 4
    assert "job 1 reached its time limit of 10:00; raise it with --walltime. What it wrote is in" in done.stderr
    assert "trace.json" in done.stdout


def test_a_job_that_scontrol_has_forgotten_is_in_the_accounts(cluster: Path, tmp_path: Path) -> None:
    run("analyze", "trace.json", "--slurm", "1")
    (tmp_path / "jobs" / "1" / "forgotten").touch()
    done = run("jobs", "follow", "1")
    assert done.returncode == 0
    assert "trace.json" in done.stdout


def test_a_job_that_slurm_has_forgotten_tells_its_own_exit_code(cluster: Path, tmp_path: Path) -> None:
    run("analyze", "missing.json", "--slurm", "1")
    (tmp_path / "jobs" / "1" / "forgotten").touch()
    (tmp_path / "bin" / "sacct").unlink()
    began = time.monotonic()
    assert run("jobs", "follow", "1").returncode == 3
    assert time.monotonic() - began < 60


def test_ctrl_c_cancels_the_job_and_keeps_what_it_wrote(cluster: Path, tmp_path: Path) -> None:
    (cluster / "slow.py").write_text("import time\ndef nap():\n    print('asleep', flush=True)\n    time.sleep(600)\n")
    command = words("bench", "slow.py:nap", "--call", "--device", "cpu", "--slurm", "1")
    follower = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 60
    began, record = tmp_path / "jobs" / "1" / "pid", f"*/{RECORD}"  # by then the follower knows its number
    while not (began.exists() and list((cluster / ".rung" / "jobs").glob(record))) and time.monotonic() < until:
        time.sleep(0.1)
    follower.send_signal(signal.SIGINT)
    said = follower.communicate(timeout=60)[1]
    assert follower.returncode == 130
    assert "job 1 was cancelled; what it wrote is in" in said
    assert (tmp_path / "jobs" / "1" / "code").exists()


def test_a_job_goes_on_without_its_follower_and_is_found_again(cluster: Path) -> None:
    follower = subprocess.Popen(words("analyze", "trace.json", "--slurm", "1"), stderr=subprocess.PIPE, text=True)
    assert follower.stderr
    assert "was submitted" in follower.stderr.readline()
    follower.kill()
    follower.wait()
    done = run("jobs", "follow", "1")
    assert done.returncode == 0
    assert "trace.json" in done.stdout
    assert run("jobs", "cancel", "7").returncode == 2


def test_two_jobs_of_one_second_have_folders_of_their_own(cluster: Path) -> None:
    both = [
        subprocess.Popen(words("analyze", "trace.json", "--slurm", "1"), stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert ["trace.json" in one.communicate(timeout=60)[0] for one in both] == [True, True]
    assert len(list((cluster / ".rung" / "jobs").iterdir())) == 2


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--slurm", "2"], "`rung analyze` runs on one node: use --slurm 1"),
        (["--slurm", "0"], "1 or more"),
        (["--slurm", "1", "--sbatch", "'"], "--sbatch '"),
        (["--slurm", "1", "--sbatch=--array=0-3"], "--sbatch --array=0-3 would run one command several times"),
    ],
)
def test_what_cannot_run_in_a_job_is_refused_before_it_is_submitted(cluster: Path, more: list[str], said: str) -> None:
    done = run("analyze", "trace.json", *more)
    assert done.returncode == 2
    assert said in done.stderr
    assert not (cluster / ".rung").exists()


def test_ranks_need_their_number_and_the_launcher_is_slurms(cluster: Path) -> None:
    assert "--nproc-per-node, which says how many" in run("bench", "tiny-transformer", "--slurm", "2").stderr
    assert "leave --launcher out" in run("bench", "tiny-transformer", "--slurm", "1", "--launcher", "mpirun").stderr
    assert (
        "timed as launched"
        in run("bench", "tiny-transformer", "--slurm", "1", "--nproc-per-node", "2", "--timer", "graph").stderr
    )
    assert "unknown target" in run("bench", "no-such-target", "--slurm", "1").stderr
    assert "give one number" in run("bench", "tiny-transformer", "--slurm", "1", "--nproc-per-node", "1,2").stderr


def test_without_slurm_that_is_said(cluster: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin" if not Path("/usr/bin/sbatch").exists() else str(cluster))
    done = run("analyze", "trace.json", "--slurm", "1")
    assert done.returncode == 2
    assert "there is no sbatch here" in done.stderr
    assert not list((cluster / ".rung" / "jobs").iterdir())


@pytest.mark.parametrize(
    "said",
    [
        "4711",
        "4711;cluster",
        "Your job runs in project p1\n4711",
        "4711;cluster\n42 hours are left",
        "Submitted batch job 4711",
    ],
)
def test_a_job_is_found_among_what_a_site_has_sbatch_print(
    said: str, cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs(tmp_path, monkeypatch, sbatch=said)
    assert Submission(tmp_path / "job.sh").job() == 4711


def test_a_job_that_sbatch_does_not_name_is_told(
    cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs(tmp_path, monkeypatch, sbatch="Thank you")
    done = run("analyze", "trace.json", "--slurm", "1")
    assert done.returncode == 4
    (folder,) = (cluster / ".rung" / "jobs").iterdir()  # which a job may write to
    assert "sbatch took the script but named no job, and printed 'Thank you'." in done.stderr
    assert f"`scancel --name={name_in(folder)}` ends it. Its files, if there is one: {folder}" in done.stderr
    named = run("analyze", "trace.json", "--slurm", "1", "--sbatch=--job-name=mine")
    assert "`squeue --me` shows whether there is a job, and `scancel NUMBER` ends it." in named.stderr


def name_in(folder: Path) -> str:
    """The name that a job has by its script."""
    found = re.search(r"--job-name=(\S+)", (folder / "job.sh").read_text())
    assert found
    return found[1]


@pytest.mark.parametrize("answers", ["its number", "no number", "nothing"])
def test_ctrl_c_before_sbatch_has_answered_cancels_the_job(
    answers: str, cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cluster / "slow.py").write_text("import time\ndef nap():\n    print('asleep', flush=True)\n    time.sleep(600)\n")
    waits, job = tmp_path / "waits", tmp_path / "jobs" / "1"
    waits.touch()
    monkeypatch.setenv("STANDIN_WAITS", str(waits))
    if answers == "no number":
        monkeypatch.setenv("STANDIN_SAYS", "Thank you")
    command = words("bench", "slow.py:nap", "--call", "--device", "cpu", "--slurm", "1")
    submitter = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert submitter.stderr
    until = time.monotonic() + 60
    while not (job / "pid").exists() and time.monotonic() < until:
        time.sleep(0.1)
    os.killpg(submitter.pid, signal.SIGINT)  # as a terminal does
    said = submitter.stderr.readline()
    assert "waiting for sbatch" in said
    if answers == "nothing":
        os.killpg(submitter.pid, signal.SIGINT)
    else:
        waits.unlink()
    said += submitter.communicate(timeout=60)[1]
    assert submitter.returncode == 130
    assert (job / "cancelled").exists()
    if answers == "its number":
        assert "job 1 was cancelled; what it wrote is in" in said
    else:
        (folder,) = (cluster / ".rung" / "jobs").iterdir()
        assert f"`scancel --name={name_in(folder)}` ends it." in said


def test_where_scontrol_says_nothing_the_accounts_are_asked(
    cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs(tmp_path, monkeypatch, scontrol="", sacct="Welcome\nFAILED|3:0|n1")
    assert look(4711) == State("FAILED", 3, "n1")
    for answer in ("", "|0:0|n1", "FAILED|x|n1"):
        programs(tmp_path, monkeypatch, scontrol="JobId=4711", sacct=answer)
        assert look(4711) is None


def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **said: str) -> None:
    """SLURM's programs, each of which only prints this."""
    folder = tmp_path / "printing"
    folder.mkdir(exist_ok=True)
    for name, text in said.items():
        (folder / name).write_text(f"#!/bin/sh\nprintf '%s' '{text}'\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.parametrize("limit", ["30", "30:00", "2:00:00", "1-12", "1-12:30:00", "UNLIMITED"])
def test_a_time_limit_is_one_that_sbatch_takes(cluster: Path, limit: str) -> None:
    job = ["bench", "tiny-transformer", "--slurm", "1", "--dry-run"]
    assert f"#SBATCH --time={limit}\n" in run(*job, "--walltime", limit).stdout
    done = run(*job, "--walltime", f"{limit}x")
    assert done.returncode == 2
    assert f"'{limit}x' is no time limit; write minutes, 30:00, 2:00:00 or 1-12" in done.stderr


def test_the_script_of_a_dry_run_is_the_one_that_runs(cluster: Path) -> None:
    given = ["bench", "tiny-transformer", "--slurm", "2", "--nproc-per-node", "8", "--partition=gpu", "--account", "me",
             "--walltime", "30:00", "--sbatch", "--constraint=mi300 --exclusive", "--dry-run"]  # fmt: skip
    text = run(*given).stdout
    assert not (cluster / ".rung").exists()
    for option in (
        "nodes=2",
        "ntasks-per-node=8",
        "gpus-per-node=8",
        "partition=gpu",
        "account=me",
        "time=30:00",
        "constraint=mi300",
        "exclusive",
    ):
        assert f"#SBATCH --{option}\n" in text
    assert "--nnodes=2 --nproc-per-node=8" in text
    assert 'bench tiny-transformer --launcher "$launcher"' in text
    assert subprocess.run(["bash", "-n"], input=text, text=True).returncode == 0
    assert "gpus-per-node" not in run(*given, "--device", "cpu").stdout
    assert "gpus-per-node" in run(*given[:-3], "--sbatch=--qos=gpu-short", "--dry-run").stdout
    assert (
        "gpus-per-node=3" in run("climb", "tiny-transformer", "--slurm", "1", "--devices", "0,1,2", "--dry-run").stdout
    )


STANDIN = """#!/bin/bash
# apptainer exec --bind HERE:THERE,... --pwd FOLDER IMAGE COMMAND...
[ "$1" = exec ] || exit 9
shift
while [ "${1#--}" != "$1" ]; do
  case $1 in --nv|--rocm) shift;; --bind) shift 2;; --pwd) cd "$2"; shift 2;; *) exit 9;; esac
done
echo "in $1" >&2
shift
exec "$@"
"""


def with_programs(folder: Path, **texts: str) -> None:
    for name, text in texts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)


def test_a_job_runs_in_a_container(cluster: Path, tmp_path: Path) -> None:
    python = f'#!/bin/bash\nexec {sys.executable} "$@"\n'
    srun = '#!/bin/bash\nwhile [ "${1#--}" != "$1" ]; do shift; done\nSLURM_NODEID=0 exec "$@"\n'
    rung_ = f'#!/bin/bash\nexec {sys.executable} -m rung "$@"\n'
    with_programs(tmp_path / "bin", apptainer=STANDIN, srun=srun, python3=python, rung=rung_)
    done = run("analyze", "trace.json", "--slurm", "1", "--container", "a image.sif")
    assert done.returncode == 0, done.stderr
    assert "in a image.sif" in done.stderr
    assert "trace.json" in done.stdout
    failed = run("analyze", "missing.json", "--slurm", "1", "--container", "image.sif")
    assert failed.returncode == 3
    assert "missing.json" in failed.stderr


def test_containers_are_started_as_their_runtimes_document(cluster: Path, tmp_path: Path) -> None:
    words_ = ["climb", "tiny-transformer", "--slurm", "2", "--nproc-per-node", "4", "--dry-run", "--out", "/other/run"]
    words_ += ["--container", "registry#rung:1", "--container-mounts", "/data:/data:ro"]
    with_programs(tmp_path / "bin", srun="#!/bin/bash\necho '  --container-image=[USER@][REGISTRY#]IMAGE'\n")
    text = run(*words_).stdout
    mounts = f"{cluster}:{cluster},/other:/other,/data:/data:ro"
    assert (
        f"--container-image='registry#rung:1' --container-mounts={mounts} --container-workdir={cluster} bash -c" in text
    )
    assert "--nnodes=2 --node-rank={host} --nproc-per-node=4" in text
    assert "rm -rf" not in text
    assert subprocess.run(["bash", "-n"], input=text, text=True).returncode == 0
    with_programs(tmp_path / "bin", srun="#!/bin/bash\n", apptainer="#!/bin/bash\n")
    text = run(*words_).stdout
    gpus = "$([ -e /dev/kfd ] && echo --rocm || echo --nv)"
    assert f"apptainer exec {gpus} --bind {mounts} --pwd {cluster} 'registry#rung:1' bash -c" in text
    assert "echo --nv" not in run(*words_, "--device", "cpu").stdout


def test_what_no_container_can_be_is_refused(cluster: Path, tmp_path: Path) -> None:
    with_programs(tmp_path / "bin", srun="#!/bin/bash\n")
    words_ = ["analyze", "trace.json", "--slurm", "1"]
    if not (shutil.which("apptainer") or shutil.which("singularity")):
        assert (
            "needs pyxis (srun --container-image), apptainer or singularity" in run(*words_, "--container", "x").stderr
        )
    assert "give an image, too" in run(*words_, "--container-mounts", "/a:/b").stderr
    with_programs(tmp_path / "bin", apptainer=STANDIN)
    assert "write HERE:THERE" in run(*words_, "--container", "x", "--container-mounts", "/a").stderr


def test_a_climb_that_goes_on_takes_what_it_took_and_is_not_submitted_twice(cluster: Path, tmp_path: Path) -> None:
    climbed = cluster / "climbed"
    shutil.copytree(EARLIER, climbed)
    again = ["climb", "--resume", "climbed", "--slurm", "1", "--budget", "60"]
    assert "gpus-per-node=1" in run(*again, "--dry-run").stdout
    manifest = json.loads((climbed / "manifest.json").read_text())
    manifest["request"]["device"] = "cpu"
    (climbed / "manifest.json").write_text(json.dumps(manifest))
    text = run(*again, "--dry-run").stdout
    assert "gpus-per-node" not in text
    assert "climb --resume climbed --budget 60)" in text
    assert "export RUNG_IN_JOB='--slurm 1'" in text
    job = SlurmJob(job=7, words=[], cwd="", nodes=1, ranks_per_node=0, submitted="", run=str(climbed))
    (cluster / ".rung" / "jobs" / "x").mkdir(parents=True)
    (cluster / ".rung" / "jobs" / "x" / "job.json").write_bytes(msgspec.json.encode(job))
    (tmp_path / "jobs" / "7").mkdir()
    refused = run(*again).stderr
    assert "this climb runs in job 7: `" in refused
    assert "rung climb --resume climbed` follows it" in refused


def test_a_folder_with_odd_characters_is_quoted_for_sbatch() -> None:
    text = script(
        Wanted(1, more=("--comment=a b",)), ["climb", "m.py:make"], Path("/a b/50%"), Path("/c d"), Path("/a b/50%/run")
    )
    assert "#SBATCH '--output=/a b/50%%/log'\n#" in text
    assert "#SBATCH '--comment=a b'\n" in text
    assert "else rm -rf '/a b/50%/run'; exec" in text
    assert "rm -rf" not in script(Wanted(1), ["climb", "m.py:make"], Path("/f"), Path("/c"), Path("/mine"))


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1), min_size=1, max_size=4))
def test_words_reach_the_job_as_they_were_typed(typed: list[str]) -> None:
    text = script(Wanted(1, gpus=False), ["bench", *typed], Path("/f"), Path("/c"))
    line = next(line for line in text[text.index("(exec") :].split("\n(exec") if line)
    command = line[: line.rindex(") > /f/answer")].removeprefix("(exec ")
    said = subprocess.run(["bash", "-c", f"printf '%s\\0' {command}"], capture_output=True, check=True).stdout
    assert said.split(b"\0")[3:-1] == [word.encode() for word in ["bench", *typed]]


def test_the_ranks_of_a_climb_are_started_anew_where_it_goes_on() -> None:
    """They may meet at another host then."""
    text = script(Wanted(2, ranks=4), ["climb", "m.py:make"], Path("/f"), Path("/c"), Path("/f/run"))
    assert text.count('--launcher "$launcher"') == 2
    assert 'climb --resume /f/run --launcher "$launcher"; else' in text


def test_a_climb_that_slurm_starts_anew_goes_on() -> None:
    text = script(Wanted(1), ["climb", "m.py:make", "--json"], Path("/f"), Path("/c"), Path("/f/run"))
    assert "if [ -e /f/run/manifest.json ]; then exec" in text
    assert "climb --resume /f/run --json; else rm -rf /f/run; exec" in text


@pytest.mark.parametrize(("said", "code"), [("0:0", 0), ("3:0", 3), ("0:15", 143), ("1:9", 1)])
def test_an_exit_code_is_that_of_a_shell(said: str, code: int) -> None:
    assert _code(said) == code


def test_what_scontrol_shows_is_read() -> None:
    line = (
        "JobId=9 JobName=rung-bench UserId=root(0) JobState=PENDING Reason=Resources Requeue=1 Restarts=2 ExitCode=0:0 "
        "NodeList=(null) ReqB:S:C:T=0:0:*:* Command=/x/job.sh WorkDir=/x"
    )
    assert _shown(line) == State("PENDING", 0, "", "Resources", 2)
    assert _shown(line).alive


@pytest.mark.parametrize(
    "name", ["TIMEOUT", "CANCELLED", "PREEMPTED", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE"]
)
def test_why_slurm_ended_a_job_is_a_sentence(name: str) -> None:
    assert why(9, State(name, hosts="n1")).startswith("job 9 ")
    assert not State(name).alive


def test_a_command_that_ended_by_itself_says_why_itself() -> None:
    assert not why(9, State("FAILED", 4))
    assert not why(9, State("COMPLETED"))
