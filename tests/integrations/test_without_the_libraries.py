"""Where a library is missing, its module says in one sentence what to install."""

import importlib
import sys

import pytest

from rung.errors import UsageError


@pytest.mark.parametrize(
    ("module", "hidden", "command"),
    [
        ("huggingface", ("transformers",), "pip install transformers accelerate"),
        ("lightning", ("lightning", "pytorch_lightning"), "pip install lightning"),
    ],
)
def test_a_missing_library_is_said_in_one_sentence(
    module: str, hidden: tuple[str, ...], command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in hidden:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, f"rung.integrations.{module}", raising=False)
    with pytest.raises(UsageError, match=command):
        importlib.import_module(f"rung.integrations.{module}")
