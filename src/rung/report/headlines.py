"""Each analysis in one sentence, for the page of a trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rung.report import distributed

if TYPE_CHECKING:
    import polars as pl

# What to say of an analysis's table; "" where there is nothing to say. In the order of the page.
HEADLINES: dict[str, Callable[[pl.DataFrame], str]] = {
    "communication": distributed.communication_line,
    "stragglers": distributed.stragglers_line,
    "skew": distributed.skew_line,
}


def headlines(table: Callable[[str], pl.DataFrame]) -> dict[str, str]:
    """The sentences of the analyses that have something to say. table: gives an analysis's table by its name."""
    said = {name: say(table(name)) for name, say in HEADLINES.items()}
    return {name: text for name, text in said.items() if text}
