"""What threads got of the cores, as the kernel counts it."""

from pathlib import Path

import pytest

from rung.measure.core_time import CoreTime, core_time, total, waiting


def test_all_threads_are_added_up(tmp_path: Path) -> None:
    for thread, told in {"11": "1000 3000 4\n", "12": "500 0 1\n", "13": "", "14": None}.items():
        (tmp_path / thread).mkdir()
        if told is not None:  # one that ended a moment ago has no file any more
            (tmp_path / thread / "schedstat").write_text(told)
    assert core_time(tmp_path) == CoreTime(1500, 3000)


def test_a_system_that_does_not_tell_is_asked_in_vain(tmp_path: Path) -> None:
    assert core_time(tmp_path / "proc") is None
    (tmp_path / "11").mkdir()
    assert core_time(tmp_path) is None


def test_of_a_stretch_of_time_the_share_of_waiting_is_told() -> None:
    got = CoreTime(4000, 1500).since(CoreTime(1000, 500))
    assert (got, got.share_waited) == (CoreTime(3000, 1000), 0.25)
    assert CoreTime(0, 0).share_waited == 0.0
    assert CoreTime(10, 0).since(CoreTime(30, 0)) == CoreTime(0, 0)  # a thread ended
    assert total([got, got]) == CoreTime(6000, 2000)


@pytest.mark.parametrize(("share", "says"), [(0.05, ""), (0.434, "waited for a core 43% of the time")])
def test_much_waiting_is_worth_a_word(share: float, says: str) -> None:
    assert (says in waiting(share)) if says else waiting(share) == ""
