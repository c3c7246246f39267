"""`rung compare`: the verdict on sides whose truth is known, its gate, and its check of equality."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from climbing import MICRO, rung

from rung.cli.main import main
from rung.records.compare import ComparedSide
from rung.side import Side
from rung.timing.compare import document, failure, idle, unseen_variables
from rung.timing.timed import Warmed

SUMS = """
import time

def sums(numbers: int = 100):
    return sum(range(numbers))

def more():
    return sums(5000)

def nap(seconds: float = 0.002):
    time.sleep(seconds)

def longer():
    nap(0.02)
"""


@pytest.fixture
def functions(tmp_path: Path) -> Path:
    """A folder with functions that need no torch."""
    (tmp_path / "mine.py").write_text(SUMS)
    return tmp_path


def test_a_side_that_does_more_is_slower_and_fails_the_gate(functions: Path) -> None:
    asked = ["mine.py:sums", "mine.py:more", "--call", "--fail-if-slower", "5%", "--json"]
    done = rung("compare", *asked, cwd=functions)
    assert done.returncode == 1, done.stderr
    result = json.loads(done.stdout)
    assert result["verdict"] == "slower"
    assert result["comparison"]["speedup"]["high"] < 1
    assert result["times"]["a"]["value"] < result["times"]["b"]["value"]
    assert len(result["restarts"]) == result["comparison"]["restarts"] >= 5
    assert result["b"]["target"] == "mine.py:more"
    assert "restart 1: B is" in done.stderr


LINEAR = """
import torch
from rung import Workload

def make(): return Workload("linear", lambda: torch.nn.Linear(8, 8), lambda seed: torch.randn(4, 8, generator=torch.Generator().manual_seed(seed)))
"""
CHANCE = """
import torch
from rung import Workload

class Noisy(torch.nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.layer, self.scale = torch.nn.Linear(8, 8), scale
    def forward(self, x):
        return self.scale * self.layer(x + torch.randn_like(x))

class Keeps(Noisy):
    seen = None
    def forward(self, x):
        self.seen = self.layer(x if self.seen is None or self.seen.shape != x.shape else x + self.seen.detach())
        return self.scale * self.seen

def noisy(scale: float = 1.0): return Workload("noisy", lambda: Noisy(scale), lambda seed: torch.randn(4, 8))
def keeps(scale: float = 1.0): return Workload("keeps", lambda: Keeps(scale), lambda seed: torch.randn(4, 8))
def louder(): return noisy(1.2)
def stronger(): return keeps(1.2)
def plain(width: int = 8): return Workload("plain", lambda: torch.nn.Linear(8, width), lambda seed: torch.randn(4, 8))
def wider(): return plain(9)
"""


@pytest.mark.parametrize(
    ("a", "b", "says"),
    [
        ("keeps", "stronger", "the model keeps state"),
        ("plain", "wider", "(weight, bias); make both with the same weights, or leave --verify out"),
    ],
)
def test_what_cannot_be_compared_is_not_called_equal(a: str, b: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "chance.py").write_text(CHANCE)
    done = rung("compare", f"chance.py:{a}", f"chance.py:{b}", "--verify", "--budget", "1", cwd=tmp_path)
    assert done.returncode == (2 if b == "wider" else 4)  # two models of other weights are no workload that failed
    assert says in done.stderr
    assert "equal" not in done.stdout


def test_workloads_that_draw_random_numbers_are_compared_on_equal_ones(tmp_path: Path) -> None:
    (tmp_path / "chance.py").write_text(CHANCE)
    done = rung("compare", "chance.py:noisy", "chance.py:louder", "--verify", "--budget", "1", cwd=tmp_path)
    assert done.returncode == 1
    assert "output is off by 2.0e-01" in done.stdout
    done = rung("compare", "chance.py:noisy", "chance.py:noisy", "--verify", "--budget", "1", cwd=tmp_path)
    assert "equal  yes" in done.stdout


@pytest.mark.parametrize(
    ("log_ratio", "says"),
    [
        (0.01, "1.01×"),
        (-0.3, "0.74×"),
        (-5.9, "0.00274×"),
        (1.2, "3.32×"),
        (5.9, "365×"),
    ],
)
def test_a_restart_has_the_ratio_of_the_verdict(log_ratio: float, says: str) -> None:
    from rung.timing.compare import _ratio

    assert _ratio(log_ratio) == says


@pytest.mark.parametrize(
    ("of_a", "of_b", "differ"),
    [
        ({}, {"ACT": "tanh"}, "ACT changes"),
        ({"ACT": "tanh"}, {}, "ACT changes"),
        ({"ACT": "tanh", "N": "1"}, {"ACT": "relu"}, "ACT, N change"),
    ],
)
def test_variables_whose_effect_on_results_was_not_compared_are_named(
    of_a: dict[str, str], of_b: dict[str, str], differ: str
) -> None:
    sides = {"A": Side("x", env=of_a), "B": Side("x", env=of_b), "C": Side("x", rungs=("compile",), env=of_a)}
    assert unseen_variables(sides) == [
        f"A and B were verified in one process with B's variables, so what {differ} in the results was not compared"
    ]
    base = {"A": Side("x", env={"PYTHONPATH": "/tmp/tree"}, revision="main"), "B": Side("x")}
    assert not unseen_variables(base)


def test_what_a_stopped_comparison_had_seen_is_said() -> None:
    from rung.timing.compare import stopped_at

    assert (
        stopped_at("B", [0.01])
        == "stopped after 1 restart: B was 1.01× as fast as A; a verdict needs at least 5 restarts"
    )
    assert stopped_at("B", [0.01] * 6).endswith("; that was not clear yet")
    several = stopped_at("B", [0.01, -0.03, 0.08])
    assert "stopped after 3 restarts: B was 1.02× as fast as A on average, and from 0.97× to 1.08×;" in several


def test_what_is_not_clear_within_the_budget_is_inconclusive_and_what_differs_is_named(functions: Path) -> None:
    (functions / "torched.py").write_text("import torch\nx = torch.ones(8)\ndef double(): return x + x\n")
    asked = ["torched.py:double", "--call", "--env", "OMP_NUM_THREADS=2", "--budget", "1", "--same-within", "0.01%"]
    done = rung("compare", *asked, cwd=functions)
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
    assert "B does not compute what A computes, and nothing was timed:" in done.stdout
    assert "off by" in done.stdout


def test_another_workload_that_computes_the_same_is_equal(tmp_path: Path) -> None:
    for name in ("one", "same"):
        (tmp_path / f"{name}.py").write_text(LINEAR)
    done = rung("compare", "one.py:make", "same.py:make", "--verify", "--budget", "1", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["verification"]["passed"]


NET = """
import torch

class Net(torch.nn.Linear):
    def forward(self, x): return super().forward(x).relu()
"""
OF_NET = """
import torch
from net import Net
from rung import Workload

def make(): return Workload("net", lambda: Net(8, 8), lambda seed: inputs(seed)[0])
def inputs(seed): return [torch.randn(4, 8, generator=torch.Generator().manual_seed(seed))]
"""


def versions(folder: Path, **activations: str) -> None:
    """A folder for each, whose files have the same names."""
    for name, activation in activations.items():
        (folder / name).mkdir()
        (folder / name / "model.py").write_text(OF_NET)
        (folder / name / "ops.py").write_text("def run(x):\n    from parts import act\n    return act(x)\n")
        (folder / name / "net.py").write_text(NET.replace("relu", activation))
        (folder / name / "parts.py").write_text(f"def act(x): return x.{activation}()\n")


@pytest.mark.parametrize("inputs", ["old", "new"])
def test_two_versions_are_compared_with_the_modules_beside_each(inputs: str, tmp_path: Path) -> None:
    versions(tmp_path, old="relu", new="tanh")
    functions = ["old/ops.py:run", "new/ops.py:run", "--call", "--inputs", f"{inputs}/model.py:inputs"]
    for asked in (["old/model.py:make", "new/model.py:make", "--verify"], functions):
        done = rung("compare", *asked, "--budget", "1", cwd=tmp_path)
        assert done.returncode == 1, done.stdout + done.stderr
        assert "B does not compute what A computes" in done.stdout


@pytest.mark.parametrize("b", ["old/ops.py:again", "new/ops.py:run"])
def test_functions_that_import_when_they_are_called_are_timed(b: str, tmp_path: Path) -> None:
    versions(tmp_path, old="relu", new="relu")
    (tmp_path / "inp.py").write_text(
        "import torch\ndef inputs(seed): return [torch.randn(4, generator=torch.Generator().manual_seed(seed))]\n"
    )
    with (tmp_path / "old" / "ops.py").open("a") as ops:
        ops.write("again = run\n")
    asked = ["old/ops.py:run", b, "--call", "--inputs", "inp.py:inputs"]
    done = rung("compare", *asked, "--budget", "1", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert result["verification"]["passed"]
    assert result["times"]["b"]["value"] > 0


@pytest.mark.parametrize("changed", [False, True])
def test_a_git_revision_is_verified_with_the_modules_that_it_had(changed: bool, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(OF_NET)
    (tmp_path / "net.py").write_text(NET)
    committed(tmp_path)
    if changed:
        (tmp_path / "net.py").write_text(NET.replace("relu", "tanh"))
    done = rung("compare", "model.py:make", "--base", "HEAD", "--verify", "--budget", "1", "--json", cwd=tmp_path)
    assert done.returncode == int(changed), done.stderr
    result = json.loads(done.stdout)
    assert result["verification"]["passed"] is not changed
    assert (result["verdict"] == "not equal") is changed
    assert result["a"]["revision"] == "HEAD"
    assert not result["a"]["env"]  # no path of a temporary folder: a test case of a CI has one name in every run
    assert "revision" not in result["b"]


def committed(folder: Path) -> None:
    """Has the folder's files in the only revision of a repository."""
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.mark.parametrize("absolute", [False, True])
def test_a_git_revision_is_compared_with_the_working_tree(absolute: bool, functions: Path) -> None:
    committed(functions)
    (functions / "mine.py").write_text(SUMS.replace("0.002", "0.05"))
    target = f"{functions}/mine.py:nap" if absolute else "mine.py:nap"
    asked = [target, "--call", "--base", "HEAD", "--budget", "1", "--json"]
    done = rung("compare", *asked, cwd=functions)
    assert done.returncode == 0, done.stderr
    times = json.loads(done.stdout)["times"]
    assert times["a"]["value"] < 50e6 <= times["b"]["value"]  # the longer sleep
    listed = subprocess.run(["git", "worktree", "list"], cwd=functions, capture_output=True, text=True).stdout
    assert len(listed.splitlines()) == 1
    outside = rung("compare", MICRO, "--base", "HEAD", cwd=functions)
    assert outside.returncode == 2
    assert "lies outside the repository" in outside.stderr


def test_a_revision_without_git_is_a_sentence(
    functions: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(functions)
    monkeypatch.setenv("PATH", str(functions))
    assert main(["compare", "mine.py:nap", "--call", "--base", "HEAD", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"].startswith("--base needs git, which was not found")


def test_a_side_that_raises_is_named(tmp_path: Path) -> None:
    done = rung("compare", MICRO, "--fused", "raise", "--rungs", "fused-optimizer", cwd=tmp_path)
    assert done.returncode == 4
    assert done.stderr.splitlines()[-1].startswith("rung: B: ")
    assert "no step today" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([MICRO, "--env", "X"], "write NAME=VALUE"),
        ([MICRO, "--base", "HEAD"], "--base needs a git repository"),
        ([MICRO, "--rungs", "turbo"], "there is no rung 'turbo'"),
        ([], "give A"),
        ([MICRO, MICRO, MICRO, "--fail-if-slower", "2%"], "--fail-if-slower"),
    ],
    ids=["env", "base", "rung", "nothing", "gate of three"],
)
def test_wrong_use_is_one_sentence(
    arguments: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["compare", *arguments]) == 2
    said = capsys.readouterr().err
    assert says in said.splitlines()[-1]
    assert "Traceback" not in said


def test_a_share_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", MICRO, "--same-within", "2x"]) == 2
    assert "'2x'" in capsys.readouterr().err


def test_three_functions_are_ranked_against_the_first(functions: Path) -> None:
    sides = ["mine.py:nap", "mine.py:longer", "mine.py:nap"]
    done = rung("compare", *sides, "--call", "--budget", "1", cwd=functions)
    assert done.returncode == 0, done.stderr
    assert "rank" in done.stdout
    assert "speedup over A" in done.stdout
    assert "pairs judged together (Holm)" in done.stdout


def test_the_side_that_computes_something_else_is_named() -> None:
    sides = {name: ComparedSide(target=name, options={}, rungs=[], env={}) for name in "ABC"}
    known = {"margin": 0.01, "results_compared": True, "seconds": 1.0}
    result = document(sides, verdict="not equal", not_equal="C", **known)
    assert failure(result, None, False) == "C does not compute what A computes."


def warmed(applied: dict[str, Any]) -> Warmed:
    return Warmed(first_run_seconds=1.0, runs=5, steady=True, memory={}, applied=applied)


def test_a_rewrite_that_found_nothing_is_named_with_its_reason() -> None:
    applied = {
        "matches": {"sdpa": 4, "triton-rope": 0, "sdpa-no-mask": 0},
        "skipped": ["triton-rope: it runs on a GPU"],
    }
    asked = {"A": Side("m.py"), "B": Side("m.py", rungs=("sdpa", "triton-rope", "sdpa-no-mask"))}
    said = idle(asked, {"A": warmed({}), "B": warmed(applied)})
    assert said == ["B: triton-rope rewrote nothing: it runs on a GPU", "B: sdpa-no-mask rewrote nothing"]
    brought = {"matches": {"sdpa": 0, "tf32-attention": 4}, "skipped": []}
    assert idle({"B": Side("m.py", rungs=("tf32-attention",))}, {"B": warmed(brought)}) == []
