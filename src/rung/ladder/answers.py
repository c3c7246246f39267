"""What workers of the climb answer (`rung.ladder.candidate`), as records; more of it is in `rung.timing.timed`."""

from __future__ import annotations

import msgspec

from rung.records.measured import Verification
from rung.timing.timed import Warmed


class Untouched(Warmed, kw_only=True):
    """The untouched workload, once it is warm. launching: the share of a step after which the host had launched it all."""

    launching: float = 1.0


class Verified(Verification, kw_only=True):
    """A verification in a worker of its own. memory: bytes at most, by kind."""

    memory: dict[str, int] = msgspec.field(default_factory=dict)
