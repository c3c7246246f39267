"""What a worker imports: nothing from the current folder before a target asks for it, and never in place of Python's own."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import rung
from rung.launch import Worker

HERE = str(Path(__file__).parent)
SOURCES = str(Path(rung.__file__).parents[1])
PATH = os.pathsep.join(filter(None, [HERE, os.environ.get("PYTHONPATH")]))
FUNCTION = "rung.timing.function:Function"
Bench = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder with files that have names of modules, each of which leaves a mark when it is imported."""
    folder = tmp_path / "hostile"
    for name in ("json", "rung", "psutil"):
        (folder / name).mkdir(parents=True)
    mark = f"open({str(tmp_path / 'ran')!r}, 'a').write(__name__ + ' ')\nraise SystemExit('imported ' + __name__)\n"
    names = ("select.py", "contextlib.py", "ctypes.py", "json/__init__.py", "rung/__init__.py", "psutil/__init__.py")
    for name in names:
        (folder / name).write_text(mark)
    return folder


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """Runs `rung bench` by a script in a folder of its own, as pip installs it."""
    script = tmp_path / "bin" / "rung-command"
    script.parent.mkdir()
    script.write_text("from rung.cli.main import command\ncommand()\n")

    def run(*words: str, cwd: Path, python_path: str = SOURCES) -> "subprocess.CompletedProcess[str]":
        env = {**os.environ, "PYTHONPATH": python_path}
        called = [sys.executable, str(script), "bench", *words, "--preset", "sanity", "--device", "cpu"]
        return subprocess.run(called, cwd=cwd, env=env, capture_output=True, text=True)

    return run


def test_what_lies_in_the_current_folder_is_not_imported(hostile: Path, bench: Bench, tmp_path: Path) -> None:
    small = ["--hidden-dim=32", "--num-layers=1", "--num-heads=2", "--seq-len=8", "--batch-size=2"]
    done = bench("tiny-transformer", *small, cwd=hostile)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "ran").exists()


def test_an_empty_entry_of_the_import_path_is_not_the_current_folder(
    hostile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(hostile)
    with Worker("served:Served", tmp_path / "log", {"PYTHONPATH": f"{os.pathsep}{PATH}"}) as worker:
        assert worker.call("echo", 100, value=1) == 1
    assert not (tmp_path / "ran").exists()


def test_a_target_may_import_its_neighbours_but_none_in_place_of_pythons_own(
    hostile: Path, bench: Bench, tmp_path: Path
) -> None:
    (hostile / "beside.py").write_text("seconds = 0.0\n")
    (hostile / "mine.py").write_text(
        "import colorsys, ctypes, time, beside\ndef nap():\n    assert colorsys.rgb_to_hsv\n    time.sleep(beside.seconds)\n"
    )
    (hostile / "colorsys.py").write_text("raise ImportError('not the one of Python')\n")
    for target, where in (("mine.py:nap", hostile), ("mine:nap", hostile), (f"{hostile}/mine.py:nap", tmp_path)):
        done = bench(target, "--call", cwd=where)
        assert done.returncode == 0, (target, done.stderr)
    assert not (tmp_path / "ran").exists()


def test_a_target_may_import_a_package_from_the_folder_in_which_the_command_is_run(
    bench: Bench, tmp_path: Path
) -> None:
    for name in ("models", "layers"):
        (tmp_path / name).mkdir()
    (tmp_path / "layers/deep.py").write_text("def nap():\n    pass\n")
    (tmp_path / "models/mine.py").write_text("from layers.deep import nap as inner\ndef nap():\n    inner()\n")
    assert bench("models/mine.py:nap", "--call", cwd=tmp_path).returncode == 0
    (tmp_path / "elsewhere").mkdir()
    done = bench(f"{tmp_path}/models/mine.py:nap", "--call", cwd=tmp_path / "elsewhere")
    assert done.returncode == 4
    assert "no module 'layers'" in done.stderr
    tmp_path.chmod(0o777)  # everyone could lay a module there
    assert "no module 'layers'" in bench("models/mine.py:nap", "--call", cwd=tmp_path).stderr


def test_modules_on_the_users_import_path_are_found(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "library").mkdir()
    (tmp_path / "library/mine.py").write_text("def nap():\n    pass\n")
    done = bench("mine:nap", "--call", cwd=tmp_path, python_path=os.pathsep.join([SOURCES, str(tmp_path / "library")]))
    assert done.returncode == 0, done.stderr


def test_processes_that_a_target_spawns_begin_as_it_did(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import multiprocessing\nfrom beside import two\n\ndef nap():\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n        assert pool.apply(two) == 2\n"
    )
    (tmp_path / "beside.py").write_text("def two():\n    return 2\n")
    done = bench("mine.py:nap", "--call", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_rung_is_found_where_its_coordinator_found_it(tmp_path: Path) -> None:
    """A script may add the folder to its own path, of which a worker does not know."""
    (tmp_path / "rung-found").symlink_to(SOURCES)
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'rung-found')!r})\n"
        "from pathlib import Path; from rung.launch import Worker\n"
        f"with Worker({FUNCTION!r}, Path({str(tmp_path / 'log')!r})) as worker:\n"
        "    worker.call('open', 100, target='os:getpid', options={}, rungs=[], device='cpu')\n"
    )
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
