"""Samples over a trace: on its clock, whichever that is, and written as curves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from rocpd_writer import Writer

from rung.cli.main import main
from rung.errors import InputError
from rung.profilers.collect import read_kept
from rung.profilers.overlay import laid_over, read_samples
from rung.profilers.samples import SCHEMA
from rung.trace import read
from rung.trace.table import SCHEMA as EVENTS
from rung.trace.table import Trace

DAY, BOOT = 1_750_000_000_000_000_000, 4_000_000_000_000  # ns: the time of day, and since the machine started


def trace(begin: int, meta: dict[str, Any] | None = None) -> Trace:
    """A kernel of 1 s."""
    row = {
        "ts": begin,
        "dur": 10**9,
        "kind": "kernel",
        "name": "k",
        "pid": "1",
        "tid": "1",
        "device": 0,
        "stream": 0,
        "rank": 3,
    }
    return Trace(events=pl.DataFrame([row], schema=EVENTS), meta=meta or {}, source="made")


def samples(powers: list[float]) -> pl.DataFrame:
    """A reading every 0.1 s on GPU 0; the machine slept an hour before, so its clocks since the start differ."""
    rows = [{"gpu": 0, "realtime_ns": DAY + i * 10**8, "boottime_ns": BOOT + i * 10**8, "read_ns": 1000, "throttled": "",
             "monotonic_ns": BOOT - 3600 * 10**9 + i * 10**8, "power_w": power} for i, power in enumerate(powers)]  # fmt: skip
    return pl.DataFrame(rows, schema=SCHEMA)


@pytest.mark.parametrize(
    ("begin", "meta"),
    [
        (DAY, {}),
        (DAY - 10**18, {"baseTimeNanoseconds": 10**18}),
        (BOOT, {}),
        (BOOT - 3600 * 10**9, {}),
    ],
    ids=["day", "torch", "boottime", "monotonic"],
)
def test_samples_find_the_clock_of_the_trace(begin: int, meta: dict[str, Any]) -> None:
    laid = laid_over(trace(begin, meta), samples([100.0, 100.0, 300.0, 300.0]))
    # The second reading says nothing new; the last shows how long the value held.
    assert laid.curves.select("ts", "value").rows() == [
        (begin, 100),
        (begin + 2 * 10**8, 300),
        (begin + 3 * 10**8, 300),
    ]
    assert laid.curves.select("name", "unit", "device", "rank").unique().rows() == [("power", "W", 0, 3)]


def test_samples_of_another_run_are_refused() -> None:
    with pytest.raises(InputError, match="no moment in common"):
        laid_over(trace(5), samples([1.0]))


def test_they_are_written_as_counters_beside_the_kernels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    event = {
        "ph": "X",
        "cat": "kernel",
        "name": "k",
        "pid": 0,
        "tid": 7,
        "ts": 0.0,
        "dur": 1e6,
        "args": {"device": 0, "stream": 7},
    }
    recorded = tmp_path / "trace.json"
    recorded.write_text(json.dumps({"baseTimeNanoseconds": DAY, "traceEvents": [event]}))
    samples([100.0, 250.0]).write_parquet(tmp_path / "samples.parquet")
    written = tmp_path / "out.json"
    arguments = ["analyze", str(recorded), "--samples", str(tmp_path / "samples.parquet")]
    assert main([*arguments, "--write", str(written)]) == 0
    counters = [e for e in json.loads(written.read_text())["traceEvents"] if e["ph"] == "C" and e["name"] == "power"]
    assert [(e["ts"], e["args"]) for e in counters] == [(0, {"W": 100.0}), (100_000, {"W": 250.0})]
    assert main([*arguments, "--write", str(tmp_path / "out.pftrace")]) == 0
    assert read(tmp_path / "out.pftrace").events.height
    capsys.readouterr()
    assert main(arguments) == 2
    assert "add --write" in capsys.readouterr().err
    assert main([*arguments, "--html", str(tmp_path / "page.html")]) == 0
    assert '"title":"GPU 0: power","unit":"W"' in (tmp_path / "page.html").read_text()


def test_both_files_of_samples_are_read_and_others_are_refused(tmp_path: Path) -> None:
    table = samples([1.0, 2.0])
    table.write_parquet(tmp_path / "samples.parquet")
    table.write_csv(tmp_path / "samples.csv")
    assert read_samples(tmp_path / "samples.parquet").equals(table)
    assert read_samples(tmp_path / "samples.csv")["power_w"].to_list() == [1, 2]
    for text in ("a,b\n1,x\n", ""):
        (tmp_path / "other.csv").write_text(text)
        with pytest.raises(InputError, match=r"other\.csv"):
            read_samples(tmp_path / "other.csv")
    (tmp_path / "other.parquet").write_text("no parquet")
    with pytest.raises(InputError, match="cannot be read"):
        read_samples(tmp_path / "other.parquet")


def test_clocks_that_were_held_down_are_a_curve() -> None:
    held = samples([100.0] * 4).with_columns(throttled=pl.Series(["", "power cap", "power cap", ""]))
    curve = laid_over(trace(BOOT), held).curves.filter(name="throttled")
    assert [(ts - BOOT, value) for ts, value in curve.select("ts", "value").rows()] == [
        (0, 0), (10**8, 1), (3 * 10**8, 0),
    ]  # fmt: skip


def test_samples_beside_a_kept_recording_are_drawn_unasked(tmp_path: Path) -> None:
    (tmp_path / "recording").mkdir()
    with Writer(tmp_path / "recording" / "5_results.db", pid=5) as writer:
        writer.dispatch("k", BOOT, BOOT + 10**9, stack=1)
    run = {"what": "trace", "output": "recording", "recorded": True}
    (tmp_path / "plan.json").write_text(json.dumps({"profiler": "rocprofv3", "runs": [run], "steps_only": False}))
    (tmp_path / "profile.json").write_text("{}")
    (tmp_path / "samples").mkdir()
    samples([100.0, 300.0]).write_parquet(tmp_path / "samples" / "samples.parquet")
    assert read_kept(tmp_path).curves["value"].to_list() == [100, 300]
    samples([100.0]).with_columns(pl.col("^.*time_ns$|^mono.*$") + 10**18).write_parquet(
        tmp_path / "samples" / "samples.parquet"
    )
    assert read_kept(tmp_path).unread == {"sample of the sensors, at no moment of the events": 1}
