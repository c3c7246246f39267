"""What the climb that wrote a recipe measured of it, to be held beside a measurement of one more process."""

from __future__ import annotations

import statistics
from pathlib import Path

import msgspec

from rung.recipes.recipe import Recipe
from rung.records.bench import Climbed, ClimbFigures
from rung.records.climb import Result
from rung.records.measured import Interval
from rung.records.record import record_of
from rung.renamed import with_current_names
from rung.side import Side

# How far processes of one program differ where a climb did not restart them often enough to tell.
USUAL_SPREAD = 0.03


def measured_by_the_climb(recipe: Path, side: Side) -> ClimbFigures | None:
    """From the result.json beside a recipe. None where there is no such file, or it is of another recipe, target or options."""
    made = Recipe.read(recipe)
    try:
        text = with_current_names((recipe.parent / "result.json").read_text(encoding="utf-8"))
        result = msgspec.json.decode(text, type=Result)
        same = result.recipe_text == made.text() and made.rungs == side.rungs
        if (
            not same
            or made.options_for(side.target, {}) != side.options
            or not made.workload
            or result.restarts is None
        ):
            return None
        time = record_of(Interval, (result.times or {})["best"])
        medians = [statistics.median(restart["candidate"]) for restart in result.restarts]
    except (OSError, ValueError, LookupError, msgspec.MsgspecError):  # no climb's folder, or a damaged one
        return None
    spread = max(medians) / min(medians) - 1 if len(medians) > 1 else USUAL_SPREAD
    return ClimbFigures(time=time, restarts=max(1, len(medians)), spread=spread, status=made.status)


def held_beside(climb: ClimbFigures, time: Interval) -> Climbed:
    """The climb's figures beside a time of now."""
    theirs, reach = climb.time, 1 + climb.spread
    agrees = time.low <= theirs.high * reach and theirs.low <= time.high * reach
    slower = time.value / theirs.value - 1
    return Climbed(
        time=theirs,
        restarts=climb.restarts,
        spread=climb.spread,
        status=climb.status,
        slower=slower,
        agrees=agrees,
    )
