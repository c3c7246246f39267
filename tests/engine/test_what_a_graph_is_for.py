"""A graph is replayed for what it was recorded for: under the same autocast, with the same settings and plain values."""

import contextlib
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from rung.engine import cuda_graph
from rung.engine.cuda_graph import MOST_COUNTED, WARM_CALLS, GraphedStep
from rung.engine.input_guards import Inputs

X = torch.ones(2, 4)
Made = Callable[..., GraphedStep]


@pytest.fixture
def done() -> list[str]:
    return []


@pytest.fixture
def made(gpu: Any, monkeypatch: pytest.MonkeyPatch, done: list[str]) -> Made:
    """Graphed calls without a GPU: `done` holds what each of them did."""
    monkeypatch.setattr(GraphedStep, "_warm", lambda self, given: done.append("ran"))

    def recorded(self: GraphedStep, given: Inputs) -> Any:
        done.append("recorded")
        return SimpleNamespace(inputs=given.copied, held=[], harmless=None)

    monkeypatch.setattr(GraphedStep, "_capture", recorded)
    monkeypatch.setattr(GraphedStep, "_replay", lambda self, *a, **k: done.append("replayed"))
    return lambda model=None, optimizer=None: GraphedStep(lambda batch: None, gpu, model or nn.Linear(4, 4), optimizer)


def until_replayed(run: GraphedStep, batch: Any = X) -> None:
    for _ in range(WARM_CALLS + 1):
        run(batch)


def optimizer_of(kind: Any, **settings: Any) -> torch.optim.Optimizer:
    found: torch.optim.Optimizer = kind([nn.Parameter(torch.ones(4))], lr=0.1, **settings)
    return found


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (torch.optim.AdamW, "betas", (0.85, 0.999)),
        (torch.optim.AdamW, "weight_decay", 0.5),
        (torch.optim.SGD, "momentum", 0.9),
        (torch.optim.RMSprop, "eps", 1e-3),
    ],
)
def test_a_setting_that_was_changed_is_not_replayed_as_it_was(
    kind: Any, name: str, value: Any, made: Made, done: list[str]
) -> None:
    optimizer = optimizer_of(kind)
    run = made(optimizer=optimizer)
    until_replayed(run)
    optimizer.param_groups[0][name] = value
    run(X)
    assert done[-1] == "ran"
    until_replayed(run)
    assert (run.shapes, done[-1]) == (1, "replayed")


def test_learning_rates_are_read_from_memory_and_what_a_scheduler_notes_is_no_setting(
    made: Made, done: list[str]
) -> None:
    optimizer = optimizer_of(torch.optim.AdamW)
    run = made(optimizer=optimizer)
    until_replayed(run)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=9, cycle_momentum=False)
    for _ in range(4):
        run(X)
        scheduler.step()
        assert done[-1] == "replayed"


def test_a_call_under_autocast_is_not_given_a_graph_from_outside_of_it(made: Made, done: list[str]) -> None:
    run = made()
    until_replayed(run)
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype=dtype):
            run(X)
            assert done[-1] == "ran"
            until_replayed(run)
            assert done[-1] == "replayed"
    run(X)
    assert (run.shapes, done[-1]) == (3, "replayed")


def test_a_call_in_inference_mode_has_a_graph_of_its_own(made: Made, done: list[str]) -> None:
    """Its results could not be written to outside of that mode."""
    run = made()
    with torch.inference_mode():
        until_replayed(run)
    run(X)
    assert done[-1] == "ran"


def test_objects_whose_content_is_not_seen_are_not_replayed_and_not_kept(made: Made, done: list[str]) -> None:
    class Batch:
        x = X

    run, batch = made(), Batch()
    for _ in range(WARM_CALLS + 3):
        run(batch)
        run([torch.ones(2), {1: X}, iter(())])
    assert (run.shapes, set(done)) == (0, {"ran"})
    held = weakref.ref(batch)
    del batch
    assert held() is None


def test_numbers_that_are_others_at_every_call_are_not_counted_for_ever(made: Made) -> None:
    run = made()
    for k in range(3 * MOST_COUNTED):
        run((X, k))
    assert len(run._calls) <= MOST_COUNTED
    until_replayed(run)
    assert run.shapes == 1


def test_plain_values_that_are_equal_and_of_other_types_are_others(made: Made, done: list[str]) -> None:
    run = made()
    for value in (1, True, 1.0):
        run((X, value))
        assert done[-1] == "ran"
        until_replayed(run, (X, value))
    assert run.shapes == 3


def test_copies_that_autocast_keeps_are_neither_read_by_a_graph_nor_left_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(torch, "clear_autocast_cache", lambda: said.append("cleared"))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(cuda_graph, "recording", lambda *a: contextlib.nullcontext())
    run = object.__new__(GraphedStep)
    vars(run).update(_run=lambda batch: said.append("ran"), _optimizer=None, _parameters=[], _summed=[], _rates=[])
    vars(run).update(_stream=None, _device=None, _model=torch.nn.Identity())
    run._capture(Inputs((X,), {}, "cpu"))
    assert said == ["cleared", "ran", "cleared"]


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("default", [torch.float32, torch.float64, torch.bfloat16])
def test_learning_rates_are_in_the_precision_that_the_step_reads(
    default: torch.dtype, fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fused kernels on a GPU read float32 and raise for anything else; in bfloat16 a rate would be off by up to 0.4 %."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(cuda_graph, "recording", lambda *a: contextlib.nullcontext())
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        optimizer = optimizer_of(torch.optim.SGD, fused=fused)
        rates: list[torch.Tensor] = []
        run = object.__new__(GraphedStep)
        vars(run).update(_run=lambda batch: rates.append(optimizer.param_groups[0]["lr"]), _optimizer=optimizer)
        vars(run).update(
            _model=torch.nn.Identity(),
            _parameters=optimizer.param_groups[0]["params"],
            _summed=[],
            _rates=[],
            _stream=None,
            _device=None,
        )
        run._capture(Inputs((X,), {}, "cpu"))
    finally:
        torch.set_default_dtype(before)
    wanted = torch.float64 if default == torch.float64 and not fused else torch.float32
    assert (rates[0].dtype, float(rates[0])) == (wanted, pytest.approx(0.1, rel=1e-6))
