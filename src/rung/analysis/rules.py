"""When is something a finding? Each rule looks at the facts of a trace and gives what it saw, or nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl

from rung.analysis.applicable import FUSED
from rung.analysis.calls import launching_calls
from rung.analysis.classified import classified
from rung.analysis.facts import Facts, Seen, largest, short
from rung.analysis.origins import op_column
from rung.analysis.runtime_roles import role
from rung.analysis.server_steps import DECODE, MIXED, PREFILL, SPECULATIVE
from rung.quantities import duration

_POINTWISE = ("elementwise", "normalization", "reduction", "softmax", "embedding")
_SMALLER_FORMAT = r"(?i)tf32|s1688|xf32|bf16|hgemm|h16816"  # a kernel that takes float32 and multiplies in less
DECODING = (DECODE, MIXED, SPECULATIVE)


Rule = Callable[[Facts], Seen | None]


def _allocating(facts: Facts) -> pl.Expr:
    """Of the gaps in `facts.idle`: whether the host allocated or released memory."""
    names = [name for name in facts.idle["during"].drop_nulls().unique() if role(name) == "memory"]
    return pl.col("during").is_in(names).fill_null(False)


def _waits_for_launches(facts: Facts) -> tuple[float, str]:
    return facts.gaps(pl.col("cause").is_in(["host", "launch latency"]), ~_allocating(facts))


def host_bound(facts: Facts) -> Seen | None:
    if facts.replayed:
        return None
    share, where = _waits_for_launches(facts)
    said = facts.many(float(facts.table("launches")["launches"].sum()) * facts.steps, "launch", "es")
    said += f", most of the wait in {where}" if where else ""
    said += _before_decoding(facts, share)
    # Recording Python's stacks slows the host several times over: without it much of this may be gone.
    stacks = (facts.trace.events["kind"] == "python").any()
    if stacks:
        said += "; recorded with stacks, which slow the host down"
    return Seen(share, said, (0.0, 0.9) if stacks else None) if share >= 0.03 else None


def between_replays(facts: Facts) -> Seen | None:
    share, where = _waits_for_launches(facts)
    if not facts.replayed or share < 0.03:
        return None
    launched = facts.own.filter("graph")["launch"].n_unique()
    said = f"{launched} launches of graphs" + (f", most of the wait in {where}" if where else "")
    return Seen(share, said + _before_decoding(facts, share))


def _before_decoding(facts: Facts, share: float) -> str:
    """How much of waits of this share of the time are those of a server between its steps."""
    steps = facts.table("serving_steps").filter(pl.col("step") > 0, pl.col("phase").is_in(DECODING))
    within = facts.share(steps["gap_ns"].sum()) / share if share else 0.0
    if within < 0.1:
        return ""
    return f"; {min(1.0, within) * 100:.0f}% of it before decode steps, {duration(steps['gap_ns'].mean())} each"  # type: ignore[arg-type]


def held_up_decoding(facts: Facts) -> Seen | None:
    """Steps that only read prompts, between two that decode."""
    steps = facts.table("serving_steps")
    prompt = pl.when(pl.col("phase") == PREFILL).then("time_ns").otherwise(0)
    decoding = steps.with_columns(read=prompt.cum_sum().over("rank")).filter(pl.col("phase").is_in(DECODING))
    decoding = decoding.with_columns(held=pl.col("read") - pl.col("read").shift(1).over("rank")).drop_nulls(
        "token_time_ns"
    )
    held, free = decoding.filter(pl.col("held") > 0), decoding.filter(pl.col("held") == 0)
    share = facts.share(held["held"].sum())
    if share < 0.05 or free.is_empty():
        return None
    medians = [duration(float(part["token_time_ns"].median())) for part in (held, free)]  # type: ignore[arg-type]
    said = f"{held.height} of {decoding.height} gaps between tokens contain a prompt and take {medians[0]} instead of {medians[1]}"
    return Seen(share, f"{said} (medians)")


def allocation(facts: Facts) -> Seen | None:
    share, where = facts.gaps(_allocating(facts))
    return Seen(share, f"in {where}") if share >= 0.02 else None


def sync(facts: Facts) -> Seen | None:
    share, where = facts.gaps(pl.col("cause") == "sync", ~_allocating(facts))
    said = (f"in {where}" if where else "") + _before_decoding(facts, share)
    return Seen(share, said.removeprefix("; ")) if share >= 0.02 else None


def queued(facts: Facts) -> Seen | None:
    share, _ = facts.gaps(pl.col("cause") == "queued")
    if share < 0.03:
        return None
    longest = facts.idle.filter(pl.col("cause") == "queued").sort("gap_ns", descending=True).row(0, named=True)
    return Seen(share, f"the longest: {duration(longest['gap_ns'])} before {short(longest['next'])}")


def unexplained_idle(facts: Facts) -> Seen | None:
    if facts.trace.serialized:  # the profiler made the gaps
        return None
    share, _ = facts.gaps(pl.col("cause").is_in(["no launches", "launched outside"]))
    why = (
        "no launch of a kernel was recorded"
        if not facts.linked()
        else "the work that ended the waits was launched outside of the recording"
    )
    return Seen(share, why) if share >= 0.05 else None


def data_loading(facts: Facts) -> Seen | None:
    share, where = facts.gaps(pl.col("cause") == "data loading")
    return Seen(share, f"in {where}" if where else "") if share >= 0.02 else None


def unfused_attention(facts: Facts) -> Seen | None:
    share, events = facts.spent(*_unfused())
    return Seen(share, facts.many(events.height, "kernel")) if share >= 0.03 else None


def _unfused() -> tuple[pl.Expr, pl.Expr]:
    return pl.col("category") == "attention", pl.col("detail").str.starts_with("unfused")


def _written_out(facts: Facts) -> pl.Series:
    """The operators that spend most of their time in attention that is written out: a finding of its own."""
    kinds = classified(facts.trace).select(
        "dur", op=op_column(facts.trace, "name"), unfused=pl.all_horizontal(_unfused())
    )
    mostly = pl.col("dur").filter("unfused").sum() > pl.col("dur").sum() / 2
    return kinds.group_by("op").agg(mostly=mostly).filter("mostly", pl.col("op").is_not_null())["op"]


def fp32_matmul(facts: Facts) -> Seen | None:
    matrix = pl.col("category").is_in(["gemm", "convolution"]) & (pl.col("detail") != "layout")
    _, events = facts.spent(matrix)
    calls = launching_calls(facts.trace)
    dtypes = calls["dtypes"].gather(facts.own.filter(matrix)["row_of_op"]).cast(pl.String)
    chosen = events.with_columns(dtypes=dtypes).filter(
        pl.col("dtypes").str.contains(r'^\["float"'), ~pl.col("name").str.contains(_SMALLER_FORMAT)
    )
    share = facts.share(chosen["own_ns"].sum())
    return Seen(share, f"{facts.many(chosen.height, 'kernel')}, {largest(chosen)} first") if share >= 0.05 else None


def gemm_bound(facts: Facts) -> Seen | None:
    share, events = facts.spent(pl.col("category") == "gemm")
    if share < 0.4:
        return None
    said = f"{facts.many(events.height)}, {largest(events)} first"
    roof = facts.table("roofline")
    known = roof.filter(pl.col("family") == "gemm", pl.col("floor_ns") > 0) if roof.height else roof
    time = float(known["time_ns"].sum()) if known.height else 0.0
    if time * facts.steps < 0.8 * float(events["own_ns"].sum()):  # of graph replays: too few to speak for all
        return Seen(share, said)
    best = min(1.0, float(known["floor_ns"].sum()) / max(1.0, time))
    return Seen(share, f"{said}; at {best * 100:.0f}% of their roof", (best, 1.0))


def far_from_roof(facts: Facts) -> Seen | None:
    roof = facts.table("roofline")
    if roof.is_empty() or "floor_ns" not in roof.columns:
        return None
    lost = pl.col("time_ns") - pl.col("floor_ns")
    known = roof.filter(
        pl.col("floor_ns") > 0, ~pl.col("fits_cache"), pl.col("bound").is_in(["compute", "memory"]), lost > 0,
        ~pl.col("op").is_in(_written_out(facts).implode()),
    )  # fmt: skip
    if known.is_empty():
        return None
    row = known.sort(lost, descending=True).row(0, named=True)
    share, best = facts.share(row["time_ns"] * facts.steps), row["floor_ns"] / row["time_ns"]
    if share * (1 - best) < 0.05:
        return None
    said = f"{row['op']} {row['inputs'] or ''}".strip()
    said = f"{said}: at {best * 100:.0f}% of its {row['bound']} roof"
    return Seen(share, said, (best, best + 0.75 * (1 - best)), row["family"])


def pointwise(facts: Facts) -> Seen | None:
    share, events = facts.spent(pl.col("category").is_in(_POINTWISE))
    return Seen(share, f"{facts.many(events.height, 'kernel')}, {largest(events)} first") if share >= 0.1 else None


def optimizer(facts: Facts) -> Seen | None:
    share, events = facts.spent(pl.col("category") == "optimizer", ~pl.col("name").str.contains(FUSED))
    if share < 0.02 or facts.fits.training is False:
        return None
    return Seen(share, facts.many(events.height, "kernel"))


def copies(facts: Facts) -> Seen | None:
    share, events = facts.spent(pl.col("category") == "copy", _over_the_link())
    if share < 0.02:
        return None
    return Seen(share, f"{facts.time(events['own_ns'].sum())}{facts.a_step}, {largest(events)} first")


def device_copies(facts: Facts) -> Seen | None:
    share, events = facts.spent(pl.col("category") == "copy", ~_over_the_link())
    return Seen(share, f"{facts.many(events.height)}, {largest(events)} first") if share >= 0.05 else None


def _over_the_link() -> pl.Expr:
    return pl.col("detail").is_in(["HtoD", "DtoH"])


def convolution_layout(facts: Facts) -> Seen | None:
    share, events = facts.spent(pl.col("category") == "convolution", pl.col("detail") == "layout")
    return Seen(share, facts.many(events.height, "kernel")) if share >= 0.03 else None


def exposed_communication(facts: Facts) -> Seen | None:
    exposed = facts.sums["exposed_communication_ns"]
    share = facts.share(exposed)
    if share < 0.03:
        return None
    table = facts.table("communication")
    first = table.row(0, named=True) if table.height else None
    said = f"{facts.time(exposed)}{facts.a_step}" + (
        f", {first['collective']} first" if first and first["collective"] != "unnamed" else ""
    )
    waited, moved = (float(table[name].sum()) if first else 0.0 for name in ("waiting_ns", "transfer_ns"))
    waited /= max(1.0, waited + moved)
    return Seen(
        share,
        said + (f"; {waited * 100:.0f}% of their time is waiting for other ranks" if waited >= 0.05 else ""),
    )


def straggler(facts: Facts) -> Seen | None:
    return late_rank(facts.table("stragglers"), facts.steps)


def late_rank(table: pl.DataFrame, steps: int) -> Seen | None:
    """table: of `stragglers`."""
    if table.is_empty():
        return None
    share = float(table.group_by("step").agg(pl.col("late_share").max())["late_share"].sum()) / steps
    row: dict[str, Any] = table.sort("late_ns", descending=True).row(0, named=True)
    because = {"computation": f", {row['op']} took longer on it", "host": ", its GPU waited for its host"}
    said = f"rank {row['rank']} by {duration(row['late_ns'])} in step {row['step']}{because.get(row['cause'], '')}"
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
        host_bound, between_replays, held_up_decoding, allocation, sync, queued, unexplained_idle, data_loading, unfused_attention, fp32_matmul, gemm_bound, far_from_roof, pointwise,
        optimizer, copies, device_copies, convolution_layout, exposed_communication, straggler, compiling,
    )
}  # fmt: skip
