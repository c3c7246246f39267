"""How a command stands that `rung mcp` runs, and what any command prints that has no answer."""

from __future__ import annotations

from typing import Literal

from rung.records.measured import Seconds
from rung.records.record import SCHEMA, Part


class Job(Part, kw_only=True, tag_field="kind", tag="job"):
    """status: running; done, with an answer, be it "slower" or "not equal"; failed, with a document that says why; cancelled, with what
    there was by then. progress: the last lines that the command said. next: what to call now."""

    schema: int = SCHEMA
    job: str
    command: str
    status: Literal["running", "done", "failed", "cancelled"]
    seconds: Seconds
    exit_code: int | None
    progress: list[str]
    next: str


class Refused(Part, kw_only=True, tag_field="kind", tag="error"):
    """What a command prints with --json where it has no answer. exit_code: that of the command."""

    schema: int = SCHEMA
    error: str
    exit_code: int
