"""A workload under a profiler of another process: its steps without it first, and what refuses it said as it is."""

import json

import pytest

from rung.cli.main import main
from rung.profilers import profile
from rung.profilers.recording import overhead
from rung.records.profile import Overhead, Plan, Profile
from rung.report.profile import profile_lines

STEPS = 'echo "{\\"steps_ns\\": [$1, $2, 900]}" > "$RUNG_STEPS"'


def test_a_workload_is_run_without_the_profiler_first(tools_on_path, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tools_on_path("rocprofv3")
    monkeypatch.setattr(profile.Target, "argv", lambda *_: ("sh", "-c", STEPS, "-", "100", "300"))
    assert main(["profile", "tiny-transformer", "--with", "rocprofv3", "--out", "o"]) == 0
    said = capsys.readouterr()
    assert said.err.splitlines() == ["rocprofv3: without the profiler ...", "rocprofv3: trace ..."]
    assert "3 kernels" in said.out
    # Not the whole path: it is shorter, and works where it is pasted.
    assert said.out.splitlines()[1:3] == ["kept in o", "read it again: rung analyze o"]
    assert "\no: " in said.out
    # The stand-in marks no steps.
    assert "the steps are not marked in it" in " ".join(said.out.split())
    record = json.loads((tmp_path / "o" / "profile.json").read_text())
    assert record["overhead"] == {"bare_ns": 300, "recorded_ns": 300, "share": 0.0, "steps": 3}
    assert "--marker-trace" in record["plan"]["runs"][1]["argv"]


def test_the_overhead_is_that_of_the_medians(tmp_path):
    (tmp_path / "steps-1.json").write_text('{"steps_ns": [10, 150, 900], "bare_ns": [100, 1, 120]}')
    assert overhead(tmp_path) == Overhead(bare_ns=100, recorded_ns=150, share=0.5, steps=3)
    (tmp_path / "steps-1.json").unlink()
    assert overhead(tmp_path) is None


@pytest.mark.parametrize(
    ("recorded", "steps", "said"),
    [(2e6, 3, "(+100%; medians of 3)"), (2.5e6, 3, "(2.50× as long; medians of 3)"),
     (1234.81e6, 1, "(1235× as long; one step each)"), (1e6, 3, "(within the noise; medians of 3)")],
)  # fmt: skip
def test_how_much_longer_a_step_took(recorded, steps, said):
    cost = Overhead(bare_ns=1e6, recorded_ns=recorded, share=recorded / 1e6 - 1, steps=steps)
    plan = Plan(profiler="ncu", tool="", version="", folder="f", collects="counters", overhead="low", overhead_means="", read_by="",
                runs=[], files={}, notes=[], steps_only=False)  # fmt: skip
    record = Profile(folder="f", recording="r", plan=plan, logs=[], overhead=cost, sensors=None, notes=[])
    assert said in " ".join(profile_lines(record))


RAISES = """
import torch
from torch import nn

import rung


def make(batch: int = 4) -> rung.Workload:
    def forward(model, x):
        raise ValueError("the mask has the wrong shape")

    return rung.Workload(
        name="raises", model=lambda: nn.Linear(8, 8), forward=forward,
        inputs=lambda seed: torch.randn(batch, 8, generator=torch.Generator().manual_seed(seed)),
    )
"""


@pytest.mark.parametrize("ranks", [[], ["--nproc-per-node", "2"]])
def test_what_a_workload_raises_is_one_sentence_with_its_place(ranks, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "raises.py").write_text(RAISES)
    assert main(["profile", "raises.py:make", "--device", "cpu", "--out", "o", "--json", *ranks]) == 4
    said = capsys.readouterr()
    sentence = "ValueError: the mask has the wrong shape (raises.py:10, in forward)"
    assert json.loads(said.out) == {"kind": "error", "schema": 1, "error": sentence, "exit_code": 4}
    log = tmp_path / "o" / "1-trace.log"
    assert said.err.splitlines()[-1] == f"rung: {sentence} (--debug shows the traceback; logs: {log})"
    assert "Traceback (most recent call last)" in log.read_text()


def test_a_workload_that_is_refused_says_so_itself(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused = RAISES.replace("ValueError(", "rung.errors.UsageError(").replace("import rung", "import rung.errors")
    (tmp_path / "refused.py").write_text(refused)
    assert main(["profile", "refused.py:make", "--device", "cpu", "--out", "o", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"] == "the mask has the wrong shape"
