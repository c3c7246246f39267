"""The end of a climb: the whole stack against the baseline once more, in fresh processes, and the recipe."""

from __future__ import annotations

import time
from typing import Any

from rung.errors import WorkloadError
from rung.ladder.climb import predictions
from rung.ladder.climb.choice import Stop
from rung.ladder.climb.room import beside_the_baseline
from rung.ladder.climb.shapes import guard, on_other_shapes
from rung.ladder.climb.state import State
from rung.ladder.recipes.recipe import Recipe
from rung.ladder.rungs import plan_of
from rung.ladder.timing.duel import SideFailed, fight
from rung.ladder.timing.workers import variables
from rung.measure import CLIMB, FINAL
from rung.runs import write_whole

FINAL_SECONDS = 120.0  # that the final comparison may take, however little the budget left


def finish(state: State, stop: Stop) -> None:
    """Writes result.json and, where something was kept, recipe.toml; `stop` is why nothing more was tried."""
    result: dict[str, Any] = {
        "kept": state.kept, "speedup": None, "confidence": None, "times": None, "memory": None,
        "breakdown": state.breakdown, "recipe": None, "recipe_text": "",
        "stopped": stop.as_dict(), "predictions": predictions.summary(state.attempts),
    }  # fmt: skip
    if state.kept:
        state.say("final", {"kept": state.kept})
        result |= _compared(state)
        result["shapes"] = on_other_shapes(state)
        recipe = _recipe(state, result)
        result |= {"recipe": "recipe.toml", "recipe_text": recipe.text()}
        write_whole(state.run.directory / "recipe.toml", recipe.text())
    result["seconds"] = state.spent()
    state.run.write("result.json", result)
    state.run.write("manifest.json", {**state.run.read("manifest.json"), "stopped": stop.as_dict()})
    state.status("complete", stop.why if stop.rule == "budget" else "")


def _compared(state: State) -> dict[str, Any]:
    left, setup = state.left(), beside_the_baseline(state)
    end = time.monotonic() + max(left, FINAL_SECONDS)
    try:
        duel = fight(
            setup,
            {"best": state.side([]), "candidate": state.side(state.kept)},
            log="final",
            left=lambda: end - time.monotonic(),
            looks=FINAL if setup.together > 1 and left > FINAL_SECONDS else CLIMB,
            at_least=CLIMB[0][0],
        )
    except SideFailed as failure:
        raise WorkloadError(f"the final comparison failed: {failure}; `--resume` tries it again.") from failure
    seen = duel.as_dict()
    assert duel.comparison is not None
    return {
        "speedup": duel.comparison.speedup.as_dict(),
        "confidence": duel.comparison.confidence,
        # Cut short, it says only how much the kept rungs give together; each has its own proof.
        "confirmed": duel.comparison.answer == "faster" or duel.comparison.cut,
        "times": {"baseline": seen["times"]["best"], "best": seen["times"]["candidate"]},
        "memory": {"baseline": seen["memory"]["best"], "best": seen["memory"]["candidate"]},
        "first_run_seconds": {"baseline": seen["first_run_seconds"]["best"], "best": seen["first_run_seconds"]["candidate"]},
        "restarts": duel.samples,
    }  # fmt: skip


def _recipe(state: State, result: dict[str, Any]) -> Recipe:
    manifest = state.run.read("manifest.json")
    environment, device = manifest["environment"], manifest["environment"]["device"]
    return Recipe(
        tuple(state.kept),
        state.request.target,
        state.request.options,
        state.facts["mode"],
        state.numerics,
        {"device": device["name"], "arch": device["arch"], "torch": environment["torch"],
         "model": manifest["workload"].get("model", "")},
        {**{k: round(result["speedup"][v], 4) for k, v in (("speedup", "value"), ("low", "low"), ("high", "high"))},
         "confidence": result["confidence"]},
        variables(plan_of(state.kept), state.setup.files),
        guard(result["shapes"], state.facts.get("shapes", [{"elements": 0}])[0]["elements"]),
    )  # fmt: skip
