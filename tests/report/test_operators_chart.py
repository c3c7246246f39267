"""The roofline of operators, of one trace and of two: where a dot is, and which belong together."""

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from made_pages import HOSTILE, diff_page_of, trace

from rung.analysis.pictures import Roofs, roofs
from rung.report.operators_chart import before_and_after, operator_roofline
from rung.report.roofline_chart import Point, Roof, roofline


def dots(picture: str) -> list[ET.Element]:
    return ET.fromstring(picture).findall("circle")


def test_both_sides_are_in_one_picture_where_the_gpu_is_the_same(tmp_path: Path) -> None:
    fast, slow = roofs(trace(tmp_path)), roofs(trace(tmp_path, slow=4.0))
    [both] = before_and_after(slow, fast, ("Base", "New"))
    before, after = dots(both.picture)
    assert [dot.get("class") for dot in (before, after)] == ["p-hbm before", "p-hbm after"]
    assert before.get("cx") == after.get("cx")  # the same work and bytes
    assert float(str(before.get("cy"))) > float(str(after.get("cy")))  # a quarter of the rate
    [link] = [line for line in ET.fromstring(both.picture).findall("line") if line.get("class") == "moved"]
    assert (link.get("x1"), link.get("y1")) == (before.get("cx"), before.get("cy"))
    assert (link.get("x2"), link.get("y2")) == (after.get("cx"), after.get("cy"))
    assert "Base: aten::mm" in both.picture
    assert "New: aten::mm" in both.picture
    assert re.search(r"Base: Dots cover \d+% of the GPU's time; .*New: Dots cover \d+% of the GPU's time", both.note)


def test_each_gpu_has_its_own_roofs(tmp_path: Path) -> None:
    one = roofs(trace(tmp_path))
    assert one.peaks is not None
    other = Roofs(one.table, replace(one.peaks, name="another", bandwidth=one.peaks.bandwidth / 2))
    first, second = before_and_after(one, other, ("Base", "New"))
    assert [dot.get("class") for dot in dots(first.picture)] == ["p-hbm before"]
    assert [dot.get("class") for dot in dots(second.picture)] == ["p-hbm after"]
    assert "(another)" in second.note


def test_without_known_peaks_or_operators_there_is_no_picture(tmp_path: Path) -> None:
    one = roofs(trace(tmp_path))
    unknown = operator_roofline(Roofs(one.table, None))
    assert unknown.picture == ""
    assert "The peaks of this GPU are not known." in unknown.note
    nothing = Roofs(one.table.clear(), one.peaks)
    assert operator_roofline(nothing).note == ""
    assert [side.picture.count("<circle") for side in before_and_after(nothing, one, ("Base", "New"))] == [1]
    assert before_and_after(nothing, nothing, ("Base", "New")) == []


@pytest.mark.parametrize("names", [("mm", "softmax", "copy"), HOSTILE])
def test_the_page_of_two_traces_has_it(tmp_path: Path, names: tuple[str, ...]) -> None:
    page = diff_page_of(trace(tmp_path, names=names), trace(tmp_path, names=names, slow=2.0))
    assert page.count('<svg class="roofline"') == 1
    assert "A broken line joins an operator at the same inputs" in page


def test_what_the_dots_cover_and_what_they_do_not_make_the_whole(tmp_path: Path) -> None:
    """And no picture of next to nothing."""
    one = roofs(trace(tmp_path))
    shares = [float(share) for share in re.findall(r"([\d.]+)%", operator_roofline(one).note)]
    assert sum(shares) == pytest.approx(100, abs=1.1)
    much = pl.when(pl.col("op") == "aten::mm").then(pl.col("time_ns")).otherwise(pl.lit(10**12))
    unmodelled = one.table.with_columns(time_ns=much.cast(one.table.schema["time_ns"]))
    low = operator_roofline(Roofs(unmodelled, one.peaks))
    assert low.picture == ""
    assert "Dots cover 0% of the GPU's time" in low.note
    assert "too little for a picture" in low.note


def test_tiny_operators_do_not_stretch_the_axes_and_are_counted() -> None:
    large = [Point("gemm", "HBM", 200.0, 500.0, 0.7), Point("norm", "HBM", 2.0, 5.0, 0.29)]
    tiny = [Point("add", "HBM", 1e-4, 1e-5, 0.002), Point("fill", "HBM", 1e-5, 1e-5, 0.003)]
    lines = [Roof("HBM", 5.3, slope=True), Roof("matrix bf16", 1300.0, slope=False)]
    picture = roofline([*large, *tiny], lines)
    assert len(dots(picture)) == 2
    assert "beyond the axes: 2 dots, 0.5% of the time" in picture
    assert "beyond the axes" not in roofline(large, lines)
    decades = [float(t.text or "") for t in ET.fromstring(picture).findall("text") if re.fullmatch(r"[\d.e-]+", t.text or "")]  # fmt: skip
    assert min(decades) >= 0.1
