"""Inputs that a recipe leaves to the model as it is: in calls, in steps, and in the workers that measure a recipe."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from climbing import MICRO
from torch import nn

import rung
from rung.cli.main import main
from rung.engine.disturbed import process_warnings
from rung.ladder.candidate import Candidate
from rung.plan import Original
from rung.recipes.recipe import Recipe
from rung.timing import workers


@pytest.mark.parametrize("original", [{"elements_at_most": 16}, {"elements_at_least": 32}])
def test_a_training_step_leaves_the_same_inputs_to_the_model(original: dict[str, int]) -> None:
    model = nn.Linear(8, 8)
    applied = rung.apply(
        model,
        Recipe(("bf16", "fused-optimizer"), original=original),
        loss=lambda output, batch: output.float().square().mean(),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.1),
    )
    for rows in (2, 3, 4):
        batch = torch.randn(rows, 8)
        right, before = model(batch), model.weight.detach().clone()
        loss, output = applied.step(batch)
        assert torch.equal(output, right) == (8 * rows <= 16 if "elements_at_most" in original else 8 * rows >= 32)
        assert loss.requires_grad is False
        assert not torch.equal(model.weight, before)  # it trains, with the one optimizer that there is
    assert applied.optimizer is not None
    assert int(applied.optimizer.state[model.weight]["step"]) == 3


def test_what_a_recipe_binds_to_the_model_in_place_is_set_aside_for_them() -> None:
    model = nn.Sequential(*[nn.Linear(16, 16) for _ in range(4)]).eval()
    small, large = torch.randn(1, 16), torch.randn(3, 16)
    with torch.no_grad():
        right = [model(x) for x in (small, large)]
        applied = rung.apply(model, Recipe(("int8-weights",), original={"elements_at_most": 16}))
        for _ in range(2):  # what was set aside is in effect again afterwards
            assert torch.equal(applied(small), right[0])
            assert not torch.equal(applied(large), right[1])
        applied.undo()
        assert torch.equal(applied.model(large), right[1])


def test_a_worker_leaves_them_to_the_workload_and_says_so() -> None:
    sizes = {"elements_at_most": 16 * 8 + 16}
    worker, plain = Candidate(), Candidate()
    worker.open(MICRO, {"seconds": "0"}, ["bf16"], "cpu", original=sizes)
    plain.open(MICRO, {"seconds": "0"}, [], "cpu")
    for one in (worker, plain):
        one.first()
    for mine, theirs in zip(worker.step.model.parameters(), plain.step.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    worker.timer("auto", False)
    (note,) = process_warnings(worker.disturbances(), [1, 1], 2)
    assert "leaves inputs of this size (144 elements) to the model" in note
    worker.plan = replace(worker.plan, original=Original(elements_at_most=143))
    assert process_warnings(worker.disturbances(), [1, 1], 2) == []


def test_bench_and_compare_start_their_workers_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, sent = tmp_path / "recipe.toml", []
    path.write_text(Recipe(("bf16",), original={"elements_at_least": 9}).text())

    class Stand:
        def __init__(self, *_: object) -> None:
            pass

        def __enter__(self) -> "Stand":
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def send(self, method: str, **arguments: object) -> None:
            sent.append(arguments.get("original"))
            raise KeyboardInterrupt

    monkeypatch.setattr(workers, "Worker", Stand)
    for command in (["bench", MICRO], ["compare", MICRO]):
        main([*command, "--recipe", str(path)])
    with pytest.raises(KeyboardInterrupt):
        rung.bench(MICRO, recipe=path)
    assert sent == [{"elements_at_least": 9}, None, {"elements_at_least": 9}]  # A of a comparison has no recipe
