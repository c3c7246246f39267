"""A worker that calls the target's function while it waits."""

from pathlib import Path
from typing import Any

import pytest

from rung.ladder.candidate import Candidate

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
