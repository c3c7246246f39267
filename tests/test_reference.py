"""The pages of docs/reference that are made from the code: they are up to date, and say all that the code knows."""

import re
from pathlib import Path

import polars as pl
import pytest
from reference import PAGES
from reference.commands import EXAMPLES
from reference.variables import BETWEEN, YOURS

from rung import errors
from rung.analysis import analyses
from rung.analysis.counters.formulas import formulas
from rung.errors import EXIT_CODES, RungError
from rung.trace.formats import FORMATS
from rung.trace.table import SCHEMA, Trace

ROOT = Path(__file__).parents[1]
SOURCES = [path.read_text() for path in (ROOT / "src").rglob("*") if path.suffix in (".py", ".toml")]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_code_says(name: str) -> None:
    assert (ROOT / "docs/reference" / f"{name}.md").read_text() == PAGES[name](), "run `make reference`"


def test_every_variable_of_ours_is_described() -> None:
    assert {name for text in SOURCES for name in re.findall(r"\bRUNG_[A-Z_]+", text)} == {*YOURS, *BETWEEN}


def test_every_format_of_a_trace_is_described() -> None:
    made = [found[1] for text in SOURCES for found in re.finditer(r"\bformat=([^,)\n]+)", text)]
    assert {name for text in made for name in re.findall(r'"([\w-]+)"', text)} == set(FORMATS)


@pytest.mark.parametrize("name", analyses.ANALYSES)
def test_every_column_of_an_analysis_is_described(name: str) -> None:
    columns = set(analyses.table(name, Trace(pl.DataFrame(schema=SCHEMA))).columns)
    described = {column for names in analyses.described(name).columns for column in names}
    assert described <= columns
    assert columns <= described | set(analyses.COLUMNS) | set(formulas().metrics)


def test_every_exit_code_has_a_meaning_and_an_example() -> None:
    raised = {
        kind.exit_code for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, RungError)
    }
    assert raised <= set(EXIT_CODES) == set(EXAMPLES)
