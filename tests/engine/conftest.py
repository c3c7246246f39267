"""A GPU that is not there, for what captures: streams, and the CPU as its device."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch


class Stream:
    """Dynamo asks of what it compiles whether it is one, so that it has to be a class, as the next has to be."""

    def __init__(self, index: int = 0) -> None: ...

    def wait_stream(self, other: Any) -> None: ...


class Nothing:
    def __init__(self, *arguments: Any) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *exc: object) -> None: ...

    def unchanged(self) -> bool:
        return True


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """To be given to `GraphedStep` as its device; what stands for a graph is a test's own."""
    # Not above: pytest may read this file before tests/conftest.py has the kernels defined for Triton's interpreter.
    from rung.engine import cuda_graph

    for name, stands_for_it in (
        ("Stream", Stream), ("current_stream", lambda: Stream()), ("stream", Nothing), ("device", Nothing),
        ("synchronize", lambda: None),
    ):  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, stands_for_it)
    monkeypatch.setattr(cuda_graph, "OutsideMemory", Nothing)
    return SimpleNamespace(is_gpu=True, index=0, kind="cpu")
