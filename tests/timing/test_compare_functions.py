"""Functions with arguments: timed only once it is shown that they compute the same. Each known way to cheat is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import rung
from rung.cli.main import main
from rung.errors import UsageError, WorkloadError
from rung.hardware import pick
from rung.verify.plain_functions import same_results

CPU = pick("cpu")
KEPT: dict[Any, torch.Tensor] = {}


def numbers(seed: int) -> torch.Tensor:
    return torch.randn(16, 32, generator=torch.Generator().manual_seed(seed))


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def by_hand(x: torch.Tensor) -> torch.Tensor:
    powers = torch.exp(x - x.amax(-1, keepdim=True))
    return powers / powers.sum(-1, keepdim=True)


def remembered(x: torch.Tensor) -> torch.Tensor:
    """By shape alone: the numbers of the first call."""
    if x.shape not in KEPT:
        KEPT[x.shape] = softmax(x)
    return KEPT[x.shape]


class OneAgo:
    """Gives the answer of the call before, as what does its work in the background would."""

    before: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        last, self.before = self.before, softmax(x)
        return self.before if last is None or last.shape != x.shape else last


CHEATS: dict[str, Callable[[torch.Tensor], Any]] = {
    "nothing is computed": torch.zeros_like,
    "the numbers of the first call": remembered,
    "the numbers of the call before": OneAgo(),
    "another scale": lambda x: by_hand(x) * 1.001,
    "in lower precision": lambda x: softmax(x.bfloat16()).to(x.dtype),
    "in the input's place": lambda x: x.copy_(softmax(x)),
    "another dtype": lambda x: softmax(x).half(),
    "another shape": lambda x: softmax(x)[None],
    "two results": lambda x: (softmax(x), x),
    "it raises": lambda x: x.view(3, -1),
    "no rows but the first": lambda x: torch.cat([softmax(x[:1]), torch.zeros_like(x[1:])]),
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_what_cheats_is_refused_and_never_timed(cheat: str) -> None:
    KEPT.clear()
    found = rung.compare(softmax, CHEATS[cheat], inputs=numbers, device="cpu")
    assert found["verdict"] == "not equal"
    assert found["not_equal"] == "B"
    assert "times" not in found.to_dict()
    assert "B does not compute what A computes" in str(found)


@pytest.mark.parametrize("gradients", [False, True])
def test_what_computes_the_same_another_way_is_equal_and_timed(gradients: bool) -> None:
    found = rung.compare(softmax, by_hand, inputs=numbers, gradients=gradients, device="cpu", seconds=0.5)
    assert found["verification"]["passed"]
    assert found["results_compared"] is True
    assert found["verdict"] != "not equal"
    assert "results not compared" not in str(found)


def test_a_gradient_that_is_left_out_shows_where_gradients_are_asked_for() -> None:
    def without(x: torch.Tensor) -> torch.Tensor:
        return by_hand(x.detach()) + 0 * x

    assert same_results({"a": softmax, "b": without}, numbers, CPU, gradients=False)[1] == ""
    found, wrong = same_results({"a": softmax, "b": without}, numbers, CPU, gradients=True)
    assert wrong == "b"
    assert "gradient" in " ".join(found.record().failures)


@pytest.mark.parametrize("given", ["tuple", "dict"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_several_arguments_are_given_by_position_or_by_name_in_their_own_precision(
    given: str, dtype: torch.dtype
) -> None:
    def inputs(seed: int) -> Any:
        a, b = (numbers(10 * seed + k).to(dtype) for k in range(2))
        return (a, b) if given == "tuple" else {"a": a, "b": b}

    def one(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(a, b)

    def wide(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(a.float(), b.float()).to(a.dtype)

    def off(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (torch.nn.functional.linear(a.float(), b.float()) * 1.02).to(a.dtype)

    assert same_results({"one": one, "wide": wide}, inputs, CPU, gradients=True)[1] == ""
    assert same_results({"one": one, "wide": wide, "off": off}, inputs, CPU, gradients=False)[1] == "off"


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda x: x.numpy() * 2, "ndarray, which Rung cannot compare; return tensors, as torch.from_numpy"),
        (lambda x: x.sum().item(), "holds no tensor, so nothing can be verified; return what it computes as tensors"),
        (lambda x: x.log(), r"its output is not finite \(.* compared with it; change the inputs\."),
        (lambda x: x + torch.rand(()), "switch the randomness off, or draw it in inputs"),
    ],
)
def test_a_function_that_cannot_be_compared_is_told_what_a_function_can_do(call: Any, says: str) -> None:
    """It has no weights, and no climb is going on."""
    with pytest.raises(WorkloadError, match=says):
        rung.compare(call, call, inputs=numbers, device="cpu")


def test_what_cannot_be_asked_is_refused_in_a_sentence() -> None:
    with pytest.raises(UsageError, match="give inputs="):
        rung.compare(softmax, by_hand, verify=True)
    with pytest.raises(UsageError, match="are for callables in this process"):
        rung.compare("tiny-transformer", "tiny-transformer", inputs=numbers)
    with pytest.raises(WorkloadError, match="inputs must depend on the seed"):
        rung.compare(softmax, by_hand, inputs=lambda seed: torch.ones(4, 4), device="cpu")
    with pytest.raises(WorkloadError):
        rung.compare(lambda x: x + torch.rand(()), by_hand, inputs=numbers, device="cpu")


@pytest.mark.parametrize(
    ("call", "inputs", "says"),
    [
        (softmax, lambda seed: torch.ones(4, 4), "function 'softmax': inputs"),
        (softmax, lambda: torch.ones(4, 4), "function 'softmax': inputs is a function of other arguments"),
        (lambda x: None, numbers, "function '.*<lambda>': its output holds no tensor"),
    ],
    ids=["inputs of no seed", "inputs of other arguments", "no tensor"],
)
@pytest.mark.parametrize("gradients", [False, True], ids=["results", "gradients"])
def test_a_refusal_begins_with_the_function(call: Any, inputs: Any, says: str, gradients: bool) -> None:
    with pytest.raises(WorkloadError, match=f"^{says}") as refused:
        rung.compare(call, call, inputs=inputs, gradients=gradients, device="cpu")
    assert "workload '" not in str(refused.value)


def test_a_candidate_without_gradients_is_not_equal_and_no_refusal() -> None:
    found, wrong = same_results({"a": softmax, "b": lambda x: softmax(x).long()}, numbers, CPU, gradients=True)
    assert (found.passed, wrong) == (False, "b")


OPERATORS = """
import torch

def inputs(seed):
    return torch.randn(8, 8, generator=torch.Generator().manual_seed(seed))

def old(x):
    return torch.relu(x)

def new(x):
    return x.clamp(min=0)

def wrong(x):
    return x
"""


def test_the_command_verifies_them_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ops.py"
    path.write_text(OPERATORS)
    shared = ["--call", "--inputs", f"{path}:inputs", "--device", "cpu", "--budget", "0.5", "--json"]
    assert main(["compare", f"{path}:old", f"{path}:new", *shared, "--gradients"]) == 0
    assert json.loads(capsys.readouterr().out)["verification"]["passed"]
    assert main(["compare", f"{path}:old", f"{path}:wrong", *shared]) == 1
    assert json.loads(capsys.readouterr().out)["verdict"] == "not equal"
    for words, said in (
        ([f"{path}:old", f"{path}:new", "--inputs", f"{path}:inputs"], "add --call"),
        ([f"{path}:old", "--call", "--inputs", f"{path}:inputs"], "name them"),
        ([f"{path}:old", f"{path}:new", "--gradients"], "add --call and --inputs"),
        ([f"{path}:old", f"{path}:new", *shared, "--size", "3"], "unexpected argument"),
    ):
        assert main(["compare", *words]) == 2
        assert said in capsys.readouterr().err


def test_a_limit_below_what_counts_as_the_same_lowers_that(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ops.py"
    path.write_text(OPERATORS)
    sides = [f"{path}:old", f"{path}:new", "--call", "--inputs", f"{path}:inputs", "--device", "cpu", "--json"]
    for words, margin in (([], 0.01), (["--fail-if-slower", "0.5%"], 0.005), (["--fail-if-slower", "5%"], 0.01)):
        main(["compare", *sides, "--budget", "0.2", *words])
        assert json.loads(capsys.readouterr().out)["comparison"]["margin"] == margin


def test_a_function_may_be_compared_with_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ops.py"
    path.write_text(OPERATORS)
    shared = ["--call", "--inputs", f"{path}:inputs", "--device", "cpu", "--budget", "0.2", "--json"]
    assert main(["compare", f"{path}:old", f"{path}:old", *shared]) == 0
    found = capsys.readouterr()
    assert json.loads(found.out)["b"]["target"] == f"{path}:old #2"
    assert "A and B are the same" in found.err
    assert main(["compare", f"{path}:old", f"{path}:new", f"{path}:old", *shared]) == 0
    assert list(json.loads(capsys.readouterr().out)["sides"]) == ["a", "b", "c"]
