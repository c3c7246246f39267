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
import gzip
import json
import math
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from rung.analysis.costs import LIST_ITEM, Call, Cost, Unknown, cost, family, read_call

GPU = ("kernel", "gpu_memcpy", "gpu_memset")
OTHER = "no GPU event"  # names a stream: a wait for an event, a launch by Triton, an annotation
NEAR = 1e-4  # figures this close are the same: peers add floating-point microseconds
_COLLECTIVE = re.compile("nccl|rccl", re.IGNORECASE)
_HTA = """
import json, logging, sys
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_files={0: sys.argv[1]})
parts = analysis.get_temporal_breakdown(visualize=False).iloc[0]
found = {name: float(parts[name]) for name in ("idle_time(us)", "compute_time(us)", "non_compute_time(us)", "kernel_time(us)")}
print("FIGURES" + json.dumps(found))
"""


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


def near(a: float, b: float, least: float = 0.0) -> bool:
    """least: what two may be apart in any case: 20 ns of a time, where microseconds were added as floating-point numbers."""
    return abs(a - b) <= max(NEAR * max(abs(a), abs(b)), least)


FLOATS = 2e-5  # ms


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


def sum_of(events: Events) -> float:
    return sum(event.end - event.start for event in events) / 1e6


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


def operations(call: Call, mine: Cost, peer: int) -> str | None:
    """Why a peer counts other operations, where the numbers show it."""
    kind, more = family(call.name), peer - mine.flops
    first = max((t.size for t in call.tensors), default=0)
    if kind == "gemm" and call.name == "aten::addmm" and near(more, call.tensor(1).shape[0] * call.tensor(2).shape[1]):
        return "it counts the additions of the bias"
    if kind == "gemm" and call.maybe(2) and near(more, mine.flops / 2 / call.tensor(1).shape[-1]):
        return "it counts the additions of the bias"
    if kind == "attention":
        keys = call.tensor(1).shape[2 if call.tensor(0).shape[2] == call.tensor(1).shape[2] else 1]
        if near(peer * (keys + 1), mine.flops * keys):
            return "it halves the square of the causal mask, Rung counts its diagonal whole"
    if kind == "copy" and not mine.flops:
        return "it counts an operation for each element that is copied"
    if call.name == "aten::convolution_backward" and near(peer, 2 * mine.flops):
        return f"it counts two gradients, of which output_mask ({call.text(10)}) asks for one"
    if kind == "compiled" and not mine.flops:
        return (
            "of Inductor's pointwise kernels and reductions Rung counts bytes alone, it guesses operations by the name"
        )
    if kind in ("normalization", "pointwise", "pooling", "indexing", "optimizer") and first:
        return f"it counts {peer / first:.3g} operations an element, Rung {mine.flops / first:.3g} (the bytes decide there)"
    return None


def traffic(call: Call, mine: Cost, peer: int) -> str | None:
    kind, less = family(call.name), mine.bytes - peer
    if kind == "attention":
        q = call.tensor(0)
        if near(less, 4 * q.size // q.shape[-1]):
            return "the log-sum-exp of each row is written, too"
    if call.name == "aten::convolution_backward" and near(peer, 2 * mine.bytes):
        return f"it counts two gradients, of which output_mask ({call.text(10)}) asks for one"
    if kind == "pointwise" and call.name in _REDUCTIONS and less > 0:
        item = call.tensor(0).item
        if less % item == 0 and peer == call.tensor(0).bytes + item:
            return f"it takes the result for one element; {less // item + 1} are written"
    if kind == "compiled" and any(near(-less, t.bytes) for t in call.tensors):
        return (
            "nothing recorded says which argument is replaced in place: Rung counts each once, it one more as written"
        )
    if call.name == "aten::cumsum" and less == call.tensor(0).size * (8 - call.tensor(0).item):
        return "sums of narrow integers have 64 bits"
    if kind == "copy" and not peer:
        return "it takes a copy of this type for nothing"
    if kind == "convolution" and call.maybe(2) and less == call.tensor(2).bytes:
        return "the bias is read, too"
    if any(t.stored < t.size for t in call.tensors) and less < 0:
        return "it counts an expanded view whole, which stores less"
    small = sum(t.bytes for t in call.tensors if len(t.shape) <= 1)
    if kind == "normalization" and abs(less) <= 3 * small + 4 * 4 * max(
        (t.size for t in call.tensors if len(t.shape) == 1), default=0
    ):
        return f"gains and statistics ({abs(less)} bytes) are read or written, too"
    return None


_REDUCTIONS = (
    "aten::mean",
    "aten::sum",
    "aten::amax",
    "aten::amin",
    "aten::max",
    "aten::min",
    "aten::prod",
    "aten::norm",
)


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
