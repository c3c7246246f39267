"""Reads a large trace in several ways, each in a process of its own, and prints CPU seconds and peak memory.

    python benchmarks/trace/run.py BASE.json.gz --copies 41 205

BASE is any Kineto trace; `--copies` says how often it is repeated (large_trace.py). Routes that build every event as a
Python object are only run on the first size. `calibration` is a fixed piece of pure Python: on a machine that others
use too, figures of two runs compare as far as it agrees.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from large_trace import make
from routes import ROUTES

HERE = Path(__file__).parent


def calibration() -> float:
    start, total = time.process_time(), 0
    for i in range(10_000_000):
        total += i
    return time.process_time() - start


def measured(route: str, file: Path, cache: Path) -> dict[str, float] | None:
    done = subprocess.run(
        [sys.executable, str(HERE / "routes.py"), route, str(file)],
        env=os.environ | {"RUNG_CACHE": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        print(f"{route}: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return None
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", type=Path)
    parser.add_argument("--copies", type=int, nargs="+", default=[5, 41])
    parser.add_argument("--repeat", type=int, default=3, help="how often Rung reads each size; the best is shown")
    parser.add_argument("--routes", nargs="+", choices=list(ROUTES), default=list(ROUTES))
    parser.add_argument("--made", type=Path, help="a directory to keep the traces in, or to take them from")
    options = parser.parse_args()
    print("| trace | route | CPU s | peak MB | read, wall s | calibration s |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for number, copies in enumerate(options.copies):
            file = (options.made or Path(folder)) / f"{copies}.json.gz"
            if not file.exists():
                make(options.base, file, copies)
            for route in options.routes:
                ours = route.startswith("rung")
                if number and not ours:
                    continue
                cache = Path(folder) / f"cache-{copies}"
                if route == "rung-cache":
                    show(file, "rung, storing the cache", [measured(route, file, cache)], calibration())
                results = [measured(route, file, cache) for _ in range(options.repeat if ours else 1)]
                show(file, "rung, from the cache" if route == "rung-cache" else route, results, calibration())


def show(file: Path, route: str, results: list[dict[str, float] | None], speed: float) -> None:
    good = sorted((result for result in results if result), key=lambda result: result["cpu_s"])
    if not good:
        return
    best = good[0]  # what others do on the machine can only add
    size = f"{file.stat().st_size / 1e6:.0f} MB gz, {best['events']:,.0f} events"
    print(
        f"| {size} | {route} | {best['cpu_s']:.2f} | {best['peak_mb']:,.0f} | {best['wall_s']:.2f} | {speed:.2f} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
