"""What `rung profile --json` prints: a recording, or with --dry-run what would be run. Beside a recording, `profile.json`
and `plan.json` hold the same."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from rung.records.measured import Nanoseconds, Seconds
from rung.records.record import SCHEMA, Part


class PlannedRun(Part, kw_only=True):
    """One start of a program. output: the folder that it writes into; recorded: whether it writes what is read."""

    what: str
    argv: list[str]
    env: dict[str, str]
    output: str
    recorded: bool


class Plan(Part, kw_only=True):
    """What is run for a recording, in this order. tool: the profiler's path, empty where it is not installed; files: written before,
    path → text; steps_only: what lies outside of the steps that the program marks is no part of the answer."""

    profiler: str
    tool: str
    version: str
    folder: str
    collects: str
    overhead: str
    overhead_means: str
    read_by: str
    runs: list[PlannedRun]
    files: dict[str, str]
    notes: list[str]
    steps_only: bool


class KeptRun(Part, kw_only=True):
    what: str
    output: str
    recorded: bool


class KeptPlan(Part, kw_only=True):
    """What has to be known of a plan, of this version or an earlier one, to read what it recorded."""

    profiler: str
    runs: list[KeptRun]
    steps_only: bool


class Planned(Plan, kw_only=True, tag_field="kind", tag="plan"):
    """What a dry run would do."""

    schema: int = SCHEMA


class Overhead(Part, kw_only=True):
    """Medians of `steps` recorded steps and of as many without the profiler; share: by which the first are longer."""

    bare_ns: Nanoseconds
    recorded_ns: Nanoseconds
    share: float
    steps: int


class SampledGpu(Part, kw_only=True):
    """One GPU's sensors beside the first recorded run. bus: PCI address; most_: the highest reading; core_mhz: the median; null where a
    GPU does not say."""

    gpu: int
    bus: str | None
    seconds: Seconds
    samples: int
    energy_j: float | None
    most_w: float | None
    most_bytes: int | None
    most_celsius: float | None
    core_mhz: float | None
    low_mhz: float | None
    busy_share: float | None
    throttled_share: float | None
    throttled: str | None
    mean_w: float | None


class StepEnergy(Part, kw_only=True):
    """Of one step without the profiler: energy_j, mean_w; null where too few of the `samples` fell into its `seconds`."""

    gpu: int
    energy_j: float | None
    mean_w: float | None
    steps: int
    seconds: Seconds
    samples: int


class SamplingCost(Part, kw_only=True):
    """cpu_share: of one core; read_seconds: the median of a round over all GPUs; rate: rounds a second that were reached, of `asked`;
    late: rounds that were left out."""

    cpu_share: float
    read_seconds: Seconds
    rate: float
    asked: float
    late: int


class SampledRank(Part, kw_only=True):
    """The GPU of one rank of a job while its steps ran, sampled by that rank; null where none of its sensors answers. gpu.gpu: as torch
    counts; samples.csv and samples.parquet are in `samples/rankN` below the folder of the recording."""

    rank: int
    host: str
    gpu: SampledGpu | None = None
    step: StepEnergy | None = None
    overhead: SamplingCost | None = None


class Sampled(Part, kw_only=True):
    """step: null where no workload was run."""

    gpus: list[SampledGpu]
    step: StepEnergy | None
    overhead: SamplingCost
    paths: list[str]


class Profile(Part, kw_only=True, tag_field="kind", tag="profile"):
    """A recording. overhead: null of a command, whose steps are not known; sensors: null where none were read; ranks: of several ranks
    whose sensors were read; analysis: what
    `rung analyze --json` says of the trace, not in profile.json."""

    schema: int = SCHEMA
    folder: str
    recording: str
    plan: Plan
    logs: list[str]
    overhead: Overhead | None
    sensors: Sampled | None
    ranks: list[SampledRank] | UnsetType = UNSET
    notes: list[str]
    analysis: dict[str, Any] | UnsetType = UNSET


class ListedPreset(Part, kw_only=True):
    """overhead: a key of `overheads`; with: the profiler, a key of `profilers`."""

    name: str
    with_: str = msgspec.field(name="with")
    says: str
    collects: str
    overhead: str
    read_by: str


class Installed(Part, kw_only=True):
    path: str
    version: str


class Presets(Part, kw_only=True, tag_field="kind", tag="presets"):
    """What `rung profile --list --json` prints. overheads: what each class of overhead means; profilers: null where one is not here."""

    schema: int = SCHEMA
    presets: list[ListedPreset]
    overheads: dict[str, str]
    profilers: dict[str, Installed | None]
