"""What workers of the climb answer (`rung.ladder.candidate`), as records; more of it is in `rung.timing.timed`."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from rung.records.measured import Seconds, Verification
from rung.records.record import Part
from rung.records.workload import Facts, Workload
from rung.timing.timed import Warmed

# What Inductor raises where a compiler fails, or where a library or a file of its cache is damaged or gone.
_NOT_LOADED = re.compile(
    r"\bCppCompileError\b|\b(InductorError|BackendCompilerFailed)\b.*\b(Import|ModuleNotFound|OS|FileNotFound|Permission)Error\b"
)


def not_loaded(sentence: str) -> bool:
    """Whether a failure is one of compiling or loading code, which says nothing of what the code computes, and may be gone in a fresh worker."""
    return bool(_NOT_LOADED.search(sentence))


class Loaded(Part, kw_only=True):
    """A workload whose model is made. facts: those that need no survey; saved: whether the model was kept for other workers; gpus: what each of
    this host is, as torch counts; idle_gpus: others of this kind that nobody uses, where that was asked."""

    workload: Workload
    facts: Facts
    making_seconds: Seconds
    saved: bool
    gpus: list[str] = msgspec.field(default_factory=list)
    idle_gpus: list[int] = msgspec.field(default_factory=list)


class Audited(Part, kw_only=True):
    """A workload that can be verified. without_gradient: parameters; one_shape: why it runs on one input shape alone, or empty; called:
    elements of the measured batch that the model is called with; draws: whether its forward draws random numbers; inductor: its settings,
    which take long to import, where they were asked for."""

    without_gradient: list[str]
    one_shape: str
    called: int = 0
    draws: bool = False
    inductor: dict[str, Any] = msgspec.field(default_factory=dict)


class Surveyed(Part, kw_only=True):
    workload: Workload
    facts: Facts


class Untouched(Warmed, kw_only=True):
    """The untouched workload, once it is warm. launching: the share of a step after which the host had launched it all."""

    launching: float = 1.0


class Verified(Verification, kw_only=True):
    """A verification in a worker of its own. memory: bytes at most, by kind."""

    memory: dict[str, int] = msgspec.field(default_factory=dict)
