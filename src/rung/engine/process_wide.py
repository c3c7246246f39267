"""Settings of torch for the whole process, which several models under recipes may ask for at a time."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from rung.engine.dynamo import change_settings, expect_changes, restore_change_settings
from rung.hardware.device import matmul_precision_name
from rung.plan import Plan


class Setting:
    """One of them: it is put back as it was when nobody holds it any more, in whatever order that happens."""

    def __init__(self, read: Callable[[], Any], write: Callable[[Any], None], wanted: Any) -> None:
        self._read, self._write, self._wanted = read, write, wanted
        self._lock, self._holders, self._asides, self._before = threading.Lock(), 0, 0, None
        self._dropped: list[None] = []  # one for each holder that is gone and was not counted off yet

    def hold(self) -> None:
        with self._locked():
            before = self._before if self._holders else self._read()
            if not self._asides:
                self._write(self._wanted)
            self._before = before
            self._holders += 1

    def release(self) -> None:
        with self._locked():
            self._release()

    def drop(self) -> None:
        """Releases it for a holder that is being freed. That may happen at any line of this thread, and so while it has the lock: then it is
        released as soon as the lock is free, or by the next who takes it."""
        self._dropped.append(None)
        if self._lock.acquire(blocking=False):
            try:
                self._release_dropped()
            finally:
                self._lock.release()

    def _release(self) -> None:
        self._holders -= 1
        if not self._holders:
            self._write(self._before)

    def _release_dropped(self) -> None:
        while self._dropped:
            self._dropped.pop()
            self._release()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with self._lock:
            self._release_dropped()
            try:
                yield
            finally:
                self._release_dropped()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        self.hold()
        try:
            yield
        finally:
            self.release()

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """As it was before anybody held it, where somebody does. Threads that are inside at a time share that."""
        with self._locked():
            held = self._holders > 0
            if held:
                self._asides += 1
                self._write(self._before)
        try:
            yield
        finally:
            with self._locked():
                self._asides -= held
                if held and not self._asides and self._holders:
                    self._write(self._wanted)


def _search(on: bool) -> None:
    torch.backends.cudnn.benchmark = on


def _expect_changes(before: dict[str, int] | None) -> None:
    expect_changes() if before is None else restore_change_settings(before)


TF32 = Setting(matmul_precision_name, torch.set_float32_matmul_precision, "high")
CONVOLUTION_SEARCH = Setting(lambda: torch.backends.cudnn.benchmark, _search, True)
# Where Dynamo's settings are a thread's own, of that one.
CHANGES = Setting(change_settings, _expect_changes, wanted=None)


def settings_of(plan: Plan) -> list[Setting]:
    """The settings that a plan is in effect with."""
    asked = [
        (TF32, plan.tf32),
        (CONVOLUTION_SEARCH, plan.cudnn_benchmark),
        (CHANGES, plan.compiles or bool(plan.passes)),
    ]
    return [setting for setting, on in asked if on]
