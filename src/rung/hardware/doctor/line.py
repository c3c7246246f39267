"""What the audit says of one thing."""

from __future__ import annotations

from dataclasses import dataclass

OK, NOTE, WARN, UNKNOWN = "ok", "note", "warn", "unknown"


@dataclass(frozen=True)
class Line:
    """level: "ok", "note" (worth knowing; it depends), "warn" (costs speed or honesty) or "unknown" (could not be read).

    value: as found; default: whether it is what the system has without anybody's doing, None where there is no default
    or it is not known; matters: when and why, in a sentence; change: commands, "#" before what a person must decide;
    source: whose word it is.
    """

    group: str
    name: str
    value: str
    level: str = OK
    default: bool | None = None
    matters: str = ""
    change: tuple[str, ...] = ()
    source: str = ""
