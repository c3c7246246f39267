"""What a rung gives where that depends on how many tokens a step has; the thresholds are in tokens.toml."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from rung.rungs.rung import Context, TimeFactors
from rung.toml import Row, shipped_rows


class Seen(Row, kw_only=True, frozen=True):
    tokens: int
    left: float


class Range(Row, kw_only=True, frozen=True):
    """A row of tokens.toml, whose comment says what its fields are."""

    rungs: list[str]
    mode: str = ""
    tokens_at_most: int | None = None
    remaining: TimeFactors
    seen: list[Seen]
    source: str

    def covers(self, mode: str, tokens: int | None) -> bool:
        most = self.tokens_at_most
        return self.mode in ("", mode) and (most is None or (tokens is not None and tokens <= most))


@cache
def ranges() -> tuple[Range, ...]:
    return shipped_rows("rungs/tokens.toml", "range", Range)


def factors_by_tokens(rung: str) -> Callable[[Context], TimeFactors]:
    """The factors of the first row for this rung that covers the workload's mode and tokens a step."""

    def factors(c: Context) -> TimeFactors:
        mode, tokens = c.facts.mode, c.facts.tokens or None
        return next(row.remaining for row in ranges() if rung in row.rungs and row.covers(mode, tokens))

    return factors
