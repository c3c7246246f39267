"""One event table, one reader a format. No torch, no GPU: a laptop reads any trace."""

from rung.trace.open import read
from rung.trace.table import Trace

__all__ = ["Trace", "read"]
