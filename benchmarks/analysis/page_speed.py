"""How large a page of `rung analyze --html` is, how long it takes to open, and how many frames a second it draws while it is panned.

    python benchmarks/analysis/page_speed.py PAGE.html [WIDTH]

Opens the page in Chromium (/usr/bin/chromium) by playwright, five times: from the start of the navigation to the first frame after the
timeline was drawn. Then drags the timeline to and fro at three zooms and counts the frames that were drawn anew.
"""

from __future__ import annotations

import os
import statistics
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

OPENED = """() => new Promise(resolve => {
  const look = () => document.querySelector('#timeline .live')?.dataset.frames
    ? requestAnimationFrame(() => resolve(performance.now())) : requestAnimationFrame(look);
  look();
})"""
MOVES = 120


def main() -> None:
    path, width = Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) > 2 else 1920
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        print(
            f"Chromium {browser.version}, {os.cpu_count()} cores, {width} px wide; {path.stat().st_size / 1e6:.2f} MB"
        )
        times = []
        for _ in range(5):
            page = browser.new_page(viewport={"width": width, "height": 1000})
            page.goto(path.as_uri(), wait_until="commit")
            times.append(page.evaluate(OPENED))
            page.close()
        print(f"opened in {statistics.median(times):.0f} ms (median of 5, from {min(times):.0f} to {max(times):.0f})")
        page = browser.new_page(viewport={"width": width, "height": 1000})
        page.goto(path.as_uri())
        page.evaluate(OPENED)
        page.locator("#timeline .canvas").scroll_into_view_if_needed()
        for zoom in (1, 4, 10):
            print(f"pan at 1/{2**zoom} of the span: {panned(page, zoom):.0f} frames a second")
        browser.close()


def panned(page: Page, zoom: int) -> float:
    """Frames a second that the timeline draws anew while a mouse drags it."""
    page.get_by_role("button", name="Show all").click()
    for _ in range(zoom):
        page.get_by_role("button", name="Zoom in").click()
    box: Any = page.locator("#timeline canvas").bounding_box()
    read = "() => [Number(document.querySelector('#timeline .live').dataset.frames), performance.now()]"
    middle, y = box["x"] + box["width"] / 2, box["y"] + 60
    page.mouse.move(middle, y)
    page.mouse.down()
    frames, begin = page.evaluate(read)
    for turn in range(MOVES):
        page.mouse.move(middle + 300 * (1 if turn // 30 % 2 else -1) * (turn % 30) / 30, y)
    after, end = page.evaluate(read)
    page.mouse.up()
    return 1000 * (after - frames) / (end - begin)


if __name__ == "__main__":
    main()
