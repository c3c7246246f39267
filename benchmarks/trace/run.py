"""Makes large traces and reads them, each route in a process of its own: CPU seconds and peak memory, as Markdown.

    python benchmarks/trace/run.py BASE.json.gz SMALL.json.gz

BASE is any Kineto trace; `--copies` says how often it is repeated (large_trace.py; 41 copies of mi300_timesformer are
506 MB, 5 are 61 MB). SMALL, if given, is read as it is. Of each route the best of `--repeat` is shown: what else runs on a
machine can only add. `--routes all` adds the ways that Rung does not go; those that build every event as a Python object
are only run on the first size, and one whose library is missing is left out.

`calibration` is a fixed piece of pure Python: figures of two machines, or of one that others use too, compare as far as
it agrees.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from large_trace import make
from routes import ROUTES

HERE = Path(__file__).parent
OURS = ("rung", "rung-cache", "rung-analyze", "rung-analyze-again")


def calibration() -> float:
    start, total = time.process_time(), 0
    for i in range(10_000_000):
        total += i
    return time.process_time() - start


def measured(route: str, file: Path, cache: Path) -> dict[str, float] | None:
    # Compiled modules are kept, as where the package is installed.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    path = filter(None, [os.environ.get("PYTHONPATH")])
    environment |= {"RUNG_CACHE": str(cache), "PYTHONPATH": os.pathsep.join([str(HERE.parents[1] / "src"), *path])}
    start = time.perf_counter()
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [sys.executable, *command(route, file)], env=environment, stdout=said, stderr=errors, text=True
        )
        _, status, used = os.wait4(process.pid, 0)  # of the whole process, its start and its end included
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        errors.seek(0)
        if process.returncode:
            print(f"{route}: {errors.read().strip().splitlines()[-1:]}", file=sys.stderr)
            return None
        figures: dict[str, float] = {"wall_s": time.perf_counter() - start} | json.load(said)
    return figures | {"cpu_s": used.ru_utime + used.ru_stime, "peak_mb": used.ru_maxrss / 1024}


def command(route: str, file: Path) -> list[str]:
    if route.startswith("rung-analyze"):  # the command itself
        return [
            "-m",
            "rung.cli.main",
            "analyze",
            str(file),
            "--json",
            *(["--no-cache"] if route == "rung-analyze" else []),
        ]
    return [str(HERE / "routes.py"), route, str(file)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", type=Path)
    parser.add_argument("small", type=Path, nargs="*", help="traces to read as they are")
    parser.add_argument("--copies", type=int, nargs="+", default=[41, 5])
    parser.add_argument("--repeat", type=int, default=5, help="how often Rung reads each size; the best is shown")
    parser.add_argument(
        "--routes", nargs="+", choices=[*ROUTES, "rung-analyze", "rung-analyze-again", "all"], default=OURS
    )
    parser.add_argument("--made", type=Path, help="a directory to keep the traces in, or to take them from")
    options = parser.parse_args()
    routes = [*OURS, *(r for r in ROUTES if r not in OURS)] if "all" in options.routes else options.routes
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}\n")
    print("| trace | route | CPU s | peak MB | wall s | calibration s |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for number, copies in enumerate(options.copies):
            file = (options.made or Path(folder)) / f"{copies}.json.gz"
            if not file.exists():
                make(options.base, file, copies)
            compared(file, [r for r in routes if not number or r in OURS], Path(folder) / str(copies), options.repeat)
        for file in options.small:
            compared(file, ["rung-analyze"], Path(folder) / "small", options.repeat)


def compared(file: Path, routes: list[str], cache: Path, repeat: int) -> None:
    measured("rung", file, cache)  # compiles the modules, if they are not
    for route in routes:
        if route == "rung-cache":
            show(file, "rung, storing the cache", [measured(route, file, cache)])
        if route == "rung-analyze-again":
            show(file, "rung-analyze, storing its answer", [measured(route, file, cache)])
        results = [measured(route, file, cache) for _ in range(repeat if route in OURS else 1)]
        show(file, "rung, from the cache" if route == "rung-cache" else route, results)


def show(file: Path, route: str, results: list[dict[str, float] | None]) -> None:
    good = sorted((result for result in results if result), key=lambda result: result["cpu_s"])
    if not good:
        return
    best, speed = good[0], calibration()
    size = f"{file.stat().st_size / 1e6:.2g} MB gz, {best['events']:,.0f} events"
    print(
        f"| {size} | {route} | {best['cpu_s']:.2f} | {best['peak_mb']:,.0f} | {best['wall_s']:.2f} | {speed:.2f} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
