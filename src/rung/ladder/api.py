"""`rung.climb(...)`: the climb from Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rung.errors import need_torch
from rung.ladder.climb import Request, start
from rung.side import named


def climb(target: str, out: str | Path | None = None, **request: Any) -> dict[str, Any]:
    """Climbs a target (`tiny-transformer`, `path.py:name`, `module:name`, `kernelbench:path.py`) and returns the run's data.

    out: the run directory, empty or missing; by default a new one below `.rung`. request: the fields of
    `rung.ladder.climb.Request` (options, numerics, rungs, device, budget). Workers load the target by name,
    so a function made in a notebook has to be put into a file first.
    """
    need_torch()
    if request.get("rungs") is not None:
        request["rungs"] = tuple(request["rungs"])
    asked = Request(named(target), **request)
    running = start(asked, Path(".rung"), Path(out) if out else None, lambda event, data: None)
    return running.climb()
