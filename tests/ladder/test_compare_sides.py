"""`rung compare`: the verdict on sides whose truth is known, its gate, and its check of equality."""

import json
import subprocess
from pathlib import Path

from climbing import MICRO, rung


def slower() -> str:
    """The micro workload with a quarter more sleep."""
    text = Path(MICRO.rpartition(":")[0]).read_text()
    assert "seconds: float = 0.02" in text
    return text.replace("seconds: float = 0.02", "seconds: float = 0.025")


def test_a_side_that_sleeps_is_slower_and_fails_the_gate(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(slower())
    done = rung("compare", MICRO, "slow.py:make", "--fail-if-slower", "5%", "--json", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    result = json.loads(done.stdout)
    assert result["verdict"] == "slower"
    assert result["comparison"]["speedup"]["high"] < 1
    assert result["times"]["a"]["value"] < result["times"]["b"]["value"]
    assert len(result["restarts"]) == result["comparison"]["restarts"] >= 5
    assert result["b"]["target"] == "slow.py:make"
    assert "restart 1: B is" in done.stderr


def test_what_is_not_clear_within_the_budget_is_inconclusive_and_what_differs_is_named(tmp_path: Path) -> None:
    done = rung("compare", MICRO, "--env", "OMP_NUM_THREADS=2", "--budget", "1", "--same-within", "0.01%", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "it is not clear whether B is faster than A" in done.stdout
    assert "B  " in done.stdout
    assert "OMP_NUM_THREADS=2" in done.stdout
    assert "differs in threads: 1 and 2" in done.stdout


def test_another_workload_that_computes_something_else_is_not_equal(tmp_path: Path) -> None:
    wrong = Path(MICRO.rpartition(":")[0]).read_text().replace("nn.GELU()", "nn.ReLU()")
    (tmp_path / "wrong.py").write_text(wrong)
    done = rung("compare", MICRO, "wrong.py:make", "--verify", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "B does not compute what A computes:" in done.stdout
    assert "off by" in done.stdout


def test_another_workload_that_computes_the_same_is_equal(tmp_path: Path) -> None:
    (tmp_path / "same.py").write_text(Path(MICRO.rpartition(":")[0]).read_text())
    done = rung("compare", MICRO, "same.py:make", "--verify", "--budget", "1", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["verification"]["passed"]


def test_a_git_revision_is_compared_with_the_working_tree(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    (tmp_path / "mine.py").write_text(Path(MICRO.rpartition(":")[0]).read_text())
    git("init", "-q")
    git("add", "mine.py")
    git("commit", "-qm", "fast")
    (tmp_path / "mine.py").write_text(slower())
    done = rung("compare", "mine.py:make", "--base", "HEAD", "--budget", "1", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    times = json.loads(done.stdout)["times"]
    assert times["b"]["value"] > times["a"]["value"] + 3e6  # the longer sleep
    listed = subprocess.run(["git", "worktree", "list"], cwd=tmp_path, capture_output=True, text=True).stdout
    assert len(listed.splitlines()) == 1


def test_a_side_that_raises_is_named(tmp_path: Path) -> None:
    done = rung("compare", MICRO, "--fused", "raise", "--rungs", "fused-optimizer", cwd=tmp_path)
    assert done.returncode == 4
    assert done.stderr.splitlines()[-1].startswith("rung: B: ")
    assert "no step today" in done.stderr


def test_wrong_use_is_one_sentence(tmp_path: Path) -> None:
    for arguments, says in (
        (["compare", MICRO, "--env", "X"], "write NAME=VALUE"),
        (["compare", MICRO, "--base", "HEAD"], "--base needs a git repository"),
        (["compare", MICRO, "--rungs", "turbo"], "there is no rung 'turbo'"),
        (["compare"], "give A"),
    ):
        done = rung(*arguments, cwd=tmp_path)
        assert (done.returncode, done.stderr.count("Traceback")) == (2, 0), done.stderr
        assert says in done.stderr
    assert rung("compare", MICRO, "--same-within", "2x", cwd=tmp_path).returncode == 2


def test_three_functions_are_ranked_against_the_first(tmp_path: Path) -> None:
    (tmp_path / "naps.py").write_text(
        "import time\ndef nap(ms: float = 2.0): time.sleep(ms / 1000)\ndef long(): nap(6)\n"
    )
    sides = ["naps.py:nap", "naps.py:long", "naps.py:nap"]
    done = rung("compare", *sides, "--call", "--budget", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "rank" in done.stdout
    assert "speedup over A" in done.stdout
    assert "pairs judged together (Holm)" in done.stdout
    assert rung("compare", *sides, "--call", "--fail-if-slower", "2%", cwd=tmp_path).returncode == 2
