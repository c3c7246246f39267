"""torch.profiler for real, on the smallest transformer: its schedule, its options, and what it costs."""

import json
from dataclasses import replace

import msgspec
import polars as pl
import pytest

from rung.cli.main import main
from rung.hardware.device import cpu
from rung.profilers import torch_profiler
from rung.profilers.torch_profiler import Options, record, unrecorded
from rung.records.profile import Planned, Profile
from rung.trace import read

TINY = ["tiny-transformer", "--hidden-dim", "16", "--num-layers", "1", "--num-heads", "2", "--seq-len", "4", "--batch-size", "1"]  # fmt: skip


def counted():
    import torch

    a = torch.ones(4, 4)
    calls = []
    return calls, lambda: calls.append((a @ a).sum())


def test_steps_of_the_schedule_are_recorded_and_no_others(tmp_path):
    calls, step = counted()
    path = tmp_path / "t.json.gz"
    taken = record(step, str(path), 2, cpu(), Options(wait=1, warm=2, repeat=2))
    assert len(calls) == 2 * (1 + 2 + 2)
    assert len(taken) == 4
    assert sorted(p.name for p in tmp_path.iterdir()) == ["t.2.json.gz", "t.json.gz"]
    for name in ("t.json.gz", "t.2.json.gz"):
        events = read(tmp_path / name).events
        assert (events["name"] == "aten::mm").sum() == 2
        assert events.filter(kind="annotation")["name"].str.starts_with("ProfilerStep#").sum() == 2


def test_no_event_becomes_a_python_object_and_no_round_is_warned_of(tmp_path, monkeypatch, recwarn):
    """Of a step with thousands of operators that takes longer than all else."""
    from torch.autograd import profiler

    monkeypatch.delattr(profiler.profile, "_parse_kineto_results")
    _, step = counted()
    record(step, str(tmp_path / "t.json.gz"), 1, cpu(), Options(repeat=3))
    assert len(list(tmp_path.iterdir())) == 3
    assert not [str(one.message) for one in recwarn if "clears events" in str(one.message)]


def test_where_a_recording_cannot_be_written_nothing_is_left_of_it(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch_profiler.shutil, "copyfileobj", full)
    _, step = counted()
    with pytest.raises(OSError, match="No space left"):
        record(step, str(tmp_path / "t.json.gz"), 1, cpu())
    assert list(tmp_path.iterdir()) == []


def test_the_wait_at_the_end_of_a_step_is_marked_as_the_profilers(tmp_path, monkeypatch):
    import torch

    monkeypatch.setattr(
        torch_profiler, "synchronize", lambda _: torch.ones(1).neg_()
    )  # seen in the recording, as the real one is
    _, step = counted()
    path = tmp_path / "t.json.gz"
    record(step, str(path), 2, replace(cpu(), kind="cuda"))
    events = read(path).events.with_columns(end=pl.col("ts") + pl.col("dur"))
    steps, ends, waits = (
        events.filter(pl.col("name").str.contains(name)).sort("ts").select("ts", "end").rows()
        for name in ("^ProfilerStep#", "^rung: end of step$", "^aten::neg_$")
    )
    assert len(steps) == len(ends) == len(waits) == 2
    for (step_begin, step_end), (begin, end), (wait, _) in zip(steps, ends, waits, strict=True):
        assert step_begin < begin < wait < end < step_end


def test_shapes_stacks_and_memory_are_recorded_as_asked(tmp_path):
    _, step = counted()
    record(step, str(tmp_path / "a.json.gz"), 1, cpu())
    record(step, str(tmp_path / "b.json.gz"), 1, cpu(), Options(shapes=False, stacks=True, memory=True))
    plain, full = read(tmp_path / "a.json.gz"), read(tmp_path / "b.json.gz")
    assert plain.events.filter(name="aten::mm")["dims"].is_not_null().all()
    assert (plain.events["kind"] == "python").sum() == 0
    assert plain.memory.height == 0
    assert full.events.filter(name="aten::mm")["dims"].is_null().all()
    assert (full.events["kind"] == "python").sum() > 0
    assert full.memory.height > 0


def test_steps_without_the_profiler_are_timed_alike():
    calls, step = counted()
    times = unrecorded(step, 3, cpu())
    assert len(times) == len(calls) == 3
    assert min(times) > 0


@pytest.mark.timeout(600)
def test_a_workload_is_recorded_and_analysed_and_its_overhead_told(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["profile", *TINY, "--steps", "2", "--device", "cpu", "--out", "o", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["analysis"]["steps"] == 2
    assert answer["overhead"]["steps"] == 2
    assert answer["overhead"]["bare_ns"] > 0
    assert answer["plan"]["profiler"] == "torch"
    assert (tmp_path / "o" / "recording" / "trace.json.gz").is_file()


def test_a_dry_run_is_a_document_of_its_own(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["profile", *TINY, "--dry-run", "--json", "--out", "o"]) == 0
    found = msgspec.json.decode(capsys.readouterr().out, type=Profile | Planned)
    assert isinstance(found, Planned)
    asked = json.loads(found.runs[0].argv[-1])
    assert asked["torch"]["path"].endswith("o/recording/trace.json.gz")
    assert "seconds" not in asked


def test_the_same_steps_run_by_themselves_for_another_profiler(monkeypatch):
    from rung.profilers import steps

    options = dict(zip((word.removeprefix("--") for word in TINY[1::2]), TINY[2::2], strict=True))
    asked = steps.StepsRequest(target=TINY[0], options=options, rungs=[], device="cpu", warm=1, steps=2)
    assert [time > 0 for time in steps.run(asked).steps_ns] == [True, True]
