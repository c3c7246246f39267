"""Which rung is next."""

from __future__ import annotations

from typing import Any

from rung.ladder.climb.state import State
from rung.ladder.rungs import Rung


def tries(state: State, rung: Rung) -> list[dict[str, Any]]:
    """The attempts at this rung that came to an end."""
    return [a for a in state.run.attempts() if a["rung"] == rung.name and not a.get("cut")]


def worth_another(state: State, rung: Rung) -> bool:
    """A rung that gave nothing while something else held the step up is tried once more, when that is gone:
    faster matrix products do not show on a GPU that waits for its launches."""
    made = tries(state, rung)
    if len(made) != 1 or made[0]["against"] == state.best_name:
        return False
    no_gain = made[0]["verdict"] == "inconclusive" or (
        made[0]["verdict"] == "reverted" and "verification" not in made[0]
    )
    return no_gain and rung.applies(state.context()) is None
