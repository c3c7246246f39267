"""Graphed steps beside plain ones on a CPU: in the place of a GPU's graph stands one that records each operation that torch runs, and
replays them all where their results lay. Recording leaves weights and state as they were."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from replayed_by_torch import Operations
from torch import nn

from rung.engine import cuda_graph
from rung.engine.cuda_graph import GraphedStep
from rung.errors import WorkloadError


@pytest.fixture
def tensors() -> list[Callable[[], list[torch.Tensor]]]:
    """What a step may write to: by a function that a test appends."""
    return []


@pytest.fixture
def captured(
    gpu: Any, monkeypatch: pytest.MonkeyPatch, tensors: list[Callable[[], list[torch.Tensor]]]
) -> Callable[..., GraphedStep]:
    @contextlib.contextmanager
    def recording(graph: Operations, *_: Any) -> Iterator[None]:
        before = [(t, t.detach().clone()) for t in tensors[0]()]
        with graph:
            yield
        for t, value in before:
            t.data.copy_(value)

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Operations)
    monkeypatch.setattr(cuda_graph, "recording", recording)
    return lambda run, model, optimizer: GraphedStep(run, gpu, model, optimizer)


@pytest.mark.parametrize("cleared", [False, True], ids=["summed", "cleared"])
@pytest.mark.parametrize("in_a_tensor", [False, True], ids=["a number", "a tensor"])
def test_a_training_step_is_the_same_replayed(
    in_a_tensor: bool, cleared: bool, captured: Callable[..., GraphedStep], tensors: list[Any]
) -> None:
    """Two shapes, inputs that are one tensor or two, a batch norm, a rate that changes, and a part that is not stepped."""

    def trained(replayed: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 4))
        rate = torch.tensor(0.1)
        optimizer = torch.optim.SGD(model[3].parameters(), lr=rate if in_a_tensor else 0.1, momentum=0.9, fused=True)

        def written() -> list[torch.Tensor]:
            moments = [t for state in optimizer.state.values() for t in state.values() if isinstance(t, torch.Tensor)]
            sums = [p.grad for p in model[:3].parameters() if p.grad is not None]
            return [*model.parameters(), *model.buffers(), *moments, *sums]

        def step(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            optimizer.zero_grad()
            output = model(batch["x"])
            loss = (output - batch["y"]).square().mean()
            loss.backward()
            optimizer.step()
            return {"loss": loss.detach(), "output": output.detach()}

        tensors[:] = [written]
        run = captured(step, model, optimizer) if replayed else step
        found: list[torch.Tensor] = []
        for k in range(18):
            if cleared and k % 4 == 0:
                model.zero_grad()
            rate.fill_(0.1 / (k + 1))
            optimizer.param_groups[0]["lr"] = rate if in_a_tensor else 0.1 / (k + 1)
            x = torch.randn(6 if k % 3 else 5, 4, generator=torch.Generator().manual_seed(k))
            result = run({"x": x, "y": x if k % 2 else x + 1})
            gradients = [p.grad for p in model.parameters()]
            found += [t.detach().clone() for t in (result.pop("loss"), result.pop("output"), *gradients)]
            found += [t.detach().clone() for t in (*model.parameters(), *model.buffers())]
        assert not replayed or run.shapes == 4
        return found

    for plain, again in zip(trained(False), trained(True), strict=True):
        torch.testing.assert_close(again, plain, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("had", [0, 1])
def test_without_memory_for_one_more_graph_calls_go_on_uncaptured(
    had: int, captured: Callable[..., GraphedStep], tensors: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a step that was never captured it is said that it cannot be."""
    model, recorded = nn.Linear(4, 4), cuda_graph.recording
    tensors[:] = [lambda: list(model.parameters())]
    run = captured(lambda x: model(x), model, None)

    @contextlib.contextmanager
    def full(*arguments: Any) -> Iterator[None]:
        if run.shapes >= had:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        with recorded(*arguments):
            yield

    monkeypatch.setattr(cuda_graph, "recording", full)

    def called(rows: int) -> None:
        for _ in range(5):
            x = torch.randn(rows, 4)
            torch.testing.assert_close(run(x), model(x))

    with torch.no_grad():
        if had:
            called(2)
            with pytest.warns(UserWarning, match="no memory for a graph of one more kind of inputs: beside the 1 that"):
                called(3)
            called(2)
            called(4)  # and nothing is tried again
        else:
            with pytest.raises(WorkloadError, match=r"cannot be captured as a graph.*out of memory"):
                called(2)
    assert run.shapes == had
