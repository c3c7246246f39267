"""A job that trains, as `rung watch` sees it: the lines that its ranks write, and what is made of them."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from rung.records.record import SCHEMA, Part

# A file of lines may be a stranger's: what these do not allow is no line.
Number = Annotated[int, Meta(ge=0, le=2**53)]
Amount = Annotated[float, Meta(ge=0, le=1e18)]
Seconds = Amount
Nanoseconds = Amount
State = Literal["running", "ended", "silent"]
Kind = Literal["silent", "missing", "stalled", "straggler", "throttled", "slow clock"]


class Sample(Part, kw_only=True, omit_defaults=True):
    """A line of a rank's file: what it did since the line before.

    at, began: now, and when this process began to be watched, in seconds of the host's clock; every: seconds between two lines; local: the
    rank's number on its host; gpu: its name, empty on a CPU; step: how many have ended; steps: how many were timed for this line.
    step_ns, own_ns, exchange_ns: medians of these, null where they are not known (own: without the exchange of gradients that the rank
    waited for). idle: seconds since a step has ended; stands: the line of the user's code at which it stands, where that is long.
    allocated, reserved: the most that torch's allocator had, in bytes; resident: of the host. used, total: bytes of the GPU, of all
    processes. power, limit: W; core: MHz. cost: the share of the time that being watched took, on one core.
    broadcasts: DDP broadcasts buffers before a forward, where the ranks wait for each other, too.
    """

    at: Amount
    began: Amount
    every: Seconds
    rank: Number
    world: Number
    local: Number
    host: str
    gpu: str = ""
    step: Number
    steps: Number
    step_ns: Nanoseconds | None = None
    own_ns: Nanoseconds | None = None
    exchange_ns: Nanoseconds | None = None
    idle: Seconds
    stands: str = ""
    allocated: Number | None = None
    reserved: Number | None = None
    resident: Number | None = None
    used: Number | None = None
    total: Number | None = None
    power: Amount | None = None
    limit: Amount | None = None
    core: Amount | None = None
    celsius: Amount | None = None
    throttled: tuple[str, ...] = ()
    cost: Amount | None = None
    broadcasts: bool = False
    ended: bool = False

    def __post_init__(self) -> None:
        if self.rank >= self.world:
            raise ValueError(f"there is no rank {self.rank} of {self.world}")


class WatchedRank(Part, kw_only=True):
    """One rank in its newest lines. Times are medians; slower: its own pace over that of the median rank, less 1; throttled: the share of the
    lines by reason; seen: seconds since its last line, before the newest of any rank. The rest is as in `Sample`."""

    rank: int
    local: int
    host: str
    gpu: str
    seen: Seconds
    step: int
    step_ns: Nanoseconds | None
    own_ns: Nanoseconds | None
    exchange_ns: Nanoseconds | None
    slower: float | None
    allocated: int | None
    reserved: int | None
    resident: int | None
    used: int | None
    total: int | None
    power: float | None
    limit: float | None
    core: float | None
    celsius: float | None
    throttled: dict[str, float]
    idle: Seconds
    stands: str
    cost: float | None
    ended: bool


class Finding(Part, kw_only=True):
    """What is wrong, as a sentence, and with which ranks."""

    kind: Kind
    ranks: list[int]
    text: str


class Watched(Part, kw_only=True, tag_field="kind", tag="watch"):
    """A job. world: how many ranks it has; step_ns: of the median rank; exposed_ns: what the median rank waits for the exchange of gradients
    in a step, and least_exposed_ns the rank that waits least: the rest is waiting for slower ranks. cost: of the median rank."""

    schema: int = SCHEMA
    folder: str
    state: State
    world: int
    step: int
    step_ns: Nanoseconds | None
    exposed_ns: Nanoseconds | None
    least_exposed_ns: Nanoseconds | None
    cost: float | None
    findings: list[Finding]
    notes: list[str]
    ranks: list[WatchedRank]
