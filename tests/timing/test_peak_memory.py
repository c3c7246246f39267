"""The peak memory of a candidate is that of its steps, whatever is held beside them later."""

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rung.hardware import Device
from rung.ladder import candidate
from rung.timing import timed

H100 = Device("cuda", 0, "nvidia", "NVIDIA H100 80GB HBM3", "sm90", 80 << 30, 132)
CPU = Device("cpu", 0, "cpu", "a CPU", "x86_64", 0, 0)


@pytest.mark.parametrize("device", [H100, CPU], ids=["gpu", "cpu"])
def test_what_the_check_of_the_timed_process_holds_is_not_counted(
    monkeypatch: pytest.MonkeyPatch, device: Device
) -> None:
    now = {"allocated": 5, "reserved": 6}

    def check(*_: Any) -> dict[str, Any]:
        now.update(allocated=20, reserved=30)
        return {}

    def reset(device: Device) -> None:
        if device.is_gpu:  # a process's peak on the host cannot be reset
            now.update(allocated=3, reserved=4)

    monkeypatch.setattr(timed, "peak_memory", lambda _: dict(now))
    monkeypatch.setattr(candidate, "reset_peak_memory", reset)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(candidate.Candidate, "_witnessed", check)
    made = candidate.Candidate()
    made.device = device
    assert made.memory() == {"allocated": 5, "reserved": 6}
    made.witness()
    assert made.memory() == {"allocated": 5, "reserved": 6}


def test_on_a_gpu_what_later_steps_take_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timed, "peak_memory", lambda _: {"allocated": 9})
    made = candidate.Candidate()
    made.device, made._peak = H100, {"allocated": 5}
    assert made.memory() == {"allocated": 9}


def test_the_copies_of_watched_steps_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    now = {"allocated": 5}
    monkeypatch.setattr(timed, "peak_memory", lambda _: dict(now))
    monkeypatch.setattr(candidate, "reset_peak_memory", lambda _: now.update(allocated=3))
    monkeypatch.setattr(candidate, "too_large", lambda _: False)
    monkeypatch.setattr(candidate, "sharded", lambda _: False)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(candidate.Candidate, "_witnessed", lambda *_: {})
    made = candidate.Candidate()
    made.device, made.step, made.model = H100, SimpleNamespace(), torch.nn.Linear(1, 1)  # type: ignore[assignment]
    made.batches, made._next = [torch.ones(1)], itertools.cycle([torch.ones(1)])
    assert made.watch()
    now.update(allocated=14)  # by what is kept of the watched steps
    made.witness()
    assert made.memory() == {"allocated": 5}
