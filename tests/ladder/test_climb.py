"""The climb from end to end, on a workload small enough for a CPU: what is kept, what is not, and what is left behind."""

import json
from pathlib import Path

import pytest
import torch
from climbing import MICRO, attempts, rung

from rung.cli.main import main
from rung.recipes.recipe import Recipe
from rung.report import units
from rung.runs import Run


@pytest.fixture(scope="module")
def climbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One whole climb, for all that only look at it."""
    folder = tmp_path_factory.mktemp("climbed")
    done = rung("climb", MICRO, "--rungs", "tf32,fused-optimizer", "--out", "run", cwd=folder)
    assert done.returncode == 0, done.stderr
    (folder / "stdout").write_text(done.stdout)
    (folder / "stderr").write_text(done.stderr)
    return folder


def test_what_is_faster_and_equal_is_kept_with_its_proof(climbed: Path) -> None:
    attempt = attempts(climbed / "run")["fused-optimizer"]
    assert attempt["verdict"] == "kept"
    assert attempt["comparison"]["speedup"]["value"] > 1.2  # so far apart, one restart decides
    assert attempt["verification"]["passed"]
    assert attempt["verification"]["checks"] > 30
    assert attempt["witness"] == {"failures": [], "unseen": None, "left": ""}
    assert len(attempt["restarts"]) == attempt["comparison"]["restarts"] == 1
    assert all(len(r["best"]) >= 8 for r in attempt["restarts"])
    assert attempts(climbed / "run")["tf32"]["verdict"] == "inapplicable"


def test_the_prediction_is_printed_before_the_outcome(climbed: Path) -> None:
    lines = (climbed / "stderr").read_text().splitlines()
    predicted = next(i for i, line in enumerate(lines) if line.startswith("fused-optimizer") and "Predicted" in line)
    assert "kept" in next(line for line in lines[predicted + 1 :] if "fused-optimizer:" in line and "×" in line)


def test_the_summary_the_page_and_the_run_directory_agree(climbed: Path) -> None:
    result = json.loads((climbed / "run/result.json").read_text())
    assert result["kept"] == ["fused-optimizer"]
    assert result["speedup"]["low"] > 1
    off = attempts(climbed / "run")["fused-optimizer"]["prediction_error"]
    assert result["predictions"]["by_rung"] == {"fused-optimizer": off}
    out = (climbed / "stdout").read_text()
    assert result["status"] == "confirmed"
    assert [step["status"] for step in result["history"]] == ["provisional", "verified", "confirmed"]
    assert len(result["restarts"]) >= 3
    kept = Run(climbed / "run").record().result
    assert kept is not None
    assert f"{units.interval(kept.speedup)} over the untouched model" in out
    assert out.splitlines()[-1] == "report: run/report.html"
    assert units.ratio(result["speedup"]["value"]) in (climbed / "run/report.html").read_text()
    assert (climbed / "run/traces/baseline.json.gz").stat().st_size > 0
    manifest = json.loads((climbed / "run/manifest.json").read_text())
    assert (manifest["status"], manifest["numerics"]) == ("complete", "exact")
    assert manifest["facts"]["flops"] == manifest["workload"]["flops"] > 0  # by which predictions tell shares
    assert not list((climbed / "run").rglob(".*.partial"))


def test_the_recipe_gives_the_result_again_in_a_fresh_process(climbed: Path) -> None:
    recipe = climbed / "run/recipe.toml"
    assert Recipe.read(recipe).rungs == ("fused-optimizer",)
    assert Recipe.read(recipe).status == "confirmed"
    asked = ["--recipe", str(recipe), "--seconds", "1", "--time", "0.5", "--json"]
    found = json.loads(rung("bench", MICRO, *asked, cwd=climbed).stdout)
    assert found["time"]["value"] < 1e9  # the optimizer that is not fused sleeps as long in every step


Said = pytest.CaptureFixture[str]


@pytest.fixture
def there(climbed: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the climb, which is the current one."""
    monkeypatch.chdir(climbed)
    return climbed


def test_a_complete_climb_is_not_climbed_again(there: Path, capsys: Said) -> None:
    assert main(["climb", "--resume", "run"]) == 2
    assert capsys.readouterr().err == "rung: run is complete; `rung report run` shows it.\n"


def test_runs_and_report_show_it_again(there: Path, capsys: Said) -> None:
    assert main(["report", "run"]) == 0
    assert "fused-optimizer" in capsys.readouterr().out
    assert main(["report", "run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["result"]["kept"] == ["fused-optimizer"]
    assert main(["runs", "--in", "."]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_the_climb_is_in_the_history(climbed: Path, capsys: Said) -> None:
    result = json.loads((climbed / "run/result.json").read_text())
    assert main(["runs", "list", "--of", "climb", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["entries"]
    [entry] = [entry for entry in found if entry["directory"] == str(climbed / "run")]
    assert (entry["status"], entry["answer"]) == ("complete", "fused-optimizer, confirmed")
    assert [one["value"] for one in entry["measured"] if one["name"] == "speedup"] == [result["speedup"]["value"]]


def test_a_workload_that_raises_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    done = rung("climb", MICRO.replace(":make", ":dead"), cwd=tmp_path)
    assert done.returncode == 4
    assert "the data set is not here" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob(".rung/*"))


def test_a_recipe_remembers_its_targets_options_for_that_target_only() -> None:
    recipe = Recipe(("compile",), "models/own.py:make", {"size": "big", "depth": "3"})
    recipe = Recipe.parse(recipe.text())
    assert recipe.options_for("own.py:make", {"depth": "4"}) == {"size": "big", "depth": "4"}
    assert recipe.options_for("other.py:make", {}) == {}


def test_applying_a_recipe_leaves_the_model_object_as_it_was() -> None:
    import rung as api

    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU())
    keys, kind, hooks = list(model.state_dict()), type(model), len(model._forward_hooks)
    applied = api.apply(model, ["sdpa"])
    x = torch.randn(3, 8)
    torch.testing.assert_close(applied(x), model(x))
    assert (list(model.state_dict()), type(model), len(model._forward_hooks)) == (keys, kind, hooks)
    trained = api.apply(
        model,
        ["fused-optimizer"],
        loss=lambda y, b: y.square().mean(),
        optimizer=lambda p: torch.optim.AdamW(p, lr=0.1),
    )
    before = model[0].weight.detach().clone()
    trained.step(x)
    assert not torch.equal(before, model[0].weight)
    assert trained.optimizer is not None
    assert trained.optimizer.defaults["fused"]
