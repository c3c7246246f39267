"""The kind of work of every GPU event: by its name, and by the operator that launched it where that knows better."""

from __future__ import annotations

import numpy as np
import polars as pl

from rung.analysis.attention import PRODUCTS, Called, is_softmax, score_shapes, softmax_shapes, touches_scores
from rung.analysis.calls import launching_calls
from rung.analysis.classifier import OTHER, Kind, copy_direction, kernel_kind, named_by_user, op_kind
from rung.analysis.communicators import communicating_kernel, communicating_op
from rung.analysis.nesting import Mask, nearest, outermost
from rung.analysis.once import once
from rung.analysis.origins import origins
from rung.analysis.stabbing import THREAD_NUMBER
from rung.analysis.steps import OPTIMIZER_STEP, plain_steps
from rung.trace.table import Trace

# An operator of these kinds says what everything below it is for.
_RULES = ("attention", "optimizer")
# Where the launching operator knows better than the kernel's name: MIOpen convolves with Tensile GEMMs.
_BY_OPERATOR = {("gemm", "convolution"), ("copy", "convolution")}


@once
def classified(trace: Trace) -> pl.DataFrame:
    """The GPU events of `origins` with their kind:

    named: the category by the kernel's name alone. category, detail: what it is, its operator considered.
    backward: launched below a backward operator.
    """
    events = origins(trace)
    names = events.select("name", "kind", "role", "communicator").unique()
    kinds = [_named(*row) for row in names.iter_rows()]
    by_name = names.with_columns(
        named=pl.Series([kind.category for kind in kinds], dtype=pl.String),
        own=pl.Series([named_by_user(name) for name in names["name"]], dtype=pl.Boolean),
        named_detail=pl.Series([kind.detail for kind in kinds], dtype=pl.String),
    )
    above = _verdicts(trace)
    said = [
        pl.coalesce(
            pl.when(~events["graph"]).then(above[column].gather(events["launch"])), above[column].gather(events["op"])
        ).alias(column)
        for column in above.columns
    ]
    named, verdict = pl.col("named"), pl.col("verdict")
    decides = (
        verdict.is_not_null()
        & ~pl.col("own")
        & (named != "communication")
        & (verdict.is_in(_RULES) | (named == "other") | pl.concat_str(named, verdict, separator=" ").is_in(_pairs()))
    )
    passes = pl.when("backward").then(pl.lit("backward")).otherwise(pl.lit("forward"))
    detail = pl.when((verdict == "convolution") & (named == "copy")).then(pl.lit("layout")).otherwise(
        pl.when(verdict.is_in(["attention", "convolution"]) & (pl.col("verdict_detail") != "unfused")).then(passes)
        .when(pl.col("backward") & (pl.col("verdict_detail") == "unfused")).then(pl.lit("unfused backward"))
        .otherwise("verdict_detail")
    )  # fmt: skip
    # A kernel that is attention by its own name knows better whether it is a decoding one.
    keeps = ~decides | (named == verdict) & (pl.col("named_detail") != "")
    return (
        events.join(
            by_name, on=["name", "kind", "role", "communicator"], how="left", maintain_order="left", nulls_equal=True
        )
        .with_columns(said)
        .with_columns(
            category=pl.when(decides).then(verdict).otherwise(named),
            detail=pl.when(keeps).then("named_detail").otherwise(detail),
            backward=pl.col("backward").fill_null(False),
        )
        .drop("own", "named_detail", "verdict", "verdict_detail")
    )


def _pairs() -> list[str]:
    return [" ".join(pair) for pair in _BY_OPERATOR]


def _named(name: str, kind: str, role: str, communicator: str | None) -> Kind:
    if role == "communication" and communicator and not named_by_user(name):
        found = communicating_kernel(name) or communicating_op(communicator)
        return Kind("communication", found.detail if found else "")
    if kind == "kernel" and role != "memcpy":
        return kernel_kind(name)
    return Kind("copy", copy_direction(name, "memset" if kind == "memset" else "runtime"))


@once
def scores_of(trace: Trace) -> tuple[list[tuple[int, ...]], set[tuple[int, ...]]]:
    """The shapes of softmax inputs in the trace, and those of attention scores (`attention.score_shapes`)."""
    found = [scores_among(trace.events)] + ([scores_among(trace.captured.events)] if trace.captured else [])
    return [shape for softmax, _ in found for shape in softmax], set().union(*(scores for _, scores in found))


def scores_among(events: pl.DataFrame) -> tuple[list[tuple[int, ...]], set[tuple[int, ...]]]:
    """Of the operators among these events."""
    ops = events.lazy().filter(pl.col("kind") == "cpu_op", pl.col("dims").is_not_null())
    names = ops.select(pl.col("name").unique()).collect()["name"]
    softmax = [name for name in names if is_softmax(name)]
    if not softmax:
        return [], set()
    calls = (
        ops.filter(pl.col("name").is_in([*softmax, *PRODUCTS]))
        .sort("ts", pl.col("dur"), descending=[False, True], maintain_order=True)
        .select(THREAD_NUMBER, "name", "dims", "concrete")
        .collect()
    )
    found = [Called(*row) for row in calls.iter_rows()]
    return softmax_shapes(found), score_shapes(found)


def _verdicts(trace: Trace) -> pl.DataFrame:
    """For each of `launching_calls` what its operators say of the GPU work below: `verdict`, `verdict_detail`, `backward`.

    An operator of attention, or a step of an optimizer without a backward pass in it, decides for all below it, the outermost first; else the
    innermost operator that is of any kind does.
    """
    calls = launching_calls(trace)
    scores = scores_of(trace)[1]
    own = calls.select("kind", "name", "dims").unique()
    kinds = [_own(kind, name, dims, scores) for kind, name, dims in own.iter_rows()]
    own = own.with_columns(
        verdict=pl.Series([kind.category for kind in kinds], dtype=pl.String),
        verdict_detail=pl.Series([kind.detail for kind in kinds], dtype=pl.String),
        backward=pl.col("name").str.contains("(?i)backward"),
    )
    table = calls.select("kind", "name", "dims").join(
        own, on=["kind", "name", "dims"], how="left", maintain_order="left", nulls_equal=True
    )
    around_more = (
        pl.col("name").str.starts_with(OPTIMIZER_STEP) & (pl.col("kind") == "annotation") & ~plain_steps(calls)
    )
    table = table.with_columns(verdict=pl.when(around_more).then(pl.lit(OTHER.category)).otherwise("verdict"))
    caller = calls["caller"].to_numpy()
    rules: Mask = table["verdict"].is_in(_RULES).to_numpy()
    some: Mask = (table["verdict"] != OTHER.category).to_numpy()
    first = outermost(caller, rules)
    decides = np.where(first >= 0, first, nearest(caller, some))
    below = nearest(caller, table["backward"].to_numpy()) >= 0
    said = table.select(
        pl.when(pl.Series(decides) >= 0).then(pl.col(column).gather(np.maximum(decides, 0))).alias(column)
        for column in ("verdict", "verdict_detail")
    )
    return said.with_columns(backward=pl.Series(below))


def _own(kind: str, name: str, dims: str | None, scores: set[tuple[int, ...]]) -> Kind:
    if kind == "annotation":
        return Kind("optimizer", "") if name.startswith(OPTIMIZER_STEP) else OTHER
    if kind != "cpu_op":
        return OTHER
    return Kind("attention", "unfused") if touches_scores(name, dims, scores) else op_kind(name)
