"""When is something a finding? Each rule looks at the facts of a trace and gives what it saw, or nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import polars as pl

from rung.analysis import analyses
from rung.analysis.account import account
from rung.analysis.gaps import caused
from rung.analysis.origins import host_calls
from rung.analysis.timeline import timeline
from rung.trace.table import Trace

_POINTWISE = ("elementwise", "normalization", "reduction", "softmax", "embedding")
_SMALLER_FORMAT = r"(?i)tf32|s1688|xf32|bf16|hgemm|h16816"  # a kernel that takes float32 and multiplies in less
_FUSED = r"(?i)fused_?(adam|sgd|adagrad)|FusedAdam|FusedSgd"
_ALLOCATES = r"(?i)^(hip|cuda|cu)(mem)?(malloc|alloc|free|host)"


@dataclass(frozen=True)
class Seen:
    """share: of the GPUs' time, what the finding is about; evidence: what was seen; left: the fractions of it that remain at
    best and at worst, where the trace says more than the rule's own range."""

    share: float
    evidence: str
    left: tuple[float, float] | None = None


class Facts:
    """What the rules look at. Times are sums over the GPUs and steps; total_ns is what shares are of."""

    def __init__(self, trace: Trace, steps: int) -> None:
        self.trace, self.steps = trace, steps
        rows = timeline(trace).filter(pl.col("step").is_null())
        self.sums: dict[str, int] = rows.select(pl.exclude("rank", "device", "step").sum()).row(0, named=True)
        self.per = max(1, rows.height * steps)
        self.a_step = " a step" if steps > 1 else ""
        self.own = account(trace)
        self.idle = caused(trace)

    def share(self, ns: Any) -> float:
        return float(ns) / max(1, self.sums["total_ns"])

    def ms(self, ns: Any) -> str:
        """Of one step of one GPU."""
        return f"{float(ns) / self.per / 1e6:.3g} ms"

    def spent(self, *conditions: pl.Expr) -> tuple[float, pl.DataFrame]:
        """The share of the busy events of these conditions, and the events."""
        events = self.own.filter(*conditions)
        return self.share(events["own_ns"].sum()), events

    def gaps(self, *conditions: pl.Expr) -> tuple[float, str]:
        """The share of the idle time of these conditions, and what the host did in most of it."""
        found = self.idle.filter(*conditions)
        doing = (
            found.group_by("during", "call_site").agg(pl.col("gap_ns").sum()).sort("gap_ns", descending=True).row(0)
            if found.height
            else (None, None, 0)
        )
        where = ", ".join(str(part) for part in doing[:2] if part)
        return self.share(found["gap_ns"].sum()), where

    def table(self, name: str) -> pl.DataFrame:
        """Another analysis, empty where there is none of the name."""
        return analyses.table(name, self.trace, steps=self.steps) if name in analyses.ANALYSES else pl.DataFrame()


Rule = Callable[[Facts], Seen | None]


def _allocating() -> pl.Expr:
    return pl.col("during").str.contains(_ALLOCATES).fill_null(False)


def host_bound(facts: Facts) -> Seen | None:
    waiting = pl.col("cause").is_in(["host", "launch latency"])
    share, where = facts.gaps(waiting, ~_allocating())
    launched = facts.table("launches")
    count = float(launched["launches"].sum()) / max(1, launched.height)
    said = f"{count:.0f} launches{facts.a_step}" + (f", most of the wait in {where}" if where else "")
    # Recording Python's stacks slows the host several times over: without it much of this may be gone.
    stacks = (facts.trace.events["kind"] == "python").any()
    if stacks:
        said += "; recorded with stacks, which slow the host down"
    return Seen(share, said, (0.0, 0.9) if stacks else None) if share >= 0.03 else None


def allocation(facts: Facts) -> Seen | None:
    share, where = facts.gaps(_allocating())
    return Seen(share, f"in {where}") if share >= 0.02 else None


def sync(facts: Facts) -> Seen | None:
    share, where = facts.gaps(pl.col("cause") == "sync", ~_allocating())
    return Seen(share, f"in {where}" if where else "") if share >= 0.02 else None


def data_loading(facts: Facts) -> Seen | None:
    share, where = facts.gaps(pl.col("cause") == "data loading")
    return Seen(share, f"in {where}" if where else "") if share >= 0.02 else None


def unfused_attention(facts: Facts) -> Seen | None:
    share, events = facts.spent(pl.col("category") == "attention", pl.col("detail").str.starts_with("unfused"))
    return Seen(share, f"{events.height / facts.per:.0f} kernels{facts.a_step}") if share >= 0.03 else None


def fp32_matmul(facts: Facts) -> Seen | None:
    matrix = pl.col("category").is_in(["gemm", "convolution"]) & (pl.col("detail") != "layout")
    _, events = facts.spent(matrix)
    calls = host_calls(facts.trace)
    dtypes = calls["dtypes"].gather(facts.own.filter(matrix)["row_of_op"])
    chosen = events.with_columns(dtypes=dtypes).filter(
        pl.col("dtypes").str.contains(r'^\["float"'), ~pl.col("name").str.contains(_SMALLER_FORMAT)
    )
    share = facts.share(chosen["own_ns"].sum())
    return (
        Seen(share, f"{chosen.height / facts.per:.0f} kernels{facts.a_step}, {largest(chosen)} first")
        if share >= 0.05
        else None
    )


def gemm_bound(facts: Facts) -> Seen | None:
    share, events = facts.spent(pl.col("category") == "gemm")
    if share < 0.4:
        return None
    said = f"{events.height / facts.per:.0f}{facts.a_step}, {largest(events)} first"
    roof = facts.table("roofline")
    known = roof.filter(pl.col("family") == "gemm", pl.col("floor_ns") > 0) if roof.height else roof
    if known.is_empty():
        return Seen(share, said)
    best = min(1.0, float(known["floor_ns"].sum()) / max(1.0, float(known["time_ns"].sum())))
    return Seen(share, f"{said}; at {best:.0%} of their roof", (best, 1.0))


def far_from_roof(facts: Facts) -> Seen | None:
    roof = facts.table("roofline")
    if roof.is_empty() or "floor_ns" not in roof.columns:
        return None
    lost = pl.col("time_ns") - pl.col("floor_ns")
    known = roof.filter(pl.col("floor_ns") > 0, ~pl.col("fits_cache"), pl.col("bound") != "host link", lost > 0)
    if known.is_empty():
        return None
    row = known.sort(lost, descending=True).row(0, named=True)
    share, best = facts.share(row["time_ns"]), row["floor_ns"] / row["time_ns"]
    if share * (1 - best) < 0.05:
        return None
    said = f"{row['op']} {row['inputs'] or ''}".strip()
    return Seen(share, f"{said}: at {best:.0%} of its {row['bound']} roof", (best, best + 0.75 * (1 - best)))


def pointwise(facts: Facts) -> Seen | None:
    share, events = facts.spent(pl.col("category").is_in(_POINTWISE))
    return (
        Seen(share, f"{events.height / facts.per:.0f} kernels{facts.a_step}, {largest(events)} first")
        if share >= 0.1
        else None
    )


def optimizer(facts: Facts) -> Seen | None:
    share, events = facts.spent(pl.col("category") == "optimizer", ~pl.col("name").str.contains(_FUSED))
    return Seen(share, f"{events.height / facts.per:.0f} kernels{facts.a_step}") if share >= 0.02 else None


def copies(facts: Facts) -> Seen | None:
    share, events = facts.spent(pl.col("category") == "copy", _over_the_link())
    if share < 0.02:
        return None
    return Seen(share, f"{facts.ms(events['own_ns'].sum())}{facts.a_step}, {largest(events)} first")


def device_copies(facts: Facts) -> Seen | None:
    share, events = facts.spent(pl.col("category") == "copy", ~_over_the_link())
    return (
        Seen(share, f"{events.height / facts.per:.0f}{facts.a_step}, {largest(events)} first")
        if share >= 0.05
        else None
    )


def _over_the_link() -> pl.Expr:
    return pl.col("detail").is_in(["HtoD", "DtoH"])


def convolution_layout(facts: Facts) -> Seen | None:
    share, events = facts.spent(pl.col("category") == "convolution", pl.col("detail") == "layout")
    return Seen(share, f"{events.height / facts.per:.0f} kernels{facts.a_step}") if share >= 0.03 else None


def exposed_communication(facts: Facts) -> Seen | None:
    exposed = facts.sums["exposed_communication_ns"]
    share = facts.share(exposed)
    if share < 0.03:
        return None
    table = facts.table("communication")
    first = table.row(0, named=True) if table.height else None
    said = f"{facts.ms(exposed)}{facts.a_step}" + (f", {first['collective']} first" if first else "")
    waited, moved = (float(table[name].sum()) if first else 0.0 for name in ("waiting_ns", "transfer_ns"))
    waited /= max(1.0, waited + moved)
    return Seen(
        share, said + (f"; {waited:.0%} of the time in them is waiting for other ranks" if waited >= 0.05 else "")
    )


def straggler(facts: Facts) -> Seen | None:
    table = facts.table("stragglers")
    if table.is_empty():
        return None
    share = float(table.group_by("step").agg(pl.col("late_share").max())["late_share"].sum()) / facts.steps
    row: dict[str, Any] = table.sort("late_ns", descending=True).row(0, named=True)
    because = {"computation": f", {row['op']} took longer on it", "host": ", its GPU waited for its host"}
    said = f"rank {row['rank']} by {row['late_ns'] / 1e6:.3g} ms in step {row['step']}{because.get(row['cause'], '')}"
    return Seen(min(1.0, share), said) if share >= 0.02 else None


def compiling(facts: Facts) -> Seen | None:
    table = facts.table("compilation")
    signs = table.filter(pl.col("sign").is_in(["recompilation", "Triton compilation", "autotuning", "graph captured"]))
    if signs.is_empty():
        return None
    ns = min(int(signs["time_ns"].sum()), facts.sums["idle_ns"])  # what hid behind GPU work cost nothing
    share = facts.share(ns)
    return (
        Seen(share, ", ".join(f"{row['count']:.0f} x {row['sign']}" for row in signs.to_dicts()))
        if share >= 0.02
        else None
    )


RULES: dict[str, Rule] = {
    rule.__name__: rule
    for rule in (
        host_bound, allocation, sync, data_loading, unfused_attention, fp32_matmul, gemm_bound, far_from_roof, pointwise,
        optimizer, copies, device_copies, convolution_layout, exposed_communication, straggler, compiling,
    )
}  # fmt: skip


def largest(events: pl.DataFrame) -> str:
    """The operator, else kernel, with most of the time."""
    what = pl.coalesce("op", "name").alias("what")
    return str(
        events.group_by(what).agg(pl.col("own_ns").sum()).sort("own_ns", "what", descending=[True, False])["what"][0]
    )
