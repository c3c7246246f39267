"""What a browser is asked about any page: can it be read, and what does axe find wrong?"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

AXE = os.environ.get("RUNG_AXE", "")
needs_axe = pytest.mark.skipif(not AXE, reason="RUNG_AXE does not name an axe.min.js (of the package axe-core)")

# WCAG 2: the ratio of an element's text and the background behind it.
CONTRAST = """() => {
  const parts = (c) => c.match(/[\\d.]+/g).map(Number);
  const light = (c) => { const [r, g, b] = parts(c).map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b };
  const behind = (e) => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor; const p = parts(c); if (p.length < 4 || p[3] > 0) return c } return "rgb(255,255,255)" };
  const found = [];
  for (const e of document.querySelectorAll("main *")) {
    const own = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    if (!own || !e.checkVisibility()) continue;
    const svg = e.ownerSVGElement;
    if (svg && svg.classList.contains("node")) continue; // on the colour of a rectangle: tested by itself
    const colour = svg ? getComputedStyle(e).fill : getComputedStyle(e).color;
    if (svg && e.classList.contains("share")) continue;
    const [a, b] = [light(colour), light(behind(svg ? svg.parentElement : e))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) found.push(`${e.tagName} ${e.textContent.slice(0, 30)}: ${ratio.toFixed(2)}`);
  }
  return [...new Set(found)];
}"""


def axe_faults(page: Any) -> list[tuple[str, str]]:
    """(rule, the first element) of each fault. The page was opened with bypass_csp=True."""
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    page.add_script_tag(content=Path(AXE).read_text(encoding="utf-8"))
    return [(fault["id"], fault["nodes"][0]["html"]) for fault in page.evaluate("axe.run()")["violations"]]


@contextmanager
def watched(browser: Any, allowed: tuple[str, ...]) -> Iterator[tuple[Callable[..., Any], list[str]]]:
    """(opens a new page, what was complained of): at the end nothing may have been, and nothing been asked for whose address does not begin
    with one of those allowed."""
    complaints: list[str] = []
    contexts = []

    def new_page(width: int = 1024, scheme: str = "light", **how: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **how)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(f"dialog {dialog.message}"))
        page.on("request", lambda request: request.url.startswith(allowed) or complaints.append(request.url))
        return page

    yield new_page, complaints
    for context in contexts:
        context.close()
    assert complaints == []
