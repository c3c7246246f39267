"""The figures of TraceLens and of Holistic Trace Analysis (HTA) beside Rung's, on any traces, and what raw events explain where they differ.

    git clone https://github.com/AMD-AGI/TraceLens && python -m venv peers
    peers/bin/pip install --no-deps ./TraceLens
    peers/bin/pip install "pandas<3" HolisticTraceAnalysis==0.5.0 openpyxl tqdm orjson matplotlib tabulate PyYAML protobuf
    python benchmarks/trace/against_peers.py --peers peers/bin TRACES_OR_FOLDERS...

A third reckoning decides: interval arithmetic on the events of the file, by the standard library alone, over all events and over those
that a tool may have used (with a recorded launch, with a flow arrow from one, with times cut to whole microseconds). A difference is
explained where one of these gives the peer's figure; an event that is in one set and not in the other is named. Prints Markdown; ends
with 1 where a difference is not explained.
"""

from __future__ import annotations

import argparse
import ast
import csv
import json
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from other_counts import operations, traffic
from raw_events import FLOATS, Events, covered, explained, figures, gpu_events, near, on_gpu, sum_of

from rung.analysis.costs import LIST_ITEM, Unknown, cost, read_call

_HTA = """
import json, logging, sys
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_files={0: sys.argv[1]})
parts = analysis.get_temporal_breakdown(visualize=False).iloc[0]
found = {name: float(parts[name]) for name in ("idle_time(us)", "compute_time(us)", "non_compute_time(us)", "kernel_time(us)")}
print("FIGURES" + json.dumps(found))
"""


@dataclass
class Comparison:
    """Of one trace: rows of (figure, peer, Rung, why), and what nothing explains."""

    rows: list[tuple[str, str, str, str]] = field(default_factory=list)
    agree: int = 0
    open: list[str] = field(default_factory=list)
    unmodelled: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def add(self, what: str, peer: float, mine: float | None, why: str | None, unit: str = "ms") -> None:
        if mine is not None and near(peer, mine, FLOATS if unit == "ms" else 0.0):
            self.agree += 1
            return
        if why is None:
            self.open.append(what)
        shown = "–" if mine is None else f"{mine:.6g} {unit}"
        self.rows.append((what, f"{peer:.6g} {unit}", shown, why or "**not explained**"))


def ran(command: list[str], **more: Any) -> str:
    done = subprocess.run(command, capture_output=True, text=True, **more)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[:4])} ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    return done.stdout


def rung(path: Path, *options: str) -> Any:
    return json.loads(ran([sys.executable, "-m", "rung", "analyze", str(path), "--json", *options]))


def timelines(path: Path) -> dict[str, dict[str, float]]:
    """Rung's own figures in ms: of all events, and of what the recorded steps launched."""
    found = {}
    for name, options in (("all", ()), ("steps", ("--step", "all"))):
        try:
            rows = rung(path, "--show", "timeline", *options)["tables"]["timeline"]
        except SystemExit:
            continue  # no steps were recorded
        rows = [row for row in rows if row["step"] is None]
        if len(rows) == 1:
            found[name] = {
                column.removesuffix("_ns").replace("memcpy", "copies").replace("_", " "): ns / 1e6
                for column, ns in rows[0].items()
                if column.endswith("_ns")
            }
    return found


def against_timeline(
    label: str, peer: dict[str, float], mine: dict[str, dict[str, float]], events: Events, to: Comparison
) -> None:
    for figure, value in peer.items():
        own = mine.get("all", {}).get(figure)
        other = mine.get("steps", {}).get(figure)
        why = explained(value, figure, events)
        if other is not None and near(value, other) and not (own is not None and near(value, own)):
            why = f"{why}; `--step all` gives it, too"
        to.add(f"{label}: {figure}", value, own, why)


def tracelens_timeline(folder: Path) -> dict[str, float]:
    names = {
        "total_time": "total", "busy_time": "busy", "idle_time": "idle", "computation_time": "computation",
        "total_comm_time": "communication", "exposed_comm_time": "exposed communication", "exposed_memcpy_time": "exposed copies",
    }  # fmt: skip
    return {
        names[row["type"]]: float(row["time ms"])
        for row in rows_of(folder / "gpu_timeline.csv")
        if row["type"] in names
    }


def rows_of(path: Path) -> list[dict[str, str]]:
    if not path.exists():  # it writes no table without rows
        return []
    csv.field_size_limit(2**27)
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def against_operators(folder: Path, path: Path, events: Events, to: Comparison) -> None:
    """The time of each operator that has any."""
    query = "select op, sum(time_ns) as ns from ops group by op"
    answer = json.loads(ran([sys.executable, "-m", "rung", "query", str(path), query, "--steps", "1", "--json"]))
    mine = {row["op"]: row["ns"] / 1e6 for row in answer["rows"]}
    kept = on_gpu(events)
    bare = [event for event in kept if event.launched and not event.arrow]
    beside = sum_of(kept) - covered((event.start, event.end) for event in kept) / 1e6
    bracketed = sum(ms for op, ms in mine.items() if op.startswith("("))
    for row in rows_of(folder / "ops_summary.csv"):
        peer, own = float(row["total_direct_kernel_time_sum"]) / 1e3, mine.get(row["name"])
        if not peer and own is None:
            continue
        missing, why = (own or 0.0) - peer, None
        if own is None and re.match("(hip|cuda|cu)[A-Z]", row["name"]) and peer <= bracketed + FLOATS:
            why = "a call of the runtime that no operator made: Rung has what it launched as `(replayed by a graph)` or `(no operator)`"
        elif bare and 0 < missing <= sum_of(bare) + FLOATS:
            why = f"no flow arrow leads to {len(bare)} events, such as {bare[0]}: those of this operator are missing"
        elif 0 < missing <= beside + FLOATS:
            why = f"it counts once when kernels of an operator run beside each other ({beside:.3g} ms of the trace), Rung each"
        to.add(f"TraceLens: time of `{row['name']}`", peer, own, why)


def against_work(folder: Path, to: Comparison) -> None:
    """FLOP and bytes of a call of each operator and shape: TraceLens's, and Rung's model of the same recorded inputs."""
    for row in rows_of(folder / "unified_perf_summary.csv"):
        if row["has_perf_model"] != "True" or not row.get("GFLOPS"):
            continue
        given = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")
        shapes, types, strides, values = (json.dumps(ast.literal_eval(row[column])) for column in given)
        name, dims = row["name"], json.loads(shapes)
        what = f"`{name}` {'; '.join('x'.join(map(str, d)) for d in dims if d and all(isinstance(n, int) for n in d))[:70]}"
        flops, moved = round(float(row["GFLOPS"]) * 1e9), round(float(row["Data Moved (MB)"] or 0) * 2**20)
        try:
            call = read_call(name, shapes, types, strides, values, LIST_ITEM.get(name, ""))
            mine = cost(call)
        except Unknown:
            to.unmodelled.append(what)
            continue
        to.add(f"TraceLens: FLOP of {what}", flops / 1e9, mine.flops / 1e9, operations(call, mine, flops), "GFLOP")
        if not row["Data Moved (MB)"]:
            continue
        to.add(f"TraceLens: bytes of {what}", moved / 2**20, mine.bytes / 2**20, traffic(call, mine, moved), "MiB")


def against_hta(python: str, path: Path, mine: dict[str, dict[str, float]], events: Events, to: Comparison) -> None:
    """Its parts: what runs and is neither a copy, a memset nor a collective; anything else; nothing."""
    done = subprocess.run([python, "-c", _HTA, str(path)], capture_output=True, text=True)
    found = re.search("FIGURES(.*)", done.stdout)
    if not found:
        to.refused.append(f"HTA: {done.stderr.strip().splitlines()[-1][:150] if done.stderr.strip() else 'no figures'}")
        return
    said = json.loads(found[1])
    peer = {
        "total": said["kernel_time(us)"] / 1e3,
        "idle": said["idle_time(us)"] / 1e3,
        "computation": said["compute_time(us)"] / 1e3,
    }
    against_timeline("HTA", peer, mine, events, to)


def compared(path: Path, peers: Path) -> Comparison:
    to, events, mine = Comparison(), gpu_events(path), timelines(path)
    exact = figures(on_gpu(events))
    for figure, value in mine.get("all", {}).items():
        if figure in exact and not near(value, exact[figure]):
            to.open.append(f"Rung's {figure}: {value:.6g}, by the events {exact[figure]:.6g}")
    with tempfile.TemporaryDirectory() as folder:
        report = [
            str(peers / "TraceLens_generate_perf_report_pytorch"),
            "--profile_json_path",
            str(path),
            "--output_csvs_dir",
            folder,
        ]
        done = subprocess.run(report, capture_output=True, text=True)
        if done.returncode:
            to.refused.append(f"TraceLens: {done.stderr.strip().splitlines()[-1][:150]}")
        else:
            against_timeline("TraceLens", tracelens_timeline(Path(folder)), mine, events, to)
            against_operators(Path(folder), path, events, to)
            against_work(Path(folder), to)
    against_hta(str(peers / "python"), path, mine, events, to)
    return to


def shown(path: Path, to: Comparison) -> None:
    print(
        f"\n### {path.name}\n\n{to.agree} figures agree, {len(to.rows)} differ, {len(to.open)} of these without an explanation.\n"
    )
    for line in to.refused:
        print(f"{line}\n")
    if to.unmodelled:
        print(
            f"Only TraceLens has a model: {', '.join(to.unmodelled[:5])}{' and more' if len(to.unmodelled) > 5 else ''}.\n"
        )
    if to.rows:
        print("| figure | peer | Rung | why they differ |\n|---|---|---|---|")
    alike: dict[tuple[str, str], list[tuple[str, str, str, str]]] = defaultdict(list)
    for row in to.rows:
        alike[row[0].split("`")[0], re.sub(r"[\d.]+", "", row[3])].append(row)
    for rows in alike.values():
        first = [cell.replace("|", "/") for cell in rows[0]]
        more = f" (and {len(rows) - 1} more)" if len(rows) > 1 else ""
        print(f"| {first[0]}{more} | {' | '.join(first[1:])} |")
    for line in to.open:
        print(f"\nnot explained: {line}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+", type=Path, help="traces of torch.profiler, and folders of them")
    parser.add_argument("--peers", required=True, type=Path, help="the folder with the peers' python and commands")
    given = parser.parse_args()
    paths = [path for each in given.traces for path in (sorted(each.glob("*.json*")) if each.is_dir() else [each])]
    still = 0
    for path in paths:
        try:
            to = compared(path, given.peers)
        except (KeyError, TypeError, ValueError) as error:
            print(f"\n### {path.name}\n\nno trace of torch.profiler: {error!r:.100}")
            continue
        shown(path, to)
        still += len(to.open)
    return 1 if still else 0


if __name__ == "__main__":
    raise SystemExit(main())
