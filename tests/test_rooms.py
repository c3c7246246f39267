"""The import rules of the house: upper rooms import lower ones, and some rooms never load torch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import rung

ROOT = Path(rung.__file__).parent
FLOORS = [
    "cli", "serve", "agents", "integrations", "report", "ladder", "profilers", "watching", "timing", "recipes", "verify", "engine", "rewrites", "rungs", "launch",
    "analysis", "trace", "measure", "workload", "kernels", "hardware", "runs", "records",
]  # fmt: skip
WITHIN = {
    "ladder": ["climb"],
    "rewrites": ["attention", "aten", "graph"],
}


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.parametrize("room", FLOORS)
def test_a_room_imports_only_rooms_below_it(room: str) -> None:
    above = FLOORS[: FLOORS.index(room)]
    for path in (ROOT / room).rglob("*.py"):
        for name in imports(path):
            parts = name.split(".")
            assert not (parts[0] == "rung" and len(parts) > 1 and parts[1] in above), f"{path} imports {name}"


@pytest.mark.parametrize(("house", "room"), [(house, room) for house, rooms in WITHIN.items() for room in rooms])
def test_a_room_within_a_room_imports_only_what_is_below_it(house: str, room: str) -> None:
    """What lies beside the rooms is below all of them, or above."""
    rooms, dotted = WITHIN[house], f"rung.{house.replace('/', '.')}"
    own = {path.stem: imports(path) for path in (ROOT / house).glob("*.py") if path.stem != "__init__"}
    beside = [stem for stem, names in own.items() if any(f"{dotted}.{r}" in name for name in names for r in rooms)]
    above = {f"{dotted}.{name}" for name in (*rooms[: rooms.index(room)], *beside)}
    for path in (ROOT / house / room).rglob("*.py"):
        found = {".".join(name.split(".")[: dotted.count(".") + 2]) for name in imports(path)} & above
        assert not found, f"{path} imports {found}"


@pytest.mark.parametrize(
    "module", ["errors", "toml", "text", "quantities", "files", "prctl", "plan", "program", "renamed"]
)
def test_what_is_below_all_rooms_imports_none(module: str) -> None:
    assert not any(name.split(".")[0] == "rung" for name in imports(ROOT / f"{module}.py"))


def test_a_side_knows_errors_alone() -> None:
    assert {name for name in imports(ROOT / "side.py") if name.startswith("rung")} == {
        "rung.errors",
        "rung.errors.UsageError",
    }


@pytest.mark.parametrize("room", ["trace", "analysis", "report", "records", "runs"])
def test_rooms_that_work_without_torch_never_import_it(room: str) -> None:
    for path in (ROOT / room).rglob("*.py"):
        assert not any(name.split(".")[0] == "torch" for name in imports(path)), path


def test_help_loads_neither_torch_nor_polars_and_is_quick() -> None:
    code = (
        "import sys, time\n"
        "from rung.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "bad = {'torch', 'polars', 'numpy'} & set(sys.modules)\n"
        "assert not bad, bad\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "climb" in done.stdout


def test_a_worker_does_not_load_what_only_compiling_or_judging_needs() -> None:
    """Dynamo alone takes as long as torch itself, in each of the many processes of a climb."""
    code = "import sys, rung.ladder.candidate; print({'torch._dynamo', 'torch._inductor', 'triton', 'scipy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "set()\n", done.stderr or done.stdout
