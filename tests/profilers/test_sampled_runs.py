"""Sensors, sampled beside the run whose times are used, and only that."""

import json
import sys
from types import SimpleNamespace

import pytest

from rung.cli.main import main
from rung.profilers import run
from rung.profilers.plan import Plan, Run
from rung.profilers.tools import Tool


class Beside:
    """Notes when it is entered and left."""

    def __init__(self, folder):
        self.folder, self.seen = folder, []

    def __enter__(self):
        self.seen.append(sorted(path.name for path in self.folder.glob("ran-*")))
        return self

    def __exit__(self, *_):
        self.seen.append(sorted(path.name for path in self.folder.glob("ran-*")))


def test_what_samples_is_on_until_the_first_recorded_run_has_ended(tmp_path):
    folder = tmp_path / "out" / "recording"
    runs = tuple(
        Run(what, ("touch", str(tmp_path / f"ran-{what}")), folder, recorded=what != "bare")
        for what in ("bare", "first", "second")
    )
    plan = Plan("rocprofv3", Tool("rocprofv3", None), folder, runs, "kernels", "low", "rung analyze")
    beside = Beside(tmp_path)
    run.run(plan, 10.0, beside=beside)
    assert beside.seen == [[], ["ran-bare", "ran-first"]]


def test_without_a_sensor_the_recording_goes_on_and_says_so(tools_on_path, tmp_path, capsys, monkeypatch):
    from rung.profilers import sampling

    monkeypatch.setattr(sampling, "sensors_here", list)
    monkeypatch.chdir(tmp_path)
    tools_on_path("rocprofv3")
    assert main(["profile", "--preset", "hotspots", "--power", "--out", "o", "--", "true"]) == 0
    assert "sensors are not sampled: no GPU's sensors" in capsys.readouterr().out


# A program that runs until so many rounds of one GPU or two have been sampled, whatever else the machine does.
SAMPLED = """
import json, os, time
def sampled(rows):
    def lines():
        with open("o/samples/samples.csv") as file:
            return sum(1 for _ in file)
    until, patience = lines() + rows, time.monotonic() + 100
    while lines() < until and time.monotonic() < patience:
        time.sleep(0.01)
"""

STEPS = """
sampled(2)
begin = time.monotonic_ns()
sampled(40)
told = {"steps_ns": [10**8] * 4, "span": [begin, time.monotonic_ns()], "bus": "0000:03:00.0"}
json.dump(told, open(os.environ["RUNG_STEPS"], "w"))
"""


def test_a_step_has_the_energy_of_the_steps_that_were_not_recorded(tools_on_path, tmp_path, capsys, monkeypatch):
    from rung.hardware.sensors.reading import Reading
    from rung.profilers import profile, sampling

    def gpu(bus, power):
        seen = Reading(at=0.0, power=power)
        return SimpleNamespace(source="sysfs", limit=750.0, bus=bus, read=lambda: seen)

    monkeypatch.setattr(sampling, "sensors_here", lambda: [gpu("0000:02:00.0", 90.0), gpu("0000:03:00.0", 500.0)])
    program = [SAMPLED + STEPS]
    monkeypatch.setattr(profile.Target, "argv", lambda *_: (sys.executable, "-c", program[0]))
    monkeypatch.chdir(tmp_path)
    tools_on_path("rocprofv3")
    words = ["profile", "tiny-transformer", "--with", "rocprofv3", "--power"]
    assert main([*words, "--rate", "50", "--out", "o"]) == 0
    step = json.loads((tmp_path / "o" / "profile.json").read_text())["sensors"]["step"]
    assert (step["gpu"], step["steps"]) == (1, 4)
    assert step["energy_j"] == pytest.approx(500 * step["seconds"] / 4)
    assert "J on GPU 1 at 500 W (4 steps without the profiler" in capsys.readouterr().out
    program[0] = f"import json, os, time\ndef sampled(rows): pass\n{STEPS}"
    assert main([*words, "--rate", "0.01", "--out", "p"]) == 0  # a sample before and one after
    assert "energy of a step: not known" in capsys.readouterr().out


TORCH = """
import gzip, sys
sampled(1)
begin = time.monotonic_ns()
sampled(20)
middle = time.monotonic_ns()
told = {"steps_ns": [10**8], "bare_ns": [10**8] * 5, "bare_span": [begin, middle], "bus": "0000:03:00.0"}
time.sleep(0.2)
json.dump(told, open(os.environ["RUNG_STEPS"], "w"))
open("seconds", "w").write(str((middle - begin) / 1e9))
kernel = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 2, "args": {"device": 0, "stream": 7}}
with gzip.open(sys.argv[1], "wt") as file:
    json.dump({"schemaVersion": 1, "traceEvents": [kernel]}, file)
"""


def test_of_torch_the_energy_is_that_of_the_steps_before_it_records(tmp_path, monkeypatch):
    from rung.hardware.sensors.reading import Reading
    from rung.profilers import profile, sampling

    seen = Reading(at=0.0, power=500.0)
    sensor = SimpleNamespace(source="sysfs", limit=750.0, bus="0000:03:00.0", read=lambda: seen)
    monkeypatch.setattr(sampling, "sensors_here", lambda: [sensor])
    monkeypatch.setattr(
        profile.Target, "argv", lambda _, torch, *__: (sys.executable, "-c", SAMPLED + TORCH, torch.path)
    )
    monkeypatch.chdir(tmp_path)
    assert main(["profile", "tiny-transformer", "--power", "--rate", "50", "--out", "o"]) == 0
    step = json.loads((tmp_path / "o" / "profile.json").read_text())["sensors"]["step"]
    assert step["steps"] == 5
    # without the recording, which took 0.2 s more
    assert step["seconds"] == pytest.approx(float((tmp_path / "seconds").read_text()))
    assert step["energy_j"] == pytest.approx(500 * step["seconds"] / 5)


def test_power_and_memory_are_in_the_answer(tools_on_path, tmp_path, capsys, monkeypatch):
    from rung.hardware.sensors.reading import Reading
    from rung.profilers import sampling

    seen = Reading(at=0.0, power=500.0, used=2**30, total=2**34, core=2100.0)
    sensor = SimpleNamespace(source="sysfs", limit=750.0, bus="0000:03:00.0", read=lambda: seen)
    monkeypatch.setattr(sampling, "sensors_here", lambda: [sensor])
    monkeypatch.chdir(tmp_path)
    tools_on_path("rocprofv3")
    words = ["profile", "--preset", "hotspots", "--power", "--vram", "--rate", "50"]
    assert main([*words, "--out", "o", "--json", "--", "true"]) == 0
    answer = json.loads(capsys.readouterr().out)
    (gpu,) = answer["sensors"]["gpus"]
    assert gpu["most_w"] == 500.0
    assert gpu["most_bytes"] == 2**30
    assert (tmp_path / "o" / "samples" / "samples.csv").is_file()
    assert main([*words, "--out", "p", "--", "true"]) == 0
    assert "500 W at most" in capsys.readouterr().out
