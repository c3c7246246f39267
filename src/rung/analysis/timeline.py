"""How busy was each GPU, and with what?"""

from __future__ import annotations

import polars as pl

from rung.analysis.intervals import covered
from rung.trace.table import GPU_KINDS, Trace

COMMUNICATION = "(?i)nccl|rccl|cross_device_reduce"
RUNTIME_COPY = "MEMORY_COPY_|__amd_rocclr_copyBuffer"  # ROCm <= 7.1 records copies as kernels of these names

SCHEMA: dict[str, pl.DataType] = {
    "device": pl.Int32(),
    "total": pl.Int64(),
    "busy": pl.Int64(),
    "idle": pl.Int64(),
    "computation": pl.Int64(),
    "communication": pl.Int64(),
    "exposed_communication": pl.Int64(),
    "memcpy": pl.Int64(),
    "exposed_memcpy": pl.Int64(),
    "kernels": pl.Int64(),
    "unlinked": pl.Int64(),
    "unlinked_ns": pl.Int64(),
}


def gpu_events(trace: Trace) -> pl.DataFrame:
    """The kernels, copies and memsets of a trace with `end` (ns), `linked` and `role`.

    linked: a runtime event with the event's correlation id is in the trace. An event without one was launched
    before the recording began; it is real work and counts. role: computation, communication or memcpy.
    """
    launches = trace.events.filter(pl.col("kind") == "runtime", pl.col("correlation").is_not_null())
    kernel = pl.col("kind") == "kernel"
    return trace.events.filter(pl.col("kind").is_in(GPU_KINDS), pl.col("device").is_not_null()).with_columns(
        end=pl.col("ts") + pl.col("dur"),
        linked=pl.col("correlation").is_in(launches["correlation"].unique().implode()).fill_null(False),
        role=pl.when((pl.col("kind") == "memcpy") | (kernel & pl.col("name").str.contains(RUNTIME_COPY)))
        .then(pl.lit("memcpy"))
        .when(kernel & pl.col("name").str.contains(COMMUNICATION))
        .then(pl.lit("communication"))
        .otherwise(pl.lit("computation")),
    )


def timeline(trace: Trace) -> pl.DataFrame:
    """One row a device, over all its streams: times in integer ns, `kernels` and `unlinked` as counts.

    total: end of the last less start of the first GPU event. busy: what any event covers; idle: the rest.
    computation: kernels that are neither collectives nor copies, and memsets. communication: kernels named
    nccl, rccl or cross_device_reduce. memcpy: copies, the runtime's copy kernels among them. Each is the
    union of its intervals; exposed is what the classes before it leave uncovered, so that
    computation + exposed_communication + exposed_memcpy + idle == total, exactly.
    unlinked, unlinked_ns: GPU events whose launch lies outside the trace, and the sum of their durations.
    """
    rows = []
    for (device,), events in gpu_events(trace).group_by("device", maintain_order=True):
        part = {}
        for name, roles in (
            ("computation", ["computation"]),
            ("communication", ["communication"]),
            ("memcpy", ["memcpy"]),
            ("no_memcpy", ["computation", "communication"]),
            ("busy", ["computation", "communication", "memcpy"]),
        ):
            chosen = events.filter(pl.col("role").is_in(roles))
            part[name] = covered(chosen["ts"].to_numpy(), chosen["end"].to_numpy())
        total = int(events["end"].to_numpy().max() - events["ts"].to_numpy().min())
        unlinked = events.filter(~pl.col("linked"))
        rows.append(
            {
                "device": device,
                "total": total,
                "busy": part["busy"],
                "idle": total - part["busy"],
                "computation": part["computation"],
                "communication": part["communication"],
                "exposed_communication": part["no_memcpy"] - part["computation"],
                "memcpy": part["memcpy"],
                "exposed_memcpy": part["busy"] - part["no_memcpy"],
                "kernels": events.filter(pl.col("kind") == "kernel").height,
                "unlinked": unlinked.height,
                "unlinked_ns": int(unlinked["dur"].sum()),
            }
        )
    return pl.DataFrame(rows, schema=SCHEMA).sort("device")
