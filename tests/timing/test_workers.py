"""How long the ranks of a side are waited for: no longer than their command has."""

import math
import sys
import time
from pathlib import Path

import pytest

from rung.ladder.climb.state import Request, State
from rung.launch import WorkerFailed, joining, rendezvous
from rung.runs import Run
from rung.side import Launcher, Side
from rung.timing.compare import compare


def test_a_comparison_whose_ranks_never_come_ends_with_its_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "STARTING", 0.1)
    queued = Launcher(
        (sys.executable, "-c", "import time; print('in the queue', flush=True); time.sleep(600)"), here=True
    )
    began = time.monotonic()
    with pytest.raises(
        WorkerFailed,
        match=r"^the launcher was stopped after \d s before any rank connected\. Its last line: in the queue",
    ):
        compare(Side("a.py:a"), Side("a.py:b"), budget=5.0, logs=tmp_path, launcher=queued)
    assert 4 < time.monotonic() - began < 60


@pytest.mark.parametrize(("left", "seconds"), [(math.inf, 600), (7200, 600), (120, 120), (5, 60), (-5, 60)])
def test_ranks_have_what_is_left_of_a_budget_and_always_the_time_to_start(left: float, seconds: float) -> None:
    assert joining(left) == seconds


@pytest.mark.parametrize(("budget", "left"), [(None, math.inf), (120.0, 120.0)])
def test_a_climb_tells_its_workers_when_its_budget_ends(tmp_path: Path, budget: float | None, left: float) -> None:
    made = State(Run.create(tmp_path, "x", tmp_path / "run"), Request("x", budget=budget), lambda event: None)
    assert made.setup.until - made.started == pytest.approx(left)
