"""What belongs to one series, in which order, and what is told of its changes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from rung.measure.trend import series_of
from rung.records.history import Entry, Measured


def entry(day: int, value: float, half: float | None = 0.01, of: str = "bench", host: str = "h", torch: str = "2.13", **figure: Any) -> Entry:  # fmt: skip
    known: dict[str, Any] = {
        "name": "time",
        "target": "/m.py:make",
        "options": {},
        "variant": {},
        "unit": "ns",
    } | figure
    ends = {} if half is None else {"low": value * (1 - half), "high": value * (1 + half)}
    return Entry(
        id=day, created=f"2026-01-01T00:00:00+00:00#{day:03}", of=of, target="m.py:make", status="complete", answer="",
        command="", host=host, device="chip", folder="", measured=[Measured(value=value, **ends, **known)],
        environment={"torch": torch, "time": str(day), "device": {"name": "chip"}},
    )  # fmt: skip


def test_only_the_same_thing_measured_in_the_same_way_on_the_same_machine_is_one_series() -> None:
    entries = [
        entry(9, 1e6),
        entry(8, 1e6, of="compare"),
        entry(7, 1e6, host="other"),
        entry(6, 1e6, target="/other.py:make"),
        entry(5, 1e6, options={"batch": "8"}),
        entry(4, 1e6, variant={"rungs": "compile"}),
        entry(3, 1e6, name="memory", unit="bytes"),
        entry(2, 2e6),
    ]
    found = series_of(entries)
    assert [[point.entry for point in series.points] for series in found] == [[2, 9], [8], [7], [6], [5], [4]]
    assert [[p.entry for p in s.points] for s in series_of(entries, name="memory")] == [[3]]
    assert [[p.entry for p in s.points] for s in series_of(entries, options={"batch": "8"})] == [[5]]
    assert [[p.entry for p in s.points] for s in series_of(entries, target="/other.py:make")] == [[6]]
    assert [[p.entry for p in s.points] for s in series_of(entries, of="compare")] == [[8]]
    together = series_of(entries, hosts_together=True)[0]
    assert [point.entry for point in together.points] == [2, 7, 9]
    assert together.host is None


@pytest.mark.parametrize("half", [0.01, None])
def test_a_change_is_told_as_a_share_with_what_else_changed(half: float | None) -> None:
    noise = np.random.default_rng(0).normal(size=20) * 0.004
    entries = [
        entry(day, 2e6 * math.exp(noise[day] + (0.1 if day >= 12 else 0)), half, torch="2.13" if day < 12 else "2.14")
        for day in reversed(range(20))
    ]
    [series] = series_of(entries)
    [change] = series.changes
    assert (change.at, change.entry, change.differs) == (12, 12, {"torch": ["2.13", "2.14"]})
    assert change.before == pytest.approx(2e6, rel=0.01)
    assert change.change == pytest.approx(math.exp(0.1) - 1, abs=0.01)
    assert change.p <= 0.05
    assert series_of(entries, false_alarms=0.0005)[0].changes == []
