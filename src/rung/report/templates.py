"""Pages from templates. All that comes from a trace or a run is escaped, and has no control characters."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rung.report import units

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

FOLDER = Path(__file__).parent
FORMATS = {
    "clean": units.clean,
    "duration": units.duration,
    "duration_interval": units.duration_interval,
    "seconds": units.seconds,
    "size": units.data_size,
    "ratio": units.ratio,
    "span": units.span,
    "interval": units.interval,
    "percent": units.percent,
    "count": units.count,
    "small": units.small,
}


def _ticked(text: Any) -> Markup:
    """The text, escaped, with `what stands in backticks` as code."""
    from markupsafe import Markup, escape

    parts = units.clean(text).split("`")
    if len(parts) % 2 == 0:  # one has no partner
        return escape(units.clean(text))
    return Markup("").join(Markup("<code>{}</code>").format(part) if k % 2 else part for k, part in enumerate(parts))


def _sentence(text: Any) -> str:
    """The text with a capital at its beginning; a name of code stays as it is."""
    said = units.clean(text)
    first = said.split(" ", 1)[0]
    return said if not first.rstrip(",;:.").isalpha() else f"{said[:1].upper()}{said[1:]}"


def _title_of(name: Any) -> str:
    """A table's name as a title: what_if -> "What if"."""
    said = units.clean(name).replace("_", " ")
    return f"{said[:1].upper()}{said[1:]}"


def environment() -> Environment:
    """Of the templates beside this file. What is not there is empty, and what is no Markup is escaped."""
    from jinja2 import ChainableUndefined, Environment, FileSystemLoader
    from markupsafe import Markup

    made = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=ChainableUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: value if isinstance(value, (Markup, int)) else units.clean(value),
    )
    made.filters |= FORMATS | {"ticked": _ticked, "sentence": _sentence, "title_of": _title_of}
    made.filters["lines"] = lambda text: Markup("<br>").join(units.clean(text).split("\n"))
    return made
