"""A worker that calls the target's function while it waits."""

import sys
from pathlib import Path
from typing import Any

import pytest

from rung.ladder.candidate import Candidate
from rung.workload.model_cache import save_model

FILE = """
import torch
import rung

calls = []

def make(width: int = 4, raises: bool = False) -> rung.Workload:
    calls.append(width)
    if raises:
        raise ValueError("no such width")
    return rung.Workload("made", lambda: torch.nn.Linear(width, 2), lambda seed: torch.full((1, width), float(seed)))
"""


@pytest.fixture
def target(tmp_path: Path) -> str:
    (tmp_path / "model.py").write_text(FILE)
    return f"{tmp_path / 'model.py'}:make"


def calls(worker: Candidate) -> list[Any]:
    found: list[Any] = worker.workload.model.__globals__["calls"]
    return found


def test_it_is_not_called_again_when_it_is_opened(target: str) -> None:
    worker = Candidate()
    worker.load_ahead(target, {"width": "6"}, "cpu")
    worker.open(target, {"width": "6"}, [], "cpu")
    assert calls(worker) == [6]
    worker.first()
    assert worker.model.weight.shape == (2, 6)


def test_with_other_options_it_is(target: str) -> None:
    worker = Candidate()
    worker.load_ahead(target, {"width": "6"}, "cpu")
    worker.open(target, {"width": "8"}, [], "cpu")
    assert calls(worker) == [6, 8]


def test_what_is_wrong_with_it_is_said_when_it_is_opened(target: str) -> None:
    worker = Candidate()
    worker.load_ahead(target, {"raises": "true"}, "cpu")
    with pytest.raises(ValueError, match="no such width"):
        worker.open(target, {"raises": "true"}, [], "cpu")


NOTING = """
import torch
import rung

NOTED = []

class Noting(torch.nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4)
        NOTED.append(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)[: len(NOTED)].relu()

def make(strict: bool = False) -> rung.Workload:
    def forward(model, x):
        y = model(x)
        return y[0] if strict else y
    return rung.Workload("noting", Noting, lambda seed: torch.ones(2, 4), forward=forward)
"""


@pytest.mark.parametrize(("strict", "read"), [("false", True), ("true", False)])
def test_a_saved_model_is_read_by_processes_where_it_runs(tmp_path: Path, strict: str, read: bool) -> None:
    """Where making the model noted what its forward needs, one that was read has nothing to give."""
    (tmp_path / "model.py").write_text(NOTING)
    target, saved = f"{tmp_path / 'model.py'}:make", tmp_path / "model.pt"
    first = Candidate()
    first.open(target, {"strict": strict}, [], "cpu")
    assert save_model(first.workload.model(), saved)
    sys.modules[first.workload.model.__module__].NOTED.clear()
    worker = Candidate()
    worker.open(target, {"strict": strict}, [], "cpu", saved_model=str(saved))
    assert saved.exists() == read
    assert worker.first() > 0


FORCES = """
import torch
import rung

def make() -> rung.Workload:
    def forward(model, x):
        x = x.clone().requires_grad_()
        return torch.autograd.grad(model(x).sum(), x, create_graph=True)[0]
    return rung.Workload("forces", lambda: torch.nn.Linear(4, 4), lambda seed: torch.ones(2, 4), forward=forward, mode="train",
                         loss=lambda y, x: y.square().sum(), optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
"""


def test_a_saved_model_that_differentiates_in_its_forward_is_read(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(FORCES)
    target, saved = f"{tmp_path / 'model.py'}:make", tmp_path / "model.pt"
    first = Candidate()
    first.open(target, {}, [], "cpu")
    assert save_model(first.workload.model(), saved)
    Candidate().open(target, {}, [], "cpu", saved_model=str(saved))
    assert saved.exists()
