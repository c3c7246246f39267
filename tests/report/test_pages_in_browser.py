"""The pages of traces in a browser: no complaint, no request, and each thing that a reader can do with them."""

import csv
import io
import os
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import CONTRAST, axe_faults, needs_axe, watched
from climb_sample import attempt, climb, nothing_kept, unfinished
from made_pages import HOSTILE, comparison, diff_page_of, measurement, page_of, recorded_climb, trace
from test_roofline_page import kernels, roofs
from test_trend_report import STEP, series
from test_trend_report import trend as trend_of

from rung.report.climb_traces import traces_of
from rung.report.climbs import climb_of
from rung.report.climbs import page as climbs_page
from rung.report.html import render as climb_page
from rung.report.roofline_page import page as roofline_page
from rung.report.samples_page import bench_page, compare_page
from rung.report.trend_page import page as trend_page
from rung.trace import read

DDP = Path(__file__).parents[1] / "data" / "ddp"
Open = Callable[..., Any]


def climb_with_traces(folder: Path) -> str:
    run = recorded_climb(folder, baseline={"slow": 4.0}, **{"10-cuda-graphs": {}})
    data = climb()
    # What does not apply for one and the same reason is one row.
    many = ", ".join(["layout-optimization"] * 20)
    data.attempts.append(attempt(12, many, "inapplicable", "It is for GPUs.", log=""))
    return climb_page(data, traces_of(run, data, folder / "page.html"))


# The page of each kind, of data that has all its parts.
PAGES: dict[str, Callable[[Path], str]] = {
    "trace": lambda folder: page_of(trace(folder)),
    "ranks": lambda folder: page_of(read(DDP / "ranks2-slow-gpu")),
    "diff": lambda folder: diff_page_of(trace(folder), trace(folder, slow=3.0)),
    "climb": lambda folder: climb_with_traces(folder),
    "climbs": lambda folder: climbs_page([climb_of(climb()), climb_of(nothing_kept()), climb_of(unfinished())]),
    "roofline": lambda folder: roofline_page(kernels(), roofs(), "run"),
    "bench": lambda folder: bench_page([measurement()]),
    "compare": lambda folder: compare_page(comparison()),
    "trend": lambda folder: trend_page(trend_of(series([2e6] * 6 + [2.2e6] * 6, [STEP]))),
}


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Open]:
    """Opens a page's text as a file. At the end nothing may have been complained of or asked for."""
    with watched(browser, ("file:", "data:", "blob:")) as (new_page, complaints):

        def open_page(text: str, *how: Any, **more: Any) -> Any:
            file = tmp_path / "page.html"
            file.write_text(text, encoding="utf-8")
            page = new_page(*how, **more)
            page.goto(file.as_uri())
            return page

        open_page.complaints = complaints  # type: ignore[attr-defined]
        yield open_page


@pytest.fixture
def page(opened: Open, tmp_path: Path) -> Any:
    shown = opened(page_of(trace(tmp_path)))
    shown.wait_for_selector("#timeline .live[data-frames]")
    return shown


def span(page: Any) -> tuple[float, float]:
    """The times that the timeline shows, after its next frame."""
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return page.evaluate(
        "() => { const {from, to} = document.querySelector('#timeline .live').dataset; return [+from, +to] }"
    )


def lane(page: Any, title: str) -> float:
    """How far below the top of the timeline the first row of a lane is, in pixels."""
    return page.evaluate(
        """(title) => { let y = 22;
        for (const group of rung.record.groups) { if (group.title) y += 26; if (group.note) y += 18;
          for (const lane of group.lanes) { y += 18; if (lane.title === title) return y + 8; y += 18 * lane.rows.length } } }""",
        title,
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1024, 1920])
@pytest.mark.parametrize("kind", PAGES)
def test_a_page_fits_any_width_and_can_be_read_in_light_and_dark(
    opened: Open, tmp_path: Path, kind: str, width: int, scheme: str
) -> None:
    page = opened(PAGES[kind](tmp_path), width, scheme)
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(CONTRAST) == []
    assert page.locator("h1").count() == 1
    if folder := os.environ.get("RUNG_SCREENSHOTS"):
        page.evaluate("document.querySelectorAll('.tables details').forEach(d => d.open = false)")
        page.screenshot(path=Path(folder) / f"{kind}-{width}-{scheme}.png", full_page=True)


@needs_axe
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", PAGES)
def test_axe_finds_no_fault(opened: Open, tmp_path: Path, kind: str, scheme: str) -> None:
    page = opened(PAGES[kind](tmp_path), 1024, scheme, bypass_csp=True)
    assert axe_faults(page) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_on_a_coloured_rectangle_can_be_read(page: Any, opened: Open, tmp_path: Path, scheme: str) -> None:
    """In pictures that stand without a script, and as the scripts draw."""
    still = opened(page_of(trace(tmp_path)), 1024, scheme, java_script_enabled=False)
    assert still.locator("svg.icicle text").count() > 3
    page.emulate_media(color_scheme=scheme)
    worst = page.evaluate(
        """() => { const light = (c) => { const [r, g, b] = c.match(/[\\d.]+/g).map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
          return 0.2126 * r + 0.7152 * g + 0.0722 * b };
        const ratio = (x, y) => { const [a, b] = [light(x), light(y)].sort((p, q) => q - p); return (a + 0.05) / (b + 0.05) };
        const hex = {"#fff": "rgb(255,255,255)", "#14171a": "rgb(20,23,26)"};
        const drawn = rung.palette().classes.map(({fill, text}) => ratio(fill, hex[text]));
        const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg"); document.body.append(svg);
        const still = ["gemm","attention","convolution","pointwise","optimizer","communication","copy","other","launch_gap","idle","frame"].map(name => {
          const [rect, text] = [["rect", "p-"], ["text", "on-"]].map(([tag, css]) => { const e = document.createElementNS(svg.namespaceURI, tag); e.setAttribute("class", css + name); svg.append(e); return getComputedStyle(e).fill });
          return ratio(rect, text) });
        return Math.min(...drawn, ...still) }"""
    )
    assert worst >= 4.5


def test_the_wheel_zooms_where_the_pointer_is_and_a_drag_pans(page: Any) -> None:
    begin, end = span(page)
    canvas = page.locator("#timeline canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 60)
    page.mouse.wheel(0, -600)
    low, high = span(page)
    assert high - low < (end - begin) / 2
    quarter = begin + 0.25 * (end - begin)
    assert low + 0.25 * (high - low) == pytest.approx(quarter, abs=(end - begin) / 500)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.05, box["y"] + 60, steps=4)
    page.mouse.up()
    moved = span(page)
    assert moved[0] - low == pytest.approx(0.2 * (high - low), rel=0.02)
    assert moved[1] - moved[0] == pytest.approx(high - low)
    page.mouse.wheel(0, 5000)
    page.mouse.wheel(0, 5000)
    assert span(page) == pytest.approx((begin, end))


def test_keys_and_buttons_do_what_the_mouse_does(page: Any) -> None:
    begin, end = span(page)
    page.locator("#timeline .canvas").focus()
    page.keyboard.press("+")
    low, high = span(page)
    assert high - low == pytest.approx(0.7 * (end - begin))
    page.keyboard.press("ArrowRight")
    assert span(page)[0] > low
    page.keyboard.press("0")
    assert span(page) == pytest.approx((begin, end))
    page.get_by_role("button", name="Zoom in").click()
    assert span(page)[1] - span(page)[0] == pytest.approx((end - begin) / 2)
    page.get_by_role("button", name="Show all").click()
    assert span(page) == pytest.approx((begin, end))


def test_the_tip_says_the_name_the_time_and_the_shapes(page: Any) -> None:
    canvas = page.locator("#timeline canvas")
    canvas.scroll_into_view_if_needed()
    box, (begin, end) = canvas.bounding_box(), span(page)
    page.mouse.move(box["x"] + box["width"] * 15_000 / (end - begin), box["y"] + lane(page, "GPU 0 stream 0"))
    said = page.locator("#tip").inner_text()
    assert said.split("\n")[0] == "Cijk_MT64"
    assert "20 µs from 9 µs" in said  # the first call that is drawn begins 1 µs after the trace
    assert "aten::mm 64x128 128x256 bf16" in said
    assert "matrix products" in said


def test_the_timeline_of_a_climb_sums_before_and_after(opened: Open, tmp_path: Path) -> None:
    page = opened(climb_with_traces(tmp_path))
    page.wait_for_selector("#timeline .live[data-frames]")
    page.get_by_label("Search the timeline").fill("Cijk")
    said = page.locator("#timeline .bar span").inner_text()
    assert said.startswith("GPU: 28 found, 1.4 ms")  # 14 of 80 µs and 14 of 20 µs
    assert page.locator("a[href$='run/traces/baseline.json.gz']").count() == 1


def test_search_counts_and_goes_to_what_it_finds(page: Any) -> None:
    begin, end = span(page)
    search = page.get_by_label("Search the timeline")
    search.fill("softmax")
    said = page.locator("#timeline .bar span").inner_text()
    assert said.startswith("GPU: 13 found, 260 µs")
    canvas = page.locator("#timeline canvas")
    canvas.scroll_into_view_if_needed()
    box, (begin, end) = canvas.bounding_box(), span(page)
    page.mouse.move(box["x"] + box["width"] * 15_000 / (end - begin), box["y"] + lane(page, "GPU 0 stream 0"))
    assert page.locator("#tip").is_visible()
    search.press("Enter")
    assert not page.locator("#tip").is_visible()  # it was of what has moved away
    low, high = span(page)
    assert high - low < (end - begin)
    assert low < 45_000 < high  # the first of them begins 45 µs after the start
    search.fill("nothing of the kind")
    assert page.locator("#timeline .bar span").inner_text() == "Nothing found."
    search.fill("k")  # kernels; modules of 28 µs, and within each of them a launch of 3 µs
    said = page.locator("#timeline .bar span").inner_text()
    assert said.startswith("GPU: 40 found, 800 µs; host: 80 found, 1.12 ms")


def test_a_range_is_summed_by_name(page: Any) -> None:
    canvas = page.locator("#timeline canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + 1, box["y"] + 60)
    page.keyboard.down("Shift")
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 60, steps=3)
    page.mouse.up()
    page.keyboard.up("Shift")
    assert "Sums are over all lanes" in page.locator("#timeline .sums").inner_text()
    page.get_by_role("button", name="Sum what is shown").click()
    rows = page.evaluate(
        "[...document.querySelectorAll('.sums tbody tr')].map(r => [...r.cells].map(c => c.dataset.v ?? c.textContent))"
    )
    sums = {(where, name): (int(time), int(events)) for where, name, time, _, events in rows}
    assert sums["GPU", "Cijk_MT64"] == (14 * 20_000, 14)
    assert sums["GPU", "softmax_kernel"] == (13 * 20_000, 13)


def test_an_icicle_zooms_into_what_is_clicked_and_out_again(page: Any) -> None:
    live = page.locator("#icicle .live")
    live.get_by_role("button", name="By operator").click()
    canvas = live.locator("canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + 20, box["y"] + 30)
    assert page.locator("#tip").inner_text().startswith("aten::mm\n280 µs, 35% of all")
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + 30)
    assert live.get_attribute("data-node") == "aten::op1"
    for x in (20, box["width"] - 20):  # what is below fills the width
        page.mouse.move(box["x"] + x, box["y"] + 52)
        assert (
            page.locator("#tip").inner_text().startswith("softmax_kernel\n260 µs, 32.5% of all, 100% of what is above")
        )
    live.locator(".canvas").press("Escape")
    assert live.get_attribute("data-node") == "all GPU events"
    page.get_by_label("Search the icicle").fill("softmax")
    assert "32.5% of GPU time" in live.locator(".bar").inner_text()


def test_tables_sort_filter_copy_and_export(page: Any) -> None:
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    table = page.locator("table[data-table=kernels]")
    column = table.locator("thead th").evaluate_all("heads => heads.map(h => h.dataset.name)").index("count")

    def counts() -> list[float]:
        return [
            float(text)
            for text in table.locator(f"tbody tr:not([hidden]) td:nth-child({column + 1})").evaluate_all(
                "cells => cells.map(c => c.dataset.v ?? c.textContent)"
            )
        ]

    head = table.locator("thead button").nth(column)
    head.click()
    assert counts() == sorted(counts(), reverse=True)
    head.click()
    assert counts() == sorted(counts())
    assert table.locator("th[aria-sort=ascending]").count() == 1
    bar = page.locator("#table-kernels .bar")
    bar.get_by_role("searchbox").fill("softmax")
    assert counts() == [13]
    with page.expect_download() as download:
        bar.get_by_role("button", name="CSV").click()
    assert download.value.suggested_filename == "kernels.csv"
    [row] = csv.DictReader(io.StringIO(Path(download.value.path()).read_text(encoding="utf-8")))
    assert (row["name"], row["time_ns"], row["count"]) == ("softmax_kernel", "260000", "13.0")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    bar.get_by_role("button", name="Copy").click()
    bar.get_by_role("button", name="Copied").wait_for()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.split("\n")[0].split("\t")[0] == "time_ns"
    assert "softmax_kernel" in copied.split("\n")[1]


def test_a_link_opens_its_table(page: Any) -> None:
    page.locator("a[href='#table-categories']").click()
    assert page.evaluate("document.getElementById('table-categories').open") is True


def picture_names(page: Any) -> list[str]:
    return page.evaluate("[...document.querySelectorAll('main svg[role=img]')].map(e => e.dataset.file)")


@pytest.mark.parametrize("kind", PAGES)
def test_every_picture_is_saved_as_svg_and_as_png(opened: Open, tmp_path: Path, kind: str) -> None:
    page = opened(PAGES[kind](tmp_path), 1024)
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    names = set()
    for k in range(page.get_by_role("button", name="SVG of:").count()):
        files = {}
        for kind_of_file in ("SVG", "PNG"):
            with page.expect_download() as download:
                page.get_by_role("button", name=f"{kind_of_file} of:").nth(k).click()
            files[kind_of_file] = download.value
        names.add(files["SVG"].suggested_filename)
        drawing = ET.parse(files["SVG"].path()).getroot()
        assert drawing.tag == "{http://www.w3.org/2000/svg}svg"
        assert len(list(drawing.iter())) > 5
        assert not any(
            "class" in e.attrib or "var(" in str(e.attrib) for e in drawing.iter()
        )  # it needs no style of the page
        colours = {e.get("fill") for e in drawing.iter()} | {e.get("stroke") for e in drawing.iter()}
        assert len(colours - {None, "none"}) >= 3
        image = Path(files["PNG"].path()).read_bytes()
        assert image.startswith(b"\x89PNG")
        assert int.from_bytes(image[16:20], "big") > 900  # pixels across
        assert len(set(image)) > 50
    assert len(names) == page.get_by_role("button", name="SVG of:").count()
    assert {
        "trace": 5,
        "ranks": 3,
        "diff": 6,
        "climb": 13,
        "climbs": 1,
        "roofline": 1,
        "bench": 2,
        "compare": 3,
        "trend": 1,
    }[kind] == len(names)


def test_without_scripts_pictures_stay_and_nothing_is_saved(opened: Open, tmp_path: Path) -> None:
    page = opened(climb_page(climb()), 1024, java_script_enabled=False)
    assert page.locator("svg.ladder").is_visible()
    assert page.locator("svg.forest").is_visible()
    assert page.locator("button").count() == 0


def test_what_is_saved_keeps_the_names_of_strangers_as_text(opened: Open, tmp_path: Path) -> None:
    page = opened(page_of(trace(tmp_path, names=HOSTILE)), 1024)
    with page.expect_download() as download:
        page.locator("#icicle").get_by_role("button", name="SVG of:").click()
    drawing = ET.parse(download.value.path()).getroot()
    assert {e.tag.rpartition("}")[2] for e in drawing.iter()} == {"svg", "rect", "text", "title"}
    assert any("<img src=x onerror=alert(1)>" in (e.text or "") for e in drawing.iter())


def test_names_of_strangers_stay_text_wherever_they_are_shown(opened: Open, tmp_path: Path) -> None:
    evil = trace(tmp_path, names=HOSTILE)
    page = opened(page_of(evil))
    before = page.locator("script, img, svg[onload]").count()
    page.get_by_label("Search the timeline").fill("<img")
    assert re.match(r"GPU: \d+ found", page.locator("#timeline .bar span").inner_text())
    page.get_by_role("button", name="Sum what is shown").click()
    sums = page.locator(".sums")
    assert "<img src=x onerror=alert(1)>" in sums.inner_text()
    assert "</script><script>alert(1)</script>" in sums.inner_text()
    page.get_by_role("button", name="By operator").click()
    canvas, tips = page.locator("#icicle canvas"), ""
    for tenth in range(10):
        canvas.hover(position={"x": 30 + 90 * tenth, "y": 52})
        tips += page.locator("#tip").inner_text()
    assert "</script><script>alert(1)</script>" in tips
    assert "<img src=x onerror=alert(1)>" in tips
    assert page.locator("script, img, svg[onload]").count() == before
    opened(diff_page_of(evil, trace(tmp_path, names=HOSTILE, slow=3.0)))


def test_a_script_that_came_in_would_not_run(opened: Open, tmp_path: Path) -> None:
    """The policy of the page, were there a hole in what is escaped."""
    hole = "<script>window.broken = 1</script><img src=x onerror='window.broken = 1'></main>"
    page = opened(page_of(trace(tmp_path)).replace("</main>", hole))
    assert page.evaluate("window.broken") is None
    assert "Content Security Policy" in opened.complaints[0]  # type: ignore[attr-defined]
    opened.complaints.clear()  # type: ignore[attr-defined]


def test_on_paper_there_are_the_pictures_and_no_controls(page: Any) -> None:
    page.emulate_media(media="print", color_scheme="dark")
    assert page.locator("svg.timeline").is_visible()
    assert page.locator("svg.icicle").first.is_visible()
    assert not page.locator("#timeline canvas").is_visible()
    assert not page.locator(".bar").first.is_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert len(re.findall(rb"/Type\s*/Page\b", page.pdf(format="A4"))) <= 4


def test_a_climb_on_paper_has_its_evidence_and_not_the_closed_lists(opened: Open, tmp_path: Path) -> None:
    page = opened(climb_with_traces(tmp_path))
    page.emulate_media(media="print")
    assert not page.get_by_text("facts and settings").is_visible()
    assert page.locator("details:not(.aside) table.pairs").first.is_visible()
