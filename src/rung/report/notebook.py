"""A result in a notebook: its headline, and what the command prints below it."""

from __future__ import annotations

from collections.abc import Sequence

from rung.report.templates import environment


def panel(headline: str, lines: Sequence[str]) -> str:
    """HTML for `_repr_html_`. No styles or scripts of its own, so that it takes the notebook's look; all texts are escaped."""
    return environment().get_template("notebook.html").render(headline=headline, lines=lines)
