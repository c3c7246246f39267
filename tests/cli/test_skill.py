"""What skills/rung/SKILL.md tells an agent to type exists."""

import re
from pathlib import Path

import pytest

from rung.cli.main import COMMANDS, _parser
from rung.records.climb import Result

TEXT = (Path(__file__).parents[2] / "skills" / "rung" / "SKILL.md").read_text()
LINES = re.findall(r"^    rung (\w+)(.*)$", TEXT, re.MULTILINE)
OF_TARGETS = {"--batch"}


@pytest.mark.parametrize(("command", "words"), LINES, ids=[f"{k}-{command}" for k, (command, _) in enumerate(LINES)])
def test_every_command_and_option_exists(command: str, words: str) -> None:
    assert command in COMMANDS
    parser = _parser(command)._subparsers._group_actions[0].choices[command]  # type: ignore[union-attr,index]
    known = {flag for action in parser._actions for flag in action.option_strings}
    assert {word for word in words.partition("#")[0].split() if word.startswith("--")} - OF_TARGETS <= known


def test_every_field_of_a_result_exists() -> None:
    fields = re.findall(r"`result\.(\w+)", TEXT)
    assert len(fields) > 4
    assert set(fields) <= set(Result.__struct_fields__)


def test_it_says_by_name_and_description_what_it_is_for() -> None:
    head = TEXT.split("---")[1]
    assert re.search(r"^name: rung$", head, re.MULTILINE)
    assert len(re.search(r"^description: (.+)$", head, re.MULTILINE)[1]) < 1024  # type: ignore[index]
