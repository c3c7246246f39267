"""Workloads that misbehave: what `rung bench` says of them, and what it keeps."""

import json
import os
import re
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from attempt_records import attempt

import rung
from rung.cli.main import main
from rung.engine.disturbed import not_finite, process_warnings
from rung.errors import WorkloadError
from rung.ladder.climb.answer import prediction_error
from rung.ladder.climb.verdict import rejection
from rung.measure import Collected, Comparison, Interval, collect
from rung.recipes.recipe import Recipe, side_of
from rung.rungs import BY_NAME
from rung.timing.compare import compare

HERE = Path(__file__).with_name("troubled.py")
FUNCTIONS = Path(__file__).with_name("troubled_functions.py")


def test_a_leak_changing_shapes_and_compilation_are_each_named() -> None:
    notes = " ".join(rung.bench(f"{HERE}:leaky", seconds=8).notes)
    assert "the workload leaks" in notes
    assert "its inputs change their shapes from seed to seed" in notes
    assert "compiled while it was timed" in notes


@pytest.mark.parametrize("preset", ["quick", "proper"])
def test_a_forward_that_has_done_nothing_yet_is_not_timed(preset: str) -> None:
    """It was 5 us, whatever the model does."""
    with pytest.raises(WorkloadError, match="its forward returns a generator, which has done nothing yet"):
        rung.bench(f"{HERE}:yields", preset=preset, seconds=2)


def test_results_that_are_not_finite_are_named() -> None:
    assert "its loss is nan" in " ".join(rung.bench(f"{HERE}:never_finite", preset="quick").notes)
    assert "its output holds" in " ".join(rung.bench(f"{HERE}:never_finite", {"mode": "infer"}, seconds=2).notes)
    finite = torch.full((3,), torch.finfo(torch.float16).max, dtype=torch.float16)  # whose sum is beyond float16
    assert not_finite({"a": [finite, torch.ones(0), torch.ones(2, dtype=torch.int64)]}) == ""
    assert not_finite([finite, torch.tensor([1.0, float("inf")])]) == "inf"
    assert not_finite(torch.tensor([1.0, float("nan")])) == "nan"
    assert not_finite(torch.full((3,), torch.finfo(torch.float32).min)) == ""  # a sum beyond float32
    assert (
        not_finite([torch.ones(2).to(torch.float8_e4m3fn), torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])])
        == ""
    )


def test_what_overflows_while_it_is_timed_is_named() -> None:
    assert "its output holds inf" in " ".join(rung.bench(f"{HERE}:grows", seconds=3).notes)


def test_a_recipe_for_something_else_is_named_where_it_is_timed(tmp_path: Path) -> None:
    path, target = tmp_path / "recipe.toml", f"{HERE}:counting"
    path.write_text(
        Recipe(
            (), "another.py:make", mode="train", made_on={"torch": "1.0", "model": "Net with 1 parameters in 1 tensors"}
        ).text()
    )
    said = rung.bench(target, recipe=path, preset="quick").notes
    assert [key for key in ("mode 'train'", "torch '1.0'", "model 'Net") if any(key in note for note in said)] == [
        "mode 'train'",
        "torch '1.0'",
        "model 'Net",
    ]
    sides = [side_of(target, {}, None, None), side_of(target, {}, None, path)]
    warnings = compare(*sides, budget=1.0).warnings
    assert any(w.startswith("B: the recipe was made for mode 'train'") for w in warnings)
    assert not any(w.startswith("A: the recipe") for w in warnings)


def test_a_side_that_is_compiled_anew_is_named() -> None:
    sides = [side_of(f"{HERE}:counting", {}, rungs, None) for rungs in ((), ("fused-gate-up",))]
    warnings = compare(*sides, budget=1.0).warnings
    assert any(re.match(r"B: \d+ graphs were compiled while it was timed", w) for w in warnings)
    assert not any("A: " in w and "compiled" in w for w in warnings)
    comparison = Comparison("slower", Interval(0.1, 0.05, 0.2), 3, 0.98, None, 0.01, True)
    told = {"low": 1.0, "high": 1.1, "shares": {}}
    record = attempt(compiled_while_timed={"best": 0, "candidate": 4}, comparison=comparison, prediction=told)
    verdict, why = rejection(record, BY_NAME["compile"], comparison, 0.01) or ("", "")
    assert verdict == "reverted"
    assert "slower than the best so far (4 graphs were compiled while it was timed" in why
    assert prediction_error(record) == 100


def test_what_measuring_keeps_of_each_sample_is_no_leak() -> None:
    quiet: dict[str, Any] = {"compiled": 0}
    grown = [300 << 20, 310 << 20, 330 << 20, 350 << 20]
    assert process_warnings(quiet, grown, 800_000) == []
    (note,) = process_warnings(quiet, grown, 100_000)
    assert "grew by 17%" in note


@pytest.mark.parametrize("how", ["fails", "dies"])
def test_samples_taken_before_a_failure_are_kept(how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "samples.csv"
    assert (
        main(
            [
                "bench",
                f"{FUNCTIONS}:{how}",
                "--call",
                "--after",
                "1500",
                "--target",
                "0.0001%",
                "--json",
                "--csv",
                str(table),
            ]
        )
        == 4
    )
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert (found["measured"], found["status"]) == (False, "failed")
    assert len(found["samples"]) > 200
    assert len(table.read_text().splitlines()) == 1 + len(found["samples"])
    assert "until then: " in captured.err
    assert {"fails": "no more today", "dies": "SIGKILL"}[how] in captured.err.splitlines()[-1]


def test_what_fails_at_once_is_one_sentence_and_its_log_is_still_there() -> None:
    with pytest.raises(WorkloadError, match="MemoryError: no room"):
        rung.bench(f"{FUNCTIONS}:memory", call=True)
    with pytest.raises(WorkloadError, match="ValueError: no more today"):
        rung.bench(f"{FUNCTIONS}:fails", {"after": 1}, call=True, seconds=1)
    with pytest.raises(WorkloadError, match="did not end within its deadline of 6 s") as failed:
        rung.bench(f"{FUNCTIONS}:hangs", call=True, deadline=6)
    assert Path(str(failed.value).rpartition("Its output: ")[2]).is_file()


def test_logs_that_say_something_are_named_and_empty_ones_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "says.py").write_text(
        "def loud():\n    print('about to fail', flush=True)\n    raise ValueError('no')\n"
    )
    assert main(["bench", f"{FUNCTIONS}:memory", "--call"]) == 4
    assert not list(tmp_path.glob("rung-bench-*"))
    assert main(["bench", f"{tmp_path}/says.py:loud", "--call"]) == 4
    folder = capsys.readouterr().err.rpartition("logs: ")[2].rstrip(")\n")
    assert any("about to fail" in file.read_text() for file in Path(folder).iterdir())


def test_where_the_workload_raised_is_shown_on_demand(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["bench", f"{FUNCTIONS}:memory", "--call"]
    assert main(asked) == 4
    said = capsys.readouterr().err
    assert re.search(
        r"MemoryError: no room \(.*troubled_functions\.py:\d+, in memory\) \(--debug shows the traceback\)\n$", said
    )
    assert main([*asked, "--debug"]) == 4  # what CI reads is the same
    assert 'troubled_functions.py", line' in capsys.readouterr().err


def test_what_forks_and_prints_is_measured_all_the_same() -> None:
    found = rung.bench(f"{FUNCTIONS}:forks_and_prints", call=True, preset="quick")
    assert len(found.samples) == 5
    assert "This is not a measurement" in str(found)


def test_a_point_of_a_sweep_that_fails_costs_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = [
        "bench",
        f"{FUNCTIONS}:fits",
        "--call",
        "--sweep",
        "n=16,1",
        "--time",
        "0.5",
        "--csv",
        str(tmp_path / "s.csv"),
    ]
    assert main(asked) == 4
    captured = capsys.readouterr()
    assert "| 16  | failed " in captured.out
    assert captured.out.splitlines()[-1].startswith("| 1   | ")
    assert "rung: n=16: " in captured.err
    assert "no room for 16" in captured.err
    assert {line.split(",")[1] for line in (tmp_path / "s.csv").read_text().splitlines()[1:]} == {"1"}


def test_what_was_stopped_keeps_its_samples_and_the_points_of_a_sweep_that_were_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table, asked = tmp_path / "s.csv", ["--sweep", "n=1,2", "--time", "1", "--target", "0.0001%"]
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    blocks = {1: 0, 2: 0}

    def collected(block: Callable[[], list[float]], **how: Any) -> Collected:
        """The second point is interrupted in its second block."""
        point = 2 if blocks[1] else 1

        def counted() -> list[float]:
            blocks[point] += 1
            if blocks[2] == 2:
                os.kill(os.getpid(), signal.SIGINT)
            return block()

        return collect(counted, **how)

    monkeypatch.setattr("rung.timing.bench.collect", collected)
    before = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a script's `&` has it
    try:
        assert main(["bench", f"{FUNCTIONS}:fits", "--call", *asked, "--json", "--csv", str(table)]) == 130
    finally:
        for number, handler in before:
            signal.signal(number, handler)
    captured = capsys.readouterr()
    done, stopped = json.loads(captured.out)
    assert (done["status"], done["point"]) == ("complete", {"n": "1"})
    assert (stopped["status"], stopped["point"], stopped["measured"]) == ("interrupted", {"n": "2"}, False)
    assert stopped["summary"]["count"] == len(stopped["samples"]) > 10
    assert len(table.read_text().splitlines()) == 1 + len(done["samples"]) + len(stopped["samples"])
    assert "until then: " in captured.err
    assert captured.err.endswith("rung: stopped.\n")
    assert not list(tmp_path.glob("rung-bench-*"))
