"""A climb in several sittings: what of it is known after it was stopped, or killed."""

import time
from pathlib import Path

from made_up import state, tried

from rung.ladder.climb.state import Request, State
from rung.runs import Run


def test_a_climb_that_was_killed_has_taken_the_time_up_to_its_last_attempt(tmp_path: Path) -> None:
    made = state(tmp_path)
    made.started -= 100.0
    tried(made, "a", "slower")
    again = State(Run(made.run.directory), Request("x"), lambda event: None)
    assert 100.0 <= again.spent() < 150.0
    tried(again, "b", "slower")
    time.sleep(0.01)
    assert (again.attempts[-1].spent_seconds or 0.0) < again.spent() < 150.0  # what this sitting adds is counted once
