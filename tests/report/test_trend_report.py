"""The chart of a trend on the terminal and as a picture: where its points, levels and changes stand, and that names stay text."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rung.records.history import Collected, Entry, Removed, Series, Trend
from rung.records.record import record_of
from rung.report.history import csv_text, entry_lines, garbage_lines, list_lines
from rung.report.trend import ROWS, trend_lines
from rung.report.trend_page import chart, page

EVIL = "\x1b[31m<script>x</script>\n"


def series(values: list[float], changes: list[dict[str, Any]] | None = None, **more: Any) -> Series:
    points = [
        {"entry": k + 1, "created": f"2026-01-{k % 28 + 1:02}T03:04:05+00:00", "value": value, "low": value * 0.99, "high": value * 1.01, "tags": []}
        for k, value in enumerate(values)
    ]  # fmt: skip
    known = {"of": "bench", "name": "time", "target": "/m.py:make", "options": {"n": "8"}, "variant": {"mode": "train"},
             "unit": "ns", "device": "MI300X", "host": "node", "points": points, "changes": changes or []}  # fmt: skip
    return record_of(Series, known | more)


def trend(*found: Series) -> Trend:
    return Trend(store="/s", false_alarms=0.05, series=list(found))


STEP: dict[str, Any] = {"at": 6, "entry": 7, "before": 2e6, "after": 2.2e6, "change": 0.1, "p": 0.001, "differs": {"torch": ["2.13", "2.14"]}}  # fmt: skip


def test_a_chart_has_a_point_a_measurement_and_a_line_at_the_change() -> None:
    lines = trend_lines(trend(series([2e6] * 6 + [2.2e6] * 6, [STEP])), 80)
    assert lines[0] == "time of /m.py:make --n 8 (mode train), by rung bench on MI300X, node"
    rows = [line.partition("┤")[2].ljust(24) for line in lines[1 : ROWS + 1]]
    columns = ["".join(row[x] for row in rows) for x in range(24)]
    assert [x for x in range(24) if "•" in columns[x]] == list(range(0, 24, 2))
    assert columns[0].index("•") > columns[22].index("•")  # a longer time stands higher
    assert columns[11] == "┆" * ROWS
    assert lines[-2] == "from entry 7 on, 2026-01-07 03:04: 2.00 ms → 2.20 ms, 10% slower (p = 0.001)"
    assert lines[-1] == "  differs in torch: 2.13 and 2.14"


def test_a_larger_speedup_is_higher_and_more_memory_is_more() -> None:
    up = series([1.5] * 12, [STEP | {"before": 1.5, "after": 1.65}], name="speedup", unit="x")
    assert "1.50× → 1.65×, 10% higher" in "\n".join(trend_lines(trend(up), 80))
    down = series(
        [2.0**30] * 12, [STEP | {"before": 2.0**30, "after": 2.0**29, "change": -0.5}], name="memory", unit="bytes"
    )
    assert "1.0 GiB → 512 MiB, 50% less" in "\n".join(trend_lines(trend(down), 80))


def test_many_series_are_a_line_each_and_what_was_measured_once_is_counted() -> None:
    lines = trend_lines(trend(series([1e6, 2e6, 1e6]), series([1e6])), 80, charts=False)
    assert lines[1].startswith("  ▁█▁  3 measurements, the last 1.00 ms")
    assert lines[-1] == "measured once: 1 more; `rung runs list` shows them."


@given(
    values=st.lists(st.floats(1e-3, 1e12), min_size=1, max_size=300),
    width=st.integers(20, 200),
    unit=st.sampled_from(["ns", "bytes", "x"]),
)
def test_any_history_fits_the_terminal_and_the_picture(values: list[float], width: int, unit: str) -> None:
    found = series(values, [STEP] if len(values) > 6 else [], unit=unit)
    lines = trend_lines(trend(found), width)[1 : ROWS + 2]
    assert all(len(line) <= max(width, 32) for line in lines)
    assert any("•" in line for line in lines)
    drawing = ET.fromstring(chart(found))
    assert len(drawing.findall("circle")) == len(values)


def test_a_picture_has_levels_only_between_changes() -> None:
    drawing = ET.fromstring(chart(series([2e6] * 6 + [2.2e6] * 6, [STEP])))
    stairs = [line for line in drawing.findall("line") if line.get("class") == "stair"]
    assert [float(line.get("y1", 0)) > float(stairs[1].get("y1", 0)) for line in stairs] == [True, False]
    assert 'class="stair"' not in chart(series([2e6] * 12))


def test_names_of_strangers_are_text_everywhere() -> None:
    evil = series([1.0] * 8, [STEP | {"differs": {EVIL: [EVIL, None]}}], target=EVIL, options={EVIL: EVIL}, device=EVIL)
    text = page(trend(evil))
    assert "<script>x" not in text
    assert "\x1b" not in text
    values = {
        "kind": "entry", "id": 1, "created": EVIL, "of": "bench", "target": EVIL, "status": EVIL, "answer": EVIL, "command": EVIL, "folder": EVIL,
        "device": EVIL, "host": EVIL, "directory": EVIL, "tags": [EVIL], "environment": {"torch": EVIL},
        "measured": [{"name": "time", "target": EVIL, "options": {EVIL: EVIL}, "variant": {EVIL: EVIL}, "unit": "ns", "value": 1.0, "low": None, "high": None}],
    }  # fmt: skip
    entry = record_of(Entry, values)
    one = Removed(entry=1, directory=EVIL, why=EVIL)
    gone = Collected(store="/s", done=False, removed=[one], kept=[one])
    lines = [*trend_lines(trend(evil), 100), *list_lines([entry]), *entry_lines(entry), *garbage_lines(gone)]
    assert not any(re.search(r"[\x00-\x1f]", line) for line in lines)


def test_a_row_of_the_csv_is_a_figure() -> None:
    found = {"kind": "entry", "id": 3, "created": "2026", "of": "bench", "device": "d", "host": "h", "status": "complete", "tags": ["a", "b"],
             "target": "x", "answer": "", "command": "", "folder": "", "measured": [{"name": "time", "target": "x", "options": {"n": "1"}, "variant": {}, "unit": "ns", "value": 1.5, "low": None, "high": 2.0}]}  # fmt: skip
    head, row = csv_text([record_of(Entry, found)]).splitlines()
    assert head.startswith("entry,created,command,target,options")
    assert row == '3,2026,bench,x,"{""n"": ""1""}",{},time,ns,1.5,,2.0,d,h,complete,a b'


@pytest.mark.parametrize(
    ("values", "said"),
    [([1e6], "1 measurement, the last 1.00 ms (990 µs – 1.01 ms); fewer than 8 tell no change of level"), ([1e6] * 9, "9 measurements, the last 1.00 ms (990 µs – 1.01 ms); no change of level")],
)  # fmt: skip
def test_what_is_not_told_is_said(values: list[float], said: str) -> None:
    assert trend_lines(trend(series(values)), 80)[-1] == said
