"""CPU time of TraceLens's report, of three analyses of Holistic Trace Analysis and of `rung analyze` on the same traces, each in fresh
processes that take turns, nothing cached.

    git clone https://github.com/AMD-AGI/TraceLens && python -m venv tracelens
    tracelens/bin/pip install --no-deps ./TraceLens && tracelens/bin/pip install "pandas<3" openpyxl tqdm orjson matplotlib tabulate PyYAML protobuf
    python benchmarks/trace/against_tracelens.py --tracelens tracelens/bin/TraceLens_generate_perf_report_pytorch TRACES...

With --hta PYTHON, an interpreter with HolisticTraceAnalysis, that one takes its turn, too. Prints Markdown: the median and the range.
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

HTA = """
import logging, sys
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_files={0: sys.argv[1]})
analysis.get_temporal_breakdown(visualize=False)
analysis.get_idle_time_breakdown(ranks=[0], visualize=False)
analysis.get_gpu_kernel_breakdown(visualize=False)
"""


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
    parser.add_argument("--hta", help="the Python of an environment with HolisticTraceAnalysis")
    parser.add_argument("--times", type=int, default=5, help="runs of each, the median is shown (default: 5)")
    given = parser.parse_args()
    columns = ["TraceLens", *(["HTA"] if given.hta else []), "Rung"]
    print(f"| trace | {' | '.join(f'{name}, CPU-s' for name in columns)} |\n|{'---|' * (len(columns) + 1)}")
    for trace in given.traces:
        took: dict[str, list[float]] = {name: [] for name in columns}
        for _ in range(given.times):
            with tempfile.TemporaryDirectory() as folder:
                env = {**os.environ, "RUNG_CACHE": f"{folder}/cache"}
                report = [given.tracelens, "--profile_json_path", str(trace), "--output_csvs_dir", f"{folder}/csv"]
                took["TraceLens"].append(spent(report, env))
                if given.hta:
                    took["HTA"].append(spent([given.hta, "-c", HTA, str(trace)], env))
                took["Rung"].append(spent([sys.executable, "-m", "rung", "analyze", str(trace), "--json"], env))
        shown = (f"{statistics.median(times):.2f} ({min(times):.2f}–{max(times):.2f})" for times in took.values())
        print(f"| {trace.name.partition('.')[0]} | {' | '.join(shown)} |", flush=True)


if __name__ == "__main__":
    main()
