"""Whether the place in its range at which a prediction is expected is fitted on one half of the trials and judged by the other."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

FILE = Path(__file__).parents[2] / "benchmarks" / "ladder" / "calibration.py"
spec = importlib.util.spec_from_file_location("calibration", FILE)
assert spec
assert spec.loader
calibration = sys.modules["calibration"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(calibration)


@given(st.lists(st.tuples(st.floats(0.5, 2), st.floats(1.2, 8)), min_size=2, max_size=20), st.integers(0, 100))
def test_what_lies_at_one_place_in_all_ranges_is_found_there(
    ranges: list[tuple[float, float]], hundredths: int
) -> None:
    place = hundredths / 100
    made = [
        calibration.Trial("a", low, low * wide, 1 / ((1 - place) / low + place / (low * wide))) for low, wide in ranges
    ]
    assert calibration.fitted(made) == pytest.approx(place)
    assert max(trial.error(place) for trial in made) < 1e-6


def test_halves_share_no_trial_and_are_those_of_the_seed() -> None:
    trials = [calibration.Trial(str(k), 1.0, 2.0, 1.5) for k in range(9)]
    fit, held = calibration.halves(trials)
    assert sorted(fit + held) == trials
    assert (len(fit), len(held)) == (4, 5)
    assert calibration.halves(trials) == (fit, held)
    assert calibration.halves(trials, 1) != (fit, held)


def test_what_was_cut_short_or_never_timed_is_no_trial(tmp_path: Path) -> None:
    decided = {"rung": "pdl", "predicted": [1.0, 1.1], "measured": 1.05, "cut": False}
    attempts = [decided, {**decided, "cut": True}, {**decided, "measured": None}, {**decided, "predicted": []}]
    (tmp_path / "h100.jsonl").write_text(
        "".join(
            json.dumps(line) + "\n" for line in ({"type": "order"}, {"climb": {"attempts": attempts}}, {"climb": None})
        )
    )
    (tmp_path / "trials.csv").write_text("climb,rung,low,high,measured\nx,tf32,1.1,2,1.5\n")
    assert [*calibration.read(tmp_path / "h100.jsonl")] == [("pdl", 1.0, 1.1, 1.05)]
    assert [*calibration.read(tmp_path / "trials.csv")] == [("tf32", 1.1, 2.0, 1.5)]
