"""Makes a torch.profiler trace small: what the analyses of a timeline need stays, to the nanosecond.

    python benchmarks/analysis/trim_trace.py TRACE.json.gz OUT.json.gz [STEPS]

Left out: steps after the first STEPS, operators that launched nothing or are neither the innermost nor the outermost
around a launch, runtime calls without a GPU event that neither wait nor order streams, shapes, strides and launch
configurations, and flow arrows.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from pathlib import Path
from typing import Any

GPU = ("kernel", "gpu_memcpy", "gpu_memset")
ORDERING = re.compile(r"Synchronize|StreamWaitEvent|EventRecord")
ARGS = (
    "External id", "device", "stream", "correlation", "bytes", "Collective name", "Process Group Name", "Process Group Ranks", "Group size", "Seq",
    "dtype", "In msg nelems", "Out msg nelems",
)  # fmt: skip
FACTS = ("schemaVersion", "deviceProperties", "distributedInfo", "cuda_runtime_version", "cuda_driver_version",
         "cupti_version", "displayTimeUnit", "baseTimeNanoseconds", "traceName")  # fmt: skip


def trimmed(trace: dict[str, Any], steps: int) -> dict[str, Any]:
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    marks = sorted(event["ts"] for event in events if event["name"].startswith("ProfilerStep#") and event["cat"] == "user_annotation")  # fmt: skip
    end = marks[steps] if len(marks) > steps else float("inf")
    calls = [event for event in events if event["cat"] in ("cuda_runtime", "cuda_driver") and event["ts"] < end]
    ids = {call["args"].get("correlation") for call in calls}
    on_gpu = [event for event in events if event["cat"] in GPU and event["args"].get("correlation") in ids]
    launched = {event["args"].get("correlation") for event in on_gpu}
    launches = [call for call in calls if call["args"].get("correlation") in launched]
    kept = on_gpu + launches
    kept += [
        call for call in calls if call["args"].get("correlation") not in launched and ORDERING.search(call["name"])
    ]
    kept += [event for event in events if event["cat"] == "user_annotation" and event["ts"] < end]
    kept += around(launches, [event for event in events if event["cat"] == "cpu_op" and event["ts"] < end])
    for event in kept:
        event["args"] = {key: value for key, value in event.get("args", {}).items() if key in ARGS}
    devices = {event["args"]["device"] for event in on_gpu}
    facts = {key: trace[key] for key in FACTS if key in trace}
    facts["deviceProperties"] = [device for device in facts["deviceProperties"] if device["id"] in devices]
    return {**facts, "traceEvents": sorted(kept, key=lambda event: (event["cat"], event["ts"]))}


def around(calls: list[dict[str, Any]], ops: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The innermost and the outermost operator around each call, and those that describe a collective."""
    of_thread: dict[Any, list[dict[str, Any]]] = {}
    for op in ops:
        of_thread.setdefault((op["pid"], op["tid"]), []).append(op)
    chosen = {id(op): op for op in ops if "Collective name" in op["args"]}
    for call in calls:
        outer = [op for op in of_thread.get((call["pid"], call["tid"]), ()) if op["ts"] <= call["ts"] < op["ts"] + op["dur"]]  # fmt: skip
        if outer:
            shortest, longest = min(outer, key=lambda op: op["dur"]), max(outer, key=lambda op: op["dur"])
            chosen |= {id(shortest): shortest, id(longest): longest}
    return list(chosen.values())


def main() -> None:
    source, out = map(Path, sys.argv[1:3])
    with gzip.open(source) as file:
        trace = trimmed(json.load(file), int(sys.argv[3]) if len(sys.argv) > 3 else 1_000_000)
    out.parent.mkdir(parents=True, exist_ok=True)
    with open(out, "wb") as raw, gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=9, mtime=0) as file:
        file.write(json.dumps(trace, separators=(",", ":")).encode())


if __name__ == "__main__":
    main()
