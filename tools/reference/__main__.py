"""`PYTHONPATH=tools python -m reference docs/reference` writes the pages into a folder."""

import sys
from pathlib import Path

from reference import PAGES

for name, page in PAGES.items():
    (Path(sys.argv[1]) / f"{name}.md").write_text(page(), encoding="utf-8")
