"""Who and where of a rocpd database: its processes, agents, kernels, and what each category of call is to us."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from rung.trace import redact
from rung.trace.databases.columns import Database, integer, text
from rung.trace.rows import PROCESS_SHIFT
from rung.trace.table import Trace
from rung.trace.unread import Unread

_MAIN_TABLES = ("rocpd_kernel_dispatch", "rocpd_string", "rocpd_metadata", "rocpd_region")
_RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID")
_AGENT = (
    "id", "nid", "type", "absolute_index", "logical_index", "type_index", "uuid", "name", "model_name", "vendor_name",
    "product_name", "user_name", "extdata",
)  # fmt: skip


@dataclass(frozen=True)
class Agents:
    """devices: the GPU agents in the runtime's order; positions: the place of each agent id among them."""

    devices: list[dict[str, Any]]
    positions: dict[int, int]


def suffixes(database: Database) -> list[str]:
    """The table suffix of each process, empty for tables without one."""
    found: dict[str, None] = {}
    for main in _MAIN_TABLES:
        for table in database.tables:
            rest = table[len(main) :]
            if table.startswith(main) and (not rest or rest.startswith("_")):
                found[rest] = None
    return list(found)


def schema_version(database: Database, suffix: str) -> str | None:
    rows = database.rows(f"rocpd_metadata{suffix}", ["tag", "value"])
    return next((text(value) for tag, value in rows if tag == "schema_version"), None)


def agents(database: Database, suffix: str) -> Agents:
    rows = [dict(zip(_AGENT, row, strict=True)) for row in database.rows(f"rocpd_info_agent{suffix}", list(_AGENT))]
    gpus = [row for row in rows if row["type"] == "GPU" and isinstance(row["id"], int)]
    order = ("nid", "type_index", "absolute_index", "id")
    gpus.sort(key=lambda row: [integer(row[name]) or 0 for name in order])
    devices = []
    for row in gpus:
        facts = _json(row.pop("extdata"))
        facts.update((key, text(value) if isinstance(value, bytes) else value) for key, value in row.items())
        facts["arch"], facts["name"] = text(row["name"]), text(row["product_name"] or row["name"])
        devices.append(facts)
    return Agents(devices, {row["id"]: position for position, row in enumerate(gpus)})


def kernel_names(database: Database, suffix: str) -> dict[int, str | None]:
    rows = database.rows(f"rocpd_info_kernel_symbol{suffix}", ["id", "display_name", "kernel_name"])
    return {key: text(shown) or text(plain) for key, shown, plain in rows}


def kind_of(category: str) -> str:
    """The kind of a host call by the name of its category."""
    if category.startswith(("HIP_", "HSA_")):
        return "runtime"
    if category.startswith("MARKER"):
        return "annotation"
    # Calls of libraries, which make runtime calls of their own inside.
    return "cpu_op" if category.startswith(("RCCL_", "ROCDECODE_", "ROCJPEG_", "ROCSHMEM_")) else "other"


def process(database: Database, suffix: str) -> dict[str, Any]:
    """Host, command and times of the process, its rank where its environment says it."""
    names = ["pid", "ppid", "start", "end", "command", "environment", "nid"]
    rows = database.rows(f"rocpd_info_process{suffix}", names)
    hosts = {key: text(host) for key, host in database.rows(f"rocpd_info_node{suffix}", ["id", "hostname"])}
    if not rows:
        return {}
    found = dict(zip(names, rows[0], strict=True))
    variables = _json(found.pop("environment"))
    for name in _RANK_VARIABLES:
        rank = integer(str(variables[name])) if name in variables else None
        if rank is not None and 0 <= rank < 2**31:
            found["rank"] = rank
            break
    found["host"] = hosts.get(found.pop("nid"))
    found["command"] = redact.command(text(found["command"]) or "")
    found["environment"] = redact.environment(variables)
    return found


def as_ranks(traces: Sequence[Trace]) -> Trace:
    """Traces of one run as one: each with the rank that it states, or all by their order where some do not."""
    stated = [trace.events["rank"].drop_nulls().unique().to_list() for trace in traces]
    known = all(len(ranks) == 1 for ranks in stated) and len({ranks[0] for ranks in stated}) == len(traces)
    events, counters, unread = [], [], Unread()
    first = 0
    for position, trace in enumerate(traces):
        shift = pl.col("correlation") + (first << PROCESS_SHIFT)
        rank = pl.col("rank") if known else pl.lit(position, dtype=pl.Int32)
        events.append(trace.events.with_columns(shift, rank.alias("rank")))
        counters.append(trace.counters.with_columns(shift, rank.alias("rank")))
        unread.more(trace.unread, trace.unread_ns)
        first += len(trace.meta["processes"])
    return replace(
        traces[0],
        events=pl.concat(events),
        counters=pl.concat(counters),
        devices=max((trace.devices for trace in traces), key=len),
        unread=dict(unread),
        unread_ns=dict(unread.ns),
        source=", ".join(trace.source for trace in traces),
        meta={
            "schema_version": traces[0].meta["schema_version"],
            "processes": [process for trace in traces for process in trace.meta["processes"]],
            "ranks_by_order": not known,
        },
    )


def _json(value: object) -> dict[str, Any]:
    try:
        found = json.loads(value) if isinstance(value, (str, bytes)) else {}
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
