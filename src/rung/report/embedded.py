"""Data and scripts inside a page: a file that asks for nothing, in which no name can leave its place."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from rung.report.templates import FOLDER, environment

if TYPE_CHECKING:
    from markupsafe import Markup

# What would end a script element, begin another or be a line's end to a script: as JSON escapes, which mean the same.
_ESCAPES: dict[str, str | int | None] = {
    "<": "\\u003c",
    ">": "\\u003e",
    "&": "\\u0026",
    "\u2028": "\\u2028",
    "\u2029": "\\u2029",
}
Links = Sequence[tuple[str, str]]  # (name, where it leads)


def embedded_json(record: Any) -> Markup:
    """The record as JSON that is plain text wherever a page holds it."""
    from markupsafe import Markup

    text = msgspec.json.encode(record).decode("utf-8")
    return Markup(text.translate(str.maketrans(_ESCAPES)))


def policy(texts: Sequence[str], served: bool = False) -> str:
    """Of a page that runs these scripts and nothing else, and loads nothing at all. served: its forms ask the server that it came from."""
    hashes = [base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii") for text in texts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    forms = "'self'" if served else "'none'"
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action {forms}"


def served_policy() -> str:
    """What `rung serve` sends with every answer: scripts that are not Rung's own do not run, whatever page has them."""
    texts = [script(path.stem) for path in sorted((FOLDER / "scripts").glob("*.js"))]
    return f"{policy(texts, served=True)}; frame-ancestors 'none'"


def script(name: str) -> str:
    return "\n" + (FOLDER / "scripts" / f"{name}.js").read_text(encoding="utf-8")


def page_of(template: str, names: Sequence[str], /, nav: Links = (), **values: Any) -> str:
    """The template's page as text, with the scripts of these names. nav: of a page of `rung serve`, the others that it leads to."""
    from markupsafe import Markup

    texts = [Markup(script(name)) for name in names]
    made = environment().get_template(template)
    return made.render(scripts=texts, policy=policy(texts, bool(nav)), nav=nav, **values)
