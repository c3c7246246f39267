"""Pages from templates. All that comes from a trace or a run is escaped, and has no control characters."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rung.report import units

if TYPE_CHECKING:
    from jinja2 import Environment

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
    made.filters |= FORMATS
    made.filters["lines"] = lambda text: Markup("<br>").join(units.clean(text).split("\n"))
    return made
