"""CPU time of TraceLens's report and of `rung analyze` on the same traces, each in fresh processes that take turns, nothing cached.

    git clone https://github.com/AMD-AGI/TraceLens && python -m venv tracelens
    tracelens/bin/pip install --no-deps ./TraceLens && tracelens/bin/pip install "pandas<3" openpyxl tqdm orjson matplotlib tabulate PyYAML protobuf
    python benchmarks/trace/against_tracelens.py --tracelens tracelens/bin/TraceLens_generate_perf_report_pytorch TRACES...

Prints Markdown: the median and the range.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path


def spent(command: list[str], env: dict[str, str]) -> float:
    """Seconds of the CPU, children included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{command[0]} ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--tracelens", required=True, help="its command TraceLens_generate_perf_report_pytorch")
    parser.add_argument("--times", type=int, default=5, help="runs of each, the median is shown (default: 5)")
    given = parser.parse_args()
    print("| trace | TraceLens, CPU-s | Rung, CPU-s |\n|---|---|---|")
    for trace in given.traces:
        took: dict[str, list[float]] = {"tracelens": [], "rung": []}
        for _ in range(given.times):
            with tempfile.TemporaryDirectory() as folder:
                env = {**os.environ, "RUNG_CACHE": f"{folder}/cache"}
                report = [given.tracelens, "--profile_json_path", str(trace), "--output_csvs_dir", f"{folder}/csv"]
                took["tracelens"].append(spent(report, env))
                took["rung"].append(spent([sys.executable, "-m", "rung", "analyze", str(trace), "--json"], env))
        shown = (f"{statistics.median(times):.2f} ({min(times):.2f}–{max(times):.2f})" for times in took.values())
        print(f"| {trace.name.partition('.')[0]} | {' | '.join(shown)} |", flush=True)


if __name__ == "__main__":
    main()
