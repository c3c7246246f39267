"""The pages of docs/reference that are made from the code: `make reference` writes them.

A page is a function without arguments that returns Markdown. Its first sentences are written here; the rest comes from what the
program itself uses: parsers, tables, dataclasses. `tests/test_reference.py` holds the pages in docs/ to these functions.
"""

from __future__ import annotations

from collections.abc import Callable

from reference import climbs, commands, counters, traces, variables

PAGES: dict[str, Callable[[], str]] = {
    "cli": commands.cli,
    "exit-codes": commands.exit_codes,
    "rungs": climbs.rungs,
    "recipe": climbs.recipe,
    "trace-formats": traces.formats,
    "analyses": traces.analyses,
    "counters": counters.counters,
    "environment": variables.environment,
}
