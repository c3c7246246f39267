"""Writes the files of AMD's profilers from a list of events, in the words of each version, for the readers to read back."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

FIRST_GPU_NODE = 2  # two CPUs come first
COPIES = ("MEMORY_COPY_HOST_TO_DEVICE", "MEMORY_COPY_DEVICE_TO_HOST", "MEMORY_COPY_DEVICE_TO_DEVICE")
CALLS = ("hipLaunchKernel", "hipMemcpyAsync", "hipMalloc")
DISPATCH_COLUMNS = ("ts", "dur", "name", "pid", "tid", "device", "stream", "correlation")

_text = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=12)
kernel_names = st.one_of(_text, st.sampled_from(['k<"a", 1>(int, int)', "Cijk_Ailk [x]", "{}", "größer"]))


def events(kinds: tuple[str, ...] = ("kernel", "memcpy", "runtime", "annotation", "allocation")) -> st.SearchStrategy:
    """Sets of events; a correlation is used once, so that a message or a counter belongs to one event."""

    def named(kind: str) -> st.SearchStrategy:
        fixed = {"memcpy": COPIES, "runtime": CALLS, "allocation": ("MEMORY_ALLOCATION_ALLOCATE",)}
        return st.sampled_from(fixed[kind]) if kind in fixed else kernel_names

    def event(kind: str) -> st.SearchStrategy:
        return st.fixed_dictionaries(
            {
                "kind": st.just(kind),
                "name": named(kind),
                "ts": st.integers(0, 2**61),
                "dur": st.integers(0, 2**61),
                "tid": st.integers(0, 2**31),
                "device": st.integers(0, 2),
                "stream": st.integers(0, 2**40),
                "correlation": st.integers(0, 2**63 - 1),
                "bytes": st.integers(0, 2**50),
            }
        )

    one = st.sampled_from(kinds).flatmap(event)
    return st.lists(one, min_size=1, max_size=12, unique_by=lambda event: event["correlation"])


def csv_text(titles: list[str], rows: list[list[Any]]) -> str:
    """As rocprofv3 writes it: strings in quotes, numbers bare."""
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
    writer.writerow(titles)
    writer.writerows(rows)
    return out.getvalue()


_SIZES = ["Workgroup_Size_X", "Workgroup_Size_Y", "Workgroup_Size_Z", "Grid_Size_X", "Grid_Size_Y", "Grid_Size_Z"]
_CALL = ["Domain", "Function", "Process_Id", "Thread_Id", "Correlation_Id", "Start_Timestamp", "End_Timestamp"]
_TIMES = ["Start_Timestamp", "End_Timestamp"]
_REGISTERS = ["LDS_Block_Size", "Scratch_Size", "VGPR_Count", "Accum_VGPR_Count", "SGPR_Count"]
_OLD = ["Kernel_Id", "Kernel_Name", "Correlation_Id", *_TIMES, "Private_Segment_Size", "Group_Segment_Size", *_SIZES]
_NEW = ["Thread_Id", "Dispatch_Id", "Kernel_Id", "Kernel_Name", "Correlation_Id", *_TIMES, *_REGISTERS, *_SIZES]

KERNEL_TITLES = {
    "6.0": ["Kind", "Agent_Id", "Queue_Id", *_OLD],
    "6.3": ["Kind", "Agent_Id", "Queue_Id", "Thread_Id", "Dispatch_Id", *_OLD],
    "2025-04": ["Kind", "Agent_Id", "Queue_Id", "Stream_Id", "Thread_Id", "Dispatch_Id", *_OLD],
    "7.0": ["Kind", "Agent_Id", "Queue_Id", "Stream_Id", *_NEW],
    "7.0 converted": ["Guid", "Kind", "Agent_Id", "Queue_Id", "Stream_Id", *_NEW],
    "newest converted": [
        title.title() for title in ["Guid", "Kind", "Agent_Id", "Queue_Id", "Stream_Id", *_NEW, "Duration"]
    ],
}
NO_THREAD = ("6.0",)


def _agent(version: str, node: int, kind: str = "Agent") -> Any:
    """A bare number up to 6.4, then a string."""
    return node if version[0] == "6" else f"{kind} {node}"


def _cells(titles: list[str], known: dict[str, Any]) -> list[Any]:
    return [known.get(title.lower(), 0) for title in titles]


def csv_files(version: str, found: list[dict[str, Any]], pid: int = 77) -> dict[str, str]:
    """The CSVs of one process: their names → their text."""
    rows: dict[str, list[list[Any]]] = {
        "kernel": [],
        "memory_copy": [],
        "memory_allocation": [],
        "hip_api": [],
        "marker_api": [],
    }
    copy_titles = ["Kind", "Direction", "Source_Agent_Id", "Destination_Agent_Id", "Correlation_Id", *_TIMES]
    if version[0] != "6":
        copy_titles.insert(2, "Stream_Id")
    memory_titles = ["Kind", "Operation", "Agent_Id", "Allocation_Size", "Address", "Correlation_Id", *_TIMES]
    titles = {
        "kernel": KERNEL_TITLES[version],
        "memory_copy": copy_titles,
        "memory_allocation": memory_titles,
        "hip_api": _CALL,
        "marker_api": _CALL,
    }
    domains = {"hip_api": "HIP_RUNTIME_API", "marker_api": "MARKER_CORE_API"}
    files = {
        "runtime": "hip_api",
        "annotation": "marker_api",
        "memcpy": "memory_copy",
        "allocation": "memory_allocation",
    }
    for event in found:
        what = files.get(event["kind"], "kernel")
        gpu = _agent(version, event["device"] + FIRST_GPU_NODE)
        ends = (gpu, _agent(version, 0)) if event["name"].endswith("TO_HOST") else (_agent(version, 0), gpu)
        known = {
            "kind": "KERNEL_DISPATCH",
            "domain": domains.get(what),
            "function": event["name"],
            "kernel_name": event["name"],
            "direction": event["name"],
            "operation": event["name"],
            "agent_id": gpu,
            "source_agent_id": ends[0],
            "destination_agent_id": ends[1],
            "queue_id": event["stream"] if "Stream_Id" not in KERNEL_TITLES[version] else 3,
            "stream_id": event["stream"],
            "process_id": pid,
            "thread_id": event["tid"],
            "correlation_id": event["correlation"],
            "start_timestamp": event["ts"],
            "end_timestamp": event["ts"] + event["dur"],
            "allocation_size": event["bytes"],
            "address": "0x00007ffb26354000",
            "guid": "0000ddb5-8903-7903-b269-cd8d3745bb8a",
        }
        rows[what].append(_cells(titles[what], known))
    texts = {f"{pid}_{what}_trace.csv": csv_text(titles[what], some) for what, some in rows.items() if some}
    return texts | {f"{pid}_agent_info.csv": agent_info()}


def agent_info(gpus: int = 3) -> str:
    titles = ["Node_Id", "Logical_Node_Id", "Agent_Type", "Cu_Count", "Name", "Product_Name"]
    rows: list[list[Any]] = [[node, node, "CPU", 0, "cpu", "AMD EPYC"] for node in range(FIRST_GPU_NODE)]
    rows += [
        [node, node, "GPU", 304, "gfx942", "AMD Instinct"] for node in range(FIRST_GPU_NODE, FIRST_GPU_NODE + gpus)
    ]
    return csv_text(titles, rows)


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, newline="")
    return folder


_KINDS = ["NONE", "KERNEL_DISPATCH", "MEMORY_COPY", "HIP_RUNTIME_API", "MARKER_CORE_API", "MEMORY_ALLOCATION"]
_LISTS = {
    "kernel": ("kernel_dispatch", 1),
    "memcpy": ("memory_copy", 2),
    "runtime": ("hip_api", 3),
    "annotation": ("marker_api", 4),
    "allocation": ("memory_allocation", 5),
}
HANDLE = 37944  # of the first agent


def results_json(found: list[dict[str, Any]], stream_ids: bool = True, **more: Any) -> dict[str, Any]:
    """One process' element of a rocprofv3 JSON."""
    operations = [
        [],
        ["KERNEL_DISPATCH_NONE"],
        list(COPIES),
        list(CALLS),
        ["roctxMarkA"],
        ["MEMORY_ALLOCATION_ALLOCATE"],
    ]
    names = sorted({event["name"] for event in found if event["kind"] == "kernel"})
    buffers: dict[str, list[Any]] = {name: [] for name, _ in _LISTS.values()}
    for event in found:
        what, kind = _LISTS[event["kind"]]
        gpu = {"handle": HANDLE + FIRST_GPU_NODE + event["device"]}
        operation = operations[kind].index(event["name"]) if event["name"] in operations[kind] else 0
        record: dict[str, Any] = {
            "size": 184,
            "kind": kind,
            "operation": operation,
            "thread_id": event["tid"],
            "correlation_id": {"internal": event["correlation"], "external": 0},
            "start_timestamp": event["ts"],
            "end_timestamp": event["ts"] + event["dur"],
        }
        if what == "kernel_dispatch":
            queue = {"handle": 9 if stream_ids else event["stream"]}
            info = {"agent_id": gpu, "queue_id": queue, "kernel_id": names.index(event["name"]), "dispatch_id": 1}
            record["dispatch_info"] = info
        if what == "memory_copy":
            to_host = event["name"].endswith("TO_HOST")
            record |= {"src_agent_id": gpu, "dst_agent_id": {"handle": HANDLE}} if to_host else {"dst_agent_id": gpu}
            record["bytes"] = event["bytes"]
        if what in ("kernel_dispatch", "memory_copy") and stream_ids:
            record["stream_id"] = {"handle": event["stream"]}
        if what == "memory_allocation":
            record |= {"agent_id": gpu, "address": "0x1", "allocation_size": event["bytes"]}
        buffers[what].append(record)
    agents = [
        {"type": 1 if node < FIRST_GPU_NODE else 2, "id": {"handle": HANDLE + node}, "node_id": node, "caches": [1, 2]}
        for node in range(FIRST_GPU_NODE + 3)
    ]
    messages = [{"key": e["correlation"], "value": e["name"]} for e in found if e["kind"] == "annotation"]
    kinds = [{"kind": kind, "operations": some} for kind, some in zip(_KINDS, operations, strict=True)]
    return {
        "metadata": {"node": {"hostname": "node7"}, "pid": 77, "command": ["python", "t.py", "--api-key", "hunter2"]},
        "agents": agents,
        "counters": [],
        "strings": {"buffer_records": kinds, "marker_api": messages},
        "kernel_symbols": [
            {"kernel_id": number, "kernel_name": "_Z1k.kd", "formatted_kernel_name": name}
            for number, name in enumerate(names)
        ],
        "callback_records": {"counter_collection": []},
        "buffer_records": buffers,
    } | more


def write_json(path: Path, *processes: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"rocprofiler-sdk-tool": list(processes)}, separators=(",", ":")))
    return path


def chrome_text(found: list[dict[str, Any]]) -> str:
    """As legacy rocprof writes it, by hand: everything in quotes, microseconds cut off."""
    lanes = {"annotation": 0, "memcpy": 1, "runtime": 2}
    lines = [
        '{ "traceEvents":[{}',
        ',{"args":{"name":"2 CPU HIP API"},"ph":"M","pid":2,"name":"process_name","sort_index":0}',
    ]
    for event in found:
        lane = lanes.get(event["kind"], 6 + event["device"])
        begin, end = event["ts"], event["ts"] + event["dur"]
        args = {
            "BeginNs": begin,
            "EndNs": end,
            "pid": 5,
            "tid": event["tid"],
            "Name": event["name"],
            "DurationNs": event["dur"],
        }
        if lane >= 6:
            args |= {"dev-id": event["device"], "queue-id": 0, "stream-id": event["stream"]}
        top = {
            "name": event["name"],
            "pid": lane,
            "tid": event["tid"],
            "ts": begin // 1000,
            "dur": max(event["dur"] // 1000, 1),
        }
        strings = {key: str(value) for key, value in top.items()} | {
            "args": {key: str(value) for key, value in args.items()}
        }
        lines.append("," + json.dumps({"ph": "X"} | strings))
    return "\n".join(lines) + '\n],\n"otherData": {\n  }\n}'


def results_csv(found: list[dict[str, Any]], counters: list[str], old: bool = False, timed: bool = True) -> str:
    """Legacy rocprof's wide table."""
    registers = ["vgpr", "sgpr"] if old else ["arch_vgpr", "accum_vgpr", "sgpr", "wave_size"]
    titles = ["Index", "KernelName", "gpu-id", "queue-id", "queue-index", "pid", "tid", "grd", "wgr", "lds", "scr"]
    titles += [*registers, "sig", "obj", *counters] + (
        ["DispatchNs", "BeginNs", "EndNs", "CompleteNs"] if timed else []
    )
    rows = []
    for index, event in enumerate(found):
        known = {
            "index": index,
            "kernelname": event["name"],
            "gpu-id": event["device"],
            "queue-id": event["stream"],
            "pid": 5,
            "tid": event["tid"],
            "sig": "0x0",
            "obj": "0x7fd0b9184ec0",
            "beginns": event["ts"],
            "endns": event["ts"] + event["dur"],
        } | {counter.lower(): event["bytes"] for counter in counters}
        rows.append(_cells(titles, known))
    return csv_text(titles, rows)


def dispatch_rows(found: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """What a table of dispatches with pid 5 is read as, GPUs numbered from 0: DISPATCH_COLUMNS of each event."""
    gpus = sorted({event["device"] for event in found})
    return [
        (e["ts"], e["dur"], e["name"], "5", str(e["tid"]), gpus.index(e["device"]), e["stream"], place)
        for place, e in enumerate(found)
    ]


def counter_rows(found: list[dict[str, Any]], names: list[str]) -> list[tuple[Any, ...]]:
    """And its counters, each of which says the event's bytes."""
    gpus = sorted({event["device"] for event in found})
    return [
        (place, gpus.index(e["device"]), e["name"], name, float(e["bytes"]), None)
        for name in names
        for place, e in enumerate(found)
    ]
