"""The ladder: each rung says when it applies, what it should give, and what it changes in the plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rung.errors import UsageError
from rung.ladder.plan import CONTRACTS, Numerics, Plan


@dataclass(frozen=True)
class Context:
    """What a rung may know before it is tried. facts: what the survey of the workload found (ladder.candidate);
    parts: nanoseconds a step by category, of the best so far; rates: matrix FLOP/s of the chip by precision."""

    plan: Plan
    numerics: Numerics
    facts: dict[str, Any]
    parts: dict[str, float]
    rates: dict[str, float]

    @property
    def gpu(self) -> bool:
        return bool(self.facts["gpu"])

    @property
    def training(self) -> bool:
        return self.facts["mode"] == "train"

    def share(self, *names: str) -> float:
        total = sum(self.parts.values())
        return sum(self.parts.get(n, 0.0) for n in names) / total if total else 0.0


@dataclass(frozen=True)
class Prediction:
    """The speedup that a rung should give over the best so far, as a range, and what that rests on: the shares
    of the step of the parts that it works on, the largest first (none where no profile could be had)."""

    low: float
    high: float
    shares: dict[str, float]

    def judge(self, measured: float) -> str:
        return "below" if measured < self.low else "above" if measured > self.high else "inside"

    def as_dict(self) -> dict[str, Any]:
        return {"low": self.low, "high": self.high, "shares": self.shares}


@dataclass(frozen=True)
class No:
    """Why a rung is not tried: `no-op` (already so) or `inapplicable`."""

    verdict: str
    why: str


@dataclass(frozen=True)
class Rung:
    """applies: None, or why not. shrinks: for the parts that it works on, the factors that should be left of
    their time at best and at worst. change: the plan with the rung in it."""

    name: str
    level: int
    title: str
    contract: str
    changes: str
    applies: Callable[[Context], No | None]
    shrinks: Callable[[Context], dict[str, tuple[float, float]]]
    change: Callable[[Plan], Plan]

    def predict(self, context: Context) -> Prediction:
        """Amdahl's law over the parts of the profile: what the rung leaves alone takes as long as before."""
        shrinks = self.shrinks(context)
        total = sum(context.parts.values())
        best, worst = (
            sum(t * shrinks.get(part, (1.0, 1.0))[end] for part, t in context.parts.items()) for end in (0, 1)
        )
        if total <= 0:
            return Prediction(1.0, 1.0, {})
        largest = sorted(shrinks, key=lambda part: -context.parts.get(part, 0.0))
        shares = {part: context.share(part) for part in largest if context.share(part) >= 0.005}
        return Prediction(total / max(worst, 1e-9 * total), total / max(best, 1e-9 * total), shares)


def _tf32_applies(c: Context) -> No | None:
    if not c.gpu:
        return No("inapplicable", "TF32 is a GPU's matrix format.")
    if CONTRACTS.index(c.numerics) < CONTRACTS.index("tf32"):
        return No("inapplicable", "the numeric contract is exact; allow it with --numerics tf32.")
    if c.rates and c.rates["tf32"] <= c.rates["fp32"]:
        return No("inapplicable", "this chip's TF32 rate is its float32 rate.")
    if c.plan.bf16:
        return No("no-op", "autocast already runs the matrix products in bfloat16.")
    if c.facts["matmul_precision"] != "highest":
        return No("no-op", f"the workload already sets float32 matmul precision to {c.facts['matmul_precision']!r}.")
    return None


def _tf32_shrinks(c: Context) -> dict[str, tuple[float, float]]:
    ratio = c.rates["fp32"] / c.rates["tf32"] if c.rates else 0.25
    return {"gemm": (ratio * 0.9, min(1.0, ratio * 3.5)), "attention": (0.4, 1.0), "convolution": (ratio, 1.0)}


def _fused_optimizer_applies(c: Context) -> No | None:
    if not c.training:
        return No("inapplicable", "inference has no optimizer.")
    if c.facts["optimizer_is_fused"]:
        return No("no-op", "the optimizer is already fused.")
    if not c.facts["optimizer_can_fuse"]:
        return No("inapplicable", f"{c.facts['optimizer']} has no fused form in this torch.")
    return None


def _matches(pattern: str, what: str) -> Callable[[Context], No | None]:
    def applies(c: Context) -> No | None:
        if c.facts["matches"].get(pattern):
            return None
        skipped = [str(reason) for reason in c.facts["skipped"]]
        failed = next((s for s in skipped if s.startswith("capture failed: ")), None)
        if failed:  # nothing was looked at, so nothing can be said about what is there
            return No("inapplicable", f"the graph could not be captured, so no {what} could be looked for: {failed}")
        near = [s.removeprefix(f"{pattern}: ") for s in skipped if s.startswith(f"{pattern}: ")]
        if near:
            more = f" (and {len(near) - 1} more)" if len(near) > 1 else ""
            return No("inapplicable", f"{what} found, but none that can be rewritten: {near[0]}{more}")
        return No("inapplicable", f"no {what} found in the captured graph.")

    return applies


def _bf16_applies(c: Context) -> No | None:
    if CONTRACTS.index(c.numerics) < CONTRACTS.index("bf16"):
        return No("inapplicable", f"the numeric contract is {c.numerics}; allow it with --numerics bf16.")
    if c.facts["amp"]:
        return No("no-op", f"the workload already runs under autocast ({c.facts['amp']}).")
    if c.facts["dtype"] != "torch.float32":
        return No("no-op", f"the model's weights are already {c.facts['dtype']}.")
    return None


def _bf16_shrinks(c: Context) -> dict[str, tuple[float, float]]:
    ratio = c.rates["tf32" if c.plan.tf32 else "fp32"] / c.rates["bf16"] if c.rates else 0.5
    gemm = (min(1.0, ratio * 1.1), min(1.0, ratio * 2.5))
    return {"gemm": gemm, "attention": (0.25, 0.8), "pointwise": (0.5, 1.0)}


def _capture_applies(c: Context) -> No | None:
    if not c.gpu:
        return No("inapplicable", "a CPU has no graphs to launch.")
    if c.training and not c.facts["optimizer_can_be_captured"]:
        return No("inapplicable", f"{c.facts['optimizer']} cannot be captured in a graph.")
    return None


def _with_pass(name: str) -> Callable[[Plan], Plan]:
    return lambda plan: replace(plan, passes=(*plan.passes, name))


# In this order: what frees the step from its launches comes before what makes kernels faster, because nothing
# else can be seen before; the precision comes before surgery, because it changes which surgery pays.
LADDER: tuple[Rung, ...] = (
    Rung("tf32", 1, "TF32 matrix products", "tf32", 'torch.set_float32_matmul_precision("high")',
         _tf32_applies, _tf32_shrinks, lambda p: replace(p, tf32=True)),
    Rung("compile", 2, "torch.compile", "reassociated", "forward and loss as one compiled function, static shapes",
         lambda c: None,
         lambda c: {"pointwise": (0.25, 0.75), "launch_gap": (0.1, 0.8), "attention": (0.5, 1.0)},
         lambda p: replace(p, compile=True)),
    Rung("fused-optimizer", 2, "fused optimizer", "reassociated", "the same optimizer with fused=True",
         _fused_optimizer_applies,
         lambda c: {"optimizer": (0.25, 0.8), "launch_gap": (0.7, 1.0)},
         lambda p: replace(p, fused_optimizer=True)),
    Rung("capture", 2, "whole step as one graph", "exact",
         "forward, backward and optimizer replayed as one CUDA or HIP graph per input shape",
         _capture_applies,
         lambda c: {"launch_gap": (0.0, 0.25), "idle": (0.2, 1.0)}, lambda p: replace(p, capture=True)),
    Rung("bf16", 1, "bfloat16 autocast", "bf16", "forward and loss under torch.autocast(dtype=torch.bfloat16)",
         _bf16_applies, _bf16_shrinks, lambda p: replace(p, bf16=True)),
    Rung("sdpa", 3, "scaled_dot_product_attention", "reassociated",
         "hand-written attention becomes F.scaled_dot_product_attention, causal and grouped-query where it is",
         _matches("sdpa", "hand-written attention"),
         lambda c: {"attention": (0.15, 0.8), "pointwise": (0.85, 1.0), "launch_gap": (0.7, 1.0)}, _with_pass("sdpa")),
    Rung("fused-qkv", 3, "one GEMM for q, k and v", "reassociated",
         "linear layers that read the same input become one, their weights joined in the graph",
         _matches("fused-qkv", "sibling projections"),
         lambda c: {"gemm": (0.93, 1.02), "launch_gap": (0.9, 1.0)}, _with_pass("fused-qkv")),
    Rung("fused-gate-up", 3, "one GEMM for gate and up", "reassociated",
         "the two projections of a gated feed-forward become one",
         _matches("fused-gate-up", "gate and up projections"),
         lambda c: {"gemm": (0.93, 1.02), "launch_gap": (0.9, 1.0)}, _with_pass("fused-gate-up")),
)  # fmt: skip

BY_NAME = {rung.name: rung for rung in LADDER}


def plan_of(names: Sequence[str]) -> Plan:
    """The plan that these rungs add up to, in this order."""
    plan = Plan()
    for name in names:
        plan = chosen([name])[0].change(plan)
    return plan


def chosen(names: Sequence[str]) -> list[Rung]:
    """The rungs of these names; an unknown name is refused with the list of the known ones."""
    for name in names:
        if name not in BY_NAME:
            raise UsageError(f"there is no rung {name!r}; the ladder has {', '.join(BY_NAME)}.")
    return [BY_NAME[name] for name in names]
