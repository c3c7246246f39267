"""Records of a climb out of the few fields that a test is about."""

from typing import Any

from rung.records.climb import Attempt, Mode
from rung.records.compare import Interleaved
from rung.records.record import record_of


def attempt(**fields: Any) -> Attempt:
    return record_of(Attempt, {"number": 1, "rung": "x", "verdict": "", "against": "baseline", **fields})


def mode(*rungs: str, **fields: Any) -> Mode:
    """A plain mode of these rungs."""
    return record_of(Mode, {"rungs": rungs, **fields})


def compared(answer: str, speedup: float, apart: float = 0.01) -> dict[str, Any]:
    """What three restarts say that decided it, as plain values. apart: the ends of the interval from the speedup."""
    said = {"restarts": 3, "confidence": 0.95, "margin": None, "visible": None, "final": True, "cut": False}
    return {**said, "answer": answer, "speedup": {"value": speedup, "low": speedup - apart, "high": speedup + apart}}


def restarts(answer: str = "faster", gain: float = 2.0, **more: Any) -> Interleaved:
    """What restarts gave, in which the candidate is so many times as fast as the best."""
    times = {side: {"value": ns, "low": ns, "high": ns} for side, ns in (("best", 1e7), ("candidate", 1e7 / gain))}
    seen = {
        "comparison": compared(answer, gain), "ranking": None, "restarts": [{}], "times": times, "memory": {"best": {}, "candidate": {}},
        "first_run_seconds": {"best": 1.0, "candidate": 1.0}, "warm_up": [], "applied": {}, "matches": {},
        "hidden": {"best": 0.0, "candidate": 0.0}, "witness": {}, "compiled_while_timed": {}, "waited": {}, "cpu_time": None,
        "warnings": [],
    }  # fmt: skip
    return record_of(Interleaved, {**seen, **more})
