"""How many cores may be used: those of the affinity mask, within the quota of the control group."""

import os
from pathlib import Path

import pytest

from rung.hardware.cores import usable_cores


@pytest.fixture
def mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen cores, by the affinity mask."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)), raising=False)


@pytest.mark.usefixtures("mask")
@pytest.mark.parametrize(
    ("quota", "cores"),
    [
        ("max 100000\n", 16),
        ("400000 100000\n", 4),
        ("350000 100000\n", 3),  # the rest of a core is not one
        ("50000 100000\n", 1),  # half a core is still one to run on
        ("9900000 100000\n", 16),  # more than the mask allows
        ("", 16),
        ("damaged", 16),
        ("1 2 3\n", 16),
    ],
)
def test_the_quota_of_a_container_bounds_the_cores(quota: str, cores: int, tmp_path: Path) -> None:
    path = tmp_path / "cpu.max"
    path.write_text(quota)
    assert usable_cores(path) == cores


@pytest.mark.usefixtures("mask")
def test_without_a_control_group_the_mask_decides(tmp_path: Path) -> None:
    assert usable_cores(tmp_path / "none") == 16
    assert usable_cores(tmp_path) == 16  # no file, either


def test_a_system_without_affinity_masks_has_all_its_cores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    for count, cores in ((6, 6), (None, 1)):
        monkeypatch.setattr(os, "cpu_count", lambda count=count: count)
        assert usable_cores(tmp_path / "none") == cores
