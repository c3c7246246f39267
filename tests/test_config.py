"""Options from files: which file wins, what is refused and in which words, and that what is typed wins over all."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from rung.cli import climb
from rung.cli.main import COMMANDS, _parser, main, set_defaults
from rung.config import KEYS, TABLES, keeps_history, settings, settings_of
from rung.errors import RungError


class Files:
    """A project below a folder, and the user's file."""

    def __init__(self, folder: Path) -> None:
        self.here = folder / "project" / "deep"
        self.here.mkdir(parents=True)
        self.project, self.user = folder / "project" / "pyproject.toml", folder / "rung.toml"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    made = Files(tmp_path)
    monkeypatch.chdir(made.here)
    monkeypatch.setenv("RUNG_CONFIG", str(made.user))
    return made


def parsed(command: str, *words: str) -> argparse.Namespace:
    return _parser(command, configured=True).parse_args([command, *words])


def test_what_is_typed_wins_over_the_project_and_that_over_the_user(files: Files) -> None:
    assert parsed("climb", "x").budget is None
    files.user.write_text('budget = 600\nnumerics = "bf16"\n[bench]\ntime = 5\n')
    assert parsed("climb", "x").budget == 600.0
    files.project.write_text('[tool.rung]\nbudget = 60\nsame-within = "2%"\n')
    found = parsed("climb", "x")
    assert (found.budget, found.numerics) == (60.0, "bf16")
    assert parsed("climb", "x", "--budget", "5").budget == 5.0
    assert parsed("compare", "x").same_within == 0.02
    assert (parsed("bench", "x").time, parsed("bench", "x", "--time", "9").time) == (5.0, 9.0)


def test_a_commands_own_table_wins_within_a_file_and_not_over_the_projects(files: Files) -> None:
    files.user.write_text("budget = 1\n[climb]\nbudget = 2\n")
    assert (parsed("climb", "x").budget, parsed("compare", "x").budget) == (2.0, 1.0)
    files.project.write_text("[tool.rung]\nbudget = 3\n")
    assert (parsed("climb", "x").budget, parsed("compare", "x").budget) == (3.0, 3.0)


def test_a_switch_of_a_file_can_be_taken_back(files: Files) -> None:
    files.user.write_text("verify = true\n")
    assert parsed("compare", "x").verify is True
    assert parsed("compare", "x", "--no-verify").verify is False


def test_the_nearest_pyproject_alone_is_asked(files: Files) -> None:
    files.project.write_text("[tool.rung]\nbudget = 3\n")
    (files.here / "pyproject.toml").write_text("[project]\nname = 'nearer'\n")
    assert settings() == []


def test_every_key_is_an_option_of_its_commands_and_names_no_code_or_secret() -> None:
    assert set(TABLES) <= set(COMMANDS)
    for key, (_, commands) in KEYS.items():
        for command in commands:
            actions = _parser(command)._subparsers._group_actions[0].choices[command]._actions  # type: ignore[union-attr, index]
            assert any(f"--{key}" in action.option_strings for action in actions), (key, command)
    assert not {"target", "recipe", "rungs", "env", "out", "resume", "host", "token", "inputs", "base", "with"} & set(
        KEYS
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("budgt = 5", "there is no key 'budgt'; did you mean 'budget'?"),
        ("same_within = 0.1", "there is no key 'same_within'; did you mean 'same-within'?"),
        ("clmb = {budget = 5}", "there is no key 'clmb'; did you mean 'climb'?"),
        ('recipe = "r.toml"', "there is no key 'recipe'; known are numerics, budget"),
        ("[bench]\nnumerics = 'exact'", "numerics is not an option of `rung bench`, but of climb."),
        ("[climb]\nhistory = false", "history is not an option of `rung climb`, but of all commands."),
        ('budget = "5"', "budget must be a number, and is '5'."),
        ("budget = true", "budget must be a number, and is true."),
        ("budget = -5", "budget: '-5' is not a time"),
        ("budget = nan", "budget: 'nan' is not a time"),
        ("jobs = 1.5", "jobs must be a whole number, and is 1.5."),
        ("numerics = ['exact']", "numerics must be a text, and is a list."),
        ("numerics = 'bf17'", "numerics must be one of exact, tf32, bf16, fp8, and is 'bf17'."),
        ("slower-at-most = '200%'", "slower-at-most: '200%' must lie between 0 and 100%"),
        ("climb = 3", "climb is a command, and must be a table, [climb]."),
        ("budget = [", "is not TOML"),
    ],
)
def test_what_is_no_option_is_refused_in_one_sentence(
    files: Files, text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    files.user.write_text(text)
    assert main(["climb", "tiny-transformer", "--json"]) in (2, 3)
    out, err = capsys.readouterr()
    assert err.startswith(f"rung: {files.user}")
    assert said in err
    assert json.loads(out)["kind"] == "error"
    assert main(["climb", "--help"]) == 0  # how to mend it can still be read
    assert main(["runs"]) == 0
    if "tool" not in text:
        files.user.unlink()
        files.project.write_text(
            f"[tool.rung]\n{text.replace('[climb]', '[tool.rung.climb]').replace('[bench]', '[tool.rung.bench]')}"
        )
        with pytest.raises(RungError, match=r"tool\.rung|is not TOML"):
            set_defaults(_parser("climb")._subparsers._group_actions[0].choices["climb"], "climb")  # type: ignore[union-attr, index]


def test_a_pyproject_that_is_not_about_rung_may_be_anything(files: Files) -> None:
    files.project.write_text("[project\n")
    assert settings() == []
    files.project.write_text('[project]\ndependencies = ["rung"]\n[tool]\nblack = 1\n')
    assert settings() == []
    files.project.write_text("[tool]\nrung = 7\n")
    with pytest.raises(RungError, match=r"tool\.rung must be a table"):
        settings()


def test_the_history_is_switched_off_by_variable_or_file(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    assert keeps_history()
    files.user.write_text("history = false\n")
    assert not keeps_history()
    files.project.write_text("[tool.rung]\nhistory = true\n")
    assert keeps_history()
    for said, on in (("off", False), ("0", False), ("on", True)):
        monkeypatch.setenv("RUNG_HISTORY", said)
        assert keeps_history() is on


def test_the_doctor_says_where_each_value_comes_from(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    files.project.write_text("[tool.rung]\nbudget = 60\n[tool.rung.compare]\nverify = true\n")
    files.user.write_text("budget = 600\n")

    def options() -> list[tuple[str, str, str]]:
        assert main(["doctor", "--json", "--wait", "0.1"]) == 0
        lines = json.loads(capsys.readouterr().out)["lines"]
        return [(line["name"], line["value"], line["level"]) for line in lines if line["group"] == "options"]

    assert options() == [
        ("verify", f"true for rung compare, from {files.project} [tool.rung.compare]", "ok"),
        ("budget", f"60 for rung climb and rung compare, from {files.project} [tool.rung]", "ok"),
        ("budget", f"600 for rung climb and rung compare, from {files.user}; another value wins for rung climb and rung compare", "note"),
    ]  # fmt: skip
    files.user.write_text("budgt = 600\n")
    [(_, value, level)] = options()
    assert level == "warn"
    assert "did you mean 'budget'?" in value
    files.user.unlink()
    files.project.unlink()
    assert options() == [("files", "none: neither rung.toml nor [tool.rung] in a pyproject.toml", "ok")]


def test_what_a_file_sets_does_not_stop_a_climb_from_going_on(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    """--resume refuses what a climb was begun with only where it is typed."""
    files.user.write_text('numerics = "bf16"\ndevice = "cpu"\n')
    assert main(["climb", "--resume", "nowhere"]) == 3
    assert "not a run directory" in capsys.readouterr().err
    assert main(["climb", "--resume", "nowhere", "--device=cpu"]) == 2
    assert "--device cannot be changed by --resume" in capsys.readouterr().err
    assert set(climb.FIXED) >= {"--numerics", "--device"}


def test_settings_are_those_of_one_command(files: Files) -> None:
    files.user.write_text('budget = 1\ngpu = "H100"\n')
    assert set(settings_of("climb")) == {"budget"}
    assert set(settings_of("estimate")) == {"gpu"}
