"""What a shell is told of a line that is not finished yet."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rung.cli.main import COMMANDS, main

BASH = shutil.which("bash")
# What bash does when the tabulator is pressed at the end of a line: its own variables, then the function that was registered.
PRESSED = """
eval "$({python} -m rung completion bash)"
rung() {{ {python} -m rung "$@"; }}
COMP_LINE="$1"; COMP_POINT=${{#1}}; COMP_WORDS=($1); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
case "$1" in *" ") COMP_WORDS+=(""); COMP_CWORD=$((COMP_CWORD + 1));; esac
_python_argcomplete rung "${{COMP_WORDS[COMP_CWORD]}}"
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def completed(line: str, folder: Path) -> list[str]:
    script = PRESSED.format(python=sys.executable)
    done = subprocess.run(
        [str(BASH), "--norc", "-c", script, "bash", line],
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
        env=dict(os.environ),
    )
    return [word.strip() for word in done.stdout.splitlines() if word.strip()]


@pytest.mark.skipif(not BASH, reason="there is no bash")
def test_bash_completes_commands_options_and_choices(tmp_path: Path) -> None:
    assert completed("rung comp", tmp_path) == ["compare", "completion"]
    assert set(completed("rung ", tmp_path)) >= set(COMMANDS)
    assert completed("rung climb --nume", tmp_path) == ["--numerics"]
    assert completed("rung climb model.py:make --numerics ", tmp_path) == ["exact", "tf32", "bf16", "fp8"]
    assert "--recipe" in completed("rung bench --", tmp_path)
    assert completed("rung runs tr", tmp_path) == ["trend"]
    assert completed("rung nothing --nume", tmp_path) == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_its_own_words(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    said = capsys.readouterr().out
    assert "rung" in said
    assert {"bash": "complete -o", "zsh": "compdef", "fish": "complete --command rung"}[shell] in said


def test_another_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "tcsh"]) == 2
    assert "bash" in capsys.readouterr().err
