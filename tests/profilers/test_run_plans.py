"""A profiler that fails, is killed, hangs or writes nothing: one sentence, the last lines of its log, nothing left running."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from rung.cli.main import main
from rung.profilers import profile, run
from rung.profilers.collect import read_kept
from rung.profilers.plan import Plan, Run
from rung.profilers.recording import carried_out
from rung.profilers.tools import Tool

CASES = {
    "exit": ("ended with exit code 3", "HSA_STATUS_ERROR_OUT_OF_RESOURCES"),
    "kill": ("was killed by SIGKILL", "profiler: about to go"),
    "nothing": ("wrote nothing that could be read", "no kernel was dispatched"),
    "empty": ("wrote nothing that could be read", "It printed nothing"),
}


@pytest.mark.parametrize("how", sorted(CASES))
def test_a_profiler_that_fails_says_so_with_the_end_of_its_log(how, tools_on_path, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tools_on_path("rocprofv3")
    monkeypatch.setenv("STANDIN_FAILS", how)
    assert main(["profile", "--preset", "hotspots", "--out", "out", "--", "true"]) == 4
    said = capsys.readouterr().err
    for text in CASES[how]:
        assert text in said
    assert str(tmp_path / "out") in said


def test_a_profiler_that_hangs_is_ended_with_all_that_it_started(tools_on_path, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tools_on_path("rocprofv3")
    monkeypatch.setenv("STANDIN_FAILS", "hang")
    before = {p.pid for p in psutil.process_iter()}
    assert main(["profile", "--preset", "hotspots", "--deadline", "6", "--out", "out", "--", "true"]) == 4
    said = capsys.readouterr().err
    assert "did not end within 6 s and was stopped" in said
    assert "waiting for the device" in said
    left = [
        p
        for p in psutil.process_iter(["pid", "cmdline"])
        if p.pid not in before and p.info["cmdline"] == ["sleep", "300"]
    ]
    assert left == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_kill_of_the_command_ends_the_profiler_too(number, tools_on_path, tmp_path, monkeypatch):
    tools_on_path("rocprofv3")
    monkeypatch.setenv("STANDIN_FAILS", "hang")
    words = ["profile", "--preset", "hotspots", "--out", str(tmp_path / "out"), "--", "true"]
    with subprocess.Popen([sys.executable, "-m", "rung.cli.main", *words], stderr=subprocess.DEVNULL) as command:
        log = tmp_path / "out" / "1-trace.log"
        until = time.monotonic() + 60
        while not (log.is_file() and b"waiting" in log.read_bytes()) and time.monotonic() < until:
            time.sleep(0.05)
        started = psutil.Process(command.pid).children(recursive=True)
        assert started
        command.send_signal(number)
        assert command.wait(timeout=60) == 130
    _, left = psutil.wait_procs(started, timeout=60)
    assert left == []


def test_what_a_program_leaves_behind_is_ended_after_a_good_end_too(tmp_path):
    marker = "299.125"
    plan = plan_of(tmp_path, ["sh", "-c", f"sleep {marker} & true"])
    run.run(plan, 30.0)
    assert not [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", marker]]


def zombies() -> set[int]:
    return {p.pid for p in psutil.Process().children() if p.status() == psutil.STATUS_ZOMBIE}


def test_what_it_leaves_behind_in_a_session_of_its_own_is_ended_and_what_ran_before_goes_on(tmp_path):
    marker = "298.125"
    leaves = f"import subprocess; subprocess.Popen(['sh', '-c', 'sleep {marker} & wait'], start_new_session=True)"
    before = zombies()  # which other tests left
    with subprocess.Popen(["sleep", "297.125"], start_new_session=True) as other:
        run.run(plan_of(tmp_path, [sys.executable, "-c", leaves]), 30.0)
        assert other.poll() is None
        other.kill()
    assert not [p for p in psutil.process_iter(["cmdline"]) if marker in (p.info["cmdline"] or [])]
    assert zombies() <= before


def test_a_real_time_signal_is_told_by_its_number(tmp_path):
    with pytest.raises(run.ProfilerFailed, match="was killed by signal 35"):
        run.run(plan_of(tmp_path, ["sh", "-c", "kill -35 $$"]), 30.0)


def test_a_program_that_is_not_there_is_told_from_one_that_fails(tmp_path):
    with pytest.raises(run.ProfilerFailed, match="could not be started"):
        run.run(plan_of(tmp_path, ["/nowhere/tool"]), 60.0)
    with pytest.raises(run.ProfilerFailed, match="127: it, or the program, was not found"):
        run.run(plan_of(tmp_path, ["sh", "-c", "exit 127"]), 60.0)


def test_a_run_that_can_be_spared_costs_a_note(tmp_path):
    plan = plan_of(tmp_path, ["false"], optional=True)
    _, notes = run.run(plan, 60.0)
    assert len(notes) == 1
    assert "exit code 1" in notes[0]


def test_the_warning_of_a_missing_counter_is_passed_on(tools_on_path, tmp_path):
    tools_on_path("rocprofv3")
    target = profile.Target("true", ("true",))
    wanted = profile.chosen(target, "rocprofv3", None)
    # Of an architecture that is not known here, names are taken as they are.
    plan = profile.planned(target, wanted, tmp_path / "out", names=["SQ_WAVES", "SQ_NOT_THERE"])
    trace, record = carried_out(plan, 60.0)
    assert set(trace.counters["counter"]) == {"SQ_WAVES"}
    assert any("Unable to find all counters" in note and "SQ_NOT_THERE" in note for note in record.notes)


def plan_of(folder, argv, optional=False):
    one = Run("trace", tuple(argv), folder / "out" / "recording", {}, optional)
    return Plan(
        "rocprofv3", Tool("rocprofv3", None), folder / "out" / "recording", (one,), "kernels", "low", "rung analyze"
    )


def test_what_a_tool_says_in_a_file_of_its_own_is_told_too(tmp_path):
    folder = tmp_path / "recording"
    says = folder / "ncu.csv"
    argv = ("sh", "-c", f"echo '==ERROR== ERR_NVGPUCTRPERM' > {says}; echo started; exit 1")
    plan = Plan("ncu", Tool("ncu", None), folder, (Run("counters", argv, folder, says=says),), "k", "high", "r")
    with pytest.raises(run.ProfilerFailed, match=r"(?s)started\n.*ERR_NVGPUCTRPERM"):
        run.run(plan, 10.0)


def test_what_takes_long_says_that_it_still_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "EVERY", 0.1)
    said, enough = [], tmp_path / "enough"

    def hear(text):
        said.append(text)
        if len(said) == 3:
            enough.touch()

    run.run(plan_of(tmp_path, ["sh", "-c", f"until [ -e {enough} ]; do sleep 0.02; done"]), 200.0, hear)
    for text in said[1:]:
        assert re.match(r"rocprofv3 \(trace\): \d+ s of at most 200 s", text)


def test_what_was_recorded_before_the_deadline_is_not_lost(tmp_path):
    folder = tmp_path / "out" / "recording"
    kept = Path(__file__).parents[1] / "data" / "ncu" / "nsight-counters.csv"
    # As ncu does: it writes when it is asked to end.
    script = f"trap 'cp {kept} {folder}/ncu.csv; exit 1' TERM; while true; do sleep 0.05; done"
    runs = (Run("counters", ("sh", "-c", script), folder, says=folder / "ncu.csv"),)
    with pytest.raises(run.ProfilerFailed) as failed:
        carried_out(Plan("ncu", Tool("ncu", None), folder, runs, "k", "high", "r"), 3.0)
    said = str(failed.value)
    assert said.startswith("ncu (counters) did not end within 3 s and was stopped. The last lines of ")
    assert f"{folder}/ncu.csv" in said
    assert "==PROF== Disconnected" in said
    assert "softmax" not in said  # rows of the table say nothing of what went wrong
    assert f"rung analyze {folder.parent}`" in said
    found = read_kept(folder.parent)
    assert found.counters["correlation"].n_unique() == 5
    assert found.unread == {"rest of a recording that failed or was stopped": 1}  # nobody takes it for the whole


def test_a_full_disk_is_said(tools_on_path, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tools_on_path("rocprofv3")
    monkeypatch.setattr(run, "ROOM", 1 << 70)
    for how, said in (("exit", "exit code 3"), ("nothing", "wrote nothing that could be read")):
        monkeypatch.setenv("STANDIN_FAILS", how)
        assert main(["profile", "--preset", "hotspots", "--out", how, "--", "true"]) == 4
        error = capsys.readouterr().err
        assert said in error
        assert "is full: free some space" in error


@pytest.mark.parametrize("out", ["/dev/null/x", "/proc/x"])
def test_a_folder_that_cannot_be_written_is_said(out, tools_on_path, capsys):
    tools_on_path("rocprofv3")
    assert main(["profile", "--preset", "hotspots", "--out", out, "--", "true"]) == 3
    assert "could not be written: N" in capsys.readouterr().err
