"""HTML for notebooks. It takes the notebook's look, but for the font of columns, which some notebooks take away; all texts are escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from rung.report import units
from rung.report.templates import environment

TEXT_STYLE = "font-family: monospace; white-space: pre; overflow-x: auto"  # of what is laid out in columns


def panel(headline: str, lines: Sequence[str], links: Mapping[str, str] | None = None) -> str:
    """A result, for `_repr_html_`: its headline, and what the command prints below it. links: files to open, by what they hold, as
    URLs."""
    template = environment().get_template("notebook.html")
    return template.render(headline=headline, lines=lines, links=links or {}, text_style=TEXT_STYLE)


def progress(now: str, lines: Sequence[str], below: str = "", folded: bool = False) -> str:
    """Something that goes on: what was said so far, and what is done `now`; `below`: a second line on that. folded: the lines are shown
    when they are asked for. It is drawn again and again beside what is timed, so there is no template to be compiled."""
    said = Markup('<pre style="{}">{}</pre>').format(TEXT_STYLE, "\n".join(map(units.clean, lines)))
    if folded:
        shown = Markup("<details><summary>{}</summary>{}</details>").format(units.clean(now), said)
    else:
        second = Markup("<br><small>{}</small>").format(units.clean(below)) if below else ""
        shown = Markup("{}<p>{}{}</p>").format(said if lines else "", units.clean(now), second)
    return Markup('<div class="rung">{}</div>').format(shown)
