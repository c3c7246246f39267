"""What does an inference server do, step by step and phase by phase?"""

from __future__ import annotations

import polars as pl

from rung.analysis.costs.call import roof
from rung.analysis.once import once
from rung.analysis.origins import origins
from rung.analysis.recorded_steps import SHAPES, recorded_steps
from rung.analysis.roofline import peaks_of_trace
from rung.analysis.server_steps import IDLE, PREFILL
from rung.analysis.work import work
from rung.trace.ranks import NO_RANK
from rung.trace.table import Trace

ALL, PARTLY = "all", "partly inferred"
_INT, _FLOAT = pl.Int64(), pl.Float64()
_SUMS = ("work_flops", "moved_bytes", "kv_cache_bytes", "floor_ns")
_ROOF: dict[str, pl.DataType] = {
    "kv_cache_bytes": _INT, "roof_share": _FLOAT, "modelled_share": _FLOAT, "tflop_per_s": _FLOAT, "tb_per_s": _FLOAT,
    "work_flops": _INT, "moved_bytes": _INT, "floor_ns": _INT, "gpu_ns": _INT,
}  # fmt: skip
STEP_SCHEMA: dict[str, pl.DataType] = {
    "rank": pl.Int32(), "step": _INT, "phase": pl.String(), "source": pl.String(), "time_ns": _INT, "requests": _INT,
    "context": _FLOAT, "prompt_tokens": _INT, "decode_tokens": _INT, "token_time_ns": _INT, "busy_ns": _INT, "gap_ns": _INT,
    **_ROOF, "start_ns": _INT, "prefills": _INT, "decodes": _INT, "name": pl.String(),
}  # fmt: skip
PHASE_SCHEMA: dict[str, pl.DataType] = {
    "rank": pl.Int32(), "phase": pl.String(), "source": pl.String(), "steps": _INT, "time_ns": _INT, "share": _FLOAT,
    "requests": _FLOAT, "context": _FLOAT, "prompt_tokens_per_s": _FLOAT, "decode_tokens_per_s": _FLOAT,
    "token_time_median_ns": _INT, "token_time_p99_ns": _INT, "busy_ns": _INT, "gap_ns": _INT,
    **_ROOF, "step_median_ns": _INT, "token_time_p90_ns": _INT, "token_time_max_ns": _INT,
    "prompt_tokens": _INT, "decode_tokens": _INT,
}  # fmt: skip


def serving(trace: Trace, *, steps: int = 1) -> pl.DataFrame:
    """One row a rank and phase, and one of all phases. Empty if the trace shows no steps of a server.

    All figures are of the whole recording, since a server's steps are not alike.

    phase: prefill (prompts are read), decode (one token per request), mixed (both in one step), speculative (several drafted tokens per
        request, or a draft model), idle (no request).
    source: "annotation" if the server names its steps; "shapes" if they are inferred from recorded shapes of attention; "partly inferred" if
        a name says of some requests only that they were seen before, which may still read their prompt.
    steps: how many.
    time_ns: from the first GPU work of each step to that of the next.
    share: of the time of all steps.
    requests: per step, the mean.
    context: tokens of a sequence, new and cached, the mean.
    prompt_tokens_per_s, decode_tokens_per_s: of the steps that state them, per second of their time.
    token_time_median_ns, token_time_p90_ns, token_time_p99_ns, token_time_max_ns: from the end of one step that decodes to the end of the next.
        A request in both waits so long for its next token, with prefill steps between them.
    busy_ns: of time_ns, some GPU event ran.
    gap_ns: of time_ns, nothing ran between the last work of the step before and the first of this one.
    kv_cache_bytes: of moved_bytes, those from and to the cache.
    roof_share, tflop_per_s, tb_per_s, work_flops, moved_bytes, floor_ns: as in `roofline`, of the operators that have a model.
    modelled_share: of the GPU's time in these steps, that of operators with a model.
    gpu_ns: the durations of the GPU events together.
    step_median_ns: the median time of a step.
    prompt_tokens, decode_tokens: as far as they are stated. Speculative steps count drafted tokens, too, since a trace does not say how many
        were accepted.
    """
    each = serving_steps(trace)
    if each.is_empty():
        return pl.DataFrame(schema=PHASE_SCHEMA)
    whole = each.group_by("rank").agg(whole=pl.col("time_ns").sum())
    both = [each.with_columns(phase=pl.lit(ALL)), each]
    known = pl.col("requests").is_not_null() & pl.col("context").is_not_null()
    weight = pl.col("requests").filter(known)
    rows = [
        frame.group_by("rank", "phase", maintain_order=True).agg(
            pl.col("source").unique().sort().str.join(", "),
            *(pl.col(name).sum() for name in ("time_ns", "busy_ns", "gap_ns")),
            *(_total(name) for name in ("prompt_tokens", "decode_tokens")),
            *(_rate(name) for name in ("prompt_tokens", "decode_tokens")),
            *(_total(name) for name in ("work_flops", "moved_bytes", "kv_cache_bytes", "floor_ns")),
            modelled=(pl.col("modelled_share") * pl.col("gpu_ns")).sum(),
            gpu_ns=pl.col("gpu_ns").sum(),
            steps=pl.len().cast(pl.Int64),
            requests=pl.col("requests").mean(),
            context=(pl.col("context").filter(known) * weight).sum() / weight.sum(),
            step_median_ns=pl.col("time_ns").median().round().cast(pl.Int64),
            token_time_median_ns=pl.col("token_time_ns").median().round().cast(pl.Int64),
            token_time_p90_ns=pl.col("token_time_ns").quantile(0.9, "lower").cast(pl.Int64),
            token_time_p99_ns=pl.col("token_time_ns").quantile(0.99, "lower").cast(pl.Int64),
            token_time_max_ns=pl.col("token_time_ns").max(),
        )
        for frame in both
    ]
    return (
        pl.concat(rows)
        .join(whole, on="rank", how="left", maintain_order="left", nulls_equal=True)
        .with_columns(
            share=pl.col("time_ns") / pl.col("whole"), modelled_share=pl.col("modelled") / pl.col("gpu_ns"), **_rates()
        )
        .sort("rank", pl.col("phase") != ALL, "time_ns", descending=[False, False, True], maintain_order=True)
        .select(pl.col(name).cast(kind) for name, kind in PHASE_SCHEMA.items())
    )


def serving_steps(trace: Trace, *, steps: int = 1) -> pl.DataFrame:
    """One row a step of an inference server that ran work on a GPU, by rank and time. Empty if the trace shows none.

    The columns mean what they mean in `serving`, for one step.

    step: its number.
    phase, source: as in `serving`.
    time_ns: from its first GPU work to that of the next step.
    requests: how many.
    context: tokens of a sequence, new and cached, the mean.
    prompt_tokens, decode_tokens: as far as they are stated.
    token_time_ns: since the end of the last step before it that decoded; of steps that decode.
    busy_ns, gap_ns, kv_cache_bytes, roof_share, modelled_share, tflop_per_s, tb_per_s, work_flops, moved_bytes, floor_ns: as in `serving`.
    gpu_ns: the durations of its GPU events together.
    start_ns: its first GPU work, from that of the first step.
    prefills: requests whose prompt is read.
    decodes: requests that decode.
    name: the server's own.
    """
    return _serving_steps(trace)


@once
def _serving_steps(trace: Trace) -> pl.DataFrame:
    found = recorded_steps(trace)
    if found.is_empty():
        return pl.DataFrame(schema=STEP_SCHEMA)
    said = [
        {
            "phase": step.phase, "source": source if step.certain or source == SHAPES else PARTLY, "requests": step.requests,
            "prefills": step.prefills, "decodes": step.decodes, "prompt_tokens": step.prompt_tokens,
            "decode_tokens": step.decode_tokens, "keys": step.lengths.keys if step.lengths else None, "name": name,
        }
        for name, source, step in found.select("name", "source", "step").iter_rows()
    ]  # fmt: skip
    texts = ("phase", "source", "name")
    schema = {name: pl.String() if name in texts else pl.Int64() for name in said[0]}
    table = pl.concat([found.select("rank"), pl.DataFrame(said, schema=schema)], how="horizontal").with_row_index("of")
    order = ["rank", "begin"]
    before = pl.col("last").shift(1).over("rank")  # the end of all work of the steps before
    until = pl.col("begin").shift(-1).over("rank").fill_null(pl.col("end"))
    decoded = pl.when(pl.col("phase").is_in([PREFILL, IDLE]).not_()).then("end")
    last_decoded = decoded.forward_fill().shift(1).over("rank")
    return (
        table.join(_on_gpu(trace, found), on="of", maintain_order="left")
        .sort(order, maintain_order=True)
        .with_columns(last=pl.col("end").cum_max().over("rank"))
        .with_columns(
            step=pl.int_range(pl.len()).over("rank"),
            context=pl.col("keys") / pl.col("requests"),
            start_ns=pl.col("begin") - pl.col("begin").min().over("rank"),
            time_ns=until - pl.col("begin"),
            gap_ns=(pl.col("begin") - before).clip(lower_bound=0).fill_null(0),
            token_time_ns=decoded - last_decoded,
            **_rates(),
            modelled_share=pl.col("modelled") / pl.col("gpu_ns"),
        )
        .select(pl.col(name).cast(kind) for name, kind in STEP_SCHEMA.items())
    )


def _on_gpu(trace: Trace, found: pl.DataFrame) -> pl.DataFrame:
    """What the GPU did of each step that had work for it, by its number `of`: `begin`, `end`, `busy_ns`, `gpu_ns`, and the work.

    A GPU event is of the last step that began before it was launched: servers launch a step's sampling after its annotation.
    """
    rank = pl.col("rank").fill_null(NO_RANK)
    marks = found.select(rank, launched="ts", of=pl.int_range(pl.len(), dtype=pl.UInt32)).sort(
        "launched", maintain_order=True
    )
    done = work(trace)
    events = (
        origins(trace)
        .select(rank, "ts", "end", "dur", "launched")
        .with_columns(done.events.select("kind", "call", "reason", "tf32"))
        .filter(pl.col("launched").is_not_null())
        .sort("launched", maintain_order=True)
        .join_asof(marks, on="launched", by="rank", check_sortedness=False)
        .filter(pl.col("of").is_not_null())
        .sort("of", "ts", maintain_order=True)
    )
    covered = pl.col("end").cum_max().shift(1).over("of").fill_null(pl.col("ts"))
    spans = (
        events.with_columns(new=pl.col("end") - pl.max_horizontal("ts", covered))
        .group_by("of")
        .agg(
            begin=pl.col("ts").min(),
            end=pl.col("end").max(),
            busy_ns=pl.col("new").clip(lower_bound=0).sum(),
            gpu_ns=pl.col("dur").sum(),
            modelled=pl.col("dur").filter(pl.col("reason").is_null()).sum(),
        )
    )
    # In one order always: the last digit of a sum of floats depends on it.
    calls = (
        events.filter(pl.col("reason").is_null())
        .unique(["of", "kind", "call"], keep="first", maintain_order=True)
        .join(_costs(trace), on=["kind", "tf32"], how="left", maintain_order="left")
    )
    return spans.join(calls.group_by("of").agg(pl.col(list(_SUMS)).sum()), on="of", how="left").with_columns(
        pl.when(pl.col(name) > 0).then(pl.col(name)).alias(name) for name in _SUMS
    )


def _costs(trace: Trace) -> pl.DataFrame:
    """The work of a call of each kind of `work`, as floats: sums of many may be more than 64 bits hold."""
    peaks = peaks_of_trace(trace)
    rows = []
    for kind, cost in enumerate(work(trace).costs):
        for tf32 in (False, True) if cost else ():
            assert cost is not None
            precision = "tf32" if tf32 and cost.matrix and cost.precision == "fp32" else cost.precision
            floor = roof(cost, peaks, precision).floor * 1e9 if peaks else None
            rows.append((kind, tf32, float(cost.flops), float(cost.bytes), float(cost.cache), floor))
    return pl.DataFrame(
        rows, schema={"kind": pl.Int64(), "tf32": pl.Boolean()} | dict.fromkeys(_SUMS, _FLOAT), orient="row"
    )


def _total(name: str) -> pl.Expr:
    """The sum of what is said; null where no step says anything."""
    return pl.when(pl.col(name).count() > 0).then(pl.col(name).sum()).alias(name)


def _rate(name: str) -> pl.Expr:
    time = pl.col("time_ns").filter(pl.col(name).is_not_null()).sum()
    return pl.when(time > 0).then(pl.col(name).sum() * 1e9 / time).alias(f"{name}_per_s")


def _rates() -> dict[str, pl.Expr]:
    """Of the time of the events with a model."""
    time = pl.when(pl.col("modelled") > 0).then("modelled")
    return {
        "roof_share": pl.col("floor_ns") / time,
        "tflop_per_s": pl.col("work_flops") / time / 1e3,
        "tb_per_s": pl.col("moved_bytes") / time / 1e3,
    }
