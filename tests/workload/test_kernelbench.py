"""`kernelbench:PATH`: problems in KernelBench's format, as files that users have."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest
import torch

from rung.cli.main import main
from rung.errors import UsageError, WorkloadError
from rung.hardware import pick
from rung.ladder.climb.climb import start
from rung.ladder.climb.state import Request
from rung.ladder.verified import probed
from rung.side import Side
from rung.timing.compare import at_revision
from rung.verify.audit import audit
from rung.workload import load, seeded_model

PROBLEMS = Path(__file__).parents[1] / "data" / "kernelbench"
NAMES = ("1_SquaredSoftplus", "2_ProjectAndBias", "3_Mix")
GOOD = """
import torch
class Model(torch.nn.Linear):
    pass
def get_inputs():
    return [torch.rand(4, 3)]
def get_init_inputs():
    return [3, 5]
"""


@pytest.mark.parametrize("name", NAMES)
def test_a_problem_is_a_workload_that_can_be_verified(name: str) -> None:
    workload, one_shape = probed(load(f"kernelbench:{PROBLEMS / name}.py"), pick("cpu"))
    assert (workload.name, workload.mode) == (name, "infer")
    assert bool(one_shape) == (name == "3_Mix")
    assert audit(workload, pick("cpu")) == []


def test_weights_and_inputs_come_from_their_seeds_alone() -> None:
    workload = load(f"kernelbench:{PROBLEMS / '2_ProjectAndBias.py'}")
    torch.manual_seed(5)
    random.seed(5)
    before = torch.default_generator.get_state(), random.getstate()
    once, again, other = workload.inputs(1), workload.inputs(1), workload.inputs(2)
    assert torch.equal(once[0], again[0])
    assert not torch.equal(once[0], other[0])
    assert once[1] == 2  # what is no tensor is left as it is
    assert torch.equal(torch.default_generator.get_state(), before[0])
    assert random.getstate() == before[1]
    torch.rand(7)  # where the generators are does not matter
    first, second = seeded_model(workload), seeded_model(workload)
    assert torch.equal(first.bias, second.bias)
    assert torch.equal(first.project.weight, second.project.weight)
    assert not torch.equal(first.bias, seeded_model(workload, 1).bias)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            GOOD.replace("class Model", "class Net"),
            "has no Model; it must define Model, get_inputs and get_init_inputs",
        ),
        (GOOD.replace("def get_init_inputs", "def init"), "has no get_init_inputs"),
        (GOOD.replace("class Model(torch.nn.Linear)", "class Model"), "its Model is not a class of torch.nn.Module"),
        (
            GOOD.replace("class Model(torch.nn.Linear):\n    pass", "Model = torch.nn.Linear(1, 1)"),
            "its Model is not a cl",
        ),
        (GOOD + "get_inputs = 3\n", "its get_inputs is a int, no function"),
    ],
)
def test_a_file_of_another_format_is_refused(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text(text)
    with pytest.raises(UsageError, match=rf"other\.py is not in KernelBench's format: .*{says}"):
        load(f"kernelbench:{tmp_path / 'other.py'}")


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("kernelbench:", "names no problem: give the path of one file"),
        (f"kernelbench:{PROBLEMS}", "names no problem"),
        ("kernelbench:level1/none.py", "there is no file level1/none.py: give the path of a problem in your checkout"),
        (f"kernelbench:{PROBLEMS / 'README.md'}", "is not a Python file"),
    ],
)
def test_a_path_of_no_problem_is_refused(target: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        load(target)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("import torch\n", "import torch\n1 / 0\n", r"could not be imported: ZeroDivisionError: .*raises\.py:3\)"),
        ("import torch\n", "import torch, no_such_package\n", "`pip install no_such_package`"),
        ("[3, 5]", "3", r"get_init_inputs\(\) returned int; it must return a list"),
        ("[torch.rand(4, 3)]", "torch.rand(4, 3)", r"get_inputs\(\) returned Tensor; it must return a list"),
    ],
)
def test_what_a_file_does_wrong_is_said_with_its_name(old: str, new: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "raises.py").write_text(GOOD.replace(old, new))

    def used() -> None:
        workload = load(f"kernelbench:{tmp_path / 'raises.py'}")
        workload.model()
        workload.inputs(0)

    with pytest.raises(WorkloadError, match=rf"raises\.py.*{says}"):
        used()


def test_options_belong_to_no_problem() -> None:
    with pytest.raises(UsageError, match="takes no options; got --rows"):
        load(f"kernelbench:{PROBLEMS / 'NAME.py'}".replace("NAME", NAMES[0]), {"rows": "4"})


@pytest.mark.parametrize("absolute", [False, True])
def test_a_revision_is_compared_on_the_problem_as_it_was(
    absolute: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "problem.py").write_text(GOOD)
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "one"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    monkeypatch.chdir(tmp_path)
    named = tmp_path / "problem.py" if absolute else Path("problem.py")
    with at_revision(Side(f"kernelbench:{named}"), "HEAD") as side:
        path = Path(side.target.removeprefix("kernelbench:"))
        assert side.cwd is not None
        assert (side.cwd / path).is_file()
        assert (side.cwd / path).resolve() != (tmp_path / "problem.py").resolve()


def test_commands_take_it_as_any_other_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = f"kernelbench:{PROBLEMS / '1_SquaredSoftplus.py'}"
    assert main(["bench", target, "--device", "cpu", "--preset", "sanity"]) == 0
    assert "1_SquaredSoftplus" in capsys.readouterr().out
    (tmp_path / "bad.py").write_text(GOOD.replace("torch.rand(4, 3)", "torch.rand(4, 7)"))
    assert main(["bench", f"kernelbench:{tmp_path / 'bad.py'}", "--device", "cpu"]) == 4
    assert "shapes cannot be multiplied" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("target", "name"),
    [("kernelbench:/x/level3/43_Net.py", "43_Net"), ("models/net.py:make", "net-make"), ("gpt", "gpt")],
)
def test_a_run_is_named_after_its_target_alone(target: str, name: str, tmp_path: Path) -> None:
    run = start(Request(target), tmp_path, None, lambda *_: None).run
    assert name in run.directory.name
    assert ".py" not in run.directory.name
