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
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rung.measure.distributions import normal_quantile, student_quantile
from rung.measure.stats import STUDENT, Interval, Method, hodges_lehmann

# (restarts, share of the false alarms spent at this look)
Looks = tuple[tuple[int, float], ...]
# For a climb, whose rungs give percents and whose restarts cost a compilation. Three restarts, because Student's
# interval of two is nine times as wide.
CLIMB: Looks = ((3, 0.02), (5, 0.015), (8, 0.015))
# The same where restarts are cheap: where processes differ by 2 %, eight of them find a quarter of the gains of 2 %, and thirty
# three quarters (docs/internals/measurement.md).
PATIENT: Looks = ((5, 0.02), (10, 0.012), (18, 0.01), (30, 0.008))
# For finding 2 %, and for showing "the same within 1 %", where two processes of one program differ by 1 %.
COMPARE: Looks = ((5, 0.005), (10, 0.01), (20, 0.015), (30, 0.02))
# For rounds within one process, which cost milliseconds. Half of the usual 5 %, because rounds that follow each other are not
# quite independent: of 102 equal pairs of real operations 6 were called different when they spent all of it.
ROUNDS: Looks = ((16, 0.002), (50, 0.003), (150, 0.005), (500, 0.0075), (1500, 0.0075))

Answer = Literal["faster", "slower", "same", "undecided"]


@dataclass(frozen=True)
class Restart:
    """Fresh processes of all sides: rounds of one figure a block, nanoseconds a step, each side once and, in reverse,
    once again: (a, b, b, a) for two.

    shortest: of each side, its shortest step, where threads waited for a CPU core. Threads of a small step that wait for each
    other make it take a time slice of the scheduler, hundreds of times as long, for many steps in a row. Then the median of a block says
    which side was hit."""

    rounds: tuple[tuple[float, ...], ...]
    shortest: tuple[float, ...] = ()

    def log_ratios(self, a: int = 0, b: int = 1) -> list[float]:
        """log(time of side a / time of side b) in each round: positive when b is faster."""
        return [(math.log(r[a]) + math.log(r[-1 - a]) - math.log(r[b]) - math.log(r[-1 - b])) / 2 for r in self.rounds]

    def usual(self, a: int = 0, b: int = 1) -> float:
        """Their Hodges-Lehmann estimate."""
        return hodges_lehmann(self.log_ratios(a, b))

    def least(self, a: int = 0, b: int = 1) -> float:
        """The same of the shortest steps, where these are known."""
        return math.log(self.shortest[a] / self.shortest[b])

    def log_ratio(self, a: int = 0, b: int = 1) -> float:
        """The restart's answer. Where threads waited, no more is claimed than both the usual and the shortest steps show: the one
        nearer to 0, and 0 where they are on two sides of it."""
        usual = self.usual(a, b)
        if not self.shortest:
            return usual
        least = self.least(a, b)
        return min(usual, least, key=abs) if usual * least > 0 else 0.0


@dataclass(frozen=True)
class Comparison:
    """speedup: time of A over time of B, above 1 where B is faster, with its interval at `confidence`.

    answer: faster, slower, same (within `margin`, shown by two one-sided tests, not by a lack of proof) or
    undecided; visible: the smallest change, as a share, that these restarts would have found four times in
    five; final: no further look is planned; cut: it was made to end before it could be decided.
    """

    answer: Answer
    speedup: Interval
    restarts: int
    confidence: float
    margin: float | None
    visible: float
    final: bool
    cut: bool = False

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def until_next_look(restarts: int, looks: Looks = CLIMB) -> int:
    """How many more restarts there are to the next planned look; 1 after the last of them."""
    return next((n - restarts for n, _ in looks if n > restarts), 1)


def decide(
    restarts: Sequence[Restart], *, looks: Looks = CLIMB, margin: float | None = None, last: bool = False
) -> Comparison | None:
    """The answer at a planned look, or None between looks.

    margin: a share (0.01) within which A and B count as the same; without one, what looks no faster is given up
    at once, as a climb does. last: forces an answer with what there is (a budget that ran out), at the
    confidence of the next planned look.
    """
    if planned(len(restarts), looks, last) is None:
        return None
    return judge([r.log_ratio() for r in restarts], looks=looks, margin=margin, last=last)


def planned(n: int, looks: Looks, last: bool) -> float | None:
    """The share of the false alarms that may be spent at n pieces of evidence; None between the planned looks."""
    look = next((k for k in looks if k[0] >= n), looks[-1])
    return look[1] if n == look[0] or last else None


def judge(
    ratios: Sequence[float],
    *,
    looks: Looks,
    margin: float | None = None,
    last: bool = False,
    method: Method = STUDENT,
) -> Comparison | None:
    """`decide` for independent log-ratios: one a restart, or one a round of a single process."""
    n = len(ratios)
    spent = planned(n, looks, last)
    if spent is None:
        return None
    logs = method.interval(ratios, 1 - spent)
    answer: Answer = "faster" if logs.low > 0 else "slower" if logs.high < 0 else "undecided"
    if margin is not None:
        # Two one-sided tests at `spent` each are this interval lying within the margin (Schuirmann 1987).
        narrow = method.interval(ratios, 1 - 2 * spent)
        if -math.log1p(margin) < narrow.low and narrow.high < math.log1p(margin):
            answer = "same"
    # Giving up on what looks no faster costs power only, never a false alarm.
    hopeless = margin is None and logs.value <= 0
    looked = n in (planned_at for planned_at, _ in looks)  # before the first look nothing was seen that gives up
    return Comparison(
        answer,
        exponential(logs),
        n,
        1 - spent,
        margin,
        _visible(logs, n, spent, method),
        last or hopeless or answer != "undecided" or n >= looks[-1][0],
        last and answer == "undecided" and n < looks[-1][0] and not (hopeless and looked),
    )


def exponential(logs: Interval) -> Interval:
    """Ratios from their logarithms. One restart says nothing of how far two would differ: its interval has no end."""
    return Interval(*(math.exp(v) if v < 20 else math.inf for v in (logs.value, logs.low, logs.high)))


def _visible(logs: Interval, n: int, spent: float, method: Method) -> float:
    """The smallest relative change found with a probability of 80 %: half the interval and the part of a standard
    error that the estimate stays below its truth one time in five."""
    half = logs.high - logs.value
    if not math.isfinite(half):
        return math.inf
    quantile = student_quantile(n - 1, 1 - spent / 2) if method is STUDENT else normal_quantile(1 - spent / 2)
    return math.expm1(half + 0.842 * half / quantile)
