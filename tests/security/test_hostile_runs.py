"""Run directories and recipes that are damaged, or were made to harm: one sentence, a known exit code, and nothing of theirs is run."""

import io
import json
import math
import os
import random
import shutil
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from rung.cli.main import main
from rung.errors import InputError, UsageError
from rung.ladder.climb import resume
from rung.recipes.recipe import Recipe

# Of a climb of tests/helpers/pointwise.py on two CPU cores, without its traces and logs.
RUN = Path(__file__).parents[1] / "data" / "run_directory"
KNOWN = (0, 1, 2, 3, 4)
VALUES: list[Any] = [
    None, True, 0, -1, 1e308, 10**400, 1e-320, math.nan, math.inf, "", "x" * 10_000, "\x1b[2J", "../../etc/passwd", [], [[]] * 3, {},
    {"value": "fast"}, {"value": None}, {"": {}}, ["sdpa"], [None], {"value": 10**400, "low": -1, "high": "x"},
]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The ways to every value inside."""
    inner = value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    return [path, *(place for key, item in inner for place in places(item, (*path, key)))]


def changed(document: Any, dice: random.Random) -> Any:
    """With one value of it replaced, or taken away."""
    place = dice.choice(places(document)[1:])
    at = document
    for key in place[:-1]:
        at = at[key]
    if dice.random() < 0.25:
        del at[place[-1]]
    else:
        at[place[-1]] = dice.choice(VALUES)
    return document


def damaged(folder: Path, dice: random.Random) -> Path:
    """A copy of the run in which one file is not what it was."""
    shutil.copytree(RUN, folder)
    path = dice.choice(sorted(p for p in folder.rglob("*") if p.suffix in (".json", ".toml")))
    text = path.read_text()
    if path.suffix == ".toml" or dice.random() < 0.3:
        data = bytearray(text.encode())
        for _ in range(dice.randint(1, 6)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        path.write_bytes(data[: dice.randrange(len(data))] if dice.random() < 0.3 else data)
    else:
        document = json.loads(text)
        for _ in range(dice.randint(1, 3)):
            document = changed(document, dice)
        path.write_text(json.dumps(document))
    return folder


def called(*arguments: str) -> tuple[int, str]:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(list(arguments))
    return code, out.getvalue() + err.getvalue()


@pytest.mark.parametrize(("seed", "times"), [(0, 20), pytest.param(1, 400, marks=pytest.mark.long)])
def test_a_damaged_run_directory_is_shown_or_refused_in_a_sentence(seed: int, times: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    for number in range(times):
        folder = damaged(tmp_path / str(number), dice)
        for command in (
            ["report", str(folder)],
            ["report", str(folder), "--json"],
            ["report", str(folder), str(RUN), "--html", str(tmp_path / "climbs.html")],
            ["runs", "--in", str(tmp_path)],
            ["apply", str(folder / "recipe.toml")],
        ):
            code, said = called(*command)
            assert code in KNOWN, (seed, number, command, said)
            assert "Traceback" not in said
        shutil.rmtree(folder)


def test_hostile_recipes_are_refused_or_say_nothing_that_runs(tmp_path: Path) -> None:
    dice = random.Random(7)
    whole = (RUN / "recipe.toml").read_text()
    names = [
        "LD_PRELOAD",
        "PYTHONPATH",
        "PATH",
        "PYTHONSTARTUP",
        "TORCH_LOGS",
        "TRITON_CACHE_DIR",
        "GPU_MAX_HW_QUEUES",
        "HOME",
        "BASH_ENV",
    ]
    values = ["/tmp/evil.so", "1; touch x", "$(touch x)", "\\u0000", "2\\n3", "", "9" * 99]
    for number in range(200):
        text = whole
        if number % 2:
            text += f'\n[variables]\n{dice.choice(names)} = "{dice.choice(values)}"\n'
        else:
            data = bytearray(text.encode())
            for _ in range(dice.randint(1, 4)):
                data[dice.randrange(len(data))] = dice.randrange(256)
            text = data.decode("latin-1")
        path = tmp_path / "recipe.toml"
        path.write_text(text, encoding="latin-1" if number % 4 == 0 else "utf-8")
        if number % 2:
            with pytest.raises(InputError, match=r"variable|sets|TOML"):
                Recipe.read(path)
        code, said = called("apply", str(path))
        assert code in KNOWN, (number, said)
        assert "Traceback" not in said


@pytest.mark.parametrize("name", ["report.html", ".report.html.partial"])
@pytest.mark.parametrize("made", ["link", "hard link", "pipe"])
def test_a_report_writes_over_no_file_that_the_run_leads_to(name: str, made: str, tmp_path: Path) -> None:
    folder, mine = tmp_path / "run", tmp_path / "mine"
    shutil.copytree(RUN, folder)
    mine.write_text("precious")
    if made == "link":
        (folder / name).symlink_to(mine)
    elif made == "hard link":
        (folder / name).hardlink_to(mine)
    else:
        os.mkfifo(folder / name)
    assert called("report", str(folder))[0] == 0
    assert mine.read_text() == "precious"
    page = folder / "report.html"
    assert page.is_file()
    assert not page.is_symlink()
    assert "</html>" in page.read_text()


@pytest.mark.parametrize(("candidate", "baseline"), [(1e308, 1e-9), (1.0, 1e308), (1e-320, 1.0), (1e308, 1e308)])
def test_a_time_beyond_all_measure_is_no_mistake_of_ours(candidate: float, baseline: float, tmp_path: Path) -> None:
    shutil.copytree(RUN, tmp_path / "run")
    (path,) = (tmp_path / "run" / "attempts").iterdir()
    attempt = json.loads(path.read_text())
    attempt["times"]["candidate"] = {"value": candidate, "low": candidate, "high": candidate}
    path.write_text(json.dumps(attempt))
    path = tmp_path / "run" / "baseline.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"time": {"value": baseline}}))
    code, said = called("report", str(tmp_path / "run"))
    assert code == 0, said


def test_a_recipe_has_torch_write_no_file() -> None:
    """With this switched on, torch writes what it tuned into the file that the other variable names."""
    text = (RUN / "recipe.toml").read_text()
    variables = (
        '\n[variables]\nPYTORCH_TUNABLEOP_FILENAME = "/home/me/tunableop.csv"\nPYTORCH_TUNABLEOP_TUNING = "{}"\n'
    )
    assert Recipe.parse(text + variables.format(0)).variables["PYTORCH_TUNABLEOP_TUNING"] == "0"
    with pytest.raises(InputError, match="sets PYTORCH_TUNABLEOP_TUNING to '1'; rungs set it to 0"):
        Recipe.parse(text + variables.format(1))


@pytest.mark.parametrize("made", ["fifo", "folder", "loop", "device"])
def test_a_recipe_that_is_no_file_is_refused(made: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    if made == "fifo":
        os.mkfifo(path)
    elif made == "folder":
        path.mkdir()
    elif made == "loop":
        path.symlink_to(path)
    else:
        path = Path("/dev/zero")
    with pytest.raises(InputError, match="could not be read"):
        Recipe.read(path)


@pytest.mark.parametrize(
    "request_has",
    [
        {"budget": "x"}, {"budget": []}, {"jobs": "x"}, {"jobs": 0}, {"options": []}, {"device": []}, {"rungs": "x"}, {"rungs": [1]},
        {"target": None}, {"deadline": {}}, {"numerics": "fast"}, {"more": 1},
    ],
)  # fmt: skip
def test_a_damaged_request_is_not_gone_on_with(request_has: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(RUN, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest |= {"status": "interrupted", "request": manifest["request"] | request_has}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match="its request is not one of this version"):
        resume(folder, lambda event: None)


@pytest.mark.parametrize("made", ["link", "pipe"])
def test_a_run_directory_with_a_link_or_a_pipe_is_not_gone_on_with(made: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(RUN, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "status": "interrupted"}))
    mine = tmp_path / "mine"
    mine.write_text("precious")
    (folder / "begun.json").unlink()
    if made == "link":
        (folder / "begun.json").symlink_to(mine)
    else:
        os.mkfifo(folder / ".lock")
    with pytest.raises(UsageError, match=f"is a {made}"):
        resume(folder, lambda event: None)
    assert mine.read_text() == "precious"
