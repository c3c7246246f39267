"""Verifications on one GPU: who needs much of its memory has it alone."""

import fcntl
import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from rung.hardware.device import pick
from rung.verify import gpu_lock
from rung.verify.gpu_lock import GpuLock


class Card:
    """A GPU as far as turns ask it."""

    is_gpu, index = True, 0


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Peaks since they were reset, which a test sets."""
    peaks = {"allocated": 0, "reserved": 0}
    monkeypatch.setattr(gpu_lock, "peak_memory", lambda device: dict(peaks))
    monkeypatch.setattr(gpu_lock, "reset_peak_memory", lambda device: peaks.update(allocated=0, reserved=0))
    monkeypatch.setattr(gpu_lock, "release_cache", lambda device: None)
    monkeypatch.setattr(gpu_lock, "_name", lambda device: "GPU-1")
    return peaks


def _busy(path: str, said: int) -> None:
    """said: a file's descriptor, to the end of which each process writes."""
    gpu_lock._name, gpu_lock.peak_memory = lambda device: "GPU-1", lambda device: {"reserved": 0}
    gpu_lock.release_cache = gpu_lock.reset_peak_memory = lambda device: None
    lock = GpuLock(path, Card())  # type: ignore[arg-type]
    for _ in range(20):
        with lock.hold(), lock.hold():  # one within the other is one
            os.write(said, b"<")
            time.sleep(0.002)
            os.write(said, b">")


def test_no_two_processes_have_their_turn_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    file = tmp_path / "said"
    said = os.open(file, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    both = [context.Process(target=_busy, args=(str(tmp_path / "turns"), said)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join()
    os.close(said)
    assert file.read_text() == "<>" * 40


def test_a_process_that_is_forked_within_a_turn_does_not_keep_it(card: dict[str, int], tmp_path: Path) -> None:
    path = str(tmp_path / "turns")
    with GpuLock(path, Card()).hold():  # type: ignore[arg-type]
        child = os.fork()
        if not child:
            time.sleep(60)
            os._exit(0)
    try:
        with open(f"{path}-GPU-1") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_what_is_held_beside_others_is_told_from_what_is_held_in_turns(card: dict[str, int], tmp_path: Path) -> None:
    lock = GpuLock(str(tmp_path / "turns"), Card())  # type: ignore[arg-type]
    for beside, within in ((3, 9), (5, 7), (4, 0)):
        card.update(allocated=beside - 1, reserved=beside)
        if within:
            with lock.hold():
                card.update(allocated=within - 1, reserved=within)
    assert lock.memory() == {"allocated": 8, "reserved": 9, "beside": 5}


@pytest.mark.parametrize("path", ["", "turns"])
def test_without_a_gpu_or_others_nothing_is_waited_for(tmp_path: Path, path: str) -> None:
    lock = GpuLock(path and str(tmp_path / path), pick("cpu"))
    with lock.hold():
        assert list(tmp_path.iterdir()) == []
    assert {*lock.memory()} == {"resident"}
