"""How noisy the machine was during a climb, in two figures."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any


def told(attempts: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """How noisy the machine was while these were timed. waited: the largest share of an attempt's time in which a side waited for a core, in
    the middle of all attempts; visible: the smallest gain that an attempt of several restarts would have shown four times in five, in
    the middle of those. None where neither is known."""
    waited = [max(found) for a in attempts if (found := _shares(a.get("waited")))]
    comparisons = [a.get("comparison") for a in attempts]
    visible = [share for c in comparisons if isinstance(c, dict) for share in _shares({"": c.get("visible")})]
    if not waited and not visible:
        return None
    return {
        "waited": statistics.median(waited) if waited else None,
        "visible": statistics.median(visible) if visible else None,
    }


def _shares(found: Any) -> list[float]:
    """Those that are finite numbers; attempts of an earlier sitting are read from files, which may be damaged."""
    values = found.values() if isinstance(found, dict) else ()
    return [value for value in values if isinstance(value, (int, float)) and math.isfinite(value)]
