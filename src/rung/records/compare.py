"""What `rung compare --json` prints: two sides, more of them ranked, or two files of measurements."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, UnsetType

from rung.records.bench import Change
from rung.records.measured import (
    Answer,
    Compared,
    Environment,
    Interval,
    Nanoseconds,
    Ratio,
    Seconds,
    Units,
    Verification,
    Witness,
)
from rung.records.record import SCHEMA, Part


class ComparedSide(Part, kw_only=True):
    """original: inputs that are left to the workload as it is, by how many elements they have; revision: of git, whose code it is."""

    target: str
    options: dict[str, str]
    rungs: list[str]
    env: dict[str, str]
    original: dict[str, int] | UnsetType = UNSET
    revision: str | UnsetType = UNSET


class RankedPair(Part, kw_only=True):
    """b against a: what b is. speedup: time of a over time of b, at the confidence at which Holm's procedure tested this pair."""

    a: str
    b: str
    answer: Answer
    speedup: Ratio
    confidence: float


class Ranked(Part, kw_only=True):
    """ranks: one more than the number of sides that were shown to be faster; confidence: that no pair's answer is wrong."""

    ranks: dict[str, int]
    pairs: list[RankedPair]
    restarts: int
    confidence: float
    margin: float | None
    final: bool
    cut: bool


class WarmUp(Part, kw_only=True):
    runs: int
    steady: bool


class OtherGpu(Part, kw_only=True):
    """Restarts that ran on another GPU than the first. gpu: as torch counts, "GPU 3"; restarts: their numbers, from 1 on; step: how many
    times as long a step of the first side took there as on the first GPU, which is in no comparison."""

    gpu: str
    restarts: list[int]
    step: float


class Interleaved(Part, kw_only=True):
    """What restarts of interleaved sides gave, the last of which is the candidate. comparison: of two sides; ranking: of more; restarts:
    samples, ns a step, by side; times: medians, of the first GPU alone; memory: bytes at most; warm_up: by restart and side; applied, matches: what the
    candidate's rungs did; hidden: shares of the time of a side's blocks that its samples leave out; witness: what steps of the
    candidate showed; compiled_while_timed: graphs; waited: shares of the time in which a side waited for a core; cpu_time: the
    comparison in CPU time; other_gpus: where some restarts ran on other GPUs; busy: why the speedup is doubtful, on a CPU whose cores were
    busy, as a sentence without its end."""

    comparison: Compared | None
    ranking: Ranked | None
    restarts: list[dict[str, list[Nanoseconds]]]
    times: dict[str, Interval]
    memory: dict[str, dict[str, int]]
    first_run_seconds: dict[str, Seconds]
    warm_up: list[dict[str, WarmUp]]
    applied: dict[str, Any]
    matches: dict[str, int]
    hidden: dict[str, float]
    witness: Witness
    compiled_while_timed: dict[str, int]
    waited: dict[str, float]
    cpu_time: Compared | None
    warnings: list[str]
    other_gpus: list[OtherGpu] | UnsetType = UNSET
    busy: str = ""


class _Sides(Part, kw_only=True):
    """What two sides and more have in common; `Comparison` says what it means."""

    schema: int = SCHEMA
    units: Units
    margin: float
    results_compared: bool
    verdict: str
    seconds: Seconds
    verification: Verification | UnsetType = UNSET
    not_equal: str | UnsetType = UNSET
    unit: Literal["restart", "round"] | UnsetType = UNSET
    ranks: int | UnsetType = UNSET
    times: dict[str, Interval] | UnsetType = UNSET
    memory: dict[str, dict[str, int]] | UnsetType = UNSET
    first_run_seconds: dict[str, Seconds] | UnsetType = UNSET
    waited: dict[str, float] | UnsetType = UNSET
    cpu_time: Compared | UnsetType | None = UNSET
    restarts: list[dict[str, list[Nanoseconds]]] | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET
    environment: Environment | UnsetType = UNSET
    differs: dict[str, list[Any]] | UnsetType = UNSET


class Comparison(_Sides, kw_only=True, tag_field="kind", tag="compare"):
    """Two sides. verdict, of B: faster, slower, same, inconclusive or not equal; comparison: B against A.

    margin: the share within which sides count as the same; results_compared: whether it was asked if they compute the same;
    verification: where it was; not_equal: the first side that does not, and then nothing was timed: all fields that times would
    fill are missing. Sides are in lower case as keys, in upper case in sentences. unit: what counts as independent evidence;
    ranks: of each side, where it is a job of several; times: medians, nanoseconds a step; memory: bytes; waited: share of the time, on a CPU, that a side waited for a core; cpu_time: the
    same question in CPU time; restarts: samples; differs: settings that were not the same, with each side's value.
    """

    a: ComparedSide
    b: ComparedSide
    comparison: Compared | UnsetType = UNSET


class Ranking(_Sides, kw_only=True, tag_field="kind", tag="ranking"):
    """More than two sides, with the fields of a comparison of two. verdict: ranked, inconclusive or not equal."""

    sides: dict[str, ComparedSide]
    ranking: Ranked | UnsetType = UNSET


class SavedRow(Change, kw_only=True):
    name: str


class Saved(Part, kw_only=True, tag_field="kind", tag="saved"):
    """Two files of measurements. verdict: slower or faster where every change beyond both intervals has that sign, mixed, or
    inconclusive where there is none."""

    schema: int = SCHEMA
    a: str
    b: str
    verdict: Literal["slower", "faster", "mixed", "inconclusive"]
    rows: list[SavedRow]
    only_in: dict[str, list[str]]
    differs: dict[str, list[Any]]
    warnings: list[str]
