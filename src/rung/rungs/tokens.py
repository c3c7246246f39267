"""What a rung gives where that depends on how many tokens a step has; the thresholds are in tokens.toml."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rung.rungs.rung import Context
from rung.toml import shipped


def ranges() -> tuple[Mapping[str, Any], ...]:
    """The rows of tokens.toml."""
    return tuple(shipped("rungs/tokens.toml")["range"])


def shrinks_by_tokens(rung: str) -> Callable[[Context], dict[str, tuple[float, float]]]:
    """The factors of the first row for this rung that covers the workload's mode and tokens a step."""

    def shrinks(c: Context) -> dict[str, tuple[float, float]]:
        row = next(
            row for row in ranges() if rung in row["rungs"] and _covers(row, c.facts.mode, c.facts.tokens or None)
        )
        return {part: (best, worst) for part, (best, worst) in row["shrinks"].items()}

    return shrinks


def _covers(row: Mapping[str, Any], mode: str, tokens: int | None) -> bool:
    most = row.get("tokens_at_most")
    return row.get("mode", mode) == mode and (most is None or (tokens is not None and tokens <= most))
