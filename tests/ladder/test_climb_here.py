"""Whole climbs with their workers in this process and their measurements short or given: what is asked is which rungs
are tried, against what, and what becomes of them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rung.ladder import duel
from rung.ladder.candidate import Candidate
from rung.ladder.climb import Climb, Request, attempt, finish, shapes
from rung.ladder.surgery import Surgeon
from rung.measure import Comparison, Interval, interleaved
from rung.runs import Run
from rung.workload import Workload

PACED = f"{Path(__file__).with_name('paced.py')}:make"


class Here:
    """A worker's side of the pipe, in this process."""

    def __init__(self, serves: str, *_: object) -> None:
        self.candidate, self.sent = Candidate(), list[tuple[str, dict[str, Any]]]()

    def __enter__(self) -> "Here":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def send(self, method: str, **arguments: Any) -> None:
        self.sent.append((method, json.loads(json.dumps(arguments))))

    def receive(self, method: str, deadline: float) -> Any:
        asked, arguments = self.sent.pop(0)
        assert asked == method
        return json.loads(json.dumps(getattr(self.candidate, method)(**arguments)))

    def call(self, method: str, deadline: float, **arguments: Any) -> Any:
        self.send(method, **arguments)
        return self.receive(method, deadline)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duel, "Worker", Here)
    monkeypatch.setattr(duel, "WARM_SECONDS", 0.2)
    monkeypatch.setattr(duel, "_steps_a_block", lambda estimate, gpu: 1)
    monkeypatch.setattr(duel, "interleaved", lambda blocks, rounds: interleaved(blocks, 4))


@pytest.mark.usefixtures("short")
def test_a_rung_that_gave_nothing_is_kept_once_another_has_made_room_for_it(tmp_path: Path) -> None:
    request = Request(PACED, numerics="bf16", rungs=("bf16", "fused-optimizer"), device="cpu")
    data = Climb(Run.create(tmp_path, "paced", tmp_path / "run"), request, lambda event, what: None).climb()
    first, between, again = data["attempts"]
    assert [a["rung"] for a in data["attempts"]] == ["bf16", "fused-optimizer", "bf16"]
    assert first["verdict"] == "reverted"
    assert (first["against"], between["against"], again["against"]) == ("baseline", "baseline", "fused-optimizer")
    assert (between["verdict"], again["verdict"]) == ("kept", "kept"), (between["why"], again["why"])
    assert again["stack"] == data["result"]["kept"] == ["fused-optimizer", "bf16"]
    assert again["comparison"]["speedup"]["low"] > 1
    assert data["manifest"]["stopped"]["rule"] == "tried"


def varying() -> Workload:
    def rows(count: int) -> Any:
        return lambda seed: torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))

    return Workload("varying", lambda: nn.Linear(8, 8), rows(4), other_shapes=(rows(3), rows(6)))


def given(setup: duel.Setup, sides: dict[str, duel.Side], **_: object) -> duel.Duel:
    """As if `compile` had been measured twice as fast, and all else neither faster nor slower by more than 0.4 %."""
    faster = sides["candidate"].rungs[-1:] == ("compile",) or not sides["best"].rungs
    speedup = Interval(2.0, 1.9, 2.1) if faster else Interval(1.0, 0.996, 1.004)
    warm = {"memory": {"resident": 1}, "first_run_seconds": 1.0, "runs": 5, "steady": True,
            "applied": {"compiled_graphs": 1}}  # fmt: skip
    times = {side: [2e6 if side == "best" and faster else 1e6] * 8 for side in sides}
    return duel.Duel(
        comparison=Comparison("faster" if faster else "undecided", speedup, 8, 0.95, None, 0.01, True),
        samples=[times] * 3, warm=[dict.fromkeys(sides, warm)], hidden=dict.fromkeys(sides, 0.0),
    )  # fmt: skip


@pytest.mark.usefixtures("short")
def test_a_rung_that_is_as_fast_is_kept_for_the_graphs_that_it_spares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def uncompiled(self: Surgeon, gm: torch.fx.GraphModule, inputs: Any) -> Any:
        return gm.forward

    monkeypatch.setattr(Surgeon, "__call__", uncompiled)
    monkeypatch.setattr("rung.ladder.candidate.load", lambda target, options: varying())
    for module in (attempt, finish, shapes):
        monkeypatch.setattr(module, "fight", given)
    torch._dynamo.reset()
    request = Request("varying", numerics="exact", rungs=("compile", "dynamic-shapes"), device="cpu")
    data = Climb(Run.create(tmp_path, "varying", tmp_path / "run"), request, lambda event, what: None).climb()
    compiled, dynamic = data["attempts"]
    assert (compiled["verdict"], dynamic["verdict"]) == ("kept", "kept"), dynamic["why"]
    assert "as fast, and it compiles 1 graph instead of 3" in dynamic["why"]
    assert dynamic["effect"]["says"] == "3 -> 1 graphs compiled for 3 shapes"
    assert dynamic["over_shapes"]["best"]["graphs"] == 3
    assert data["result"]["kept"] == ["compile", "dynamic-shapes"]
