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
    waited = [max(shares.values()) for a in attempts if (shares := a.get("waited"))]
    smallest = [(a.get("comparison") or {}).get("visible") for a in attempts]
    visible = [share for share in smallest if share is not None and math.isfinite(share)]
    if not waited and not visible:
        return None
    return {
        "waited": statistics.median(waited) if waited else None,
        "visible": statistics.median(visible) if visible else None,
    }
