"""Numbers of a Chrome trace as the digits say, whatever their form: slow and exact."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Any


def nanoseconds(text: bytes) -> int | None:
    """Integer nanoseconds of a JSON number of microseconds, by its digits; None when it is no number."""
    whole, _, fraction = text.partition(b".")
    if whole.isdigit() and len(fraction) <= 3 and (fraction.isdigit() or not fraction) and len(whole) <= 16:
        return int(whole) * 1000 + int(fraction.ljust(3, b"0"))
    try:
        exact = Decimal(text.decode())
        # A huge exponent would cost memory for a number that no clock shows.
        if not exact.is_finite() or (exact and exact.adjusted() >= 16):
            return None
        return int(exact.scaleb(3).to_integral_value())
    except (InvalidOperation, ValueError):
        return None


def integer(value: Any, otherwise: Any = None, limit: int = 2**63) -> int | None:
    """`value` as an integer that fits its column, or `otherwise` where it is absent."""
    if value is None:
        if otherwise is None:
            return None
        value = otherwise
    if isinstance(value, str):
        try:
            value = int(value)
        except ValueError:
            return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and -limit <= value < limit else None
