"""What `rung runs list`, `show`, `export`, `trend` and `gc` print with --json: entries of the history, and what is read of them."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, UnsetType, field

from rung.records.record import SCHEMA, Part


class Measured(Part, kw_only=True):
    """One figure of an entry. name: `time`, `memory` or `speedup`; target: with the absolute path of its file; variant: what else has to
    be the same for two figures to be of the same thing, such as `rungs`, `mode` or `timer`; unit: ns, bytes or x; low, high: of the 95 %
    interval, null where none is known."""

    name: str
    target: str
    options: dict[str, str]
    variant: dict[str, str]
    unit: str
    value: float
    low: float | None = None
    high: float | None = None


class Entry(Part, kw_only=True, tag_field="kind", tag="entry"):
    """One command's run. id: 0 before it is kept; created: UTC; of: bench, compare, climb or profile; target: as typed; answer: in a few
    words; device: its name, empty where none is known; folder: where the command was called; directory: the run directory, null without one;
    environment: as in the command's document, and the version of `rung`; document: what --json printed, without samples and what the run
    directory has, not in a list."""

    schema: int = SCHEMA
    id: int = 0
    created: str
    of: str
    target: str
    status: str
    answer: str
    command: str
    host: str
    device: str
    folder: str
    directory: str | None = None
    tags: list[str] = field(default_factory=list)
    measured: list[Measured] = field(default_factory=list)
    environment: dict[str, Any] | UnsetType = UNSET
    document: dict[str, Any] | UnsetType = UNSET


class Entries(Part, kw_only=True, tag_field="kind", tag="history"):
    """`rung runs list`, newest first, and `export`, oldest first. store: the file of the history."""

    schema: int = SCHEMA
    store: str
    entries: list[Entry]


class Point(Part, kw_only=True):
    """One figure of a trend. entry: its number in the history."""

    entry: int
    created: str
    value: float
    low: float | None
    high: float | None
    tags: list[str]


class Changed(Part, kw_only=True):
    """A change of level. at: the place of the first point of the new level; before, after: levels on both sides; change: a share, above 0
    where the figure grew; p: of the permutation test; differs: what else was not the same in the two points around it."""

    at: int
    entry: int
    before: float
    after: float
    change: float
    p: float
    differs: dict[str, list[Any]]


class Series(Part, kw_only=True):
    """One thing, measured again and again in one way on one machine. of: the command; host: null where hosts are taken together."""

    of: str
    name: str
    target: str
    options: dict[str, str]
    variant: dict[str, str]
    unit: str
    device: str
    host: str | None
    points: list[Point]
    changes: list[Changed]


class Trend(Part, kw_only=True, tag_field="kind", tag="trend"):
    """false_alarms: the largest share of unchanging series in which a change may be found."""

    schema: int = SCHEMA
    store: str
    false_alarms: float
    series: list[Series]


class Removed(Part, kw_only=True):
    """directory: null where only the entry goes."""

    entry: int
    directory: str | None
    why: str


class Collected(Part, kw_only=True, tag_field="kind", tag="gc"):
    """done: false of a dry run, which removes nothing; kept: directories that were asked for and stay, with the reason."""

    schema: int = SCHEMA
    store: str
    done: bool
    removed: list[Removed]
    kept: list[Removed]
