"""What `rung bench --json` prints: one measurement, or of a sweep a list of them."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from rung.records.measured import Environment, Figure, Interval, Nanoseconds, Seconds, Sensors, Summary, Units
from rung.records.record import SCHEMA, Part


class TimerFacts(Part, kw_only=True):
    """name: clock, events, graph or batch; calls: in a sample; launch_ns: what the host needs for one; empty_pair_ns: between two events
    with nothing in between; cold: bytes written before every call to empty the caches, null where they were warm."""

    name: str
    calls: int | UnsetType = UNSET
    launch_ns: Nanoseconds | UnsetType | None = UNSET
    empty_pair_ns: Nanoseconds | UnsetType | None = UNSET
    cold: int | None


class Work(Part, kw_only=True):
    """flops, bytes: of one step, null where they are not known; of_peak, of_bandwidth: shares of what the chip can do, in FLOP/s and
    bytes/s."""

    flops: float | None = None
    precision: str | UnsetType | None = UNSET
    peak_flops: float | UnsetType | None = UNSET
    peak_bandwidth: float | UnsetType | None = UNSET
    bytes: float | None = None
    flops_per_second: float | UnsetType = UNSET
    of_peak: float | UnsetType | None = UNSET
    bytes_per_second: float | UnsetType = UNSET
    of_bandwidth: float | UnsetType | None = UNSET


class RankTime(Part, kw_only=True):
    """One rank of a job. time: of its own steps, ns; last: the share of the steps that it ended last; alone: of a step in which the ranks
    exchange no gradients, ns, null where that cannot be left out; memory: bytes at most, by kind; power, clock: mean watts of its GPU while steps
    were timed, and the median MHz of its core at the ends of blocks, null where no sensor says it."""

    rank: int
    host: str
    time: Interval
    last: float
    alone: Interval | None
    memory: dict[str, int]
    power: float | None = None
    clock: float | None = None


class OverRanks(Part, kw_only=True):
    """A step of a job of several ranks. parallel: ddp, fsdp2, own or, in inference, none; exposed: what a step takes longer than that of
    the slowest rank without exchange, ns: the exchange of gradients that no computation hides; imbalance: the share by which the slowest
    rank's step without exchange takes longer than the mean rank's. Both are null where ranks always exchange, or never."""

    parallel: str
    ranks: list[RankTime]
    exposed: Figure | None
    imbalance: float | None


class ClimbFigures(Part, kw_only=True):
    """What the climb that wrote a recipe measured of it. time: of a step, ns; spread: the share by which the medians of its processes
    differ at most; status: the recipe's."""

    time: Interval
    restarts: int
    spread: float
    status: str


class Climbed(ClimbFigures, kw_only=True):
    """The same beside a measurement. slower: the share by which its time is above theirs, below 0 where it is faster; agrees: whether the
    two intervals meet once each may be off by the spread of the processes."""

    slower: float
    agrees: bool


class Change(Part, kw_only=True):
    """Nanoseconds of the median before and after; change: a share, positive where it is slower; apart: whether the intervals are."""

    before: Nanoseconds
    after: Nanoseconds
    change: float
    apart: bool


class Bench(Part, kw_only=True, tag_field="kind", tag="bench"):
    """One workload or callable under one recipe. Times are nanoseconds a step unless `units` says otherwise.

    measured: false of a preset that only tries; time: the median and its 95 % interval; precision: the half-width asked for, a share;
    reached: whether it was; samples: those that count, in their order; discarded: those before it was steady; trend: a share, or null;
    memory: bytes at most, by kind; point: of a sweep; climb: what the recipe's climb measured;
    over_ranks: of a job of several; then a sample is a step of the slowest rank, memory that of the rank that takes most, and sensors are
    those of rank 0's GPU, where it is on this host; test, against: of a session of pytest.
    """

    schema: int = SCHEMA
    test: str | UnsetType = UNSET
    target: str
    options: dict[str, str]
    rungs: list[str]
    preset: str
    units: Units
    workload: str
    mode: str
    status: Literal["complete"]
    measured: bool
    time: Interval
    summary: Summary
    precision: float
    reached: bool
    samples: list[Nanoseconds]
    effective_samples: float
    first_run_seconds: Seconds
    warm_up_runs: int | None
    discarded: list[Nanoseconds]
    steady: bool
    trend: float | None
    memory: dict[str, int]
    timer: TimerFacts | None
    sensors: Sensors | None
    work: Work
    notes: list[str]
    samples_per_step: int | float | None
    tokens_per_step: int | float | None
    environment: Environment
    climb: Climbed | None = None
    over_ranks: OverRanks | UnsetType = UNSET
    point: dict[str, str] | UnsetType = UNSET
    against: Change | UnsetType | None = UNSET


class Failed(Part, kw_only=True, tag_field="kind", tag="error"):
    """A measurement that did not end: an error as every command tells it, and the samples until then, warm-up included."""

    schema: int = SCHEMA
    target: str
    status: Literal["failed", "interrupted"]
    measured: bool = False
    error: str
    exit_code: int
    samples: list[Nanoseconds]
    summary: Summary | None
    point: dict[str, str] | UnsetType = UNSET


class Benchmarks(Part, kw_only=True, tag_field="kind", tag="benchmarks"):
    """What `pytest --rung-save` writes: the measurements of a session, each with its `test`."""

    schema: int = SCHEMA
    benchmarks: list[Bench]


class Kept(msgspec.Struct, kw_only=True):
    """What has to be known of a measurement, of this version or an earlier one, to be compared with another. count: of its samples; None
    stands for what is not known."""

    time: Interval
    status: str = "complete"
    measured: bool = True
    samples: list[float] | None = None
    count: int | None = None
    options: dict[str, object] | None = None
    rungs: list[str] | None = None
    mode: str | None = None
    timer: dict[str, object] | None = None
    over_ranks: dict[str, object] | None = None
    test: str = ""
    target: str = ""
    workload: str = ""
    point: dict[str, str] = {}
    environment: dict[str, object] | None = None
