"""How `make docs` builds these pages: Sphinx reads them as Markdown, and the API from docstrings."""

import re
from importlib.util import find_spec
from typing import Any

from docutils import nodes

from rung import __version__

project, author, release = "Rung", "the authors of Rung", __version__
copyright = "the authors of Rung"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
default_role = "code"  # `x` in a docstring is code
smartquotes = False  # it makes a dash of the two of --option
html_theme = "furo"
html_title = f"Rung {release}"
html_static_path, html_css_files = ["_static"], ["rung.css"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 88
autodoc_mock_imports = [name for name in ("torch", "transformers", "lightning") if find_spec(name) is None]


def links(app: Any, doctree: nodes.document, docname: str) -> None:
    """Makes a link of each `docs/NAME.md` in a text: its reader has these pages, and no checkout."""
    for text in list(doctree.findall(nodes.Text)):
        if text == " -- ":  # Sphinx's own, between an argument and what it is
            text.parent.replace(text, nodes.Text(" – "))
            continue
        if isinstance(text.parent, (nodes.literal, nodes.literal_block, nodes.reference, nodes.title)):
            continue
        parts = re.split(r"docs/([\w/-]+)\.md", text.astext())
        if len(parts) == 1:
            continue
        made: list[nodes.Node] = []
        for part, name in zip(parts[::2], [*parts[1::2], ""], strict=True):
            made.append(nodes.Text(part))
            if name in app.env.found_docs:
                title = app.env.titles[name].astext().partition(":")[0]
                made.append(
                    nodes.reference("", title, internal=True, refuri=app.builder.get_relative_uri(docname, name))
                )
            elif name:
                made.append(nodes.Text(f"docs/{name}.md"))
        text.parent.replace(text, made)


def defaults(app: Any, what: str, name: str, of: Any, options: Any, arguments: str | None, returns: str | None) -> Any:
    """Writes defaults as Python, which Sphinx breaks into lines: `...` for a fresh dict or list, a function by its name."""
    written = re.sub(r"<function (\w+)>", r"\1", (arguments or "").replace("<factory>", "..."))
    return (written, returns) if arguments else None


def setup(app: Any) -> None:
    app.connect("doctree-resolved", links)
    app.connect("autodoc-process-signature", defaults)
