"""Sampling beside a run: every GPU apart, on all clocks, on disk whatever happens; its cost is stated."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import polars as pl
import pytest

from rung.errors import UsageError
from rung.hardware.sensors import Reading
from rung.profilers import sampling
from rung.profilers.samples import SCHEMA, energy, summary
from rung.profilers.sampling import Sampling, sample_beside


class Steady:
    """A GPU of constant power; `slow`: seconds that a reading takes."""

    source, limit = "made", 700.0

    def __init__(self, power: float, bus: str | None = None, slow: float = 0.0, counts: bool = False) -> None:
        self.power, self.bus, self.slow, self.counts = power, bus, slow, counts
        self.begun = time.monotonic()

    def read(self) -> Reading:
        time.sleep(self.slow)
        energy = self.power * (time.monotonic() - self.begun) + 1e6 if self.counts else None
        return Reading(
            time.monotonic(), energy, self.power, 2100.0, 1300.0, 55.0, ("power cap",), 3 * 2**30, 2**37, 0.9, 0.3
        )


SLEEP = [sys.executable, "-c", "import time; time.sleep(0.3)"]


def test_every_gpu_is_sampled_beside_a_command_to_parquet_and_csv(tmp_path: Path) -> None:
    gpus = [Steady(200.0, "0000:05:00.0"), Steady(600.0, "0000:0c:00.0")]
    done = sample_beside(SLEEP, tmp_path / "samples", 50, sensors=gpus)
    assert done.exit_code == 0
    table = pl.read_parquet(done.paths[0])
    assert table.schema == SCHEMA
    assert table.select(pl.col("power_w").mean().over("gpu")).to_series().unique().sort().to_list() == [200, 600]
    assert table["gpu"].value_counts()["count"].n_unique() == 1  # as many of each
    assert pl.read_csv(done.paths[1]).height == table.height
    assert table.select("used_bytes", "busy_share", "throttled").unique().rows() == [(3 * 2**30, 0.9, "power cap")]


def test_a_sample_has_the_same_moment_on_all_clocks(tmp_path: Path) -> None:
    with Sampling(tmp_path, 100, [Steady(100.0, slow=0.02)]) as watched:
        time.sleep(0.1)
    table = watched.table()
    realtime, boottime = table["realtime_ns"] - table["monotonic_ns"], table["boottime_ns"] - table["monotonic_ns"]
    assert abs(realtime[0] - (time.time_ns() - time.monotonic_ns())) < 1e9
    # Between two clocks lies the same distance in every sample; a second is far more than any stall between the calls.
    assert realtime.max() - realtime.min() < 1e9  # type: ignore[operator]
    assert boottime.max() - boottime.min() < 1e9  # type: ignore[operator]
    assert (table["read_ns"] >= 20_000_000).all()
    assert table["monotonic_ns"].is_sorted()


def test_the_command_s_exit_code_is_kept_and_one_that_cannot_start_is_an_error(tmp_path: Path) -> None:
    failing = sample_beside([sys.executable, "-c", "raise SystemExit(7)"], tmp_path, sensors=[Steady(1.0)])
    assert failing.exit_code == 7
    assert failing.gpus.height == 1  # the first and the last round are always there
    with pytest.raises(UsageError, match="no-such-program cannot be started"):
        sample_beside(["no-such-program"], tmp_path, sensors=[Steady(1.0)])


@pytest.mark.parametrize("counts", [True, False], ids=["counter", "power"])
def test_energy_comes_from_the_counter_or_from_the_power(tmp_path: Path, counts: bool) -> None:
    with Sampling(tmp_path, 50, [Steady(300.0, counts=counts)]) as watched:
        time.sleep(0.2)
    table = watched.table()
    row = summary(table).row(0, named=True)
    # A counter is read at some moment of a reading, and its time is the reading's middle.
    unknown = (table["read_ns"][0] + table["read_ns"][-1]) / 2e9
    assert row["energy_j"] == pytest.approx(300 * row["seconds"], abs=300 * unknown + 1e-6)
    assert row["mean_w"] == pytest.approx(row["energy_j"] / row["seconds"])
    assert (row["most_w"], row["core_mhz"], row["throttled_share"], row["throttled"]) == (300, 2100, 1, "power cap")


def test_a_summary_by_hand() -> None:
    # 100 W for 2 s, rising to 300 W over 1 s: 200 J + 200 J by trapezoids, over 3 s
    rows = [{"gpu": 0, "monotonic_ns": int(at * 1e9), "power_w": w, "throttled": why, "core_mhz": mhz}
            for at, w, why, mhz in ((5, 100.0, "", 2000.0), (7, 100.0, "", 2100.0), (8, 300.0, "heat", 1500.0))]  # fmt: skip
    row = summary(pl.DataFrame(rows, schema=SCHEMA)).row(0, named=True)
    assert (row["energy_j"], row["seconds"], row["mean_w"]) == (400, 3, pytest.approx(400 / 3))
    assert (row["core_mhz"], row["low_mhz"], row["throttled_share"]) == (2000, 1500, pytest.approx(1 / 3))
    assert row["busy_share"] is None


@pytest.mark.parametrize("counted", [True, False], ids=["counter", "power"])
def test_the_energy_of_a_span_begins_and_ends_between_samples(counted: bool) -> None:
    # 100 W up to second 4, then 300 W: from 2.5 to 5.5 that is 150 + 450 J. By the power, the rise from 3 to 4 is a slope.
    rows = [{"gpu": 0, "monotonic_ns": at * 10**9, "power_w": 100.0 if at < 4 else 300.0,
             "energy_j": 1e6 + 100 * at + max(0, at - 4) * 200 if counted else None} for at in range(8)]  # fmt: skip
    table = pl.DataFrame(rows, schema=SCHEMA)
    assert energy(table, 1_500_000_000, 6_500_000_000).row(0) == (0, None, 5, 1000 if counted else 1100)
    # Too few samples in it, or none before or after it: nobody knows.
    assert energy(table, 2_500_000_000, 4_500_000_000)["energy_j"].to_list() == [None]
    assert energy(table, 0, 9_000_000_000)["energy_j"].to_list() == [None]


def test_sensors_that_are_slower_than_the_rate_leave_rounds_out_and_say_so(tmp_path: Path) -> None:
    with Sampling(tmp_path, 1000, [Steady(1.0, slow=0.02)]) as watched:
        time.sleep(0.2)
    cost = watched.overhead
    assert cost.late > 0
    assert cost.rate < 60
    assert cost.read_seconds >= 0.02
    assert 0 <= cost.cpu_share <= 1
    assert "left out" in str(cost)


def test_what_was_read_is_on_disk_before_the_end(tmp_path: Path) -> None:
    with Sampling(tmp_path, 100, [Steady(5.0)]) as watched:
        until = time.monotonic() + 60
        while time.monotonic() < until and len((tmp_path / "samples.csv").read_text().splitlines()) < 3:
            time.sleep(0.01)
        assert len((tmp_path / "samples.csv").read_text().splitlines()) >= 3
        assert watched.paths == [tmp_path / "samples.csv"]
    assert watched.paths == [tmp_path / "samples.parquet", tmp_path / "samples.csv"]


def test_a_table_that_cannot_be_written_at_the_end_costs_no_run(tmp_path: Path) -> None:
    with Sampling(tmp_path, 100, sensors=[Steady(200.0)]) as sampled:
        (tmp_path / "samples.parquet").mkdir()  # as a full disk: it cannot be written there
    assert sampled.paths == [tmp_path / "samples.csv"]
    assert pl.read_csv(sampled.paths[0]).height == sampled.table().height > 0


def test_a_full_disk_costs_no_run(tmp_path: Path) -> None:
    (tmp_path / "samples.csv").symlink_to("/dev/full")
    done = sample_beside(SLEEP, tmp_path, 50, sensors=[Steady(200.0)])
    assert done.exit_code == 0
    assert done.paths == [tmp_path / "samples.parquet"]
    assert done.gpus["samples"][0] > 1


def test_a_folder_that_cannot_be_written_is_an_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        Sampling(tmp_path / "file", sensors=[Steady(1.0)]).__enter__()


@pytest.mark.parametrize("rate", [0, -1, 5000, float("nan")])
def test_a_rate_that_is_none_is_refused(tmp_path: Path, rate: float) -> None:
    with pytest.raises(UsageError, match="samples a second"):
        Sampling(tmp_path, rate, [Steady(1.0)])


def test_a_machine_without_sensors_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "sensors_here", list)
    with pytest.raises(UsageError, match="no GPU's sensors"):
        Sampling(tmp_path)
