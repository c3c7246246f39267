"""The pages of `rung serve` in a browser: a walk through all of them, what sorts and filters, and how they look."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import CONTRAST, axe_faults, needs_axe, watched
from served_history import CLIMBED, MEASURED, OF_A_STRANGER, history, serving

from rung.serve.server import Server

Visit = Callable[..., Any]
PAGES = {
    "list": "/",
    "entry": f"/entry?id={MEASURED}",
    "stranger": f"/entry?id={OF_A_STRANGER}",
    "climb": f"/entry?id={CLIMBED}",
    "report": f"/files/{CLIMBED}/report.html",
    "trend": f"/trend?id={MEASURED}",
    "strangers-trend": f"/trend?id={OF_A_STRANGER}",
    "trends": "/trends",
    "compare": "/compare?entry=2&entry=9",
}


@pytest.fixture(scope="module")
def server(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(history(tmp_path_factory.mktemp("served"))) as server:
        yield server


@pytest.fixture
def visit(browser: Any, server: Server) -> Iterator[Visit]:
    """Opens a page of the server. At the end nothing may have been complained of, and no other server been asked."""
    with watched(browser, (server.url, "data:", "blob:")) as (new_page, _):

        def open_page(path: str, *how: Any, **more: Any) -> Any:
            page = new_page(*how, **more)
            page.goto(server.url + path.lstrip("/"))
            return page

        yield open_page


def test_a_walk_from_the_list_to_a_run_its_report_two_runs_and_a_trend(visit: Visit) -> None:
    page = visit("/")
    page.get_by_role("link", name=f"{CLIMBED}", exact=True).click()
    page.get_by_role("link", name="Report", exact=True).click()
    assert "pointwise" in page.locator(".kicker").inner_text()
    page.go_back()
    page.get_by_role("link", name="History").click()
    for number in (2, 9):
        page.get_by_label(f"compare entry {number}", exact=True).check()
    page.get_by_role("button", name="Compare").click()
    assert page.locator("h1").inner_text() == "B is slower"
    page.get_by_role("link", name="entry 9").click()
    page.get_by_role("link", name="Trend", exact=True).click()
    assert "from entry 7 on" in page.locator(".notice").inner_text()
    assert page.locator("svg.trend circle").count() == 12
    page.locator("summary").click()
    page.get_by_role("link", name="7", exact=True).click()
    assert page.locator(".kicker").inner_text() == "Rung · entry 7 · bench"
    page.get_by_role("link", name="Trends").click()
    page.get_by_role("link", name="model.py:make --batch 8").click()
    assert page.locator("h1").inner_text() == "A measurement over time"


def test_the_list_sorts_and_filters_and_keeps_what_is_ticked(visit: Visit) -> None:
    page = visit("/")

    def entries() -> list[int]:
        cells = page.locator("tbody tr:not([hidden]) td:first-child")
        return [int(text) for text in cells.evaluate_all("cells => cells.map(c => c.dataset.v)")]

    newest_first = entries()
    assert newest_first[-1] == MEASURED
    page.get_by_label("compare entry 12").check()
    head = page.locator("thead button").first
    head.click()
    assert entries() == sorted(newest_first, reverse=True)
    head.click()
    assert entries() == sorted(newest_first)
    page.get_by_role("button", name="time").click()
    assert entries()[0] == OF_A_STRANGER
    page.get_by_role("searchbox").fill("before")
    assert entries() == [3]
    page.get_by_label("compare entry 3").check()
    page.get_by_role("searchbox").press("Enter")  # which sends no form
    page.get_by_role("button", name="Compare").click()
    assert sorted(page.url.partition("?")[2].split("&")) == ["entry=12", "entry=3"]


def test_without_scripts_two_runs_are_compared_as_well(visit: Visit) -> None:
    page = visit("/", java_script_enabled=False)
    for number in (2, 9):
        page.get_by_label(f"compare entry {number}", exact=True).check()
    page.get_by_role("button", name="Compare").click()
    assert page.locator("h1").inner_text() == "B is slower"


def test_a_name_of_a_stranger_stays_text(visit: Visit) -> None:
    for path in (PAGES["list"], PAGES["stranger"], PAGES["strangers-trend"]):
        page = visit(path)
        assert page.locator("main").evaluate("main => main.querySelectorAll('script').length") == 0
        assert "<script>alert(1)</script>�[31m�gnp.exe" in page.locator("main").inner_text()


def test_a_report_of_a_stranger_runs_no_script_and_asks_for_nothing(browser: Any, tmp_path: Path) -> None:
    store = history(tmp_path)
    page_file = tmp_path / "run" / "report.html"
    page_file.write_text("<title>still</title><img src=/trends onload='document.title=1' onerror='document.title=2'><script>document.title='run'</script>")  # fmt: skip
    with serving(store) as server:
        page = browser.new_context().new_page()
        asked: list[str] = []
        page.on("response", lambda response: asked.append(response.url))
        page.goto(f"{server.url}files/{CLIMBED}/report.html")
        page.wait_for_timeout(200)
        assert page.title() == "still"
        assert [url for url in asked if "favicon" not in url] == [f"{server.url}files/{CLIMBED}/report.html"]
        page.context.close()


def test_a_token_comes_with_the_address_and_is_kept(browser: Any, tmp_path: Path) -> None:
    with serving(history(tmp_path), token="") as server:
        page = browser.new_context().new_page()
        assert page.goto(server.url.partition("?")[0]).status == 401
        assert page.goto(server.url).status == 200
        assert "token" not in page.url
        page.get_by_role("link", name="Trends").click()
        assert page.locator("h1").inner_text() == "1 time series"
        assert page.evaluate("document.cookie") == ""
        page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_pages_fit_any_width_and_can_be_read(visit: Visit, server: Server, scheme: str) -> None:
    page = visit("/", scheme=scheme)
    for name, path in PAGES.items():
        page.goto(server.url + path.lstrip("/"))
        for width in (400, 1024, 1920):
            page.set_viewport_size({"width": width, "height": 900})
            if folder := os.environ.get("RUNG_SCREENSHOTS"):
                page.screenshot(path=Path(folder) / f"serve-{name}-{width}-{scheme}.png", full_page=True)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        assert page.evaluate(CONTRAST) == [], name


@needs_axe
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_no_fault_in_a_served_page(visit: Visit, name: str, scheme: str) -> None:
    assert axe_faults(visit(PAGES[name], scheme=scheme, bypass_csp=True)) == []
