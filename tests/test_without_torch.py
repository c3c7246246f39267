"""On a machine without torch: what needs it says how to get it, and everything else works."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

HIDE = "import sys; sys.modules['torch'] = None\n"  # an import of it fails, and it is found nowhere
BUILDS = ("CUDA", "ROCm", "CPU", "pip install torch", "pytorch.org")

MLP = "examples/mlp.py:make"
NEEDY = (
    "climb tiny-transformer",
    f"bench {MLP}",
    f"compare {MLP} --rungs compile",
    f"profile {MLP}",
    "kernels list",
    "kernels inspect rope --arch gfx942",
)


def rung(code: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", HIDE + code],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def command(words: str) -> "subprocess.CompletedProcess[str]":
    return rung(f"from rung.cli.main import command; sys.argv[1:] = {words.split()!r}; command()")


@pytest.mark.parametrize("words", NEEDY)
def test_a_command_that_needs_torch_says_in_one_sentence_how_to_get_it(words: str) -> None:
    done = command(words)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    assert all(build in done.stderr for build in BUILDS)


def test_with_json_the_sentence_is_a_document() -> None:
    for words in ("bench tiny-transformer --json", "kernels list --json"):
        found = json.loads(command(words).stdout)
        assert (found["kind"], found["exit_code"]) == ("error", 2)
        assert all(build in found["error"] for build in BUILDS)


@pytest.mark.parametrize("words", ["--help", "estimate --hidden 128 --layers 2 --heads 2", "runs", "climb --help"])
def test_what_needs_no_torch_works_without_it(words: str) -> None:
    done = command(words)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "call",
    [
        "climb('tiny-transformer')",
        "bench('tiny-transformer')",
        "compare('tiny-transformer', 'tiny-transformer')",
        "apply",
    ],
)
def test_in_python_the_same_sentence_is_raised(call: str) -> None:
    done = rung(f"import rung\ntry: rung.{call}\nexcept rung.RungError as error: print(error.exit_code, error)")
    assert done.stdout.startswith("2 "), done.stderr
    assert all(build in done.stdout for build in BUILDS)


def test_a_target_that_imports_it_says_how_to_get_it(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import torch")
    asked = f"from rung.workload.load import find\ntry: find({str(tmp_path / 'mine.py:f')!r})\n"
    done = rung(f"import rung\n{asked}except rung.RungError as error: print(error.exit_code, error)")
    assert done.stdout.startswith("4 "), done.stderr
    assert all(build in done.stdout for build in BUILDS)


def test_callables_are_measured_without_it() -> None:
    done = rung("import rung\nprint(rung.bench(lambda: sum(range(99)), seconds=0.1, preset='sanity').median > 0)")
    assert done.stdout == "True\n", done.stderr


def test_a_plain_function_is_timed_on_the_cpu_that_is_asked_for() -> None:
    done = rung("from rung.timing.function import Function; print(Function(int, 'int', 'cpu').open()['name'])")
    assert (done.returncode, done.stdout) == (0, "int\n"), done.stderr
