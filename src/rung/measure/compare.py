"""Is B faster than A? Decided from interleaved blocks over several restarts of both.

Two processes differ by layout luck by more than the effects that matter, so the restart is the unit of
evidence: within one restart the blocks alternate A B B A, each such quad gives one log-ratio, their
Hodges-Lehmann estimate is that restart's answer, and Student's interval over the restarts is the result.

How many restarts is decided by looking at fixed points. Each look spends its share of the 5 % of false
alarms (Bonferroni over the looks), so that stopping early for a large effect costs no honesty.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rung.measure.stats import Interval, hodges_lehmann, t_interval

#        restarts, share of the false alarms spent at this look
LOOKS = ((2, 0.015), (4, 0.015), (7, 0.02))

Answer = Literal["faster", "slower", "undecided"]


@dataclass(frozen=True)
class Restart:
    """One pair of fresh processes: quads of block medians (a, b, b, a) in nanoseconds a step."""

    quads: tuple[tuple[float, float, float, float], ...]

    def log_ratio(self) -> float:
        """log(time of A / time of B): positive when B is faster."""
        return hodges_lehmann(
            [(math.log(q[0]) + math.log(q[3]) - math.log(q[1]) - math.log(q[2])) / 2 for q in self.quads]
        )


@dataclass(frozen=True)
class Comparison:
    """speedup: time of A over time of B, above 1 where B is faster; final: no further look is planned."""

    answer: Answer
    speedup: Interval
    restarts: int
    confidence: float
    final: bool

    def as_dict(self) -> dict[str, object]:
        return {
            "answer": self.answer,
            "speedup": self.speedup.as_dict(),
            "restarts": self.restarts,
            "confidence": self.confidence,
            "final": self.final,
        }


def until_next_look(restarts: int) -> int:
    """How many more restarts there are to the next planned look; 1 after the last of them."""
    return next((n - restarts for n, _ in LOOKS if n > restarts), 1)


def decide(restarts: Sequence[Restart], *, last: bool = False) -> Comparison | None:
    """The answer at a planned look, or None between looks. `last` forces an answer with what there is
    (a budget that ran out), at the confidence of the next planned look."""
    n = len(restarts)
    look = next((k for k in LOOKS if k[0] >= n), LOOKS[-1])
    if n != look[0] and not last:
        return None
    confidence = 1 - look[1]
    logs = t_interval([r.log_ratio() for r in restarts], confidence)
    # One restart says nothing of how far two would differ: its interval has no end.
    speedup = Interval(*(math.exp(v) if v < 20 else math.inf for v in (logs.value, logs.low, logs.high)))
    answer: Answer = "faster" if logs.low > 0 else "slower" if logs.high < 0 else "undecided"
    # Giving up on what looks no faster costs power only, never a false alarm.
    hopeless = logs.value <= 0
    return Comparison(answer, speedup, n, confidence, last or hopeless or answer != "undecided" or n >= LOOKS[-1][0])
