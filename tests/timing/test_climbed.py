"""A measurement of a recipe beside what the recipe's own climb measured."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace as with_fields

from rung.cli.main import main
from rung.recipes.recipe import Recipe, side_of
from rung.records.bench import Bench, ClimbFigures
from rung.records.measured import Interval
from rung.report.bench import bench_lines, markdown_lines
from rung.side import Side
from rung.timing.saved import USUAL_SPREAD, held_beside, measured_by_the_climb

MINE = Recipe(("compile",), "mine.py:make", {"width": "8"}, "infer", "exact")


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    (tmp_path / "recipe.toml").write_text(MINE.text())
    write(tmp_path)
    return tmp_path / "recipe.toml"


def write(folder: Path, **other: Any) -> None:
    restarts = [{"best": [9e6], "candidate": samples} for samples in ([4.0e6] * 3, [4.2e6] * 3, [4.4e6, 1e9, 1.0])]
    times = {"best": {"value": 4.2e6, "low": 4.1e6, "high": 4.3e6}}
    result = {"kept": ["compile"], "recipe_text": MINE.text(), "times": times, "restarts": restarts} | other
    (folder / "result.json").write_text(json.dumps(result))


def side(recipe: Path, **typed: str) -> Side:
    return side_of("mine.py:make", typed, None, recipe)


def test_the_spread_of_its_processes_is_read_from_the_climb(recipe: Path) -> None:
    found = measured_by_the_climb(recipe, side(recipe))
    assert found is not None
    assert (found.time.value, found.restarts) == (4.2e6, 3)
    assert found.spread == pytest.approx(0.1)
    write(recipe.parent, restarts=[])
    assert measured_by_the_climb(recipe, side(recipe)) == with_fields(found, restarts=1, spread=USUAL_SPREAD)


def test_figures_of_something_else_are_not_held_beside_it(recipe: Path) -> None:
    assert measured_by_the_climb(recipe, side(recipe, width="16")) is None
    assert measured_by_the_climb(recipe, replace(side(recipe), target="other.py:make")) is None
    for other in ({"recipe_text": "another"}, {"times": None}, {"restarts": [{}]}):
        write(recipe.parent, **other)
        assert measured_by_the_climb(recipe, side(recipe)) is None
    (recipe.parent / "result.json").write_text("{")
    assert measured_by_the_climb(recipe, side(recipe)) is None
    (recipe.parent / "result.json").unlink()
    assert measured_by_the_climb(recipe, side(recipe)) is None


@pytest.mark.parametrize(
    ("low", "high", "agrees"), [(4.6e6, 4.7e6, True), (4.75e6, 4.8e6, False), (3.6e6, 3.7e6, False)]
)
def test_two_agree_where_their_intervals_meet_within_the_spread(low: float, high: float, agrees: bool) -> None:
    climbed = Interval(value=4.2e6, low=4.1e6, high=4.3e6)
    theirs = ClimbFigures(time=climbed, restarts=3, spread=0.08, status="confirmed")
    found = held_beside(theirs, Interval(value=(low + high) / 2, low=low, high=high))
    assert found.agrees is agrees
    assert found.slower == pytest.approx((low + high) / 8.4e6 - 1)


TOY = """
import torch
from rung import Workload

def make(width: int = 8):
    return Workload("toy", lambda: torch.nn.Linear(width, 8), lambda seed: torch.randn(4, width))
"""


def test_bench_says_what_the_climb_measured_and_takes_its_compiled_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setenv("RUNG_CACHE", str(tmp_path / "cache"))
    (tmp_path / "toy.py").write_text(TOY)
    made = Recipe((), "toy.py:make", {"width": "8"}, "infer", "exact")
    (tmp_path / "recipe.toml").write_text(made.text())
    seconds = {"best": {"value": 4.2e9, "low": 4.1e9, "high": 4.3e9}}  # far above any hiccup of a busy machine
    write(tmp_path, recipe_text=made.text(), times=seconds)
    words = ["bench", "toy.py:make", "--recipe", "recipe.toml", "--time", "0.5", "--device", "cpu"]
    assert main([*words, "--json"]) == 0
    found = msgspec.json.decode(capsys.readouterr().out, type=Bench)
    assert found.climb is not None
    assert found.climb.time.value == 4.2e9
    assert not found.climb.agrees
    assert (tmp_path / "cache" / "compiled").is_dir()
    text = "\n".join(bench_lines(found))
    assert "in the climb  4.20 s (4.10 s – 4.30 s) in 3 restarts, whose processes differed by up to 10%" in text
    assert any(line.startswith("| in the climb (3 restarts) |") for line in markdown_lines(found))
    once = with_fields(found, climb=with_fields(found.climb, restarts=1))
    assert any(line.startswith("| in the climb (1 restart) |") for line in markdown_lines(once))
    assert "% faster; that is more than processes differ" in text
