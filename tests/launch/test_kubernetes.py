"""A Job of Kubernetes: the manifest against the public documentation of batch/v1, and its pods as processes of this host. No cluster is asked."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rung.cli.main import main
from rung.launch import START
from rung.launch.hosts import FIRST, KEY
from rung.launch.kubernetes import Wanted, manifest

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def written(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    code = main([*words, "--k8s-image", "registry/rung:1", "--k8s-manifest", "-"])
    said = capsys.readouterr()
    assert code == 0, said.err
    found: dict[str, Any] = json.loads(said.out)
    return found


def checked(document: dict[str, Any]) -> dict[str, Any]:
    """The Job of a manifest, after the rules that the documentation of batch/v1 Job and v1 Service names."""
    *services, job = document["items"]
    assert (document["apiVersion"], document["kind"]) == ("v1", "List")
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    name, spec = job["metadata"]["name"], job["spec"]
    assert len(f"{name}-{spec['completions'] - 1}") <= 63  # the hostname of a pod of an indexed Job
    assert LABEL.fullmatch(name)
    assert spec["completionMode"] == "Indexed"
    assert spec["parallelism"] <= spec["completions"]
    pod = spec["template"]["spec"]
    assert pod["restartPolicy"] == "Never"  # which podFailurePolicy asks for
    (rule,) = spec["podFailurePolicy"]["rules"]
    assert rule["action"] in ("FailJob", "Ignore", "Count", "FailIndex")
    assert set(rule["onPodConditions"][0]) == {"type", "status"}
    (container,) = pod["containers"]
    assert LABEL.fullmatch(container["name"])
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert all(mount["mountPath"].startswith("/") for mount in container["volumeMounts"])
    for service in services:
        assert (service["apiVersion"], service["kind"]) == ("v1", "Service")
        assert service["spec"]["clusterIP"] == "None"
        assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
        assert pod["subdomain"] == service["metadata"]["name"]
    assert len(services) == (spec["completions"] > 1)
    found: dict[str, Any] = job
    return found


def container(job: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = job["spec"]["template"]["spec"]["containers"][0]
    return found


def script(job: dict[str, Any]) -> str:
    """As the pod sees it: Kubernetes makes one of two dollars."""
    *_, text = container(job)["command"]
    assert "$" not in text.replace("$$", "")
    return str(text.replace("$$", "$"))


@pytest.mark.parametrize("command", ["bench", "climb", "profile"])
def test_one_pod_has_the_gpus_of_its_ranks(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    job = checked(written(capsys, command, "tiny-transformer", "--nproc-per-node", "4", "--k8s-gpus", "amd.com/gpu"))
    assert container(job)["resources"] == {"limits": {"amd.com/gpu": 4}}
    assert f"exec rung {command} tiny-transformer --nproc-per-node 4" in script(job)
    assert container(job)["image"] == "registry/rung:1"


def test_several_pods_meet_at_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "compare",
        "tiny-transformer",
        "--env",
        "A=b",
        "--k8s-nodes",
        "3",
        "--nproc-per-node",
        "8",
        "--k8s-claim",
        "data",
    ]
    job = checked(written(capsys, *words))
    name = job["metadata"]["name"]
    first, key = container(job)["env"]
    assert first["value"] == f"{name}-0.{name}"
    assert key["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.labels['batch.kubernetes.io/controller-uid']"
    assert "--nnodes=3 --node-rank={host} --nproc-per-node=8" in script(job)
    assert job["spec"]["completions"] == 3
    claim = next(v for v in job["spec"]["template"]["spec"]["volumes"] if v["name"] == "work")
    assert claim["persistentVolumeClaim"] == {"claimName": "data"}


def test_a_cpu_asks_for_no_gpu_and_a_climb_goes_on_where_its_files_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    job = checked(written(capsys, "climb", "tiny-transformer", "--device", "cpu"))
    assert "resources" not in container(job)
    assert "--resume" not in script(job)
    job = checked(written(capsys, "climb", "tiny-transformer", "--k8s-claim", "data"))
    run = f".rung/{job['metadata']['name']}"
    assert f"if [ -e {run}/manifest.json ]; then exec rung climb --resume {run}; else rm -rf {run}; exec" in script(job)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--k8s-nodes", "2"], "needs --nproc-per-node"),
        (["--k8s-nodes", "2", "--nproc-per-node", "1,2"], "give one number"),
        (["--launcher", "mpirun"], "leave --launcher out"),
        (["--slurm", "1"], "not both"),
        (["--k8s-folder", "work"], "must be absolute"),
        (["--k8s-claim", "Data"], "no name of a PersistentVolumeClaim"),
        (["--k8s-image="], "needs --k8s-image"),
    ],
)
def test_what_cannot_run_so_is_refused(more: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "tiny-transformer", "--k8s-manifest", "-", "--k8s-image", "x", *more]) == 2
    assert says in capsys.readouterr().err


def test_a_file_is_written_and_what_to_do_with_it_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.json"
    assert main(["bench", "tiny-transformer", "--k8s-image", "x", "--k8s-manifest", str(path)]) == 0
    assert f"kubectl apply -f {path}" in capsys.readouterr().err
    checked(json.loads(path.read_text()))


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1), min_size=1, max_size=4))
def test_words_reach_the_pod_as_they_were_typed(typed: list[str]) -> None:
    text = script(checked(manifest(Wanted("rung-x", "i"), ["bench", *typed])))
    command = text[text.index("(exec rung ") + len("(exec rung ") : text.rindex(") & child")]
    said = subprocess.run(["bash", "-c", f"printf '%s\\0' {command}"], capture_output=True, check=True).stdout
    assert said.split(b"\0")[1:-1] == [word.encode() for word in typed]


def pods(tmp_path: Path, hosts: int, stub: str) -> list["subprocess.Popen[str]"]:
    """The pods of a Job as processes here, with a program `rung` that does what the stub says."""
    program = tmp_path / "bin" / "rung"
    program.parent.mkdir()
    program.write_text(f"#!/bin/bash\n{stub}\n")
    program.chmod(0o755)
    wanted = Wanted("rung-x", "i", nodes=hosts, ranks=2)
    text = script(checked(manifest(wanted, ["bench", "m.py:make"]))).replace(str(FIRST), str(free_port()))
    text = text.replace("python3", sys.executable)
    (tmp_path / "agent.py").write_text("import sys; print(sys.argv, file=open('ran', 'a'))")
    text = text.replace(" -m torch.distributed.run ", f" {tmp_path / 'agent.py'} ")
    return [started(tmp_path, text, number) for number in range(hosts)]


def started(tmp_path: Path, text: str, number: int) -> "subprocess.Popen[str]":
    env = {**os.environ, KEY: "secret", "RUNG_HOST": "127.0.0.1", "JOB_COMPLETION_INDEX": str(number)}
    env["PATH"] = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return subprocess.Popen(
        ["bash", "-c", text], env=env, cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("", 0))
        return int(free.getsockname()[1])


def test_pod_0_starts_the_ranks_of_all_pods_as_often_as_it_likes(tmp_path: Path) -> None:
    # The last word is the launcher, which is run twice.
    first, second = pods(tmp_path, 2, 'eval "${@: -1}" && eval "${@: -1}"; exit 5')
    said, more = first.communicate(timeout=60), second.communicate(timeout=60)
    assert (first.returncode, second.returncode) == (5, 0), (said, more)
    ran = (tmp_path / "ran").read_text()
    assert sorted(re.findall(r"--node-rank=\d", ran)) == ["--node-rank=0"] * 2 + ["--node-rank=1"] * 2


def test_the_other_pods_wait_for_a_first_one_that_is_started_anew(tmp_path: Path) -> None:
    stub = 'trap "exit 130" TERM; touch begun; [ -e again ] && exit 0; while :; do sleep 0.1; done'
    first, second = pods(tmp_path, 2, stub)
    until = time.monotonic() + 30
    while not (tmp_path / "begun").exists() and time.monotonic() < until:
        time.sleep(0.05)
    first.terminate()  # as an eviction does
    assert first.wait(timeout=30) == 130
    (tmp_path / "again").touch()
    again = started(tmp_path, first.args[-1], 0)
    assert again.wait(timeout=30) == 0
    assert second.wait(timeout=30) == 0


def hosts(*words: str, key: str = "secret") -> "subprocess.Popen[str]":
    command = [sys.executable, START, "rung.launch.hosts", *words]
    return subprocess.Popen(
        command, env={**os.environ, KEY: key}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_a_host_that_fails_ends_the_others(tmp_path: Path) -> None:
    port = str(free_port())
    other = hosts("join", f"127.0.0.1:{port}")
    (tmp_path / "0").touch()  # this one would wait
    work = "import os, sys, time; os.path.exists(sys.argv[1]) and time.sleep(600); print('no room'); sys.exit(7)"
    run = hosts("run", "2", port, sys.executable, "-c", work, f"{tmp_path}/{{host}}")
    assert run.wait(timeout=30) == 7
    assert hosts("end", "2", port).wait(timeout=30) == 0
    assert "no room" in other.communicate(timeout=30)[1]
    assert other.returncode == 0


@pytest.mark.parametrize("ended", [signal.SIGTERM, signal.SIGKILL])
def test_what_the_others_run_ends_with_the_first(tmp_path: Path, ended: signal.Signals) -> None:
    port = str(free_port())
    other = hosts("join", f"127.0.0.1:{port}")
    work = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
    run = hosts("run", "2", port, sys.executable, "-c", work, f"{tmp_path}/{{host}}")
    until = time.monotonic() + 30
    while not ((tmp_path / "1").exists() and (tmp_path / "1").read_text()) and time.monotonic() < until:
        time.sleep(0.05)
    pid = int((tmp_path / "1").read_text())
    run.send_signal(ended)
    run.wait(timeout=30)
    while time.monotonic() < until and Path(f"/proc/{pid}").exists():
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()
    assert other.poll() is None  # it waits for the next
    other.terminate()
    assert other.wait(timeout=30) == 130
    if ended == signal.SIGKILL:  # nobody ended what ran on the first host itself
        os.kill(int((tmp_path / "0").read_text()), signal.SIGKILL)


def test_who_has_another_key_is_given_nothing(tmp_path: Path) -> None:
    port = str(free_port())
    stranger = hosts("join", f"127.0.0.1:{port}", key="guessed")
    work = "import sys; open(sys.argv[1], 'a').write('ran ')"
    run = hosts("run", "2", port, sys.executable, "-c", work, str(tmp_path / "ran"))
    time.sleep(2)
    assert run.poll() is None
    member = hosts("join", f"127.0.0.1:{port}")
    assert run.wait(timeout=30) == 0
    for process in (stranger, member):
        process.terminate()
        process.wait(timeout=30)
    assert (tmp_path / "ran").read_text() == "ran ran "
