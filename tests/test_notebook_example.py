"""The example notebook: its cells one after the other in a fresh process, with workers that say again what real ones said."""

import json
import os
import subprocess
import sys
from pathlib import Path

from replayed import REPLAYED

from rung.workload import load

NOTEBOOK = Path(__file__).parents[1] / "examples" / "live_model.ipynb"


def test_its_cells_run_and_what_they_climb_is_a_workload(recorded: dict[str, str], tmp_path: Path) -> None:
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells)  # figures of whose machine?
    replayed = f"from rung.timing import workers; workers.WORKLOAD = {REPLAYED!r}"
    code = "\n".join([replayed, *("".join(cell["source"]) for cell in cells)])
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
