"""What do the hardware counters say of each kernel?"""

from __future__ import annotations

import re
from collections.abc import Sequence

import polars as pl

from rung.analysis.counters.formulas import Metric, compiled, counter_names
from rung.analysis.counters.formulas import formulas as definitions
from rung.analysis.counters.gpu import Gpu, gpu_of
from rung.analysis.counters.verdict import judged
from rung.analysis.counters.wide import KEYS, wide
from rung.trace.table import Trace

SCHEMA: dict[str, pl.DataType] = {
    "place": pl.Int64(),
    "kernel": pl.String(),
    "time_ns": pl.Int64(),
    "bound": pl.String(),
    "because": pl.String(),
    "dispatches": pl.Int64(),
    **{name: pl.Int64() if name.endswith("_bytes") else pl.Float64() for name in definitions().metrics},
    "device": pl.Int32(),
    "rank": pl.Int32(),
}


def counters(trace: Trace, *, steps: int = 1) -> pl.DataFrame:
    """One row a kernel, device and rank, most time first; over all its dispatches in the whole recording.

    The other columns are the figures of analysis/counters/formulas.toml; `--show counter_formulas` explains them. They are null if their
    counters were not collected. Ratios are of sums over the dispatches.

    kernel: its name.
    time_ns: of the dispatches that were timed, while counters were collected.
    bound: "memory", "compute", "occupancy" or "latency"; null if the counters do not say.
    because: the figures that decide; if they do not, what is missing.
    dispatches: those that have counters.
    """
    return _table(trace, ("kernel", "device", "rank"))


def dispatch_counters(trace: Trace, *, steps: int = 1) -> pl.DataFrame:
    """One row a dispatch, in the order of its rank's run, with the columns of `counters`.

    place: its number in the run. If the trace does not number its dispatches, the number among those of the same kernel.
    kernel: its name.
    time_ns: its duration.
    bound, because: as in `counters`.
    """
    return _table(trace, KEYS)


def formulas(trace: Trace, *, steps: int = 1) -> pl.DataFrame:
    """One row a figure of `counters`.

    figure: its name.
    known: dispatches that have it.
    means: what it says.
    formula: the form that is used, otherwise the first one for this GPU.
    missing: counters of it that were not collected, and facts of the GPU that are not known.
    source: whose definition it is.
    """
    table, gpu = wide(trace), gpu_of(trace, None)
    found = parts(table, gpu)
    rows = []
    for metric in definitions().metrics.values():
        lacks = [
            (form, [name for name in form.names() if _operand(name, table, gpu) is None])
            for form in metric.forms
            if re.match(form.arch, gpu.arch)
        ]
        # The form that is used, else the first: to collect its counters is the way to the figure.
        form, lacking = next((pair for pair in lacks if not pair[1]), lacks[0] if lacks else (None, []))
        text = " + ".join(metric.total)
        if form:
            text = f"({form.over}) / ({form.under})" if form.under else form.over
        known = found.select(pl.col(metric.name).is_not_null().sum()).item() if metric.name in found.columns else 0
        rows.append(
            {
                "figure": metric.name,
                "known": known,
                "means": metric.means,
                "formula": text if form or metric.total else None,
                "missing": ", ".join(map(_recorded, lacking)) if lacking and not known else None,
                "source": metric.source,
            }
        )
    names = ("figure", "known", "means", "formula", "missing", "source")
    return pl.DataFrame(rows, schema={n: pl.Int64() if n == "known" else pl.String() for n in names})


def _recorded(name: str) -> str:
    """What a profiler calls an operand: its aliases in formulas.toml, and the counter of `cycles`."""
    return "GRBM_GUI_ACTIVE" if name == "cycles" else " or ".join(definitions().alias.get(name, (name,)))


def parts(table: pl.DataFrame, gpu: Gpu) -> pl.DataFrame:
    """The table of `wide` for one GPU as the two sides of each figure, `NAME` and `NAME/`, by which NAME is divided.

    A figure that cannot be computed has no column; an amount has no `NAME/`.
    """
    sides: list[pl.Expr] = []
    for metric in definitions().metrics.values():
        if metric.total:
            known = [e for e in (_amount(name, table, gpu) for name in metric.total) if e is not None]
            if known:
                every = pl.all_horizontal(e.is_null() for e in known)
                sides.append(pl.when(~every).then(pl.sum_horizontal(known)).alias(metric.name))
            continue
        pairs = _pairs(metric, table, gpu)
        if not pairs:
            continue
        whole = [(over, under, over.is_not_null() & under.is_not_null()) for over, under in pairs]
        sides.append(pl.coalesce(pl.when(ok).then(over) for over, _, ok in whole).alias(metric.name))
        if any(form.under for form in metric.forms):
            sides.append(pl.coalesce(pl.when(ok).then(under) for _, under, ok in whole).alias(f"{metric.name}/"))
    return table.select(*KEYS, "ns", *sides)


def figures(sides: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """The table of `parts` added up by some of its keys: dispatches, time_ns (untimed ones excluded) and the figures."""
    amounts = [name for name in sides.columns if name not in (*KEYS, "ns")]
    # A sum of nothing is unknown, not 0.
    total = [pl.when(pl.col(n).count() > 0).then(pl.col(n).sum()).alias(n) for n in amounts]
    added = sides.group_by(*by, maintain_order=True).agg(
        pl.len().cast(pl.Int64).alias("dispatches"), pl.col("ns").sum().cast(pl.Int64).alias("time_ns"), *total
    )
    names = [name for name in amounts if not name.endswith("/")]
    return added.select(
        *by,
        "dispatches",
        "time_ns",
        *(
            pl.when(pl.col(f"{n}/") != 0).then(pl.col(n) / pl.col(f"{n}/")).alias(n) if f"{n}/" in amounts else n
            for n in names
        ),
    )


def _table(trace: Trace, by: Sequence[str]) -> pl.DataFrame:
    table = wide(trace)
    made = []
    for device in table["device"].unique(maintain_order=True):
        gpu = gpu_of(trace, device)
        mine = table.filter(pl.col("device").eq_missing(device))
        made.append(judged(figures(parts(mine, gpu), by), gpu))
    one = "place" in by
    whole = [name for name in SCHEMA if name != ("dispatches" if one else "place")]
    found = pl.concat(made, how="diagonal") if made else pl.DataFrame(schema={"kernel": pl.String()})
    found = found.with_columns(pl.lit(None).alias(name) for name in whole if name not in found.columns)
    found = found.select(pl.col(name).cast(SCHEMA[name], strict=False) for name in whole)
    return (
        found.sort("rank", "place") if one else found.sort("time_ns", "kernel", "rank", descending=[True, False, False])
    )


def _pairs(metric: Metric, table: pl.DataFrame, gpu: Gpu) -> list[tuple[pl.Expr, pl.Expr]]:
    found = []
    for form in metric.forms:
        if not re.match(form.arch, gpu.arch):
            continue
        sides = [compiled(text, lambda name: _operand(name, table, gpu)) for text in (form.over, form.under or "1")]
        if sides[0] is not None and sides[1] is not None:
            over, under = (side if isinstance(side, pl.Expr) else pl.lit(side) for side in sides)
            found.append((over, under))
    return found


def _amount(name: str, table: pl.DataFrame, gpu: Gpu) -> pl.Expr | None:
    """Another figure that a formula uses; None where it cannot be computed."""
    metric = definitions().metrics[name]
    if metric.total:
        known = [e for e in (_amount(part, table, gpu) for part in metric.total) if e is not None]
        return pl.when(~pl.all_horizontal(e.is_null() for e in known)).then(pl.sum_horizontal(known)) if known else None
    pairs = _pairs(metric, table, gpu)
    return pl.coalesce(over for over, _ in pairs) if pairs else None


def _operand(name: str, table: pl.DataFrame, gpu: Gpu) -> pl.Expr | float | None:
    """What a name in a formula stands for."""
    if name == "ns":
        return pl.col("ns")
    if name == "cycles":
        counted = _operand("GRBM_GUI_ACTIVE", table, gpu)
        return counted / gpu.facts["xcd"] if counted is not None else None
    if name in definitions().metrics:
        return _amount(name, table, gpu)
    if name in gpu.facts:
        return gpu.facts[name]
    there = [pl.col(n) for n in counter_names(name) if n in table.columns]
    return pl.coalesce(there) if there else None
