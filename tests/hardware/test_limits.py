"""How many cores and how much memory may be used: by the affinity mask and the machine, within the control groups."""

import os
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from rung.hardware import limits
from rung.hardware.limits import free_memory, usable_cores

GIB = 1 << 30


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sixteen cores by the affinity mask, 64 GiB free, and no control groups so far."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)), raising=False)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=64 * GIB))
    monkeypatch.setattr(limits, "CGROUPS", tmp_path)
    monkeypatch.setattr(limits, "OWN", tmp_path / "own")
    return tmp_path


def group(root: Path, own: str, where: str, **files: object) -> None:
    (root / "own").write_text(own)
    (root / where).mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (root / where / name.replace("__", ".")).write_text(f"{text}\n")


@pytest.mark.parametrize(
    ("quota", "cores"),
    [
        ("max 100000", 16),
        ("400000 100000", 4),
        ("350000 100000", 3),  # the rest of a core is not one
        ("50000 100000", 1),  # half a core is still one to run on
        ("9900000 100000", 16),  # more than the mask allows
        ("", 16),
        ("damaged", 16),
        ("1 0", 16),
        ("1 2 3", 16),
    ],
)
def test_the_quota_of_a_container_bounds_the_cores(quota: str, cores: int, root: Path) -> None:
    group(root, "0::/\n", ".", cpu__max=quota)
    assert usable_cores() == cores


def test_without_a_control_group_the_mask_and_the_machine_decide() -> None:
    assert usable_cores() == 16
    assert free_memory() == 64 * GIB


@pytest.mark.parametrize("where", ["system.slice/job", "system.slice", "."])
def test_the_limits_of_the_groups_above_hold_too(root: Path, where: str) -> None:
    group(root, "0::/system.slice/job\n", where, cpu__max="200000 100000", memory__max=8 * GIB, memory__current=3 * GIB)
    assert usable_cores() == 2
    assert free_memory() == 5 * GIB


def test_version_1_as_on_many_clusters(root: Path) -> None:
    own = "4:memory:/slurm/uid_0/job_7\n2:cpu,cpuacct:/slurm/uid_0/job_7\n"
    group(root, own, "memory/slurm/uid_0/job_7", memory__limit_in_bytes=9 * GIB, memory__usage_in_bytes=4 * GIB)
    group(root, own, "cpu/slurm", cpu__cfs_quota_us=300000, cpu__cfs_period_us=100000)
    assert usable_cores() == 3
    assert free_memory() == 5 * GIB
    group(root, own, "cpu/slurm", cpu__cfs_quota_us=-1)
    assert usable_cores() == 16


def test_pages_of_files_count_as_free(root: Path) -> None:
    group(
        root,
        "0::/\n",
        ".",
        memory__max=8 * GIB,
        memory__current=8 * GIB,
        memory__stat=f"anon 5\ninactive_file {2 * GIB}",
    )
    assert free_memory() == 2 * GIB
    group(root, "0::/\n", ".", memory__current=11 * GIB)
    assert free_memory() == 0
    group(root, "0::/\n", ".", memory__max="max")
    assert free_memory() == 64 * GIB


def test_what_cannot_be_read_limits_nothing(root: Path) -> None:
    (root / "own").write_bytes(b"\xff\xfe:::\n0\n::")
    assert (usable_cores(), free_memory()) == (16, 64 * GIB)
