"""What a climb tells while it runs: one kind of event each, in the order of a climb. `rung.report.progress` has the words for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rung.records.climb import Attempt, Baseline, Manifest, Mode, TakenBack
from rung.records.measured import Figure
from rung.records.workload import Facts


@dataclass(frozen=True)
class Begins:
    """The workload is looked at."""

    target: str


@dataclass(frozen=True)
class Opened:
    """The workload is loaded, and the run directory is there."""

    directory: str
    manifest: Manifest


@dataclass(frozen=True)
class TimesBaseline:
    pass


@dataclass(frozen=True)
class Measured:
    baseline: Baseline


@dataclass(frozen=True)
class Surveyed:
    facts: Facts


@dataclass(frozen=True)
class Planned:
    """An attempt is made, or would be: all that is known of it before anything is measured."""

    attempt: Attempt


@dataclass(frozen=True)
class Inapplicable:
    """What a plan leaves out."""

    attempts: Sequence[Attempt]


@dataclass(frozen=True)
class Raced:
    """A plain mode was timed, or given up."""

    mode: Mode


@dataclass(frozen=True)
class Verifies:
    """A rung is faster: does it compute the same?"""

    rung: str


@dataclass(frozen=True)
class Judged:
    attempt: Attempt


@dataclass(frozen=True)
class Answered:
    """The run directory has another result. busy: why its speedup is doubtful, if it is."""

    status: str
    kept: list[str]
    speedup: Figure
    busy: str = ""


@dataclass(frozen=True)
class OnAllShapes:
    """The answer is verified on all shapes that the workload runs on."""

    kept: list[str]


@dataclass(frozen=True)
class Confirms:
    """The answer is compared in fresh processes. plain: with the best plain mode, too."""

    kept: list[str]
    plain: bool


@dataclass(frozen=True)
class Warned:
    text: str


Event = (
    Begins | Opened | TimesBaseline | Measured | Surveyed | Planned | Inapplicable | Raced | Verifies | Judged | Answered
    | TakenBack | OnAllShapes | Confirms | Warned
)  # fmt: skip


@dataclass(frozen=True)
class Now:
    """What goes on. best: the answer's gain and status, "" without one; age: seconds since it was written; background: what loads,
    compiles or is verified; following: what waits for it."""

    best: str
    age: float
    background: tuple[str, ...]
    following: tuple[str, ...]
