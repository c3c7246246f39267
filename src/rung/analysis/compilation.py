"""Was something compiled, captured, loaded or allocated that should have been ready before?"""

from __future__ import annotations

import polars as pl

from rung.analysis.calls import host_calls, runtime_calls
from rung.analysis.frames import python_names
from rung.analysis.intervals import covered
from rung.trace.table import Trace

# (what it is, pattern of the names of operators, annotations and Python frames, what it means)
_SIGNS = (
    ("compiled region", r"^Torch-Compiled Region", "several a step: graph breaks"),
    ("compiled graph", r"CompiledFxGraph", "several: breaks, or several shapes"),
    ("guards checked", r"TorchDynamo Cache Lookup", "calls of compiled functions"),
    ("recompilation", r"_dynamo/convert_frame\.py\(\d+\): _compile\b|_compile\.compile_inner|^compile_fx|dynamo_timed", "guards failed, or too little warm-up"),
    ("Triton compilation", r"triton/compiler/compiler\.py\(\d+\): compile\b|async_compile\.\w*wait", "new shapes, or too little warm-up"),
    # Not every frame of an autotuner: those of Triton and FlashInfer also look up, at each launch, what they chose before.
    ("autotuning", r"autotuner\.py\(\d+\): (_bench|benchmark|_profile\w*)$|autotune_to_one_config|do_autotuning|benchmark_all_configs|benchmark_in_(current|sub)_process|triton_heuristics\.py\(\d+\): bench$", "new shapes, or too little warm-up"),
)  # fmt: skip
_ROLES = (
    ("code loaded", "load code", "first uses: too little warm-up"),
    ("graph captured", "capture", "a new shape, or too little warm-up"),
)
# Calls of the role "memory", by their names; the first pattern that is found decides.
_MEMORY = (
    ("host memory allocated or released", r"Host", "pinned memory that is not kept for later"),
    ("device memory released", r"Free|Unmap|Release", "too little memory for what is kept for later, or empty_cache"),
    ("device memory mapped", r"Mem(Map|SetAccess|AddressReserve)", "a segment that can grow grew"),
    ("device memory allocated", r"", "new sizes, fragmentation, or too little warm-up"),
)


def compilation(trace: Trace, *, steps: int = 1) -> pl.DataFrame:
    """One row a sign that was found.

    sign: what happened.
    count: in the whole recording.
    per_step: per step.
    distinct: different names.
    time_ns: what they cover on the host, in the whole recording.
    meaning: what it says.
    """
    events = trace.events.select("kind", "name", "ts", "dur")
    called = host_calls(trace).select("kind", "name").filter(pl.col("kind") != "runtime").unique()
    python = python_names(trace).select(pl.lit("python").cast(called.schema["kind"]).alias("kind"), "name")
    names = pl.concat([called, python])
    rows = []
    for sign, pattern, meaning in _SIGNS:
        found = names.filter(pl.col("name").str.contains(pattern))
        if found.height:
            spans = events.join(found, on=["kind", "name"], how="semi").with_columns(end=pl.col("ts") + pl.col("dur"))
            rows.append((sign, spans, meaning))
    calls = runtime_calls(trace)
    rows += [(sign, calls.filter(pl.col("role") == role), meaning) for sign, role, meaning in _ROLES]
    left = calls.filter(pl.col("role") == "memory")
    for sign, pattern, meaning in _MEMORY:
        chosen = pl.col("name").str.contains(pattern)
        rows.append((sign, left.filter(chosen), meaning))
        left = left.filter(~chosen)
    table = [
        {"sign": sign, "count": part.height, "per_step": part.height / steps, "distinct": part["name"].n_unique(),
         "time_ns": covered(part["ts"].to_numpy(), part["end"].to_numpy()), "meaning": meaning}
        for sign, part, meaning in rows if part.height
    ]  # fmt: skip
    return pl.DataFrame(table, schema={"sign": pl.String, "count": pl.Int64, "per_step": pl.Float64, "distinct": pl.Int64,
                                       "time_ns": pl.Int64, "meaning": pl.String})  # fmt: skip
