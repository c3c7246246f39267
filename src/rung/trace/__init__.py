"""One event table, one reader a format. No torch, no GPU: a laptop reads any trace."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rung.trace.open import read
    from rung.trace.table import Trace

__all__ = ["Trace", "read"]


def __getattr__(name: str) -> Any:
    """`read` and `Trace`, imported when they are asked for: with them comes polars, which an answer that is kept does without."""
    if name == "read":
        from rung.trace.open import read

        return read
    if name == "Trace":
        from rung.trace.table import Trace

        return Trace
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
