"""What `rung analyze --json` prints: what one screen says of a trace, or the tables that were asked for with --show. `rung query` and
`rung replay` answer from the same tables."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from rung.records.measured import Nanoseconds
from rung.records.record import SCHEMA, Part


class Breakdown(Part, kw_only=True):
    """Where a step's nanoseconds go, by part; clock: of the GPU or the host; kernels, launches, gemms: a step; share: of the bottleneck;
    top: the largest kernels or operators: name, category, ns and count of a step."""

    clock: str = ""
    steps: int | None = None
    step_ns: Nanoseconds | None = None
    parts: dict[str, Nanoseconds]
    kernels: float | None = None
    launches: float | None = None
    gemms: float | None = None
    softmax_dims: list[list[int]] | None = None
    bottleneck: str | None = None
    share: float | None = None
    notes: list[str] | None = None
    top: list[tuple[str, str, Nanoseconds, float]] | None = None


class Counted(Part, kw_only=True):
    """A kind of event that is not in the figures, or is in them (`in_table`) and deserves a look. time_ns: null where none could be read."""

    what: str
    in_table: bool
    events: int
    time_ns: int | None


class Busy(Part, kw_only=True):
    """How busy one GPU was over all its streams, in whole ns. step: null, of the whole recording; unlinked: GPU events whose launch was not
    recorded."""

    rank: int | None
    device: int | None
    step: int | None
    total_ns: int
    busy_ns: int
    idle_ns: int
    computation_ns: int
    communication_ns: int
    exposed_communication_ns: int
    memcpy_ns: int
    exposed_memcpy_ns: int
    kernels: int
    unlinked: int
    unlinked_ns: int


class OfRank(Part, kw_only=True):
    """launches: whether calls of the GPU's runtime were recorded; breakdown: null without a timed event."""

    rank: int | None
    launches: bool
    timeline: list[Busy]
    breakdown: Breakdown | None


class Spread(Part, kw_only=True):
    """A part of the step over the ranks: its mean, and the ranks that have least and most of it."""

    part: str
    mean_ns: Nanoseconds
    least_ns: Nanoseconds
    least_rank: int | None
    most_ns: Nanoseconds
    most_rank: int | None


class Shared(Part, kw_only=True):
    """A kernel in the mean of the `ranks` that have it among their own first."""

    name: str
    category: str
    ranks: int
    mean_ns: Nanoseconds
    mean_count: float


class Across(Part, kw_only=True):
    """The breakdowns of several ranks in one, in ns of a step. step_ns, kernels, launches, gemms: means; bottleneck, share: of the means;
    notes: the first rank's. A rank without GPU events beside those with some is left out, and named in the notes: its times are the host's.
    """

    ranks: int
    clock: str
    step_ns: Nanoseconds
    parts: list[Spread]
    bottleneck: str
    share: float
    kernels: float
    launches: float
    gemms: float
    notes: list[str]
    top: list[Shared]


class Finding(Part, kw_only=True):
    """What to do first, one of a list; what the fields say is described at `rung.analysis.findings.findings`."""

    finding: str
    share: float
    speedup_low: float
    speedup_high: float
    rungs: list[str]
    evidence: str
    do: str
    what: str
    gives_not: str
    compile_safe: str
    verify: str
    documentation: str | None = None


class Overview(Part, kw_only=True, tag_field="kind", tag="analyze"):
    """steps: how many were recorded, by which figures of a step are divided. unread: events that are not in the table, by reason. peaks:
    whose figures of the GPU the roofline uses, and how far they were checked. parts: rank by rank, of the first 64 of `ranks`; across: of
    several ranks, beside each other. headlines: each analysis in a sentence. merged: of partials; then parts are of the 64 ranks whose GPUs
    are idle most and least, and findings only of what lies between ranks."""

    schema: int = SCHEMA
    source: str
    steps: int
    format: str
    events: int
    counters: int
    ranks: int
    unread: dict[str, int]
    completeness: list[Counted]
    notes: list[str]
    gpus: list[str]
    peaks: dict[str, str] | None
    parts: list[OfRank]
    across: Across | None
    findings: list[Finding] = msgspec.field(default_factory=list)
    headlines: dict[str, str] = msgspec.field(default_factory=dict)
    merged: bool | UnsetType = UNSET


class Tables(Part, kw_only=True, tag_field="kind", tag="analyze"):
    """With --show: rows of plain values by the name of the analysis. `rung analyze --show list` says what each answers."""

    schema: int = SCHEMA
    source: str
    format: str
    steps: int
    notes: list[str]
    tables: dict[str, list[dict[str, Any]]]


class Rows(Part, kw_only=True, tag_field="kind", tag="query"):
    """What `rung query --json` prints. sql: null where none was given, and the rows are the tables and their columns."""

    schema: int = SCHEMA
    source: str
    sql: str | None
    rows: list[dict[str, Any]]


class Calls(Part, kw_only=True, tag_field="kind", tag="replay"):
    """What `rung replay --list --json` prints. calls: the different calls of an operator, the most GPU time first."""

    schema: int = SCHEMA
    op: str
    calls: list[dict[str, Any]]


class Script(Part, kw_only=True, tag_field="kind", tag="replay"):
    """What `rung replay --json` prints. calls: how often the trace made this call; gpu_ns: of all of them; script: times it anew."""

    schema: int = SCHEMA
    op: str
    calls: int
    gpu_ns: int
    script: str
