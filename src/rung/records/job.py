"""What `rung mcp` says of a command that is running, or has ended."""

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
