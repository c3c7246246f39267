"""What the climb that wrote a recipe measured of it, to be held beside a measurement of one more process."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rung.recipes.recipe import Recipe
from rung.renamed import with_current_names
from rung.side import Side

# How far processes of one program differ where a climb did not restart them often enough to tell.
USUAL_SPREAD = 0.03


def measured_by_the_climb(recipe: Path, side: Side) -> dict[str, Any] | None:
    """From the result.json beside a recipe: `time` of a step (ns), `restarts`, `spread`, the share by which the medians of
    their processes differ at most, and the recipe's `status`. None where there is no such file, or it is of another recipe,
    target or options."""
    made = Recipe.read(recipe)
    try:
        result = json.loads(with_current_names((recipe.parent / "result.json").read_text(encoding="utf-8")))
        same = result["recipe_text"] == made.text() and made.rungs == side.rungs
        if not same or made.options_for(side.target, {}) != side.options or not made.workload:
            return None
        time = {end: float(result["times"]["best"][end]) for end in ("value", "low", "high")}
        medians = [statistics.median(restart["candidate"]) for restart in result["restarts"]]
    except (OSError, ValueError, TypeError, LookupError):  # no climb's folder, or a damaged one
        return None
    spread = max(medians) / min(medians) - 1 if len(medians) > 1 else USUAL_SPREAD
    return {"time": time, "restarts": max(1, len(medians)), "spread": spread, "status": made.status}


def held_beside(climb: Mapping[str, Any], time: Mapping[str, float]) -> dict[str, Any]:
    """The climb's figures, with `slower`, the share by which `time` is above theirs (below 0 where it is faster), and `agrees`: whether
    the two intervals meet once each may be off by the spread of the processes."""
    theirs, reach = climb["time"], 1 + climb["spread"]
    agrees = time["low"] <= theirs["high"] * reach and theirs["low"] <= time["high"] * reach
    return {**climb, "slower": time["value"] / theirs["value"] - 1, "agrees": agrees}
