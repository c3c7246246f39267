"""Text of others, such as a kernel's name or a path, on its way to a terminal or a page. Below all rooms."""

from __future__ import annotations

import re
import shlex

HIDDEN = "\ufffd"
# Control characters (those of C1 begin a command, too), what turns the direction of writing, and halves of surrogates,
# which no encoding can write.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    """The text with a mark for each character that a terminal would obey instead of showing it. Line breaks and tabs stay."""
    return _CONTROLS.sub(HIDDEN, text)


def to_paste(words: object) -> str:
    """Words of a command line from a file, so that pasted into a shell they are words and nothing else; empty where they are none."""
    try:
        return shlex.join(shlex.split(visible(words).replace("\n", " "))) if isinstance(words, str) else ""
    except ValueError:
        return ""
