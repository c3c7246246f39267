"""Numbers as people read them. A value that is missing, or not a finite number, is shown as a dash."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Mapping
from typing import Any, Protocol

from msgspec import UNSET

from rung import quantities
from rung.quantities import digits as digits
from rung.quantities import scaled
from rung.text import visible

NONE = "–"
ANY = 100.0  # an interval of ratios whose ends are so many times apart says nothing
_ENERGIES = (("µJ", 1e-6), ("mJ", 1e-3), ("J", 1.0), ("kJ", 1e3))
_SIZES = (("B", 0), ("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40))
_COUNTS = (("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12), ("P", 1e15))


class Span(Protocol):
    """The ends of an interval; one that is not known is no number."""

    @property
    def low(self) -> object: ...
    @property
    def high(self) -> object: ...


class Estimate(Span, Protocol):
    """A figure with its interval, such as a record's `Interval`, `Ratio` or `Figure`."""

    @property
    def value(self) -> object: ...


def number(value: Any) -> float | None:
    """The value as a float where it is a finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # a whole number of more than 308 digits
        return None


def clean(text: Any) -> str:
    """Text from a stranger without control characters, which could steer a terminal or break XML."""
    return "" if text is None or text is UNSET else visible(str(text))


def one_line(text: Any) -> str:
    """Clean, and on one line: a name may have line breaks and tabs in it."""
    return " ".join(clean(text).split())


_SPACE_BEFORE_UNIT = (
    r"(?:(?<=\d) (?=(?:%|[nµm]?s|min|h|[KMGT]?i?B|[MGT]B/s)(?!\w))|(?<=\d min) (?=\d+ s\b)|(?<=\d h) (?=\d+ min\b))"
)
WORD = rf"\s*(?:\S|{_SPACE_BEFORE_UNIT})+"  # with the space before it; a number and its unit are one


def wrapped(text: str, width: int, first: str = "", rest: str = "") -> list[str]:
    """The text in lines of at most `width`, a number never parted from its unit; first, rest: what they begin with."""
    glued = re.sub(_SPACE_BEFORE_UNIT, "\u00a0", text)
    lines = textwrap.wrap(glued, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)
    return [line.replace("\u00a0", " ") for line in lines]


def energy(joules: Any) -> str:
    """0.0123 -> "12.3 mJ"."""
    value = number(joules)
    return NONE if value is None else " ".join(scaled(value, _ENERGIES))


def duration(nanoseconds: Any) -> str:
    """2_750_000 -> "2.75 ms"."""
    value = number(nanoseconds)
    return NONE if value is None else quantities.duration(value)


def round_duration(nanoseconds: float, significant: int = 3) -> str:
    """A duration that is a round number, as on an axis: 20_000_000 -> "20 ms"."""
    value, unit = quantities.duration(nanoseconds, significant).split()
    whole = len(str(int(float(value))))  # with fewer digits than this, Python writes 1e+02
    return f"{float(value):.{max(significant, whole)}g} {unit}"


def seconds(value: Any) -> str:
    """Seconds that someone waited: "0.85 s", "34 s", "12 min 5 s", "2 h 3 min"."""
    known = number(value)
    if known is None:
        return NONE
    if known < 10:
        return duration(known * 1e9)
    whole = round(known)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _size(value: float) -> tuple[str, str]:
    unit, power = next((u, p) for u, p in reversed(_SIZES) if p == 0 or abs(value) >= 0.9995 * 2**p)
    size = value / 2**power
    return (f"{size:.1f}" if power and abs(size) < 99.95 else f"{size:.0f}"), unit


def data_size(value: Any) -> str:
    """1_288_490_189 -> "1.2 GiB"."""
    known = number(value)
    return NONE if known is None else " ".join(_size(known))


def rate(per_second: Any, unit: str) -> str:
    """3.2e12 and "B/s" -> "3.20 TB/s"; powers of ten, as data sheets count."""
    value = number(per_second)
    if value is None:
        return NONE
    shown, prefix = scaled(value, _COUNTS)
    return f"{shown} {prefix}{unit}"


def data_sizes(before: Any, after: Any) -> str:
    """ "3.1 → 1.2 GiB", the unit said once where both share it; "" where one is unknown."""
    first, second = number(before), number(after)
    if first is None or second is None:
        return ""
    (a, unit_a), (b, unit_b) = _size(first), _size(second)
    return f"{a} → {b} {unit_b}" if unit_a == unit_b else f"{a} {unit_a} → {b} {unit_b}"


def peak(memory: Mapping[str, int] | None) -> float | None:
    """The one figure for bytes by kind: what was allocated on the device, else what is resident."""
    known = memory or {}
    allocated = number(known.get("allocated"))
    return number(known.get("resident")) if allocated is None else allocated


def ratio(value: Any) -> str:
    """1.4234 -> "1.42×"."""
    known = number(value)
    return NONE if known is None else f"{quantities.ratio(known)}×"


def span(estimate: Span | None) -> str:
    """The interval of ratios alone: "1.38–1.47", "" where there is none, or one that says nothing."""
    low, high = _ends(estimate)
    if low is None or high is None or (low < 1 < high and high > ANY * low):
        return ""
    return f"{quantities.ratio(low)}–{quantities.ratio(high)}"


def interval(estimate: Estimate | None) -> str:
    """A ratio with its interval: "1.42× (1.38–1.47)"."""
    between = span(estimate)
    return ratio(estimate and estimate.value) + (f" ({between})" if between else "")


def duration_interval(estimate: Estimate | None) -> str:
    """Nanoseconds with their interval: "2.75 ms (2.71 ms – 2.80 ms)"."""
    low, high = _ends(estimate)
    text = duration(estimate and estimate.value)
    return text if low is None or high is None else f"{text} ({duration(low)} – {duration(high)})"


def _ends(estimate: Span | None) -> tuple[float | None, float | None]:
    return (None, None) if estimate is None else (number(estimate.low), number(estimate.high))


def percent(share: Any) -> str:
    """0.42 -> "42%", 0.985 -> "98.5%", 0.004 -> "0.4%"."""
    known = number(share)
    return NONE if known is None else f"{known * 100:.1f}".removesuffix(".0") + "%"


def count(value: Any) -> str:
    """31_500_000 -> "31.5 M"; whole numbers under ten thousand stay as they are."""
    known = number(value)
    if known is None:
        return NONE
    # A mean of whole numbers may miss one by a bit.
    if abs(known) < 10_000 and math.isclose(known, round(known), rel_tol=1e-9):
        return str(round(known))
    return " ".join(scaled(known, _COUNTS)).rstrip()


def small(value: Any) -> str:
    """An error or a tolerance: "2.4e-03", "0.12"."""
    known = number(value)
    return NONE if known is None else f"{known:.2g}"
