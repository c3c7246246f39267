"""Two targets in one process that import modules of the same names: each runs its own."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rung.cli.compare import function
from rung.workload import load
from rung.workload.load import find
from rung.workload.own_modules import InTurn, OwnModules

TARGET = """
import torch
import common
from net import value
from rung import Workload

def answer():
    from late import also
    return value, also, common.value

def make():
    return Workload("own", lambda: torch.nn.Linear(1, 1), lambda seed: torch.tensor(answer()[:2]))
"""


@pytest.fixture
def versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Two folders whose files have the same names, in one that has a module for both."""
    for number, name in enumerate(("old", "new"), start=1):
        (tmp_path / name).mkdir()
        (tmp_path / name / "target.py").write_text(TARGET)
        (tmp_path / name / "net.py").write_text(f"value = {number}\n")
        (tmp_path / name / "late.py").write_text(f"also = {number}\n")
    (tmp_path / "common.py").write_text("value = object()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_each_target_runs_the_modules_beside_its_file(versions: Path) -> None:
    new = find("new/target.py:answer")
    modules = OwnModules("old/target.py:answer", "new/target.py:answer")
    with modules.active():
        old = find("old/target.py:answer")
    assert callable(old)
    assert callable(new)
    with modules.active():
        assert old()[:2] == (1, 1)
    assert new()[:2] == (2, 2)
    assert old()[2] is new()[2]  # what lies in the folder of both is loaded once
    assert sys.modules["net"].__file__ == str(versions / "new" / "net.py")
    assert str(versions / "old") not in sys.path


def test_functions_that_take_turns_import_their_own_when_they_are_called(versions: Path) -> None:
    targets = ["new/target.py:answer", "old/target.py:answer", "new/target.py:make"]
    path = sys.path[:]
    with InTurn(targets) as in_turn:
        new, old, make = (in_turn.load(target, function) for target in targets)
        for _ in range(2):
            assert old()[:2] == (1, 1)
            assert new()[:2] == (2, 2)
            assert make().inputs(0).tolist() == [2, 2]
    assert sys.path == path


def test_functions_of_one_folder_are_called_as_they_are(versions: Path) -> None:
    with InTurn(["old/target.py:answer", "old/target.py:make"]) as in_turn:
        answer = in_turn.load("old/target.py:answer", function)
        assert answer is function("old/target.py:answer")
        assert answer()[:2] == (1, 1)


def test_a_function_of_the_workload_that_imports_when_it_is_called_gets_its_own(versions: Path) -> None:
    new = load("new/target.py:make")
    modules = OwnModules("old/target.py:make", "new/target.py:make")
    with modules.active():
        old = modules.within(load("old/target.py:make"))
    assert old.inputs(0).tolist() == [1, 1]
    assert new.inputs(0).tolist() == [2, 2]


def test_what_only_one_of_them_has_is_missing_for_the_other(versions: Path) -> None:
    (versions / "new" / "fast.py").write_text("")
    for name in ("old", "new"):
        path = versions / name / "target.py"
        path.write_text(
            "try:\n    import fast\nexcept ImportError:\n    fast = None\ndef has(): return fast is not None\n"
        )
    assert find("new/target.py:has")()  # type: ignore[operator]
    with OwnModules("old/target.py:has", "new/target.py:has").active():
        assert not find("old/target.py:has")()  # type: ignore[operator]


def test_a_package_of_a_checkout_is_that_of_its_revision(versions: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("old", "new"):
        package = versions / name / "src" / "mine"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(f"def which(): return {name!r}\n")
    monkeypatch.chdir(versions / "new")
    sys.path.insert(0, str(versions / "new" / "src"))
    which = find("mine:which")
    roots = {name: [str(versions / name), str(versions / name / "src")] for name in ("old", "new")}
    modules = OwnModules("mine:which", "mine:which", str(versions / "old"), roots["old"], roots["new"])
    with modules.active():
        assert Path.cwd() == versions / "old"
        assert find("mine:which")() == "old"  # type: ignore[operator]
    assert which() == "new"  # type: ignore[operator]
