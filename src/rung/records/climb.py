"""What `rung climb --json` and `rung report --json` print: a run directory. Each of its files has a record here, of which the required
fields are those that a climb needs to go on and a report needs to be made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from rung.records.analyze import Breakdown
from rung.records.compare import OtherGpu, Ranked, WarmUp
from rung.records.measured import Compared, Environment, Figure, Ratio, Seconds, Verification, Witness
from rung.records.record import SCHEMA, Part
from rung.records.workload import Facts, Workload

Object = dict[str, Any]
Sample = int | float  # nanoseconds; a clock counts whole ones, and they are written again as they were


class Stopped(Part, kw_only=True):
    """Why nothing more was tried. rule: tried, rest, floor or budget; left: rungs that apply and were not tried, with what they were
    expected to give at best; needs: seconds that deciding the next of them takes, where that is why."""

    rule: str
    why: str
    left: Mapping[str, float] | None = None
    needs: float | None = None


class Manifest(Part, kw_only=True):
    """manifest.json: what is climbed, on what, and how it stands. request: what it was begun with; spent_seconds: in all sittings."""

    schema: int
    kind: str = "climb"
    status: str
    why: str
    target: str
    options: Object | None = None
    numerics: str
    command: str = ""
    created: str = ""
    request: Object
    rungs: list[str] | None = None
    workload: Workload
    environment: Environment
    facts: Facts
    stopped: Stopped | UnsetType | None = UNSET
    spent_seconds: Seconds | UnsetType | None = UNSET


class Floor(Part, kw_only=True):
    """The least time that a step can take on this chip, by its arithmetic at the best rate allowed. share: of the step that was timed."""

    seconds: Seconds
    precision: str
    share: float | None = None


class Baseline(Part, kw_only=True):
    """baseline.json: the untouched workload. time: a step, ns; memory: bytes at most."""

    time: Figure
    samples: Sequence[Sample] | None = None
    first_run_seconds: Seconds
    loading_seconds: Seconds | None = None
    opening_seconds: Seconds | None = None
    warm_up_runs: int | None = None
    steady: bool | None = None
    memory: dict[str, int]
    floor: Floor | None = None
    breakdown: Breakdown | None
    without_gradient: list[str] | None = None
    trace: str | None = None


class Mode(Part, kw_only=True):
    """A plain mode of torch.compile. speedup: over the untouched model, missing where it was not timed, and then `error` may say why;
    failed: whether it raised, or was refused."""

    name: str = ""
    title: str = ""
    rungs: list[str]
    ready_seconds: Seconds | UnsetType = UNSET
    speedup: float | UnsetType = UNSET
    step_ns: Sample | UnsetType = UNSET
    prepared_seconds: Seconds | UnsetType | None = UNSET
    error: str | UnsetType = UNSET
    failed: bool | UnsetType = UNSET


class Plain(Mode, kw_only=True, omit_defaults=True):
    """The fastest of them, and all that were raced. Empty where none computes what the untouched model computes."""

    rungs: list[str] = msgspec.field(default_factory=list)
    modes: list[Mode] | None = None


class Prediction(Part, kw_only=True):
    """low, high: the range of the speedup over the best so far; expected: within it; shares: of the step, of the parts that it rests on."""

    low: float | None
    high: float | None
    expected: float | None = None
    shares: dict[str, float | None]


class Effect(Part, kw_only=True):
    """What should show that a rung is in effect, whether it did, and in words."""

    should: str
    shown: bool | None
    says: str


class PayBack(Part, kw_only=True):
    """What preparing a candidate takes longer, and the steps after which it has made up for that; null where it never does."""

    seconds: Seconds
    steps: int | None


class OverShapes(Part, kw_only=True):
    """What compiling took for all shapes that a workload offers. shapes: how many there are; graphs: compiled for them."""

    shapes: int
    graphs: int
    seconds: Seconds


class Attempt(Part, kw_only=True):
    """attempts/NN-rung.json: one rung, or a bundle (`members`), against the best so far. verdict: kept, reverted, inconclusive, no-op,
    failed or inapplicable; stack: all rungs that it ran with; comparison: candidate against best, of `times` in ns a step; without:
    members that did nothing; cut: whether the budget ended before it was decided; over_shapes: by side; other_gpus: on which some of its
    restarts ran; busy: why the speedup is doubtful, on a CPU whose cores were busy."""

    schema: int = SCHEMA
    number: int
    rung: str
    level: int | None = None
    title: str = ""
    contract: str = ""
    changes: str = ""
    against: str
    stack: list[str] = msgspec.field(default_factory=list)
    replaces: list[str] | None = None
    prediction: Prediction | None = None
    clock: str | None = None
    graph_breaks: list[str] | None = None
    verdict: str
    why: str = ""
    group: str | UnsetType = UNSET
    modes: list[Mode] | UnsetType | None = UNSET
    plain: Plain | UnsetType | None = UNSET
    members: list[str] | UnsetType | None = UNSET
    log: str | UnsetType = UNSET
    prepared_seconds: Seconds | UnsetType | None = UNSET
    comparison: Compared | UnsetType | None = UNSET
    ranking: Ranked | UnsetType | None = UNSET
    restarts: Sequence[Mapping[str, Sequence[Sample]]] | UnsetType | None = UNSET
    times: Mapping[str, Figure] | UnsetType | None = UNSET
    memory: dict[str, dict[str, int]] | UnsetType | None = UNSET
    first_run_seconds: dict[str, Seconds] | UnsetType | None = UNSET
    warm_up: list[dict[str, WarmUp]] | UnsetType | None = UNSET
    applied: Object | UnsetType | None = UNSET
    matches: dict[str, int] | UnsetType | None = UNSET
    hidden: dict[str, float | None] | UnsetType | None = UNSET
    witness: Witness | UnsetType | None = UNSET
    compiled_while_timed: dict[str, int] | UnsetType | None = UNSET
    waited: dict[str, float | None] | UnsetType | None = UNSET
    cpu_time: Compared | UnsetType | None = UNSET
    warnings: list[str] | UnsetType | None = UNSET
    other_gpus: list[OtherGpu] | UnsetType = UNSET
    busy: str = ""
    cut: bool | UnsetType = UNSET
    forecast: str | UnsetType = UNSET
    prediction_error: float | UnsetType | None = UNSET
    pay_back: PayBack | UnsetType | None = UNSET
    over_shapes: dict[str, OverShapes] | UnsetType | None = UNSET
    effect: Effect | UnsetType | None = UNSET
    without: list[str] | UnsetType | None = UNSET
    verified_seconds: Seconds | UnsetType | None = UNSET
    verification: Verification | UnsetType | None = UNSET
    gain: float | UnsetType | None = UNSET
    seconds: Seconds | UnsetType = UNSET
    breakdown: Breakdown | UnsetType | None = UNSET
    trace: str | UnsetType | None = UNSET
    spent_seconds: Seconds | UnsetType = UNSET


class DryRun(Part, kw_only=True):
    """plan.json: attempts before anything is measured, in the order in which they would be tried; one with a verdict would not be."""

    rungs: list[Attempt]


class Moment(Part, kw_only=True):
    """When an answer was given: seconds since the climb began."""

    status: str
    kept: list[str]
    speedup: float | None
    seconds: Seconds


class TakenBack(Part, kw_only=True):
    kept: list[str]
    why: str
    seconds: Seconds


class Shape(Part, kw_only=True):
    """What the answer gives on another shape. answer: faster, slower, undecided, fails or unknown, and then `why`."""

    shape: str
    elements: int
    answer: str
    speedup: Figure | None
    why: str | UnsetType = UNSET


class Noise(Part, kw_only=True):
    """How noisy the machine was. waited: the largest share of an attempt's time in which a side waited for a core; visible: the smallest gain
    that would have shown, in the middle of all attempts; null where they are not known."""

    waited: float | None
    visible: float | None


class Predicted(Part, kw_only=True):
    """median_error: of what was predicted, in points of the step's time; decided: attempts that tell; inside: of these within the range."""

    median_error: float | None
    decided: int
    inside: int
    by_rung: dict[str, float | None]


class Result(Part, kw_only=True):
    """result.json: the best answer so far. kept: its rungs; speedup: over the untouched model; over_plain: over the best plain mode;
    times: ns a step, by side (`baseline`, `plain`, `best`); memory: bytes; doubt: why it is provisional although it was more; busy: why the
    speedup is doubtful, on a CPU whose cores were busy; all_shapes: whether it was verified on every shape that the workload runs on, and not on the measured one alone; history:
    every answer; taken_back: answers that a later check refuted; recipe: the file; seconds: of the whole climb. What belongs to an
    answer is null without one."""

    schema: int = SCHEMA
    kept: list[str]
    status: str | None = None
    speedup: Figure | None = None
    over_plain: Figure | None = None
    confidence: float | None = None
    times: Mapping[str, Figure] | None = None
    memory: dict[str, dict[str, int]] | None = None
    first_run_seconds: Mapping[str, Seconds | None] | None = None
    restarts: Sequence[Mapping[str, Sequence[Sample]]] | None = None
    shapes: list[Shape] | None = None
    doubt: str = ""
    busy: str = ""
    all_shapes: bool = True
    noise: Noise | None = None
    plain: Plain | None = None
    history: list[Moment] | None = None
    taken_back: list[TakenBack] | None = None
    breakdown: Breakdown | None = None
    recipe: str | None = None
    recipe_text: str = ""
    stopped: Stopped | None = None
    predictions: Predicted | None = None
    seconds: Seconds | None = None


class ClimbRun(Part, kw_only=True, tag_field="kind", tag="run"):
    """A run directory. running: whether a process climbs in it now."""

    schema: int = SCHEMA
    directory: str
    running: bool
    manifest: Manifest
    baseline: Baseline | None
    attempts: list[Attempt]
    plan: DryRun | None
    result: Result | None


class Begun(Part, kw_only=True):
    status: str
    why: str


class NotBegun(Part, kw_only=True, tag_field="kind", tag="no run"):
    """A climb that was stopped before there was a run directory."""

    schema: int = SCHEMA
    directory: None = None
    manifest: Begun
    baseline: None = None
    attempts: list[Attempt] = msgspec.field(default_factory=list)
    plan: None = None
    result: None = None


class Outcome(Part, kw_only=True):
    """What became of a rung: its verdict, or `refused`, and what it gave over the best before it, where it was timed."""

    verdict: str
    speedup: Ratio | None
    why: str


class Climb(Part, kw_only=True):
    """One run directory. status: of its recipe, or how the climb stands; speedup: over the untouched model, over_plain: over the best
    plain torch.compile; steps in ns, memory in bytes, of the untouched model and the answer; first_answer, verified, took: seconds
    from the beginning. rungs: by name, the last try of each."""

    directory: str
    model: str
    mode: str
    numerics: str
    device: str
    software: str
    status: str
    kept: list[str]
    speedup: Ratio | None
    over_plain: Ratio | None
    step_before: float | None
    step_after: float | None
    memory_before: float | None
    memory_after: float | None
    first_answer: float | None
    verified: float | None
    took: float | None
    rungs: dict[str, Outcome]

    @property
    def name(self) -> str:
        return f"{self.model} ({', '.join(part for part in (self.mode, self.numerics) if part)})"


class Climbs(Part, kw_only=True, tag_field="kind", tag="climbs"):
    """`rung report --json` of several run directories."""

    schema: int = SCHEMA
    climbs: list[Climb]


class ListedRun(Part, kw_only=True):
    """One of the run directories that `rung runs --json` lists. error: why it cannot be read; the rest is missing then."""

    directory: str
    running: bool | UnsetType = UNSET
    manifest: Manifest | UnsetType = UNSET
    result: Result | UnsetType | None = UNSET
    error: str | UnsetType = UNSET
