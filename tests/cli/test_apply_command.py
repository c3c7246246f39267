"""`rung apply`: what a recipe changes, as a diff, and whether it fits."""

import json
from pathlib import Path

import pytest
import torch

from rung.cli.main import main
from rung.recipes.recipe import Recipe

MICRO = f"{Path(__file__).parents[1] / 'helpers' / 'micro.py'}:make"


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.toml"
    made = {"torch": "1.0", "model": "Sequential with 1 parameters in 1 tensors"}
    found = Recipe(
        ("compile", "hw-queues"), MICRO, {}, "train", "exact", made, {"speedup": 2.0, "low": 1.9, "high": 2.1},
        {"GPU_MAX_HW_QUEUES": "2"}, {"elements_at_most": 10},
    )  # fmt: skip
    path.write_text(found.text())
    return path


def test_the_diff_names_rungs_variables_guards_and_what_differs(
    recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["apply", str(recipe)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["--- the untouched model", f"+++ rung.apply(model, {recipe})"]
    assert "+ export GPU_MAX_HW_QUEUES=2" in lines
    assert any(line.startswith("+ compile") and "[reassociated]" in line for line in lines)
    assert (
        "  [reassociated]: other kernels of the same precision may run, so sums may be added in another order" in lines
    )
    assert not any(line.startswith("  [exact]") for line in lines)
    assert any("at most 10 elements" in line for line in lines)
    assert "measured in the climb: 2.00× (1.90–2.10)" in lines
    assert any("made on torch '1.0'" in line for line in lines)


def test_where_other_shapes_are_not_compiled_nothing_is_said_of_their_graphs(
    recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["apply", str(recipe)]) == 0
    assert "  input shapes: the first has a graph of its own; " in capsys.readouterr().out
    recipe.write_text(
        Recipe(
            ("compile",), MICRO, {}, "train", "exact", original={"elements_at_most": 9, "elements_at_least": 11}
        ).text()
    )
    assert main(["apply", str(recipe)]) == 0
    said = capsys.readouterr().out
    assert "inputs of another size than the measured one run on the untouched model" in said
    assert "input shapes:" not in said


def test_with_a_target_it_says_whether_the_model_is_another_one(
    recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["apply", str(recipe), MICRO, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [("torch" in d, "model" in d.split(",")[0]) for d in found["differs"]] == [(True, False), (False, True)]
    assert found["variables"] == {"GPU_MAX_HW_QUEUES": "2"}


def test_a_recipe_that_was_made_for_this_is_said_to_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from rung.hardware import pick
    from rung.recipes.fingerprint import describe_model
    from rung.workload import load, seeded_model

    workload = load(MICRO, {})
    made = {
        "torch": torch.__version__, "device": pick("cpu").name, "model": describe_model(seeded_model(workload)),
    }  # fmt: skip
    path = tmp_path / "here.toml"
    path.write_text(Recipe(("compile",), MICRO, {}, workload.mode, "exact", made).text())
    assert main(["apply", str(path), MICRO, "--device", "cpu"]) == 0
    assert f"fits {MICRO}: made for this model structure, mode" in capsys.readouterr().out
    assert main(["apply", str(path), "--device", "cpu"]) == 0
    assert "fits" not in capsys.readouterr().out


def test_a_recipe_that_was_written_by_hand_says_that_its_fit_is_not_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "own.toml"
    path.write_text(Recipe(("compile",), MICRO, {}, "train", "exact", {"torch": torch.__version__}).text())
    assert main(["apply", str(path), MICRO, "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    assert (
        "note: the recipe does not state what it was made for (device, model), so Rung cannot tell whether it fits."
        in said
    )
    assert main(["apply", str(path), MICRO, "--device", "cpu", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["untold"], found["fits"]) == (["device", "model"], None)


def test_a_recipe_of_training_says_so_to_inference(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe.write_text(recipe.read_text().replace('mode = "train"', 'mode = "infer"'))
    assert main(["apply", str(recipe), MICRO]) == 0
    assert (
        "the recipe was made for mode 'infer', and this is 'train': its rungs were verified on steps of that kind"
        in capsys.readouterr().out
    )


def test_no_recipe_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["apply"]) == 2
    for wrong in (tmp_path / "none" / "recipe.toml", tmp_path):
        capsys.readouterr()
        assert main(["apply", str(wrong)]) == 3
        (said,) = capsys.readouterr().err.splitlines()
        assert said.startswith(f"rung: {wrong} could not be read: ")


def test_what_the_device_or_the_model_cannot_have_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "elsewhere.toml"
    path.write_text(Recipe(("compile", "capture", "model-sdpa")).text())
    assert main(["apply", str(path), MICRO, "--device", "cpu"]) == 0
    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: ")]
    assert notes == [
        "note: capture is not in effect: a CPU has no graphs to launch.",
        "note: model-sdpa is not in effect: Sequential has no switch of its own for its attention.",
        "note: the recipe does not state what it was made for (mode, device, torch, model), so Rung cannot tell whether it fits.",
    ]


def test_two_recipes_that_a_pattern_gave_are_refused(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = recipe.with_name("other.toml")
    assert main(["apply", str(recipe), str(other), MICRO]) == 2
    assert f"give one recipe: {recipe} and {other} are two" in capsys.readouterr().err
