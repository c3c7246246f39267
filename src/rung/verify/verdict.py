"""What verification found: every comparison with its tolerance, and the verdict over them. No torch here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from rung.plan import Numerics
from rung.records import measured
from rung.records.record import record_of

NOTHING = "nothing could be compared: the output, loss and gradients hold no values that Rung can read"


@dataclass(frozen=True)
class Check:
    """One comparison; error, noise and tolerance are relative L2 errors against the reference. why: what an infinite error
    means, where it is not that something is not finite, or where a large one lies."""

    what: str
    precision: Numerics
    case: str
    error: float
    noise: float
    tolerance: float
    why: str = ""

    @property
    def passed(self) -> bool:
        return math.isfinite(self.error) and self.error <= self.tolerance

    def record(self) -> measured.Check:
        return record_of(measured.Check, {**asdict(self), "ratio": self.error / max(self.noise, 1e-30)})

    def sentence(self) -> str:
        if not math.isfinite(self.error):
            return f"{self.why or f'{self.what} is not finite'} ({self.precision}, {self.case})"
        own = "the untouched model's own error"
        beside = f"{self.error / self.noise:.0f}x {own} of {self.noise:.1e}" if self.noise else f"where {own} is 0"
        allowed = f"{self.tolerance:.1e} is allowed ({self.precision}, {self.case})"
        return f"{self.what} is off by {self.error:.1e}, {beside}; {allowed}{self.why and f', {self.why}'}"


@dataclass
class Verification:
    """What was compared and what failed. `worst` is the check nearest to, or farthest over, its tolerance."""

    checks: list[Check] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    cases: int = 0
    precisions: list[str] = field(default_factory=list)
    reference: str = "float64"

    @property
    def wrong(self) -> bool:
        """Whether something was found that refuses the candidate."""
        return bool(self.failures) or any(not c.passed for c in self.checks)

    @property
    def passed(self) -> bool:
        return bool(self.checks) and not self.wrong

    def record(self) -> measured.Verification:
        failed = [c for c in self.checks if not c.passed]
        ranked = sorted(self.checks, key=lambda c: _rank(c.error / c.tolerance))
        first = sorted(failed, key=lambda c: (_reading_order(c.what), -_rank(c.error)))
        failures = self.failures + [c.sentence() for c in first[:20]]
        return measured.Verification(
            passed=self.passed,
            cases=self.cases,
            checks=len(self.checks),
            precisions=self.precisions,
            reference=self.reference,
            failures=failures if self.checks or failures else [NOTHING],
            worst=ranked[-1].record() if ranked else None,
        )


def _rank(x: float) -> float:
    return x if math.isfinite(x) else math.inf


def _reading_order(what: str) -> int:
    """A number that orders what a user looks at first: outputs, the loss, gradients, then what optimizer steps leave."""
    return next((k for k, name in enumerate(("output", "loss", "gradient")) if what.startswith(name)), 3)


def joined(parts: Sequence[measured.Verification]) -> measured.Verification:
    """One verification out of those of each precision, the more exact one first."""
    worst = [p.worst for p in parts if p.worst]
    return measured.Verification(
        passed=all(p.passed for p in parts),
        cases=sum(p.cases for p in parts),
        checks=sum(p.checks for p in parts),
        precisions=list(dict.fromkeys(n for p in parts for n in p.precisions)),
        reference=parts[0].reference if len({p.reference for p in parts}) == 1 else "float32",
        failures=[f for p in parts for f in p.failures],
        worst=max(worst, key=_off) if worst else None,
        seconds=sum(p.seconds or 0.0 for p in parts),
    )


def _off(check: measured.Check) -> float:
    """How many times its tolerance a comparison is off; null in a file stands for what is not finite."""
    if check.error is None or check.tolerance is None:
        return math.inf
    return _rank(check.error / check.tolerance)
