"""How `make docs` builds these pages: Sphinx reads them as Markdown, and the API from docstrings."""

from importlib.util import find_spec

from rung import __version__

project, author, release = "Rung", "the authors of Rung", __version__
copyright = "the authors of Rung"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
default_role = "code"  # `x` in a docstring is code
html_theme = "furo"
html_title = f"Rung {release}"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 88
autodoc_mock_imports = [name for name in ("torch", "transformers", "lightning") if find_spec(name) is None]
