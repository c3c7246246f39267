"""Figures of times, and the machine that they were taken on: parts of several documents."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, UnsetType

from rung.records.record import Part, Scalar

Units = dict[str, str]
Seconds = float
Nanoseconds = float
TOO_NOISY = 2.0  # an interval around 1 whose ends are so many times apart says nothing


class Figure(Part, kw_only=True):
    """A figure, with its 95 % interval where restarts gave one; an end is null where none is known."""

    value: float
    low: float | UnsetType | None = UNSET
    high: float | UnsetType | None = UNSET

    @property
    def says_nothing(self) -> bool:
        """Of a ratio: whether its interval holds 1 and is too wide to tell anything."""
        low, high = self.low, self.high
        return bool(low and high and low < 1 < high and high > TOO_NOISY * low)


class Interval(Figure, kw_only=True):
    """A figure and the ends of its confidence interval, in the figure's own unit."""

    low: float
    high: float


class Ratio(Figure, kw_only=True):
    """A ratio of two times and its confidence interval. An end is null where none is known: one restart does not tell how far two differ."""

    low: float | None
    high: float | None


class Summary(Part, kw_only=True):
    """Nanoseconds. `mean` and percentiles are null where there are too few samples for them; effective_count: independent samples."""

    count: int
    effective_count: float
    median: Interval
    mean: Interval | None
    std: float
    min: float
    max: float
    p50: Interval | None
    p90: Interval | None
    p99: Interval | None


class Device(Part, kw_only=True):
    """kind: `cuda` (ROCm too) or `cpu`; arch: gfx942, sm90 or the machine's instruction set; memory: bytes; units: compute units, SMs
    or cores."""

    kind: str | UnsetType = UNSET
    index: int | UnsetType = UNSET
    vendor: str | UnsetType = UNSET
    name: str
    arch: str | UnsetType = UNSET
    memory: int
    units: int | UnsetType = UNSET


class Environment(Part, kw_only=True):
    """What a measurement ran on and with. Fields of torch are missing where it was not loaded; of `settings` and `now` what could not
    be read; others where an earlier version wrote the document."""

    time: str | UnsetType = UNSET
    device: Device
    torch: str | UnsetType = UNSET
    cuda: str | UnsetType | None = UNSET
    rocm: str | UnsetType | None = UNSET
    threads: int | UnsetType = UNSET
    float32_matmul_precision: str | UnsetType = UNSET
    blas: dict[str, Scalar] | UnsetType = UNSET
    inductor: dict[str, Scalar] | UnsetType = UNSET
    python: str | UnsetType = UNSET
    platform: str | UnsetType = UNSET
    settings: dict[str, Any] | UnsetType = UNSET
    now: dict[str, Any] | UnsetType = UNSET
    variables: dict[str, str] | UnsetType = UNSET
    git: str | UnsetType | None = UNSET


class Range(Part, kw_only=True):
    median: float
    low: float
    high: float


class Course(Part, kw_only=True):
    first: float
    last: float
    high: float


class Sensors(Part, kw_only=True):
    """Of the GPU while it was timed. energy: J in `seconds`; power: mean, W; limit: W; core, memory: clocks, MHz; throttled: share of the
    readings by reason; energy_per_step: J."""

    source: str
    seconds: Seconds
    energy: float | None
    power: float | None
    limit: float | None
    core: Range | None
    memory: Range | None
    celsius: Course | None
    throttled: dict[str, float]
    energy_per_step: float | UnsetType = UNSET


Answer = Literal["faster", "slower", "same", "undecided"]


class Compared(Part, kw_only=True):
    """speedup: time of A over time of B, above 1 where B is faster; visible: the smallest change, as a share, that these restarts would
    have found four times in five, null where one says nothing of it; final: no further look was planned; cut: ended before it was decided."""

    answer: Answer
    speedup: Ratio
    restarts: int
    confidence: float
    margin: float | None
    visible: float | None
    final: bool
    cut: bool


class Check(Part, kw_only=True):
    """The comparison that came nearest to its tolerance, or went furthest beyond: relative L2 errors, null where they are not finite."""

    what: str
    precision: str
    case: str
    error: float | None
    noise: float | None
    tolerance: float | None
    why: str
    ratio: float | None


class Verification(Part, kw_only=True):
    """Whether a candidate computes what it is compared with. cases: inputs and weights; checks: comparisons of results; seconds: missing
    where it is part of another time."""

    passed: bool
    cases: int
    checks: int
    precisions: list[str]
    reference: str
    failures: list[str]
    worst: Check | None
    seconds: Seconds | UnsetType = UNSET


class Witness(Part, kw_only=True):
    """What steps of the process that was timed showed. unseen: in inference, how many times as long a step takes on new inputs; left: why
    something was not looked at. Empty where nothing was."""

    failures: list[str] | UnsetType = UNSET
    unseen: float | UnsetType | None = UNSET
    left: str | UnsetType = UNSET
