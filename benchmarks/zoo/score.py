"""What the tables of the zoo count, of the rows of a results file. No torch here."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rows import Row, Timed

from rung.measure.stats import t_interval

KEPT, SLOWER, REFUSED, NO_EFFECT, UNDECIDED, FAILED, INAPPLICABLE, UNREACHED = (
    "kept", "reverted", "refused by verification", "no effect", "undecided", "failed", "inapplicable", "not reached",
)  # fmt: skip
OUTCOMES = (KEPT, SLOWER, REFUSED, NO_EFFECT, UNDECIDED, FAILED, INAPPLICABLE, UNREACHED)
_OF_VERDICT = {
    "kept": SLOWER,  # and not in the end: something that replaced it was faster
    "reverted": SLOWER, "no-op": NO_EFFECT, "inconclusive": UNDECIDED, "failed": FAILED, "inapplicable": INAPPLICABLE, "not yet": INAPPLICABLE,
}  # fmt: skip
CHECKED = ("verified", "confirmed")  # statuses of a recipe whose results were compared with float64 in full


@dataclass(frozen=True)
class Mean:
    """A geometric mean of `count` ratios, and its 95 % interval over models, where there are several."""

    value: float
    low: float | None
    high: float | None
    count: int

    def __str__(self) -> str:
        around = f" ({self.low:.2f}–{self.high:.2f})" if self.low is not None and self.high is not None else ""
        return f"{self.value:.2f}×{around}"


def geometric_mean(ratios: Iterable[float | None]) -> Mean | None:
    logs = [math.log(r) for r in ratios if r]
    if not logs:
        return None
    mean = math.exp(statistics.fmean(logs))
    if len(logs) < 2:
        return Mean(mean, None, None, len(logs))
    around = t_interval(logs, 0.95)
    return Mean(mean, math.exp(around.low), math.exp(around.high), len(logs))


# ---- one row ---------------------------------------------------------------------------------------------


def status(row: Row) -> str:
    """Of its recipe; empty where it has none."""
    return (row.climb.result.get("status") or "") if row.climb else ""


def kept(row: Row) -> list[str]:
    return list(row.climb.result.get("kept") or []) if row.climb else []


def crashed(row: Row) -> bool:
    return bool(row.climb and row.climb.crash)


def mine(row: Row) -> Timed | None:
    """What a user of Rung has in the end: the recipe in a fresh process, or eager where there is none. None where that is not known."""
    if row.climb is None:
        return None
    if not status(row):
        return row.eager
    applied = row.climb.applied
    return applied if applied and applied.step_ms else None


def rival(row: Row) -> Timed | None:
    """The best without Rung at this precision: the fastest of eager and the modes of torch.compile."""
    return min((t for t in (row.eager, *row.plain) if t and t.step_ms), key=lambda t: t.step_ms or 0.0, default=None)


def best_mode(row: Row) -> Timed | None:
    """The fastest mode of torch.compile."""
    return min((t for t in row.plain if t.step_ms), key=lambda t: t.step_ms or 0.0, default=None)


def over(row: Row, other: Timed | None) -> float | None:
    """How many times as fast as the other: both in fresh processes, by one clock."""
    ours = mine(row)
    if ours is None or other is None or not ours.step_ms or not other.step_ms:
        return None
    return other.step_ms / ours.step_ms


def over_best(row: Row) -> float | None:
    return over(row, rival(row))


def over_eager(row: Row) -> float | None:
    return over(row, row.eager)


def over_mode(row: Row, mode: str = "default") -> float | None:
    """Over one mode of torch.compile; over eager where that mode does not run, as a user would fall back to it."""
    return over(row, next((t for t in row.plain if t.mode == mode and t.step_ms), row.eager))


def at_most(row: Row) -> float | None:
    """The upper end of the interval over the climb's best plain candidate, of fresh restarts that took turns."""
    high = ((row.climb.result.get("over_plain") or {}) if row.climb else {}).get("high")
    return float(high) if high is not None else None


def memory_ratio(row: Row) -> float | None:
    """Peak memory with the recipe over that of eager."""
    ours = mine(row)
    if ours is None or not ours.peak_bytes or row.eager is None or not row.eager.peak_bytes:
        return None
    return ours.peak_bytes / row.eager.peak_bytes


def answer_after(row: Row, least: str) -> float | None:
    """Seconds until the first recipe of this status or a better one; None where it never came."""
    order = ("provisional", *CHECKED)
    wanted = order[order.index(least) :]
    history = (row.climb.result.get("history") or []) if row.climb else []
    return min((float(h["seconds"]) for h in history if h["status"] in wanted), default=None)


def distance(row: Row) -> float | None:
    """Of the final recipe, the error of the check nearest to its tolerance, as a multiple of the untouched model's own."""
    if row.climb is None:
        return None
    final = kept(row)
    worst = next(
        (a.worst for a in reversed(row.climb.attempts) if a.verdict == "kept" and a.stack == final and a.worst), None
    )
    return float(worst["ratio"]) if worst else None


# ---- many rows -------------------------------------------------------------------------------------------


def climbed(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if row.climb]


def share_below(rows: Iterable[Row], least: float = 0.99) -> tuple[int, int, int]:
    """Rows whose ratio over the best without Rung is below; those of whose interval in the climb that holds, too; all that have one."""
    known = [(row, ratio) for row in rows if (ratio := over_best(row)) is not None]
    below = [row for row, ratio in known if ratio < least]
    shown = [row for row, _ in known if (high := at_most(row)) is not None and high < least]
    return len(below), len(shown), len(known)


def covered(rows: Iterable[Row]) -> tuple[int, int]:
    """Climbs that end with a recipe or a sentence that says why there is none, and all climbs."""
    ran = climbed(rows)
    return sum(1 for row in ran if not crashed(row) and (status(row) or (row.climb and row.climb.why))), len(ran)


def fast(rows: Sequence[Row], p: float, ratio: Callable[[Row], float | None]) -> float | None:
    """KernelBench's fast_p: the share of all problems that are correct and more than p times as fast. Correct is what passed the whole
    verification; a problem that could not be run counts as not fast."""
    if not rows:
        return None
    return sum(1 for row in rows if status(row) in CHECKED and (ratio(row) or 0.0) > p) / len(rows)


def quantile(values: Iterable[float | None], share: float) -> float:
    """The smallest value that this share of all does not exceed; what never came is infinite."""
    ordered = sorted(math.inf if v is None else v for v in values)
    if not ordered:
        return math.nan
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def more_memory(rows: Iterable[Row], tolerance: float = 1.01) -> int:
    return sum(1 for row in rows if (memory_ratio(row) or 0.0) > tolerance)


def outcomes(row: Row) -> dict[str, str]:
    """By rung, what came of it in this climb; of several attempts the last one. A rung that is in no attempt is not there."""
    found: dict[str, str] = {}
    for attempt in row.climb.attempts if row.climb else ():
        what = REFUSED if attempt.refused else _OF_VERDICT.get(attempt.verdict, UNDECIDED)
        for name in attempt.members or [attempt.rung]:
            found[name] = what
    return {**found, **dict.fromkeys(kept(row), KEPT)}


def matrix(rows: Iterable[Row], rungs: Iterable[str]) -> dict[str, dict[str, str]]:
    """By rung and row, the outcome."""
    seen = {row.label: outcomes(row) for row in climbed(rows)}
    return {rung: {label: of.get(rung, UNREACHED) for label, of in seen.items()} for rung in rungs}


def grouped(rows: Iterable[Row]) -> dict[tuple[float, str], list[Row]]:
    """KernelBench aside: by budget and variant."""
    found: dict[tuple[float, str], list[Row]] = {}
    for row in rows:
        if row.family != "kernelbench":
            found.setdefault((row.budget_s, row.variant), []).append(row)
    return dict(sorted(found.items()))


def levels(rows: Iterable[Row]) -> dict[tuple[str, str], list[Row]]:
    """KernelBench's problems by level and precision."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.family == "kernelbench" and (level := re.search(r"level\d+", row.name)):
            found.setdefault((level[0], row.numerics), []).append(row)
    return dict(sorted(found.items()))
