"""The page of a measurement and of a comparison: pictures that are whole, text that is not obeyed."""

import random
import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_pages import without_own_scripts
from msgspec.structs import replace

import rung
from rung.records.bench import Bench
from rung.records.measured import Ratio
from rung.report.bench import markdown_lines, series
from rung.report.forest_chart import effect, forest, ratios
from rung.report.samples_chart import MOST, axis_of, histogram
from rung.report.samples_page import bench_page, compare_page
from rung.report.svg import fitting


def measured() -> Bench:
    found = rung.bench(lambda: sum(range(1000)), name="<script>sum|", seconds=0.3).document
    rng = random.Random(1)
    return replace(found, samples=[1e6 * (1 + 0.1 * rng.random()) for _ in range(5000)], discarded=[2e6] * 40)


def pictures(page: str) -> dict[str, ET.Element]:
    """By its class; nested ones belong to the outer."""
    found = {}
    for text in re.findall(r"<svg class.*?\n</svg>", page, re.DOTALL):
        picture = ET.fromstring(text)
        found[str(picture.get("class"))] = picture
    return found


def bars(picture: ET.Element) -> list[int]:
    """How many samples each bar stands for."""
    return [int((rect[0].text or "").rpartition(": ")[2]) for rect in picture.findall(".//rect")]


def test_a_measurement_s_page_shows_every_part_and_asks_for_nothing() -> None:
    page = bench_page([measured()])
    drawn = pictures(page)
    assert len(drawn["histogram"].findall("g/rect")) > 30
    assert 500 < len(drawn["dots"].findall("g/circle")) <= MOST + 1
    assert "The first 40, left of the line, were discarded" in page
    assert not re.search(r"https?://|<script|@import|\bsrc=", without_own_scripts(page))
    assert "&lt;script&gt;sum" in page
    assert "▁" not in page
    assert "<pre" not in page


def test_a_comparison_s_page_has_a_colour_a_side_and_a_row_a_pair() -> None:
    calls = (lambda: sum(range(1000)), lambda: sum(range(1500)), lambda: sum(range(2000)))
    three = pictures(compare_page(rung.compare(*calls, seconds=0.2).document))
    assert [g.get("class") for g in three["histogram"].findall("g")] == ["s0", "s1", "s2"]
    assert len(three["dots"].findall("g")) == 3
    assert len(three["forest"].findall("g")) == 3
    page = compare_page(rung.compare(*calls[:2], seconds=0.2).document)
    assert re.search(r"<h1><span>[A-Z]", page)
    assert "Results not compared" in page
    two = pictures(page)
    assert set(two) == {"histogram", "dots", "forest"}
    assert len(two["forest"].findall("g")) == 1


def test_samples_close_together_have_a_linear_scale_that_shows_all() -> None:
    axis = fitting([[1e6 + 1e3 * k for k in range(100)]])
    assert (axis.log, axis.below, axis.above, axis.note()) == (False, 0, 0, "")
    assert (axis.low, axis.high) == (1e6, 1e6 + 99e3)


def test_a_tail_of_another_order_is_cut_and_counted() -> None:
    samples = [1e6 + 1e3 * (k % 10) for k in range(100)] + [9e8, 2e9]
    axis = fitting([samples])
    assert not axis.log
    assert axis.above == 2
    assert axis.high < 1.1e6
    assert "2 samples are slower, up to 2.00 s" in axis.note()
    counts = bars(ET.fromstring(histogram({"": samples}, {}, axis)))
    assert sum(counts) == 100  # what is cut stands in no bar
    assert max(counts) < 30  # and the others are not one bar


def test_a_wide_body_has_a_logarithmic_scale() -> None:
    samples = [1e5 * 1.1**k for k in range(60)] + [5e9]
    axis = fitting([samples])
    assert axis.log
    assert axis.note() == "The scale is logarithmic."
    counts = bars(ET.fromstring(histogram({"": samples}, {}, axis)))
    assert sum(counts) == 61
    assert len(counts) > 20


def test_no_side_is_cut_off_as_a_whole() -> None:
    fast, slow = [1e6 + k for k in range(500)], [5e6 + k for k in range(20)]
    axis = fitting([fast, slow])
    assert axis.above == axis.below == 0


@given(st.lists(st.floats(1, 1e12), min_size=1, max_size=200))
def test_every_sample_is_drawn_or_counted(samples: list[float]) -> None:
    axis = axis_of({"": samples})
    counts = bars(ET.fromstring(histogram({"": samples}, {}, axis)))
    assert sum(counts) + axis.below + axis.above == len(samples)
    places = [axis.place(ns) for ns in sorted(samples)]
    assert places == sorted(places)
    assert all(0 <= place <= 1 for place in places)
    assert all(axis.edge(axis.place(ns)) == pytest.approx(ns) for ns in samples if axis.holds(ns))
    ticks = axis.ticks()
    assert len(ticks) <= 10
    assert all(axis.low * 0.999 <= ns <= axis.high * 1.001 for ns, _ in ticks)
    assert len({said for _, said in ticks}) == len(ticks)  # two places never have one text


def test_a_forest_has_its_diamonds_in_the_order_of_their_ratios_and_marks_what_goes_on() -> None:
    rows = [
        effect("a", Ratio(value=0.9, low=0.8, high=1.0), [0.88, 0.92]),
        effect("b", Ratio(value=1.2, low=0.0, high=None)),
        effect("c", Ratio(value=1.5, low=1.4, high=90.0)),
    ]
    picture = ET.fromstring(forest([row for row in rows if row], "x"))
    places = [float(str(g.findall("svg")[-1].get("x")).rstrip("%")) for g in picture.findall("g")]
    assert places == sorted(places)
    heads = [len(g.findall(".//path")) - 1 for g in picture.findall("g")]
    assert heads == [0, 0, 1]
    assert [len(g.findall("circle")) for g in picture.findall("g")] == [2, 0, 0]
    assert forest([], "x") == ""


def test_the_ratio_of_a_restart_is_that_of_its_medians() -> None:
    restarts = [{"best": [2.0, 4.0, 90.0], "candidate": [1.0, 2.0, 3.0]}, {"best": [], "candidate": [1.0]}, {}]
    assert ratios(restarts, "best", "candidate") == [2.0]


def test_markdown_is_a_table_whatever_the_name() -> None:
    lines = markdown_lines(measured())
    assert lines[0] == "| step | <script>sum\\| |"
    table = [line for line in lines if line.startswith("|")]
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 3 for line in table)
    assert any(line.startswith("| median (95% interval) |") for line in table)


def test_a_series_shows_drift_from_left_to_right() -> None:
    text = series([1e6 + 1e3 * k for k in range(400)])
    bars = text.split("|")[1]
    assert bars[0] < bars[-1]
    assert list(bars) == sorted(bars)
    assert series([5.0]).count("▁") == 1
    assert series([2e6, 3e6]).endswith("(50% apart)")
    assert series([2.5e6, 340e6]).endswith("(one 136× the other)")


def test_no_interval_hides_that_of_another_side() -> None:
    sides = {"A": [1e6, 2e6, 3e6], "B": [1e6, 2e6, 3e6]}
    drawn = ET.fromstring(histogram(sides, dict.fromkeys(sides, Ratio(value=2e6, low=1e6, high=3e6)), axis_of(sides)))
    heights = [bar.get("y1") for bar in drawn.findall("line") if "interval" in str(bar.get("class"))]
    assert len({*heights}) == 2
