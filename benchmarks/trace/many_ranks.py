"""What it costs to analyze the traces of many ranks, and whether the faults planted in them are found.

    python benchmarks/trace/synthetic_ranks.py /tmp/ranks --ranks 1024 --steps 29
    python benchmarks/trace/many_ranks.py /tmp/ranks
    python benchmarks/trace/many_ranks.py /tmp/ranks --ranks 16 --hta PYTHON

Prints CPU seconds, wall seconds and the highest resident memory of each command and the processes it starts, together; per gigabyte of
unpacked trace, too. --hta: a Python with HolisticTraceAnalysis, which answers what it can about the same files: the breakdown of
each rank's time, and communication hidden behind computation.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from synthetic_ranks import NODE

EVERY = 0.05  # seconds between two looks at the memory
HTA = """
import sys
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_dir=sys.argv[1])
print(analysis.get_temporal_breakdown(visualize=False))
print(analysis.get_comm_comp_overlap(visualize=False))
try:
    print("potential stragglers:", analysis.get_potential_stragglers())
except Exception as error:
    print(f"potential stragglers: {type(error).__name__}: {error}")
"""


def measured(title: str, words: list[str], gigabytes: float) -> str:
    """Runs a command and prints what it cost; returns what it printed."""
    before, begin, peak = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic(), 0
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(words, stdout=out)
        while process.poll() is None:
            peak = max(peak, _resident(process.pid))
            time.sleep(EVERY)
        wall = time.monotonic() - begin
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        out.seek(0)
        text = out.read().decode()
    if process.returncode:
        raise SystemExit(f"{title}: ended with {process.returncode}")
    print(f"{title}: {cpu:.1f} CPU-s ({cpu / gigabytes:.1f} a GB), {wall:.1f} s, {peak / 2**20:.0f} MiB", flush=True)
    return text


def _resident(pid: int) -> int:
    """Of a process and all that it started. Pages that they share are counted for each."""
    total = 0
    try:
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    for each in family:
        try:
            total += each.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total


def found(tables: dict, planted: dict, ranks: int) -> None:
    """Says whether the planted faults are in the tables of the first ranks, and nothing else is."""
    late = {(row["step"] - 1, row["rank"]): row for row in tables["stragglers"]}
    expected = {(step, planted["late_rank"]) for step in planted["late_steps"] if planted["late_rank"] < ranks}
    errors = [abs(late[where]["late_ns"] - planted["late_ns"]) / 1e6 for where in expected & late.keys()]
    print(f"late rank: found in {len(expected & late.keys())} of {len(expected)} steps, {len(late.keys() - expected)} others named; "
          f"its lateness is off by {max(errors, default=0):.3f} ms at most; causes {sorted({row['cause'] for row in late.values()})}")  # fmt: skip
    if ranks < 3 * NODE:
        print("slow group: not looked for among fewer than three groups")
        return
    slow = {row["group"]: row["times"] for row in tables["slow_groups"]}
    group = str(planted["slow_node"] + 1)
    print(f"slow group: {'found' if group in slow else 'MISSED'}, {slow.get(group, 0):.2f} times (planted: {planted['slow_times']}); "
          f"{len(slow.keys() - {group})} others named")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=0, help="only so many of them (default: all)")
    parser.add_argument("--hta", metavar="PYTHON", help="compare with HolisticTraceAnalysis, which this Python has")
    parser.add_argument("--engine", help="reduce by this engine, too, and compare the tables")
    given = parser.parse_args()
    planted = json.loads(given.folder.with_name(f"{given.folder.name}.planted.json").read_text())
    with tempfile.TemporaryDirectory() as work:
        folder, ranks = given.folder, given.ranks or planted["ranks"]
        if given.ranks:
            folder = Path(work, "traces")
            folder.mkdir()
            for trace in sorted(given.folder.glob("*.json.gz"))[: given.ranks]:
                os.link(trace, folder / trace.name) if trace.stat().st_dev == Path(work).stat().st_dev else (folder / trace.name).symlink_to(trace)  # fmt: skip
        gigabytes = planted["bytes"] * ranks / planted["ranks"] / 1e9
        print(f"{ranks} ranks, {gigabytes:.2f} GB unpacked, {os.cpu_count()} cores")
        rung = [sys.executable, "-m", "rung.cli.main", "analyze"]
        partials = Path(work, "partials")
        measured("reduce and merge", [*rung, str(folder), "--partials", str(partials)], gigabytes)
        sizes = [file.stat().st_size for file in partials.iterdir()]
        print(f"a partial has {sum(sizes) / len(sizes) / 1e3:.1f} kB")
        names = "stragglers,slow_groups,communication,skew,scaling,collectives"
        ask = [*rung, str(partials), "--json", "--show", names]
        document = json.loads(measured("merge alone, all tables", ask, gigabytes))
        found(document["tables"], planted, ranks)
        if given.engine:
            others = Path(work, "others")
            measured(given.engine, [*rung, str(folder), "--partials", str(others), "--engine", given.engine], gigabytes)
            ask[ask.index(str(partials))] = str(others)
            same = json.loads(measured("merge", ask, gigabytes))["tables"] == document["tables"]
            print(f"{given.engine}: the tables are {'the same' if same else 'OTHERS'}")
        if given.hta:
            print(measured("HolisticTraceAnalysis", [given.hta, "-c", HTA, str(folder)], gigabytes)[-2000:])


if __name__ == "__main__":
    main()
