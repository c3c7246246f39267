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


def embedded_json(record: Any) -> Markup:
    """The record as JSON that is plain text wherever a page holds it."""
    from markupsafe import Markup

    text = msgspec.json.encode(record).decode("utf-8")
    return Markup(text.translate(str.maketrans(_ESCAPES)))


def scripts(names: Sequence[str]) -> tuple[list[Markup], str]:
    """(the scripts of these names, the policy of a page that runs them and nothing else, and loads nothing at all)."""
    from markupsafe import Markup

    texts = ["\n" + (FOLDER / "scripts" / f"{name}.js").read_text(encoding="utf-8") for name in names]
    hashes = [base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii") for text in texts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    policy = f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    return [Markup(text) for text in texts], policy


def page_of(template: str, names: Sequence[str], /, **values: Any) -> str:
    """The template's page as text, with the scripts of these names."""
    texts, policy = scripts(names)
    return environment().get_template(template).render(scripts=texts, policy=policy, **values)
