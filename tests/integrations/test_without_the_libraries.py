"""Where a library is missing, its module says in one sentence what to install."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "hidden", "command"),
    [
        ("huggingface", ("transformers",), "pip install transformers accelerate"),
        ("lightning", ("lightning", "pytorch_lightning"), "pip install lightning"),
    ],
)
def test_a_missing_library_is_said_in_one_sentence(module: str, hidden: tuple[str, ...], command: str) -> None:
    hide = f"import sys; sys.modules.update(dict.fromkeys({hidden!r}))\n"
    code = f"{hide}import rung.integrations.{module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("rung.errors.UsageError: these callbacks are for")
    assert command in last
