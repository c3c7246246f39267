"""`make demo`, `make test` and CI on a machine that has nothing yet: what is installed, and what is not replaced."""

import os
import subprocess
from pathlib import Path

import pytest

REPO = Path(__file__).parent.parent

# Stands for Python and for what pip installs: it can import what lies in $HAS, and notes what it was asked for.
PYTHON = """\
#!/bin/sh
echo "$@" >> "$HAS/.asked"
case "$1 $2" in
    "-c import sys"*) exit 0 ;;
    "-c import torch") [ -e "$HAS/torch" ]; exit ;;
    "-c import triton") [ -e "$HAS/triton" ]; exit ;;
    "-c import torch, sys"*) [ -e "$HAS/torch==2.13.0" ]; exit ;;
    "-c import torch;"*) echo 2.9.0+rocm6.4 ;;
    "-m venv") for venv; do :; done; mkdir -p "$venv/bin"; cp "$0" "$venv/bin/python" ;;
    "-m pip") for what; do :; done; touch "$HAS/$what" "$HAS/${what%%=*}" ;;
esac
"""


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    (tmp_path / "has").mkdir()
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    return tmp_path


def set_up(machine: Path, *how: str) -> list[str]:
    """Runs tools/setup; what its Pythons were asked for."""
    env = {**os.environ, "PYTHON": str(machine / "python"), "VENV": str(machine / "venv"), "HAS": str(machine / "has")}
    asked = machine / "has" / ".asked"
    asked.write_text("")
    subprocess.run([REPO / "tools" / "setup", *how], env=env, capture_output=True, check=True)
    return asked.read_text().splitlines()


def installed(asked: list[str]) -> list[str]:
    return [line.partition(" install ")[2] for line in asked if line.startswith("-m pip")]


def test_the_demo_is_set_up_without_what_only_tests_need(machine: Path) -> None:
    asked = set_up(machine)
    assert installed(asked) == ["torch==2.13.0", "--editable ."]
    assert all(" -q -q " in line for line in asked if line.startswith("-m pip"))  # errors only


def test_the_tests_are_set_up_alone_and_after_the_demo(machine: Path) -> None:
    assert installed(set_up(machine, "dev")) == ["torch==2.13.0", "triton==3.7.1", "--editable .[dev]"]
    for name in ("torch", "torch==2.13.0", "triton", "triton==3.7.1"):
        (machine / "has" / name).unlink()
    set_up(machine)
    assert installed(set_up(machine, "dev")) == ["triton==3.7.1", "--editable .[dev]"]
    assert installed(set_up(machine, "dev")) == ["--editable .[dev]"]


def test_a_torch_that_is_there_is_used_and_stays(machine: Path) -> None:
    (machine / "has" / "torch").touch()
    asked = set_up(machine, "dev")
    assert installed(asked) == ["--editable .[dev]"]  # no Triton, either: that of its own build may come
    assert any(line.startswith("-m venv --system-site-packages") for line in asked)


def test_make_asks_for_the_tests_tools_where_tests_are_run(tmp_path: Path) -> None:
    def planned(target: str) -> list[str]:
        words = ["make", "--dry-run", target, f"VENV={tmp_path}/venv"]
        env = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")}  # of the make that runs the tests
        done = subprocess.run(words, cwd=REPO, env=env, capture_output=True, text=True, check=True)
        return [line.partition("tools/setup")[2] for line in done.stdout.splitlines() if "tools/setup" in line]

    assert planned("demo") == [""]
    assert planned("test") == [" dev"]


def test_ci_starts_from_an_empty_home_and_keeps_what_pip_is_configured_to_do(tmp_path: Path) -> None:
    home, tools = tmp_path / "home", tmp_path / "tools"
    for folder in (home / ".config" / "pip", home / ".pip", home / ".triton", tools):
        folder.mkdir(parents=True)
    (home / ".config" / "pip" / "pip.conf").write_text("of the user\n")
    make = tools / "make"
    make.write_text('#!/bin/sh\nenv\nfind "$HOME" -mindepth 1\ncat "$HOME/.config/pip/pip.conf"\necho "ran $*"\n')
    make.chmod(0o755)
    caches = ("XDG_CACHE_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
    env = {"PATH": f"{tools}:{os.environ['PATH']}", "HOME": str(home), **dict.fromkeys(caches, str(home / "warm"))}
    done = subprocess.run([REPO / ".ci" / "run"], env=env, capture_output=True, text=True, check=True)
    seen = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line and " " not in line)
    fresh = seen["HOME"]
    assert not any(str(home) in seen[name] for name in ("HOME", *caches))
    assert len({seen[name] for name in ("HOME", *caches)}) == 4
    assert set(done.stdout.splitlines()) >= {"of the user", "ran demo BUDGET=30", "ran test"}
    found = {line.removeprefix(fresh) for line in done.stdout.splitlines() if line.startswith(fresh)}
    assert found == {"/.config", "/.config/pip", "/.pip"}
    assert seen["PIP_CACHE_DIR"] == str(home / "warm" / "pip")  # downloads are no cache that a test could read
    assert not Path(fresh).exists()
