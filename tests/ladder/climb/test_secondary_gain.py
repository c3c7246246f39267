"""Rungs that are kept for something else than a shorter step: as fast within 1 %, and it has to be worth something."""

from typing import Any

import pytest
from attempt_records import attempt

from rung.ladder.climb.verdict import rejection, secondary_gain
from rung.measure import Comparison, Interval
from rung.measure.compare import Answer
from rung.rungs import BY_NAME

GIB = 2**30
ENOUGH: dict[str, dict[str, Any]] = {
    "compile-regions": {"first_run_seconds": {"best": 90.0, "candidate": 30.0}},
    "expandable-segments": {"memory": {"best": {"reserved": 10 * GIB}, "candidate": {"reserved": 8 * GIB}}},
    "recompute": {
        "memory": {
            "best": {"allocated": 6 * GIB, "reserved": 9 * GIB},
            "candidate": {"allocated": 5 * GIB, "reserved": 9 * GIB},
        }
    },
    "dynamic-shapes": {
        "over_shapes": {
            "best": {"graphs": 5, "seconds": 60.0, "shapes": 5},
            "candidate": {"graphs": 1, "seconds": 12.0, "shapes": 5},
        }
    },
}
TOO_LITTLE: dict[str, dict[str, Any]] = {
    "compile-regions": {"first_run_seconds": {"best": 90.0, "candidate": 50.0}},
    "expandable-segments": {"memory": {"best": {"reserved": 10 * GIB}, "candidate": {"reserved": int(9.2 * GIB)}}},
    "recompute": {"memory": {"best": {"allocated": 6 * GIB}, "candidate": {"allocated": int(5.5 * GIB)}}},
    "dynamic-shapes": {"over_shapes": {s: {"graphs": 2, "seconds": 9.0, "shapes": 2} for s in ("best", "candidate")}},
}


def verdict(
    name: str, record: dict[str, Any], low: float, answer: Answer = "undecided", slower_at_most: float = 0.01
) -> str | None:
    comparison = Comparison(answer, Interval(low + 0.005, low, low + 0.01), 3, 0.95, None, 0.01, True)
    found = rejection(attempt(cut=False, **record), BY_NAME[name], comparison, slower_at_most)
    return found[0] if found else None


@pytest.mark.parametrize("name", ENOUGH)
def test_it_is_kept_where_it_is_as_fast_and_spares_enough(name: str) -> None:
    assert verdict(name, ENOUGH[name], 0.992) is None
    assert verdict(name, ENOUGH[name], 0.985) == "inconclusive"
    assert verdict(name, ENOUGH[name], 0.9, "slower") == "reverted"
    assert verdict(name, TOO_LITTLE[name], 0.992) == "inconclusive"


def test_what_is_spared_is_said_with_its_figures() -> None:
    said = {name: secondary_gain(attempt(**record), BY_NAME[name]) for name, record in ENOUGH.items()}
    assert said["compile-regions"] == "its first run takes 30 s instead of 90 s"
    assert said["expandable-segments"] == "it reserves 8.00 GiB instead of 10.00 GiB at its peak"
    assert said["recompute"] == "it takes 5.00 GiB instead of 6.00 GiB at its peak"
    assert said["dynamic-shapes"] == "it compiles 1 graph instead of 5, 12 s instead of 60 s for 5 shapes"
    assert secondary_gain(attempt(), BY_NAME["capture"]) is None


def test_what_it_may_cost_is_the_users_to_say() -> None:
    assert verdict("recompute", ENOUGH["recompute"], 0.97, "slower") == "reverted"
    assert verdict("recompute", ENOUGH["recompute"], 0.97, "slower", slower_at_most=0.05) is None
    assert verdict("recompute", TOO_LITTLE["recompute"], 0.97, "slower", slower_at_most=0.05) == "reverted"


def test_a_rung_for_the_step_alone_is_not_kept_for_being_as_fast() -> None:
    assert verdict("capture", ENOUGH["compile-regions"], 0.999) == "inconclusive"
