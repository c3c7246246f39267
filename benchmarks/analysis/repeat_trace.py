"""Makes a torch.profiler trace long: the recording again and again, until it has so many kernels.

    python benchmarks/analysis/repeat_trace.py TRACE.json.gz OUT.json.gz KERNELS

Each repetition begins 1 ms after the one before has ended, and has ids of its own, so that kernels still find their launches.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

IDS = ("External id", "correlation", "Sequence number", "Ev Idx", "Python id", "Python parent id", "Python module id")
PAUSE_US = 1000.0


def repeated(events: list[dict[str, Any]], times: int) -> Iterator[dict[str, Any]]:
    begin = min(event["ts"] for event in events)
    span = max(event["ts"] + event.get("dur", 0.0) for event in events) - begin + PAUSE_US
    last = 1 + max((event.get("args", {}).get(key) or 0 for event in events for key in IDS if isinstance(event.get("args", {}).get(key), int)), default=0)  # fmt: skip
    for turn in range(times):
        for event in events:
            args = {
                key: value + turn * last if key in IDS and isinstance(value, int) else value
                for key, value in event.get("args", {}).items()
            }
            name = event["name"]
            if name.startswith("ProfilerStep#"):
                name = f"ProfilerStep#{turn}"
            yield {**event, "name": name, "ts": round(event["ts"] + turn * span, 3), "args": args}


def main() -> None:
    source, target, kernels = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    text = source.read_bytes()
    document = json.loads(gzip.decompress(text) if source.suffix == ".gz" else text)
    events = [event for event in document["traceEvents"] if event.get("ph") in ("X", "i") and "ts" in event]
    of_one = sum(event.get("cat") == "kernel" for event in events)
    if not of_one:
        raise SystemExit(f"{source} has no kernels: give a trace with GPU activities.")
    facts = {key: value for key, value in document.items() if key != "traceEvents"}
    with gzip.open(target, "wt", compresslevel=1) as file:
        file.write(json.dumps(facts)[:-1] + ', "traceEvents": [')
        for place, event in enumerate(repeated(events, -(-kernels // of_one))):
            file.write(("," if place else "") + "\n" + json.dumps(event))
        file.write("]}\n")


if __name__ == "__main__":
    main()
