"""What is the same to us in every version of torch that Rung supports, and what an older one is told."""

import subprocess
import sys
from collections import OrderedDict, namedtuple
from pathlib import Path

import pytest
import torch
from torch import fx
from torch.utils import _pytree as pytree

from rung import errors
from rung.hardware import torch_versions
from rung.rewrites.graph.normalize import kind

Pair = namedtuple("Pair", "a b")
TREES = (
    0,
    [0],
    [0, 0],
    (0, 0),
    {"a": 0, "b": 0},
    {"a": 0, "c": 0},
    {"a": [0], "b": 0},
    Pair(0, 0),
    OrderedDict(a=0, b=0),
)


@pytest.mark.parametrize("hashable", [True, False])
def test_a_trees_structure_is_a_key(hashable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if hashable and not torch_versions._specs_are_hashable():
        pytest.skip("this torch gives a TreeSpec no hash")
    monkeypatch.setattr(torch_versions, "_specs_are_hashable", lambda: hashable)
    keys = [torch_versions.tree_key(pytree.tree_structure(tree)) for tree in TREES]
    assert len(set(keys)) == len(TREES)
    assert keys == [torch_versions.tree_key(pytree.tree_structure(tree)) for tree in TREES]


def test_the_compilers_settings_have_a_tag_for_caches() -> None:
    assert isinstance(torch_versions.compiler_config().cache_key_tag, str)


def test_either_way_to_write_a_transposing_property_is_read() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    for name, operator in (("mT", torch.ops.aten.mT), ("T", torch.ops.aten.numpy_T)):
        assert kind(graph.call_function(getattr, (x, name))) == name
        assert kind(graph.call_function(operator, (x,))) == name
    assert kind(graph.call_function(torch.ops.aten.mH, (x,))) == ""


def test_asking_what_products_can_do_leaves_inductor_whole() -> None:
    """In a process that has loaded nothing of it so far."""
    script = """
import torch
from rung.engine.dynamo import products_widen
products_widen()
from torch._inductor.lowering import lowerings
print(torch.ops.aten.bmm.default in lowerings)
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "True"


@pytest.mark.parametrize("version", ["2.5.1", "2.5.0+rocm6.2", "1.13.1"])
def test_a_torch_that_is_too_old_is_refused_in_one_sentence(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors.importlib.metadata, "version", lambda name: version)
    with pytest.raises(errors.UsageError) as raised:
        errors.need_torch()
    assert all(
        word in str(raised.value) for word in ("2.6 or newer", version, "ROCm", "CUDA", "CPU", "--upgrade torch")
    )


@pytest.mark.parametrize("version", ["2.6.0", "2.10.0+rocm7.0", "3.0", "2.7.0a0+git1234"])
def test_a_torch_that_is_new_enough_is_not_refused(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors.importlib.metadata, "version", lambda name: version)
    errors.need_torch()


def test_every_place_states_the_same_floor() -> None:
    root = Path(__file__).parents[2]
    floor = ".".join(map(str, errors.OLDEST_TORCH))
    assert f'torch = ["torch>={floor}"]' in (root / "pyproject.toml").read_text()
    assert f"torch from {floor} on" in (root / "docs" / "architecture.md").read_text()
    assert tuple(map(int, torch.__version__.split(".")[:2])) >= errors.OLDEST_TORCH
