"""Where one line of torch.compile is the best that there is, a climb of a minute ends with it, or with more."""

import json
from collections import Counter
from pathlib import Path

import pytest
from climbing import rung

from rung.recipes.recipe import Recipe

POINTWISE = f"{Path(__file__).parents[2] / 'helpers' / 'pointwise.py'}:make"
BUDGET = 60


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        for _ in range(3):  # beside other tests on the same cores, what is faster may look slower
            folder = tmp_path_factory.mktemp("plain")
            patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder / "compiled"))  # not the code of the try before
            done = rung("climb", POINTWISE, "--budget", str(BUDGET), "--out", "run", cwd=folder)
            assert done.returncode == 0, done.stderr
            if json.loads((folder / "run" / "result.json").read_text())["kept"]:
                return folder / "run"
        told = rung("compare", POINTWISE, "--rungs", "compile", "--budget", "20", "--json", cwd=folder)
    speedup = json.loads(told.stdout)["comparison"]["speedup"]["value"]
    if speedup < 1.1:
        pytest.skip(f"compiled code is {speedup:.2f} times as fast here, beside other tests: a climb cannot find more")
    return folder / "run"


def test_it_ends_with_torch_compile_or_with_more(run: Path) -> None:
    result = json.loads((run / "result.json").read_text())
    assert "compile" in result["kept"]
    assert "compile" in Recipe.read(run / "recipe.toml").rungs
    assert result["speedup"]["value"] > 1.3
    assert result["over_plain"]["value"] >= 0.99
    assert result["seconds"] <= 1.1 * BUDGET + 10


def test_a_process_is_started_for_what_is_asked_of_it_and_no_more(run: Path) -> None:
    started = Counter(path.name.partition("-")[0] for path in (run / "workers").glob("*.log"))
    assert started["baseline.log"] == started["survey.log"] == 1
    assert started["01"] <= 3  # torch.compile, its verification, and the untouched model if it had to make room
    for attempt in json.loads((run / "manifest.json").read_text()) and sorted((run / "attempts").glob("*.json"))[1:]:
        restarts = len(json.loads(attempt.read_text()).get("restarts") or [1])
        assert (
            started[attempt.name[:2]] <= 2 * restarts + 3
        )  # two sides a restart, and a verification at each precision
