"""The example notebooks: the cells of one after the other in a fresh process, with workers that say again what real ones said."""

import ast
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from replayed import SAID_AGAIN

from rung.workload import load

EXAMPLES = Path(__file__).parents[1] / "examples"


def cells_of(notebook: Path) -> str:
    cells = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells)  # figures of whose machine?
    return "\n".join("".join(cell["source"]) for cell in cells)


@pytest.mark.long
def test_the_model_of_transformers_is_climbed_at_toy_size(tmp_path: Path) -> None:
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
    code = cells_of(EXAMPLES / "huggingface.ipynb")
    variables = os.environ | {"CUDA_VISIBLE_DEVICES": "", "RUNG_HISTORY": "off"}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=variables, check=True)
    assert list(tmp_path.glob(".rung/*/report.html"))


def test_its_cells_run_and_what_they_climb_is_a_workload(recorded: dict[str, str], tmp_path: Path) -> None:
    ast.parse(cells_of(EXAMPLES / "huggingface.ipynb"))
    code = f"{SAID_AGAIN}\n{cells_of(EXAMPLES / 'live_model.ipynb')}"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=os.environ | recorded, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    status, kept = done.stdout.split()[:2]
    assert (status, kept) == ("confirmed", "['fused-optimizer']"), done.stdout + done.stderr
    assert "Classifier under fused-optimizer loss" in done.stdout
    (written,) = tmp_path.glob(".rung/*/workload/workload.py")
    workload = load(f"{written}:workload")
    model, batch = workload.model(), workload.inputs(1)
    workload.loss(workload.forward(model, batch), batch).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
