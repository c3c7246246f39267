"""The GPU events of a Chrome trace by the standard library alone, and what interval arithmetic gives over them and over parts of them."""

from __future__ import annotations

import gzip
import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path

GPU = ("kernel", "gpu_memcpy", "gpu_memset")
OTHER = "no GPU event"  # names a stream: a wait for an event, a launch by Triton, an annotation
NEAR = 1e-4  # figures this close are the same: peers add floating-point microseconds
FLOATS = 2e-5  # ms
_COLLECTIVE = re.compile("nccl|rccl", re.IGNORECASE)


@dataclass(frozen=True)
class Event:
    """Of a GPU, in ns, and as a tool has it that reads microseconds as floating-point numbers (ts, dur).

    launched: a call with its correlation id is in the file; arrow: a flow leads from a launch to it.
    """

    name: str
    kind: str
    start: int
    end: int
    launched: bool
    arrow: bool
    ts: float
    dur: float

    def __str__(self) -> str:
        return f"`{self.name[:60]}` at {self.start / 1e3:.3f} µs"


Events = list[Event]


def gpu_events(path: Path) -> Events:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt") as file:
        raw = json.load(file, parse_float=Decimal)
    events = raw["traceEvents"] if isinstance(raw, dict) else raw
    calls, arrows = set(), set()
    for event in events:
        if event.get("ph") == "s" and event.get("cat") == "ac2g":
            arrows.add(event.get("id"))
        elif event.get("cat") in ("cuda_runtime", "cuda_driver"):
            calls.add(event.get("args", {}).get("correlation"))
    found = []
    for event in events:
        if event.get("ph") == "X" and (event.get("cat") in GPU or event.get("args", {}).get("stream", -1) != -1):
            ts, dur, number = event["ts"], event.get("dur", 0), event.get("args", {}).get("correlation")
            start, end = int(ts * 1000), int((ts + dur) * 1000)
            kind = event["cat"] if event["cat"] in GPU else OTHER
            found.append(
                Event(event["name"], kind, start, end, number in calls, number in arrows, float(ts), float(dur))
            )
    return found


def covered(spans: Iterable[tuple[int, int]]) -> int:
    """The length of the union. A span that ends before it starts, as rounding makes some, counts as less than nothing."""
    total, until = 0, None
    for start, end in sorted(spans):
        if until is None or start > until:
            total += end - start
        else:
            total += max(0, end - until)
        until = end if until is None else max(until, end)
    return total


def figures(events: Events) -> dict[str, float]:
    """ms of the parts of the time, as the tools define them."""
    if not events:
        return {}
    parts: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for event in events:
        collective = event.kind == "kernel" and _COLLECTIVE.search(event.name)
        what = "communication" if collective else "copies" if event.kind == "gpu_memcpy" else "computation"
        parts[what].append((event.start, event.end))
    every = [span for spans in parts.values() for span in spans]
    total, busy = max(end for _, end in every) - min(start for start, _ in every), covered(every)
    computed = covered(parts["computation"])
    both = covered(parts["computation"] + parts["communication"])
    exact = {
        "total": total, "busy": busy, "idle": total - busy, "computation": computed,
        "communication": covered(parts["communication"]), "exposed communication": both - computed, "exposed copies": busy - both,
    }  # fmt: skip
    return {name: ns / 1e6 for name, ns in exact.items()}


def cut(events: Events) -> Events:
    """As HTA reads them (round_down_time_stamps): starts raised and ends lowered to whole microseconds, which takes about 1 µs of each
    event (one of less than 1 µs may have −1 µs then), of sums of floating-point numbers; memsets are copies."""
    whole = []
    for event in events:
        start, end = math.ceil(event.ts), math.floor(event.ts + event.dur)
        kind = "gpu_memcpy" if event.kind == "gpu_memset" or "Sync" in event.name else event.kind
        whole.append(replace(event, kind=kind, start=start * 1000, end=end * 1000))
    return whole


def on_gpu(events: Events) -> Events:
    return [event for event in events if event.kind != OTHER]


# What a tool may have looked at, from what is right to what is less so.
SETS: dict[str, Callable[[Events], Events]] = {
    "all events": on_gpu,
    "without what was launched before the recording": lambda events: [e for e in on_gpu(events) if e.launched],
    "without events that no flow arrow leads to": lambda events: [e for e in on_gpu(events) if e.arrow],
    "with whatever names a stream, too (waits for events, calls of Triton's kernels)": list,
}
SETS |= {f"{name}, in whole µs": lambda events, of=of: cut(of(events)) for name, of in SETS.items()}  # type: ignore[misc]


def sum_of(events: Events) -> float:
    return sum(event.end - event.start for event in events) / 1e6


def near(a: float, b: float, least: float = 0.0) -> bool:
    """least: what two may be apart in any case: 20 ns of a time, where microseconds were added as floating-point numbers."""
    return abs(a - b) <= max(NEAR * max(abs(a), abs(b)), least)


def explained(peer: float, figure: str, events: Events) -> str | None:
    """The set of events that gives a peer's figure, and one event that it lacks."""
    for name, chosen in SETS.items():
        kept = chosen(events)
        value = figures(kept).get(figure)
        if value is not None and near(peer, value, FLOATS):
            every, known = on_gpu(events), set(kept)
            left = [event for event in every if event not in known] if "µs" not in name else []
            return name + (f": {len(left)} of {len(every)}, the first is {left[0]}" if left else "")
    return None
