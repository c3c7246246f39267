"""The pages of docs/: each is in the contents, and they build with the API that docstrings describe."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rung

DOCS = Path(__file__).parents[1] / "docs"
SPHINX = "from sphinx.cmd.build import main; sys.exit(main(sys.argv[1:]))"
WITHOUT_TORCH = """
from importlib.machinery import PathFinder
find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *where: None if name.partition(".")[0] == "torch" else find(name, *where)
"""


def test_every_page_is_in_the_contents() -> None:
    listed = re.findall(r"^([a-z-]+(?:/[a-z0-9-]+)?)$", (DOCS / "index.md").read_text(), re.MULTILINE)
    pages = (page.relative_to(DOCS).with_suffix("").as_posix() for page in DOCS.rglob("*.md"))
    assert sorted(listed) == sorted(page for page in pages if page != "index")


def test_every_public_name_is_in_the_reference() -> None:
    described = set(re.findall(r"auto(?:function|class):: (\w+)", (DOCS / "reference/api.md").read_text()))
    errors = set(re.findall(r"\w+Error", (DOCS / "reference/api.md").read_text()))
    assert {name for name in rung.__all__ if not name.startswith("__")} <= described | errors


@pytest.mark.long
@pytest.mark.parametrize("before", ["", WITHOUT_TORCH], ids=["with torch", "without torch"])
def test_the_pages_build_without_a_warning(tmp_path: Path, before: str) -> None:
    if not all(importlib.util.find_spec(name) for name in ("sphinx", "myst_parser", "furo")):
        pytest.skip("Sphinx is not installed: pip install 'rung[docs]'")
    words = ["-q", "-W", "--keep-going", "-b", "html", str(DOCS), str(tmp_path)]
    code = f"import sys\n{before}\n{SPHINX}"
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "rung.climb" in (tmp_path / "reference/api.html").read_text()
