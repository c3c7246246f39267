"""Takes secrets out of recorded commands and environments before they reach a table or a report."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

GONE = "[redacted]"
_SECRET = r"TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIAL"
_SECRET_NAME = re.compile(_SECRET, re.IGNORECASE)
# "--api-key VALUE": only where the option's last word is the secret, or --max-tokens 128 would be one.
_SECRET_OPTION = re.compile(rf"^--?[\w.-]*(?:{_SECRET})$", re.IGNORECASE)
_ASSIGNMENT = re.compile(rf"([\w.-]*(?:{_SECRET})[\w.-]*\s*[=:]\s*)(\"[^\"]*\"|'[^']*'|\S+)", re.IGNORECASE)
_OPTION_IN_TEXT = re.compile(rf"(?<!\S)(--?[\w.-]*(?:{_SECRET})\s+)(\"[^\"]*\"|'[^']*'|[^\s-]\S*)", re.IGNORECASE)
_USER_IN_URL = re.compile(r"(\w+://)[^/\s:@]+:[^/\s@]+@")


def redacted(value: Any, name: str = "") -> Any:
    """`value` without secrets: by the name that it is kept under, and within commands by the names there."""
    if name and _SECRET_NAME.search(name) and isinstance(value, (str, bytes)):
        return GONE
    if isinstance(value, Mapping):
        return {key: redacted(inner, str(key)) for key, inner in value.items()}
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return _words(value)
    return value


def _text(text: str) -> str:
    text = _OPTION_IN_TEXT.sub(rf"\1{GONE}", _ASSIGNMENT.sub(rf"\1{GONE}", text))
    return _USER_IN_URL.sub(rf"\1{GONE}@", text)


def _words(words: Sequence[Any]) -> list[Any]:
    kept: list[Any] = []
    secret_follows = False
    for word in words:
        kept.append(GONE if secret_follows and isinstance(word, str) else redacted(word))
        secret_follows = isinstance(word, str) and _SECRET_OPTION.match(word) is not None
    return kept
