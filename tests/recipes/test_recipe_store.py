"""Recipes that are found by what they were made for."""

import logging
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import rung
from rung.errors import UsageError
from rung.hardware import pick
from rung.recipes import store
from rung.recipes.fingerprint import describe_model, structure_hash
from rung.recipes.recipe import Recipe
from rung.workload.load import find


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNG_DATA", str(tmp_path))


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval()


def verified(*rungs: str, **changed: str) -> Recipe:
    """What a climb on this machine has verified for the model."""
    made_on = {"device": pick("cpu").name, "torch": str(torch.__version__), "structure": structure_hash(model())}
    numerics = changed.pop("numerics", "exact")
    status = changed.pop("status", "verified")
    mode = changed.pop("mode", "infer")
    recipe = Recipe(rungs, mode=mode, numerics=numerics, made_on={**made_on, **changed}, measured={"speedup": 1.5})
    return replace(recipe, status=status)  # type: ignore[arg-type]


def test_what_was_verified_for_this_model_is_applied_and_named(caplog: pytest.LogCaptureFixture) -> None:
    store.keep(verified("compile"))
    with caplog.at_level(logging.INFO, "rung"):
        applied = rung.apply(model(), "auto")
    assert "compile (verified, " in repr(applied)
    assert "verified, compile" in caplog.text
    assert str(store.directory()) in caplog.text


@pytest.mark.parametrize(
    "other",
    [{"torch": "1.0"}, {"device": "another chip"}, {"mode": "train"}, {"structure": "0123"}, {"status": "provisional"}],
    ids=lambda other: next(iter(other)),
)
def test_what_was_made_for_something_else_is_never_taken(other: dict[str, str]) -> None:
    store.keep(verified("compile", **other))
    with pytest.raises(
        UsageError, match=r"no verified recipe in .* was made for Sequential with 72 parameters"
    ) as refused:
        rung.apply(model(), "auto")
    assert ("there is one" in str(refused.value)) == (not {"structure", "status"} & {*other})


def test_of_several_the_one_that_changes_least_is_taken_unless_more_is_allowed() -> None:
    store.keep(verified("compile"))
    fast = replace(verified("compile", "bf16", numerics="bf16"), measured={"speedup": 3.0})
    store.keep(fast)
    here = {
        "mode": "infer",
        "device": pick("cpu").name,
        "torch": str(torch.__version__),
        "model": describe_model(model()),
    }
    assert store.find(structure_hash(model()), here)[1].rungs == ("compile",)
    assert store.find(structure_hash(model()), here, "bf16")[1] == fast
    assert store.find(structure_hash(model()), here, "tf32")[1].rungs == ("compile",)


def test_a_later_recipe_takes_the_place_of_one_that_was_not_checked_further() -> None:
    def kept() -> Recipe:
        (path,) = store.directory().iterdir()
        return Recipe.read(path)

    store.keep(verified("compile"))
    store.keep(verified("compile", "channels-last"))
    assert kept().rungs == ("compile", "channels-last")
    store.keep(verified("compile", status="confirmed"))
    store.keep(verified("compile", "channels-last"))
    assert kept().status == "confirmed"
    store.forget(verified("sdpa"))
    assert kept().status == "confirmed"
    store.forget(verified("compile"))
    assert not list(store.directory().iterdir())


def test_a_damaged_file_is_passed_over_and_replaced() -> None:
    store.keep(verified("compile"))
    (path,) = store.directory().iterdir()
    path.write_text("rungs = [")
    with pytest.raises(UsageError, match="climb it first"):
        rung.apply(model(), "auto")
    store.keep(verified("compile"))
    assert Recipe.read(path).rungs == ("compile",)


def test_a_structure_is_names_kinds_shapes_and_dtypes_and_no_numbers() -> None:
    same = [structure_hash(model()) for _ in range(2)]
    assert same[0] == same[1]
    others = [
        nn.Sequential(nn.Linear(8, 8), nn.GELU()),
        nn.Sequential(nn.Linear(8, 8, bias=False), nn.ReLU()),
        nn.Sequential(nn.Linear(8, 8, dtype=torch.bfloat16), nn.ReLU()),
        nn.ModuleDict({"a": nn.Linear(8, 8), "b": nn.ReLU()}),
    ]
    assert len({same[0], *map(structure_hash, others)}) == 5


NET = """
import torch

class Base(torch.nn.Module):
    scale = {scale}
    def forward(self, x):
        return self.inner(x) * self.scale if x.dim() in {{1, 2}} else {other}

class Net(Base):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)
    @property
    def kind(self):
        return "a" in {{"a", "b", "c"}}
"""


USES = """
import functools
import torch
{imports}
SETTINGS = object()

def helper(x, by={by}):
    return {helper}

def decorated(function):
    def inner(*args):
        return function(*args)
    return inner

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)

    @torch.no_grad()
    def forward(self, x, of=SETTINGS, kinds=frozenset({{"a", "b", "c"}}), dtype=torch.{dtype}, *, scale={scale}):
        return helper(self.other({forward}))

    @decorated
    def other(self, x):
        return {other}
"""
USED = {"imports": "", "by": 1, "helper": "x", "dtype": "float32", "scale": 1.0, "forward": "x", "other": "x"}


def test_a_class_of_ones_own_is_known_by_its_code_wherever_it_is_imported_from(tmp_path: Path) -> None:
    """`rung climb model.py:make` gives its module another name than `import model` does, and a notebook has none."""
    for name, scale, other in (("one", 2, "x"), ("same", 2, "x"), ("twice", 3, "x"), ("other", 2, "-x")):
        (tmp_path / f"{name}.py").write_text(("" if name == "one" else "\n\n") + NET.format(scale=scale, other=other))
    found = {name: structure_hash(find(f"{tmp_path / name}.py:Net")()) for name in ("one", "same", "twice", "other")}  # type: ignore[operator]
    assert found["one"] == found["same"]
    assert len({*found.values()}) == 3
    (tmp_path / "used.py").write_text(USES.format(**USED))
    found["one"] += structure_hash(find(f"{tmp_path / 'used'}.py:Net")())  # type: ignore[operator]
    code = "import torch, one, used; from rung.recipes.fingerprint import structure_hash; print(structure_hash(one.Net()) + structure_hash(used.Net()))"
    # Another seed of strings' hashes, which order sets.
    env = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.stdout == found["one"] + "\n", done.stderr


@pytest.mark.parametrize(
    "changed",
    [
        {"forward": "x + 1"},
        {"other": "x + 1"},
        {"scale": 2.0},
        {"dtype": "float64"},
        {"helper": "x + 1"},
        {"by": 2},
        {"imports": "import double", "helper": "double.twice(x)"},
        {"imports": "from double import twice", "helper": "twice(x)"},
    ],
    ids=str,
)
def test_a_class_is_known_by_what_it_decorates_calls_and_has_for_defaults(
    changed: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "double", raising=False)
    (tmp_path / "double.py").write_text("def twice(x):\n    return once(x)\n\ndef once(x):\n    return 2 * x\n")

    def fingerprint(name: str, parts: dict[str, Any]) -> str:
        (tmp_path / f"{name}.py").write_text(USES.format(**{**USED, **parts}))
        return structure_hash(find(f"{tmp_path / name}.py:Net")())  # type: ignore[operator]

    found = fingerprint("one", changed)
    assert found == fingerprint("same", changed)
    assert found != fingerprint("other", {})
    if "double" in str(changed):
        sys.modules["double"].once = lambda x: 3 * x  # type: ignore[attr-defined]
        assert found != fingerprint("same", changed)


def test_numerics_belong_to_auto_alone() -> None:
    with pytest.raises(UsageError, match='with "auto" alone'):
        rung.apply(model(), ["compile"], numerics="bf16")
