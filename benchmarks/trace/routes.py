"""Each way of reading a trace, alone in a process: `python routes.py ROUTE FILE` prints one JSON line of figures."""

from __future__ import annotations

import gzip
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any


def rung(path: str) -> Any:
    from rung.trace import read

    events = read(path, cache=False).events
    return events.height, int(events["dur"].sum())


def rung_cache(path: str) -> Any:
    from rung.trace import read

    events = read(path).events
    return events.height, int(events["dur"].sum())


def stdlib_json(path: str) -> Any:
    with gzip.open(path) as file:
        return _table(json.loads(file.read()))


def orjson(path: str) -> Any:
    import orjson

    with gzip.open(path) as file:
        return _table(orjson.loads(file.read()))


def msgspec_untyped(path: str) -> Any:
    import msgspec

    with gzip.open(path) as file:
        return _table(msgspec.json.decode(file.read()))


def msgspec_typed(path: str) -> Any:
    """The whole file at once, the same types as the streamed reader."""
    import msgspec
    import polars as pl

    from rung.trace.kineto.structs import Quick

    whole = msgspec.defstruct("Whole", [("traceEvents", list[Quick])])
    with gzip.open(path) as file:
        events = msgspec.json.decode(file.read(), type=whole).traceEvents
    rows = [event for event in events if event.ph == "X"]
    columns = {key: [getattr(row, key) for row in rows] for key in ("ts", "dur", "name", "cat")}
    return _sums(pl.DataFrame(columns))


def polars(path: str) -> Any:
    import polars as pl

    event = {"ph": pl.String, "ts": pl.Float64, "dur": pl.Float64, "name": pl.String, "cat": pl.String}
    with gzip.open(path) as file:
        frame = pl.read_json(file.read(), schema={"traceEvents": pl.List(pl.Struct(event))})
    events = frame.explode("traceEvents").unnest("traceEvents")
    return _sums(events.filter(pl.col("ph") == "X"))


def _table(trace: dict[str, Any]) -> Any:
    """Less than Rung's table: four columns, times as floats."""
    import polars as pl

    rows = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    frame = pl.DataFrame(
        {
            "ts": [float(row["ts"]) for row in rows],
            "dur": [float(row["dur"]) for row in rows],
            "name": [row["name"] for row in rows],
            "cat": [row.get("cat") for row in rows],
        }
    )
    return _sums(frame)


def _sums(frame: Any) -> Any:
    return frame.height, round(float(frame["dur"].sum()) * 1000)


ROUTES: dict[str, Callable[[str], Any]] = {
    "rung": rung,
    "rung-cache": rung_cache,
    "msgspec-typed": msgspec_typed,
    "msgspec-untyped": msgspec_untyped,
    "polars": polars,
    "orjson": orjson,
    "json": stdlib_json,
}


def main() -> None:
    route, path = sys.argv[1:]
    start = time.perf_counter()
    events, duration = ROUTES[route](path)
    wall = time.perf_counter() - start
    # Wall: of the reading, imports included, without the interpreter's own start.
    print(json.dumps({"events": events, "duration_ns": duration, "wall_s": wall}), flush=True)
    os._exit(0)  # giving back a few million objects one by one is no part of reading


if __name__ == "__main__":
    main()
