"""The batches that take turns in a worker."""

from pathlib import Path

import pytest

from rung.ladder import candidate
from rung.ladder.candidate import BATCHES, FEW, Candidate

MICRO = f"{Path(__file__).parents[1] / 'helpers' / 'micro.py'}:make"


@pytest.mark.parametrize(("large", "count"), [(1, FEW), (1 << 30, BATCHES)], ids=["large", "small"])
def test_fewer_take_turns_where_they_are_large(large: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second process has to have room for its own beside them. What watches the steps goes on with what there is."""
    monkeypatch.setattr(candidate, "LARGE", large)
    worker = Candidate()
    worker.open(MICRO, {"seconds": "0"}, [], "cpu")
    worker.first()
    assert len(worker.batches) == count
    worker.timer("auto", False)
    assert worker.watch()
    for _ in range(2 * count):
        worker.call()
    assert worker.witness()["failures"] == []
