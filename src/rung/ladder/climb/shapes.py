"""The whole stack on shapes that were not used for the choice, and where it has to step back."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rung.ladder.climb.room import beside_the_baseline
from rung.ladder.climb.state import State
from rung.ladder.timing.duel import SideFailed, fight
from rung.measure import CLIMB

SHAPE_SECONDS = 60.0  # that each further shape may take, however little the budget left


def on_other_shapes(state: State) -> list[dict[str, Any]]:
    """One record a shape that the workload offers beside the measured one: `shape` in words, `elements` of its tensors,
    and the `speedup` over the baseline there with its `answer`; or `why` there is none. A shape on which the stack
    fails is one on which the original has to run."""
    found, measured = [], max(1, state.facts.get("shapes", [{"elements": 1}])[0]["elements"])
    for number, shape in enumerate(state.facts.get("shapes", [])[1:], start=1):
        state.say("shape", shape)
        left = _until(time.monotonic() + max(min(state.left(), 3 * SHAPE_SECONDS), SHAPE_SECONDS))
        sides = {"best": state.side([], shape=number), "candidate": state.side(state.kept, shape=number)}
        try:
            duel = fight(
                beside_the_baseline(state, shape["elements"] / measured),
                sides,
                log=f"shape-{number}",
                left=left,
                looks=CLIMB,
            )
        except SideFailed as failure:
            answer = "fails" if failure.side == "candidate" else "unknown"
            found.append({**shape, "answer": answer, "speedup": None, "why": str(failure)})
            continue
        assert duel.comparison is not None
        found.append({**shape, "answer": duel.comparison.answer, "speedup": duel.comparison.speedup.as_dict()})
    return found


def _until(end: float) -> Callable[[], float]:
    return lambda: end - time.monotonic()


def guard(shapes: list[dict[str, Any]], measured: int) -> dict[str, int]:
    """Where the original runs instead: inputs of at most or at least so many elements, all tensors together.

    shapes: as `on_other_shapes` found them; measured: the elements of the shape that was climbed, which is never
    guarded: of two shapes on the same side, the one nearer to it decides.
    """
    lost = [s["elements"] for s in shapes if s["answer"] in ("slower", "fails")]
    smaller, larger = [n for n in lost if n < measured], [n for n in lost if n > measured]
    return {**({"elements_at_most": max(smaller)} if smaller else {}),
            **({"elements_at_least": min(larger)} if larger else {})}  # fmt: skip
