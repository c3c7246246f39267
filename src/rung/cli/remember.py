"""What a command does with its result beside printing it: an entry in the history, which never makes the command fail."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from rung.cli.common import say


@contextlib.contextmanager
def remembered(of: str, *documents: Mapping[str, Any], **called: Any) -> Iterator[None]:
    """For the lines that give out a result: afterwards it is in the history, also where nobody reads them to their end. The answer comes first,
    because the history may have to wait for other commands. Arguments as for `remember`.
    """
    try:
        yield
    finally:
        for document in documents:
            remember(of, document, **called)


def remember(
    of: str, document: Mapping[str, Any], *, target: str = "", call: bool = False, base: str = "", inputs: str = ""
) -> None:
    """Keeps the result of a command in the history, where that is on. What goes wrong is said on stderr.

    Args:
        of: bench, compare, climb or profile.
        document: What --json prints, as plain values.
        target: As it was typed.
        call: Whether the target is a plain function.
        base: The git revision of A in a comparison.
        inputs: What makes the arguments of functions that are compared, as it was typed.
    """
    try:
        from rung.config import keeps_history
        from rung.runs.entries import Call, entry_of
        from rung.runs.history import open_history

        if keeps_history():
            command = shlex.join(["rung", *sys.argv[1:]])
            open_history(say=say).add(entry_of(of, document, Call(command, target, call, base, inputs)))
    except Exception as error:
        say(f"note: this run was not added to the history: {str(error).rstrip('.')}. RUNG_HISTORY=off keeps none.")
