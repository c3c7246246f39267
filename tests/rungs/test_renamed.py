"""Names of rungs that have changed: the old ones work on the command line, in recipes and in run directories."""

import json
import shutil
from pathlib import Path

import pytest

from rung.cli.main import main
from rung.errors import InputError
from rung.ladder.climb.unfinished import FILE, read_unfinished
from rung.recipes.recipe import Recipe, side_of
from rung.renamed import REMOVED, RENAMED, with_current_names
from rung.rungs import BY_NAME, plan_of, rungs_named
from rung.runs import Run
from rung.timing.saved import measured_by_the_climb

RUN = Path(__file__).parents[1] / "data" / "run_directory"  # of an earlier version


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_an_old_name_is_that_of_a_rung_of_today(old: str, new: str) -> None:
    assert old not in BY_NAME
    assert rungs_named([old]) == [BY_NAME[new]]
    assert plan_of(["compile", old]) == plan_of(["compile", new])
    assert side_of("m.py:make", {}, [old], None).rungs == (new,)


def test_a_recipe_of_an_earlier_version_is_read_and_written_anew_in_todays_names() -> None:
    made = Recipe.parse('schema = 1\nrungs = ["compile", "lean-sdpa"]\n')
    assert made.rungs == ("compile", "sdpa-no-mask")
    assert 'rungs = ["compile", "sdpa-no-mask"]' in made.text()


@pytest.mark.parametrize("name", REMOVED)
def test_what_was_removed_is_said_so_of(name: str) -> None:
    assert name not in BY_NAME
    with pytest.raises(InputError, match=f"^the recipe: the rung {name} was removed, since .*: leave it out"):
        Recipe.parse(f'schema = 1\nrungs = ["compile", "{name}"]\n')


@pytest.mark.parametrize(
    ("text", "now"),
    [
        ('["lean-sdpa", "compile"]', '["sdpa-no-mask", "compile"]'),
        ('"compile + lean-sdpa"', '"compile + sdpa-no-mask"'),
        ("lean-sdpa: no mask at m.py:3", "sdpa-no-mask: no mask at m.py:3"),
        ("pass joined-gradients", "pass fused-dgrad"),
        ("it was lean-sdpa.", "it was sdpa-no-mask."),
        ('rungs = [\\"lean-sdpa\\"]', 'rungs = [\\"sdpa-no-mask\\"]'),
        ("workers/03-lean-sdpa-candidate.log", None),
        ("traces/lean-sdpa.json.gz", None),
        ("my-lean-sdpa", None),
        ("lean-sdpa-2", None),
        ("lean-sdpa/model.py:make", None),
    ],
)
def test_names_are_changed_and_files_are_not(text: str, now: str | None) -> None:
    assert with_current_names(text) == (now or text)


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """A run directory as an earlier version wrote it, of a climb that kept a rung whose name has changed since."""
    folder = tmp_path / "run"
    shutil.copytree(RUN, folder)
    for path in (p for p in folder.rglob("*") if p.is_file()):
        path.write_text(path.read_text().replace('"compile"', '"lean-sdpa"').replace(r"\"compile\"", r"\"lean-sdpa\""))
    shutil.move(folder / "attempts" / "01-plain.json", folder / "attempts" / "01-lean-sdpa.json")
    return folder


def test_a_run_directory_is_read_in_todays_names(earlier: Path) -> None:
    text = json.dumps(Run.open_(earlier).data())
    assert not [old for old in RENAMED if f'"{old}"' in text]
    assert Run.open_(earlier).data()["result"]["kept"] == ["sdpa-no-mask"]
    assert "lean-sdpa" in (earlier / FILE).read_text()
    assert read_unfinished(Run.open_(earlier))["plain"].stack == ["sdpa-no-mask"]


def test_its_recipe_is_still_known_for_that_of_its_climb(earlier: Path) -> None:
    made = Recipe.read(earlier / "recipe.toml")
    side = side_of(made.workload, {}, None, earlier / "recipe.toml")
    result = json.loads((earlier / "result.json").read_text())
    result |= {"times": {"best": {"value": 2.0, "low": 1.0, "high": 3.0}}, "restarts": []}
    (earlier / "result.json").write_text(json.dumps(result))
    found = measured_by_the_climb(earlier / "recipe.toml", side)
    assert found is not None
    assert found.time.value == 2.0


def test_the_command_line_says_so_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rungs", "lean-sdpa", "--json"]) == 0
    said = capsys.readouterr()
    assert [row["name"] for row in json.loads(said.out)] == ["sdpa-no-mask"]
    assert said.err == "note: the rung lean-sdpa is called sdpa-no-mask now; the old name works in this release only.\n"
