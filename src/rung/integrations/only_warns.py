"""Warnings that stay warnings where Python makes errors of them (`-W error`): a callback is not to end a training that it only warns of."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator

log = logging.getLogger(__name__)


@contextlib.contextmanager
def only_warns() -> Iterator[None]:
    """Where Python makes errors of warnings, what is warned of inside is warned of at its end, as the user's filters have it; one that they
    raise is logged."""
    if not any(action == "error" for action, *_ in warnings.filters):
        yield
        return
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        yield
    for one in seen:
        try:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
        except Warning:
            log.warning("%s", one.message)
