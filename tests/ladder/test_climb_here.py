"""Whole climbs with their workers in this process and their measurements given: what is asked is which rungs
are tried, against what, and what becomes of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from here import in_this_process
from torch import nn

from rung.ladder.climb import Climb, Request
from rung.ladder.climb.verdict import disturbed
from rung.rewrites import RewriteBackend
from rung.runs import Run
from rung.workload import Workload


def climbed(
    monkeypatch: pytest.MonkeyPatch, folder: Path, workload: Workload, steps: dict[tuple[str, ...], float], **asked: Any
) -> dict[str, Any]:
    """A climb of this workload on which steps take what is given."""
    monkeypatch.setattr("rung.ladder.loaded.load", lambda target, options: workload)
    in_this_process(monkeypatch, steps)
    request = Request(workload.name, device="cpu", **asked)
    return Climb(Run.create(folder, workload.name, folder / "run"), request, lambda event: None).climb()


def rows(count: int) -> Callable[[int], torch.Tensor]:
    return lambda seed: torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))


def trained() -> Workload:
    return Workload(
        "trained", lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)), rows(16), mode="train",
        loss=lambda output, batch: output.square().mean(), optimizer=lambda p: torch.optim.AdamW(p, lr=1e-3),
    )  # fmt: skip


@pytest.mark.parametrize(("at_first", "verdict"), [(30.0, "reverted"), (20.0, "inconclusive")])
def test_a_rung_that_gave_nothing_is_kept_once_another_has_made_room_for_it(
    at_first: float, verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = {(): 20.0, ("bf16",): at_first, ("fused-optimizer",): 12.0, ("fused-optimizer", "bf16"): 8.0}
    asked = {"numerics": "bf16", "rungs": ("bf16", "fused-optimizer")}
    data = climbed(monkeypatch, tmp_path, trained(), steps, **asked)
    first, between, again = data["attempts"]
    assert [a["rung"] for a in data["attempts"]] == ["bf16", "fused-optimizer", "bf16"]
    assert (first["verdict"], between["verdict"], again["verdict"]) == (verdict, "kept", "kept")
    assert (first["against"], between["against"], again["against"]) == ("baseline", "baseline", "fused-optimizer")
    assert again["comparison"]["speedup"]["value"] == pytest.approx(1.5)
    assert again["stack"] == data["result"]["kept"] == ["fused-optimizer", "bf16"]
    assert data["result"]["speedup"]["value"] == pytest.approx(2.5)
    assert data["manifest"]["stopped"]["rule"] == "tried"


def test_a_rung_that_gave_nothing_twice_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = {(): 20.0, ("bf16",): 30.0, ("fused-optimizer",): 12.0, ("fused-optimizer", "bf16"): 12.0}
    asked = {"numerics": "bf16", "rungs": ("bf16", "fused-optimizer")}
    data = climbed(monkeypatch, tmp_path, trained(), steps, **asked)
    assert [a["verdict"] for a in data["attempts"]] == ["reverted", "kept", "inconclusive"]
    assert data["result"]["kept"] == ["fused-optimizer"]


def test_a_rung_that_is_as_fast_is_kept_for_the_graphs_that_it_spares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def uncompiled(self: RewriteBackend, gm: torch.fx.GraphModule, inputs: Any) -> Any:
        return gm.forward

    monkeypatch.setattr(RewriteBackend, "__call__", uncompiled)
    torch._dynamo.reset()
    varying = Workload("varying", lambda: nn.Linear(8, 8), rows(4), other_shapes=(rows(3), rows(6)))
    steps = {(): 2.0, ("compile",): 1.0, ("compile", "dynamic-shapes"): 1.0}
    asked = {"numerics": "exact", "rungs": ("compile", "dynamic-shapes")}
    data = climbed(monkeypatch, tmp_path, varying, steps, **asked)
    compiled, dynamic = data["attempts"]
    assert (compiled["verdict"], dynamic["verdict"]) == ("kept", "kept"), dynamic["why"]
    assert "as fast, and it compiles 1 graph instead of 3" in dynamic["why"]
    assert dynamic["effect"]["says"] == "3 -> 1 graphs compiled for 3 shapes"
    assert dynamic["over_shapes"]["best"]["graphs"] == 3
    assert data["result"]["kept"] == ["compile", "dynamic-shapes"]


def test_a_baseline_that_was_disturbed_is_said_to_be() -> None:
    assert disturbed(20.0, 19.0) == disturbed(20.0, 25.0) == ""
    said = disturbed(20e6, 5e6)
    assert "took 20.0 ms per step when it was timed alone, and 5.00 ms next to a candidate" in said
    assert "10.0 ms per step when it was timed alone, and 20.0 ms next to" in disturbed(10e6, 20e6)


class Disturbed(dict[tuple[str, ...], float]):
    """Steps of which the untouched ones take ten times as long once they were measured by themselves."""

    asked = 0

    def __getitem__(self, rungs: tuple[str, ...]) -> float:
        self.asked += rungs == ()
        return super().__getitem__(rungs) * (10 if rungs == () and self.asked > 10 else 1)


@pytest.mark.parametrize(("fast", "verdict"), [(10.0, "kept"), (21.0, "inconclusive")])
def test_the_climb_warns_of_it_and_keeps_only_what_is_faster_than_the_baseline_alone(
    fast: float, verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Disturbed({(): 20.0, ("fused-optimizer",): fast})
    data = climbed(monkeypatch, tmp_path, trained(), steps, rungs=("fused-optimizer",))
    (record,) = data["attempts"]
    assert any("disturbed one of the two" in said for said in record["warnings"])
    assert record["verdict"] == verdict, record["why"]
    assert ("measure on a quieter machine" in record["why"]) is (verdict == "inconclusive")
    assert (tmp_path / "run" / "recipe.toml").exists() is (verdict == "kept")
