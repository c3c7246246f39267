"""What `rung COMMAND --help` shows: an example whose line parses, in lines that fit a terminal of 100 columns."""

import argparse
import re
import shlex

import pytest

from rung.cli.main import COMMANDS, GROUPS, _parser, _split, main

WIDTH = 100
ACTIONS = ("list", "show", "compare", "tag", "export", "gc", "trend")
PAGES = [*COMMANDS, *(f"runs {name}" for name in ACTIONS)]
WITHOUT = ("mcp",)  # what starts it is a line of a client's configuration
OWN_OPTIONS = (
    "climb",
    "bench",
    "compare",
    "profile",
    "apply",
    "kernels",
    "runs trend",
)  # others may follow: the target's, NAME=VALUE


def page(name: str) -> argparse.ArgumentParser:
    parser = _parser(name.split()[0])
    for word in name.split():
        parser = parser._subparsers._group_actions[0].choices[word]  # type: ignore[union-attr,index]
    return parser


def lines(name: str) -> list[list[str]]:
    """The words of each line that starts with the command; what follows two spaces is a comment."""
    typed = re.findall(rf"^ +(?:\$ )?rung {name}(.*)$", page(name).epilog or "", re.MULTILINE)
    return [shlex.split(re.split(r" {2,}| \| ", line)[0]) for line in typed]


@pytest.mark.parametrize("name", PAGES)
def test_every_page_has_an_example_and_each_of_its_lines_parses(name: str) -> None:
    found = lines(name)
    assert found
    if name not in WITHOUT:
        assert f"  $ rung {name}" in (page(name).epilog or "")
    for words in found:
        called, own, _ = _split([*name.split(), *words])
        _, rest = _parser(called).parse_known_args(own)
        assert not rest or " ".join([name, *words]).startswith(OWN_OPTIONS), words


@pytest.mark.parametrize("name", ["", *PAGES])
def test_no_line_is_wider_than_a_terminal(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH + 2))  # argparse leaves two free
    assert main([*name.split(), "--help"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) > 5
    assert [line for line in shown if len(line) > WIDTH] == []


@pytest.mark.parametrize("name", PAGES)
def test_no_line_ends_within_an_option(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*name.split(), "--help"]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if re.search(r"\w-$|--$", line)] == []


def test_the_program_lists_every_command_once() -> None:
    names = re.findall(r"^    (\w+) ", _parser(None).format_help(), re.MULTILINE)
    assert names == [name for group in GROUPS.values() for name in group]
