"""What a rung is, what it may know before it is tried, and what shows afterwards that it is in effect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rung.plan import Numerics, Plan
from rung.records.climb import OverShapes
from rung.records.workload import Facts


@dataclass(frozen=True)
class Context:
    """What a rung may know before it is tried.

    plan                 of the best so far.
    facts                what is known of the workload: all of it once it was surveyed.
    parts                nanoseconds a step by category, of the best so far.
    rates                matrix FLOP/s of the chip by precision.
    first_run            seconds of the best's first run, compiling included.
    failed               rungs whose candidate raised, hung or died.
    memory               the best's peaks in bytes (`allocated` and `reserved` on a GPU).
    wants_fast_compile   what compiles sooner is wanted beside what may turn out faster.
    rounding_refused     what is compiled so far was refused for what it computes in 16 bits.
    """

    plan: Plan
    numerics: Numerics
    facts: Facts
    parts: Mapping[str, float]
    rates: Mapping[str, float]
    first_run: float = 0.0
    failed: tuple[str, ...] = ()
    memory: Mapping[str, int] = field(default_factory=dict)
    wants_fast_compile: bool = False
    rounding_refused: bool = False

    @property
    def gpu(self) -> bool:
        return self.facts.gpu

    @property
    def distributed(self) -> bool:
        """Whether several ranks train together."""
        return self.facts.ranks > 1

    @property
    def training(self) -> bool:
        return self.facts.mode == "train"

    @property
    def autocast(self) -> bool:
        """Whether products of float32 weights are computed in 16 bits."""
        return bool(self.plan.bf16 or self.facts.amp)

    @property
    def half_precision(self) -> bool:
        """Whether products are computed in 16 bits, by autocast or because the weights are."""
        return self.autocast or self.facts.dtype in ("torch.bfloat16", "torch.float16")

    @property
    def tf32(self) -> bool:
        """Whether products of float32 use TF32."""
        return self.plan.tf32 or self.facts.matmul_precision != "highest"

    def share(self, *names: str) -> float:
        total = sum(self.parts.values())
        return sum(self.parts.get(n, 0.0) for n in names) / total if total else 0.0


# Where in its range, of the time that is left, the gain of a rung is expected: 0 is the low end. The second is for a step that is compiled
# already, and no lower precision: from 14 trials of the zoo (docs/zoo.md, "Predictions").
MIDDLE, WHERE_COMPILED = 0.5, 0.14


@dataclass(frozen=True)
class Prediction:
    """The speedup that a rung should give over the best so far, as a range, and what that rests on: the shares
    of the step of the parts that it works on, the largest first (none where no profile could be had). expected: within the range."""

    low: float
    high: float
    shares: dict[str, float]
    expected: float

    @property
    def middle(self) -> float:
        """Of the range, of the time that is left. By it the next rung is chosen: what gives less is reverted, so that what a try may give
        counts for more than what is likely."""
        return speedup_at(self.low, self.high, MIDDLE)

    def judge(self, measured: float) -> str:
        return "below" if measured < self.low else "above" if measured > self.high else "inside"

    def as_dict(self) -> dict[str, Any]:
        return {"low": self.low, "high": self.high, "shares": self.shares}


# Kinds of reasons, by which a long list of rungs is told in few lines.
FOR_GPUS = "for GPUs"
OTHER_CHIP = "for other chips"
OTHER_MODE = "not for this mode (training or inference)"
NOT_FOUND = "no match in the graph"
NOT_ALLOWED = "not allowed by --numerics"
ONE_PROCESS = "for one process, not for several ranks"
SEVERAL_RANKS = "for several ranks"


@dataclass(frozen=True)
class Inapplicable:
    """Why a rung is not tried. verdict: `no-op` where it is already so, `not yet` in a plan where it waits for another rung
    (`climb.prerequisites.name_missing`), else `inapplicable`; group: of which kind the reason is, empty for one of its own."""

    why: str
    verdict: str = "inapplicable"
    group: str = ""


def already(why: str) -> Inapplicable:
    return Inapplicable(why, "no-op")


@dataclass(frozen=True)
class Counters:
    """What a few profiled steps show, per step: launches of GPU work, kernels, GEMMs, and how often each kernel,
    operator and runtime call of a name occurs."""

    launches: float
    kernels: float
    gemms: float
    names: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Evidence:
    """What can show that a rung is in effect.

    before, after   counts from the traces of the best so far and of the candidate; None where there is no trace.
    worker          what the candidate's worker reports of itself (`Candidate.warm`).
    over_shapes     of `best` and `candidate`, where the rung is about several shapes (`climb.verdict.over_shapes`).
    memory          of `best` and `candidate`, the peaks in bytes.
    """

    before: Counters | None
    after: Counters | None
    worker: Mapping[str, Any]
    over_shapes: Mapping[str, OverShapes] = field(default_factory=dict)
    memory: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Proof:
    """shown: whether the effect is there; None where nothing can tell. says: with which figures."""

    shown: bool | None
    says: str


# For each part of the profile that a change works on, the factors that should be left of its time: at best and at worst.
TimeFactors = dict[str, tuple[float, float]]
Remaining = Callable[[Context], TimeFactors]


@dataclass(frozen=True)
class Requirement:
    """A precondition of a rung. needs: what has to hold, in a few words, or "" where that goes without saying; refuses: None where it
    holds, else why it does not."""

    needs: str
    refuses: Callable[[Context], Inapplicable | None]


@dataclass(frozen=True, kw_only=True)
class Rung:
    """One step of the ladder: a change of the plan, and all that is known of it.

    contract          what it may do to numbers: `exact`, `reassociated`, `tf32`, `bf16` or `fp8`.
    requires          its preconditions. The first that does not hold is the reason why it is not tried.
    remaining         for the parts that it works on, the factors that should be left of their time, at best and at worst.
    change            the plan with the rung in it. Nothing else is changed, so leaving it out again undoes it.
    effect            what it should do beside being faster, and `proof` whether it did.
    replaces          rungs that cannot be in effect together with it; they leave the plan when it comes in.
    always_tried      whatever is predicted: nothing else shows while the GPU waits for its launches.
    prepare_seconds   that preparing it takes on top of what the best so far takes, as a first guess.
    improves          what it is for: a shorter `step`; or, at the same step, a shorter `first run`, a lower peak of `memory`,
                      or fewer `graphs` compiled over all shapes.
    tuning_env        variables of a worker that runs the candidate once before all others, for what it leaves in files.
    members           the rungs that are tried as this one (`climb.bundles.best_bundle`).
    """

    name: str
    level: int
    title: str
    contract: str
    changes: str
    requires: tuple[Requirement, ...] = ()
    remaining: Remaining
    change: Callable[[Plan], Plan]
    effect: str
    proof: Callable[[Evidence], Proof]
    replaces: tuple[str, ...] = ()
    always_tried: bool = False
    prepare_seconds: float = 0.0
    improves: str = "step"
    tuning_env: tuple[tuple[str, str], ...] = ()
    members: tuple[Rung, ...] = ()

    def applies(self, context: Context) -> Inapplicable | None:
        """None, or why it is not tried here."""
        refusals = (requirement.refuses(context) for requirement in self.requires)
        if refused := next(filter(None, refusals), None):
            return refused
        if self.change(context.plan) == context.plan:  # it would be the best so far against itself, and kept by chance
            return already("what is kept so far changes all that it would.")
        return None

    @property
    def needs(self) -> tuple[str, ...]:
        """What has to hold for it to apply, in a few words each."""
        return tuple(requirement.needs for requirement in self.requires if requirement.needs)

    def predict(self, context: Context) -> Prediction:
        """Amdahl's law over the parts of the profile: what the rung leaves alone takes as long as before."""
        factors = self.remaining(context)
        total = sum(context.parts.values())
        best, worst = (
            sum(t * factors.get(part, (1.0, 1.0))[end] for part, t in context.parts.items()) for end in (0, 1)
        )
        if total <= 0:
            return Prediction(1.0, 1.0, {}, 1.0)
        largest = sorted(factors, key=lambda part: -context.parts.get(part, 0.0))
        shares = {part: context.share(part) for part in largest if context.share(part) >= 0.005}
        low, high = total / max(worst, 1e-9 * total), total / max(best, 1e-9 * total)
        return Prediction(low, high, shares, speedup_at(low, high, self._place(context.plan)))

    def _place(self, plan: Plan) -> float:
        """Where in its range its gain is expected. What a lower precision gives is as sure on a compiled step."""
        same_precision = self.change(plan).precision_only() == plan.precision_only()
        return WHERE_COMPILED if plan.compiles and same_precision else MIDDLE


def speedup_at(low: float, high: float, place: float) -> float:
    """The speedup at this place of a range, of the time that is left: 0 is its low end."""
    return 1 / ((1 - place) / low + place / high)
