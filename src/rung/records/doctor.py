"""What `rung doctor --json` prints: the audit of a machine."""

from __future__ import annotations

from typing import Final, Literal

from rung.records.record import SCHEMA, Part

Level = Literal["ok", "note", "warn", "unknown"]
OK: Final = "ok"
NOTE: Final = "note"
WARN: Final = "warn"
UNKNOWN: Final = "unknown"


class Line(Part):
    """level: "ok", "note" (worth knowing; it depends), "warn" (costs speed or honesty) or "unknown" (could not be read).

    value: as found; default: whether it is what the system has without anybody's doing, null where there is no default
    or it is not known; matters: when and why, in a sentence; change: commands, "#" before what a person must decide;
    source: whose word it is.
    """

    group: str
    name: str
    value: str
    level: Level = "ok"
    default: bool | None = None
    matters: str = ""
    change: tuple[str, ...] = ()
    source: str = ""


class Audit(Part, kw_only=True, tag_field="kind", tag="doctor"):
    """summary: in one sentence what costs speed or honesty here."""

    schema: int = SCHEMA
    summary: str
    lines: list[Line]
