"""Live objects written for other processes: what these read is the same and fresh at every call, or it is refused in a sentence."""

import copy
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rung.errors import InputError, UsageError
from rung.workload import Workload, load
from rung.workload.live import workload_of, write

BATCH = torch.randn(4, 8)
SCRIPT = """
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from rung.workload.live import workload_of, write

sys.path.append("mine")
import layers

SCALE = 2.0

def scaled(x):
    return F.gelu(x) * SCALE

@dataclass
class Output:
    values: torch.Tensor

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = layers.Layer(8, 8), nn.Linear(8, 8)
        self.second.weight = self.first.weight
    def forward(self, x):
        return Output(self.second(scaled(self.first(x))))

torch.manual_seed(3)
net = Net()
write(workload_of(net, torch.randn(4, 8), lambda output, batch: output.values.square().mean() * SCALE,
                  lambda parameters: torch.optim.SGD(parameters, lr=0.1)), Path("w"))
print(net(torch.ones(1, 8)).values.sum().item())
"""
READER = """
import torch
from rung.workload import load

workload = load("WHERE/w/workload.py:workload")
first, second = workload.model(), workload.model()
assert type(first) is type(second) and first is not second
assert first.first.weight is first.second.weight
compiled = torch.compile(lambda x: first(x).values, fullgraph=True, backend="eager")
batch = workload.inputs(1)
workload.loss(first(batch), batch).backward()
workload.optimizer(first.parameters()).step()
assert not torch.equal(first.first.weight, second.first.weight)
compiled(batch)
print(second(torch.ones(1, 8)).values.sum().item())
"""


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))


def written(workload: Workload, folder: Path) -> Workload:
    return load(write(workload, folder / "workload"))


def test_what_a_script_defines_is_there_in_a_process_of_its_own_and_can_be_compiled(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "layers.py").write_text("from torch import nn\nclass Layer(nn.Linear):\n    pass\n")
    said = []
    for code, folder in ((SCRIPT, str(tmp_path)), (READER.replace("WHERE", str(tmp_path)), "/")):
        done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    assert said[0] == said[1]  # the weights are the same, and no copy shares them


def test_the_users_own_model_stays_as_it_was(tmp_path: Path) -> None:
    model = net().train()
    before = copy.deepcopy(model.state_dict())
    read = written(workload_of(model, BATCH), tmp_path)
    made = read.model()
    with torch.no_grad():
        next(made.parameters()).zero_()
    assert model.training
    assert all(torch.equal(before[name], now) for name, now in model.state_dict().items())
    assert all(torch.equal(before[name], now) for name, now in read.model().state_dict().items())
    assert (read.name, read.mode) == ("Sequential", "infer")


def test_a_workload_that_returns_the_same_model_every_time_gives_copies_of_it(tmp_path: Path) -> None:
    model = net()
    inputs = lambda seed: torch.randn(4, 8, generator=torch.Generator().manual_seed(seed))  # noqa: E731
    same = written(Workload("same", lambda: model, inputs), tmp_path / "same")
    first, second = same.model(), same.model()
    assert first is not second
    assert torch.equal(first[0].weight, model[0].weight)
    fresh = written(Workload("fresh", net, inputs), tmp_path / "fresh")
    torch.manual_seed(1)
    one = fresh.model()
    torch.manual_seed(2)
    assert not torch.equal(one[0].weight, fresh.model()[0].weight)  # it is drawn anew
    assert torch.equal(fresh.inputs(7), inputs(7))


def test_a_models_own_tensors_with_a_history_are_copied(tmp_path: Path) -> None:
    model = nn.utils.weight_norm(nn.Linear(8, 8))  # which keeps its weight as a plain attribute
    made = written(workload_of(model, BATCH), tmp_path).model()
    assert torch.equal(made(BATCH), model(BATCH))


def test_a_plain_tensor_on_a_gpu_does_not_move_with_the_model_and_is_refused(tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    model = net().cuda()
    assert torch.equal(written(workload_of(model, BATCH), tmp_path / "moved").model()[0].weight, model[0].weight.cpu())
    model.table = torch.ones(2, device="cuda")
    with pytest.raises(UsageError, match="model= refers to table on cuda:0, which does not move with the model"):
        write(workload_of(model, BATCH), tmp_path / "workload")


def _train(**how: Any) -> Callable[[nn.Module], Workload]:
    full = {"loss": lambda output, batch: output.mean(), "optimizer": lambda p: torch.optim.SGD(p, lr=0.1), **how}
    return lambda model: workload_of(model, BATCH, **full)


def _regularized(model: nn.Module) -> Workload:
    return _train(loss=lambda output, batch: output.mean() + model[0].weight.norm())(model)  # type: ignore[index]


def _own_parameters(model: nn.Module) -> Workload:
    weights = list(model.parameters())
    return _train(optimizer=lambda p: torch.optim.SGD(weights, lr=0.1))(model)


def _its_own_forward(model: nn.Module) -> Workload:
    return workload_of(model, BATCH, forward=lambda _, batch: model(batch))


def _elsewhere(model: nn.Module) -> Workload:
    table = torch.empty(2, device="meta")  # what is true of every device but the CPU
    return _train(loss=lambda output, batch: (output @ table).mean())(model)


def _uninitialized(model: nn.Module) -> Workload:
    return workload_of(model.to("meta"), BATCH)


def _hooked(model: nn.Module) -> Workload:
    next(model.parameters()).register_hook(lambda gradient: gradient * 0.5)
    return _train()(model)


def _compiled(model: nn.Module) -> Workload:
    outer = nn.Module()  # as what torch.compile returns, which takes seconds to import
    outer._orig_mod = model
    return workload_of(outer, BATCH)


def _locked(model: nn.Module) -> Workload:
    lock = threading.Lock()
    return workload_of(model, lambda seed: BATCH * lock.locked())


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (_regularized, "loss= refers to model that is the model or a part of it, and a climb runs copies"),
        (_own_parameters, "optimizer= refers to something that is the model"),
        (_its_own_forward, "forward= refers to model that is"),
        (_elsewhere, "loss= refers to table on meta"),
        (_uninitialized, "the model has no values for weight"),
        (_hooked, "the model has a hook on the gradient of weight, which its copies"),
        (_locked, r"inputs= cannot be written for the processes of a climb: cannot pickle '_thread.lock' object; put"),
        (lambda model: workload_of(model, [1, 2]), "a list as inputs=: give one batch"),
        (_compiled, "give the model as it was, model._orig_mod"),
        (lambda model: workload_of(model, BATCH, loss=F.mse_loss), "both loss= and optimizer="),
        (_train(optimizer=torch.optim.SGD([torch.ones(1)])), "got SGD as optimizer=: give a function that makes it"),
    ],
    ids=["regularized", "parameters", "forward", "device", "no values", "hook", "lock", "no batch", "compiled", "half", "optimizer"],
)  # fmt: skip
def test_what_would_be_another_thing_there_is_refused_and_nothing_is_left(
    made: Callable[[nn.Module], Workload], says: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=says):
        write(made(net()), tmp_path / "workload")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_does_not_take_it_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(InputError, match="No space left on device; free some space"):
        write(workload_of(net(), BATCH), tmp_path / "workload")
    assert list(tmp_path.iterdir()) == []


def test_what_a_tokenizer_returns_is_passed_by_name(tmp_path: Path) -> None:
    from collections import UserDict

    batch = UserDict({"x": BATCH})
    read = written(workload_of(net(), batch), tmp_path)
    assert list(read.inputs(1)) == ["x"]
