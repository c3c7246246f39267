"""Times, ratios and digits as people read them: every room that prints one gives it the same. Below all rooms."""

from __future__ import annotations

import math

_UNITS = (("ns", 1.0), ("µs", 1e3), ("ms", 1e6), ("s", 1e9))


def duration(nanoseconds: float, significant: int = 3) -> str:
    """2_750_000 -> "2.75 ms"."""
    return " ".join(scaled(nanoseconds, _UNITS, significant))


def ratio(value: float) -> str:
    """1.4234 -> "1.42", 14.234 -> "14.2"; its sign, ×, is left to the sentence that it stands in."""
    return f"{value:.2f}" if 0.0995 <= abs(value) < 9.995 or value == 0 else digits(value)


def digits(value: float, significant: int = 3) -> str:
    """A number with so many significant digits, whole digits never cut off and never as 1e+03."""
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(value)))
    decimals = significant - 1 - exponent
    if abs(round(value, decimals)) >= 10 ** (exponent + 1):  # 9.996 rounds to 10.0, not to 10.00
        decimals -= 1
    return f"{value:.{min(max(decimals, 0), 12)}f}"


def scaled(value: float, steps: tuple[tuple[str, float], ...], significant: int = 3) -> tuple[str, str]:
    """The number and its unit, in the largest unit that leaves at least 1 before the point after rounding."""
    unit, size = steps[0]
    for name, scale in steps[1:]:
        if abs(value) < scale * (1 - 0.5 * 10**-significant):
            break
        unit, size = name, scale
    return digits(value / size, significant), unit
