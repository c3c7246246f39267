"""The folder of compiled code that climbs share: what is damaged or missing in it costs a recompilation and no more."""

import fcntl
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rung.timing.compile_cache import (
    KNOWN,
    LOCKS,
    SINCE,
    VARIABLE,
    bytecode,
    compiled_code,
    directory,
    precompiled_headers,
    remove_cut_off,
    remove_unfinished_headers,
)

# Compiles for each line that it is given, in a process of its own that has loaded torch and nothing else.
COMPILES = """
import os, sys
import torch, torch._inductor.compile_fx
from torch._dynamo.utils import counters
for line in sys.stdin:
    if os.fork() == 0:
        os.environ.update([line.strip().split("=", 1)])
        m = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU())
        torch.compile(m)(torch.ones(2, 8))
        print(counters["inductor"]["fxgraph_cache_hit"], counters["inductor"]["fxgraph_cache_miss"], flush=True)
        os._exit(0)
    assert os.wait()[1] == 0
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.delenv(VARIABLE, raising=False)


def folder() -> Path:
    with compiled_code() as variables:
        return Path(variables[VARIABLE])


@pytest.fixture
def compiled() -> Iterator[Callable[[], list[int]]]:
    """Compiles in a process as a climb does: how many graphs it found, and how many it had to compile."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", COMPILES], stdin=pipe, stdout=pipe, text=True) as compiler:
        assert compiler.stdin
        assert compiler.stdout

        def compiled() -> list[int]:
            with compiled_code() as variables:
                compiler.stdin.write(f"{VARIABLE}={variables[VARIABLE]}\n")  # type: ignore[union-attr]
                compiler.stdin.flush()  # type: ignore[union-attr]
                return [int(n) for n in compiler.stdout.readline().split()]  # type: ignore[union-attr]

        yield compiled
        compiler.stdin.close()


@pytest.mark.parametrize("lost", ["known file", "generated code"])
def test_graphs_whose_code_includes_a_header_that_is_gone_are_compiled_again(lost: str) -> None:
    """So it is with torch 2.6, which writes the header only with new code."""
    place = folder()
    (place / "fxgraph").mkdir()
    (place / "fxgraph" / "graph").touch()
    (place / "prefix.h").touch()
    (place / "code.cpp").write_text(f'#include <cmath>\n#include "{place / "prefix.h"}"\n')
    folder()
    assert (place / "fxgraph" / "graph").exists()
    (place / "prefix.h").unlink()
    (place / {"known file": KNOWN, "generated code": "code.cpp"}[lost]).unlink()
    folder()
    assert not (place / "fxgraph").exists()


def test_what_one_climb_compiled_the_next_one_finds_and_what_is_damaged_or_gone_is_compiled_again(
    compiled: Callable[[], list[int]],
) -> None:
    assert compiled() == [0, 1]
    assert compiled() == [1, 0]
    libraries = sorted(folder().rglob("*.so"))
    assert libraries
    for path in [*libraries, *folder().rglob("*.py")]:
        path.write_bytes(path.read_bytes()[:100])
    files = sorted(path for path in folder().rglob("*") if path.is_file() and path not in libraries)
    for path in random.Random(1).sample(files, len(files) // 2):
        path.unlink()
    assert sum(compiled()) == 1
    cut = folder() / "cut.so"  # a kill cut the linker off: nothing is known of it
    cut.write_bytes(libraries[0].read_bytes()[:-500])
    (folder() / "empty.so").touch()
    (folder() / KNOWN).unlink()
    left = folder()
    assert libraries[0].exists()
    assert not (left / "cut.so").exists()
    assert not (left / "empty.so").exists()


def test_the_cache_that_the_user_chose_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "/somewhere")
    with compiled_code() as variables:
        assert [*variables] == [SINCE]
    assert not directory().exists()


@pytest.mark.parametrize("whose", ["Rung's", "the user's"])
def test_a_worker_removes_libraries_that_nobody_writes_any_more(
    whose: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that is ended while it links leaves one that torch would load for ever."""
    place = tmp_path / "torchs"
    if whose == "the user's":
        monkeypatch.setenv(VARIABLE, str(place))
    with compiled_code() as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        place = Path(os.environ[VARIABLE])
        (place / LOCKS).mkdir(parents=True)
        (place / "ab").mkdir()
        for name in ("cut", "written", "old", "not_inductors"):
            library = place / "ab" / f"{name}.main.so"
            library.touch()
            at = 1e9 if name == "old" else time.time() + 1  # a file's clock is coarser
            os.utime(library, (at, at))
            if name != "not_inductors":
                (place / LOCKS / f"{name}.lock").touch()
        os.utime(place / "ab" / "old.main.so", (1e9, 1e9))
        with (place / LOCKS / "written.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            removed = remove_cut_off()
        assert sorted(removed) == ["cut.main.so", *(["old.main.so"] if whose == "Rung's" else [])]
        assert sorted(removed) == sorted(
            f"{name}.main.so" for name in ("cut", "old", "written") if not (place / "ab" / f"{name}.main.so").exists()
        )


def test_where_no_climb_runs_nothing_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    monkeypatch.delenv(SINCE, raising=False)
    (tmp_path / LOCKS).mkdir()
    (tmp_path / LOCKS / "cut.lock").touch()
    (tmp_path / "ab").mkdir()
    (tmp_path / "ab" / "cut.main.so").touch()
    assert remove_cut_off() == []


@pytest.fixture
def headers() -> Path:
    folder = precompiled_headers()
    (folder / LOCKS).mkdir(parents=True)
    for name, begin in (("whole", b"gpch+014"), ("cut", b"gpcWrite"), ("empty", b""), ("written", b"gpcWrite")):
        (folder / f"{name}.h.gch").write_bytes(begin)
        (folder / LOCKS / f"{name}.lock").touch()
    return folder


def test_torch_keeps_precompiled_headers_there() -> None:
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    assert precompiled_headers().parent == Path(default_cache_dir())


@pytest.mark.parametrize("chosen", [False, True], ids=["Rung's cache", "the user's cache"])
def test_precompiled_headers_that_were_cut_off_are_gone_when_a_climb_has_ended(
    chosen: bool, headers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if chosen:
        monkeypatch.setenv(VARIABLE, str(tmp_path / "mine"))
    with (headers / LOCKS / "written.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with compiled_code():
            assert sorted(remove_cut_off()) == ["cut.h.gch", "empty.h.gch"]  # in a worker that begins
            (headers / "cut.h.gch").write_bytes(b"gpcWrite")
    assert sorted(path.name for path in headers.glob("*.gch")) == ["whole.h.gch", "written.h.gch"]


@pytest.mark.skipif(not shutil.which("g++"), reason="g++ is not installed")
def test_what_gcc_leaves_when_it_is_killed_is_known(tmp_path: Path) -> None:
    folder = precompiled_headers()
    (folder / LOCKS).mkdir(parents=True)
    (folder / LOCKS / "x.lock").touch()
    made = folder / "x.h.gch"
    (folder / "x.h").write_text("#include <regex>\n")
    build = ["g++", "-x", "c++-header", str(folder / "x.h"), "-o", str(made)]
    with subprocess.Popen(build, start_new_session=True) as compiler:
        while not (made.exists() and made.stat().st_size) and compiler.poll() is None:
            time.sleep(0.001)
        os.killpg(compiler.pid, signal.SIGKILL)
    assert remove_unfinished_headers() == ["x.h.gch"]
    subprocess.run(build, check=True)
    assert remove_unfinished_headers() == []
    assert made.exists()


def test_where_a_package_has_no_bytecode_workers_keep_it_and_find_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "packages" / "bare" / "__init__.py"
    source.parent.mkdir(parents=True)
    source.write_text("x = 1")
    monkeypatch.syspath_prepend(str(source.parent.parent))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)
    kept = tmp_path / "kept"

    def imported(variables: dict[str, str]) -> None:
        path = {"PYTHONPATH": str(source.parent.parent)}
        subprocess.run([sys.executable, "-c", "import bare"], env={**os.environ, **path, **variables}, check=True)

    variables = bytecode(kept, "bare")
    imported(variables)
    (written,) = kept.rglob("bare/*.pyc")
    first = written.stat().st_mtime_ns
    imported(variables)
    assert written.stat().st_mtime_ns == first
    assert not (source.parent / "__pycache__").exists()
    imported({"PYTHONDONTWRITEBYTECODE": ""})  # beside the source, as pip does
    assert bytecode(kept, "bare") == {}
    assert bytecode(kept, "no_such_package") == {}


def test_bytecode_is_kept_where_the_user_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bare.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", "/somewhere")
    assert bytecode(tmp_path / "kept", "bare") == {}


@pytest.mark.parametrize("mode", [0o770, 0o777])
def test_a_folder_that_others_may_write_is_not_used(mode: int) -> None:
    directory().mkdir(parents=True)
    directory().chmod(mode)
    with compiled_code() as variables:
        assert variables == {}
    directory().chmod(0o755)
    with compiled_code() as variables:
        assert variables


def test_what_is_oldest_makes_room_until_half_is_left() -> None:
    for age in range(10):
        path = folder() / f"{age}.py"
        path.write_bytes(bytes(1000))
        os.utime(path, (1e9 - age, 1e9 - age))
    (folder() / KNOWN).unlink()
    with compiled_code(most=9000):
        assert sorted(path.name for path in folder().glob("*.py")) == ["0.py", "1.py", "2.py", "3.py"]


def test_a_folder_that_is_in_use_is_left_as_it_is() -> None:
    with compiled_code() as variables:
        unfinished = Path(variables[VARIABLE]) / "unfinished.so"
        unfinished.write_bytes(b"\x7fELF")
        with compiled_code(most=0):
            assert unfinished.exists()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a.py": 3}', json.dumps({"a.py": [2, 2]}), "3"])
def test_marks_that_are_damaged_themselves_are_no_error(text: str) -> None:
    (folder() / "a.py").write_text("1")
    (folder() / KNOWN).write_text(text)
    assert folder().is_dir()


def test_without_a_place_for_it_torch_keeps_its_code_where_it_always_does(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with compiled_code() as variables:
        assert variables == {}
