"""The page of a measurement and of a comparison: pictures that are whole, text that is not obeyed."""

import random
import re
import xml.etree.ElementTree as ET
from typing import Any

import rung
from rung.report.bench import markdown_lines, series
from rung.report.samples_page import MOST, bench_page, compare_page


def measured() -> dict[str, Any]:
    found = rung.bench(lambda: sum(range(1000)), name="<script>sum|", seconds=0.3).to_dict()
    rng = random.Random(1)
    return {**found, "samples": [1e6 * (1 + 0.1 * rng.random()) for _ in range(5000)], "discarded": [2e6] * 40}


def pictures(page: str) -> list[ET.Element]:
    return [ET.fromstring(text) for text in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]


def test_a_measurement_s_page_shows_every_part_and_runs_nothing() -> None:
    page = bench_page([measured()])
    histogram, dots = pictures(page)
    assert len(histogram.findall("rect")) > 30
    assert 500 < len(dots.findall("g/circle")) <= MOST + 1
    assert "The first 40, left of the line, were discarded" in page
    assert not re.search(r"https?://|<script|@import|\bsrc=", page)
    assert "&lt;script&gt;sum" in page


def test_a_comparison_s_page_has_a_colour_a_side() -> None:
    calls = (lambda: sum(range(1000)), lambda: sum(range(1500)), lambda: sum(range(2000)))
    histogram, dots = pictures(compare_page(rung.compare(*calls, seconds=0.2).to_dict()))
    assert len({r.get("fill") for r in histogram.findall("rect")}) == 3
    assert len(dots.findall("g")) == 3
    assert len(pictures(compare_page(rung.compare(*calls[:2], seconds=0.2).to_dict()))) == 2


def test_markdown_is_a_table_whatever_the_name() -> None:
    lines = markdown_lines(measured())
    assert lines[0] == "| step | <script>sum\\| |"
    table = [line for line in lines if line.startswith("|")]
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 3 for line in table)
    assert any(line.startswith("| median (95 % interval) |") for line in table)


def test_a_series_shows_drift_from_left_to_right() -> None:
    text = series([1e6 + 1e3 * k for k in range(400)])
    bars = text.split("|")[1]
    assert bars[0] < bars[-1]
    assert list(bars) == sorted(bars)
    assert series([5.0]).count("▁") == 1
