"""`rung.climb` of live objects: begun in a script, stopped there, and gone on with from the run directory by a process that has none of
them."""

import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from here import in_this_process
from torch import nn
from torch.nn import functional as F

import rung
from rung.cli.main import main
from rung.errors import RungError, UsageError
from rung.records.climb import ClimbRun
from rung.runs import Run
from rung.workload import load

# A step takes 20 ms until its optimizer is fused. It is stopped, as by Ctrl-C, when the first rung is about to be tried.
SCRIPT = """
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.optimizer import register_optimizer_step_pre_hook

import rung
from rung.records.progress import Planned
from rung.report import progress

hooked = []

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)
    def forward(self, x):
        return self.second(F.gelu(self.first(x)))

def slow(optimizer, args, kwargs):
    if not optimizer.defaults.get("fused"):
        time.sleep(0.02)

def optimizer(parameters):
    if not hooked:
        hooked.append(register_optimizer_step_pre_hook(slow))
    return torch.optim.AdamW(parameters, lr=1e-3)

def lines(event, width):
    if isinstance(event, Planned):
        raise KeyboardInterrupt
    return said(event, width)

said, progress.progress_lines = progress.progress_lines, lines
net = Net().eval()
batch = {"x": torch.randn(16, 8), "y": torch.randint(4, (16,))}
try:
    rung.climb(
        net, "run", inputs=batch, forward=lambda model, batch: model(batch["x"]), optimizer=optimizer,
        loss=lambda output, batch: F.cross_entropy(output, batch["y"]), rungs=["fused-optimizer"], name="a live net",
    )
except KeyboardInterrupt:
    print(net.training)
"""


class Net(nn.Module):
    """Of the same structure as the script's."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(F.gelu(self.first(x)))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("live")
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=folder, capture_output=True, text=True)
    return folder / "run", done


@pytest.fixture(scope="module")
def climbed(stopped: tuple[Path, subprocess.CompletedProcess[str]]) -> rung.Climbed:
    """Workers are in this process, which knows nothing of the script either."""
    with pytest.MonkeyPatch.context() as patch:
        in_this_process(patch, {(): 20.0, ("fused-optimizer",): 1.0})
        return rung.climb(resume=stopped[0], progress=False)


def test_a_script_climbs_its_model_and_says_how_to_go_on(
    stopped: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    run, done = stopped
    assert done.stdout == "False\n", done.stderr  # the model is in the mode in which it was
    lines = done.stderr.splitlines()
    assert any(line.startswith("a live net, train, on ") for line in lines)
    assert lines[-1] == "stopped; continue with: rung.climb(resume='run')"
    assert not (run / "attempts" / "01-fused-optimizer.json").exists()


def test_the_result_is_typed_and_says_where_its_files_are(climbed: rung.Climbed) -> None:
    assert isinstance(climbed.document, ClimbRun)
    assert (climbed.kept, climbed.status) == (["fused-optimizer"], "confirmed")
    assert climbed.speedup is not None
    assert climbed.speedup.low > 1
    assert climbed["result"]["kept"] == climbed.kept
    assert climbed["manifest"]["request"]["device"] == "cpu"  # where the script has its model
    assert climbed.recipe == climbed.directory / "recipe.toml"
    assert "fused-optimizer" in climbed.recipe.read_text()
    assert "a live net" in climbed.report.read_text()
    assert climbed.rows()[0]["verdict"] == "kept"
    assert repr(climbed).startswith("<Climb of a live net: ")
    assert "Kept: fused-optimizer" in str(climbed)
    assert climbed.notes == []
    assert climbed.environment["torch"] == torch.__version__


def test_a_notebook_shows_it_with_links_to_its_files(climbed: rung.Climbed) -> None:
    shown = climbed._repr_html_()
    assert f'<a href="{climbed.report}"' in shown
    assert "Kept: fused-optimizer" in shown


def test_the_recipe_is_applied_to_what_was_climbed_or_to_another_model(climbed: rung.Climbed) -> None:
    batch = {"x": torch.randn(16, 8), "y": torch.randint(4, (16,))}
    read = climbed.apply()  # of the script's model, which is read back
    assert read.optimizer.defaults["fused"]
    loss, _ = read.step(batch)
    assert loss.isfinite()
    how = {
        "loss": lambda output, batch: F.cross_entropy(output, batch["y"]),
        "optimizer": lambda parameters: torch.optim.AdamW(parameters),
        "forward": lambda model, batch: model(batch["x"]),
    }
    mine = Net()
    applied = rung.Climbed(Run(climbed.directory).data(), mine, **how).apply()
    assert applied.model is mine
    assert applied.optimizer.defaults["fused"]
    other = Net()
    assert climbed.apply(other, **how).model is other


def test_a_recipe_that_no_fresh_restart_confirmed_has_a_speedup(climbed: rung.Climbed) -> None:
    data = Run(climbed.directory).data()
    data["result"] |= {
        "status": "verified",
        "speedup": {"value": 1.25},
        "over_plain": {"value": 1.0, "low": None, "high": None},
    }
    found = rung.Climbed(data)
    assert found.speedup is not None
    assert (found.speedup.value, found.speedup.low, found.speedup.high) == (1.25, 0.0, math.inf)
    assert found.over_plain is not None
    assert found.over_plain.value == 1.0


def test_a_speedup_that_was_measured_on_busy_cores_is_said_to_be_doubtful(climbed: rung.Climbed) -> None:
    data = Run(climbed.directory).data()
    data["result"] |= {"speedup": {"value": 1.25}, "busy": ""}
    calm = rung.Climbed(data)
    assert not any("doubtful" in said for said in (repr(calm), str(calm), calm._repr_html_(), *calm.notes))
    data["result"]["busy"] = said = "threads waited for a CPU core 70% of the time, so the speedup is doubtful"
    busy = rung.Climbed(data)
    assert repr(busy).endswith(f"{busy.status}, doubtful (CPU cores were busy)>")
    assert said in busy.notes
    assert "doubtful (CPU cores were busy)" in busy._repr_html_()
    assert "of the time, so the speedup is doubtful" in " ".join(str(busy).split())


def test_what_is_complete_or_kept_nothing_is_a_sentence(climbed: rung.Climbed, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is complete"):
        rung.climb(resume=climbed.directory)
    data = Run(climbed.directory).data()
    data["result"]["kept"] = []
    nothing = rung.Climbed(data)
    assert (nothing.recipe, nothing.speedup is None) == (None, False)
    assert "nothing kept" in repr(nothing)
    with pytest.raises(UsageError, match="the climb kept nothing"):
        nothing.apply()


def test_what_only_reads_a_run_loads_nothing_of_its_workload(
    climbed: rung.Climbed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(climbed.directory, run)
    trap = f"open({str(tmp_path / 'sprung')!r}, 'w')"
    (run / "workload" / "workload.py").write_text(trap)
    (run / "workload" / "objects.pt").write_bytes(b"cbuiltins\nexec\n(V" + trap.encode() + b"\ntR.")
    for command in (["report", str(run)], ["runs", "--in", str(tmp_path)], ["apply", str(run / "recipe.toml")]):
        assert main(command) == 0, capsys.readouterr().err
    assert rung.Climbed(Run(run).data())._repr_html_()
    assert not (tmp_path / "sprung").exists()
    with pytest.raises(RungError):
        load(f"{run}/workload/workload.py:workload")
    assert (tmp_path / "sprung").exists()  # it would have been seen


def test_an_object_that_cannot_be_written_leaves_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = Net()
    with pytest.raises(UsageError, match="forward= refers to"):
        rung.climb(model, inputs=torch.randn(2, 8), forward=lambda _, batch: model(batch))
    assert list(tmp_path.rglob("*-Net")) == []
