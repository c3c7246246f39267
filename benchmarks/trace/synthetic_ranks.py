"""Makes the traces of many ranks from one recorded rank, with a late rank and a slow link whose place and size are known.

    python benchmarks/trace/synthetic_ranks.py DIR --ranks 1024 --steps 31

Each rank runs the recorded step again and again, in its own time: every step begins up to 50 us late (`--jitter-us`). The collectives of a
step take turns: one among all ranks, the next among the eight ranks of a node. Each begins when its rank is there and its stream is
free, and ends for all of its ranks when the last one has come and the bytes have moved. Two faults are planted:

- the late rank (`--late-rank`) begins every fifth step `--late-ms` late, as if its host had slept;
- in one node (`--slow-node`) a transfer takes `--slow-times` as long.

`planted.json` beside the folder says where they are. The size of a file is about 0.65 MB a step, unpacked.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

RECORDED = Path(__file__).parents[2] / "tests/data/ddp/ranks2-slow-gpu/rank0.json.gz"
IDS = ("External id", "correlation", "Sequence number", "Ev Idx")
NODE = 8  # ranks
MARGIN_NS = 10_000_000  # between two steps, more than any rank is late
EVERY = 5  # steps: the late rank is late in one of so many

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Planted:
    """ranks, steps: how many. late_ns, jitter_ns: how late. slow_times: how many times as long a transfer takes in the slow node."""

    ranks: int
    steps: int
    late_rank: int
    late_ns: int
    slow_node: int
    slow_times: float
    jitter_ns: int
    late_steps: list[int] = field(default_factory=list)

    def delays(self) -> Ints:
        """How late each rank begins each step, ns: one row a step."""
        found = np.random.default_rng(0).integers(0, self.jitter_ns + 1, (self.steps, self.ranks))
        found[self.late_steps, self.late_rank] += self.late_ns
        return found


class Step:
    """The recorded step as a text with a place for each number that differs from rank to rank and from step to step."""

    def __init__(self, source: Path) -> None:
        document = json.loads(gzip.decompress(source.read_bytes()))
        self.facts = {key: value for key, value in document.items() if key != "traceEvents"}
        events = [event for event in document["traceEvents"] if event.get("ph") == "X"]
        marks = sorted((e for e in events if e["name"].startswith("ProfilerStep#")), key=lambda event: event["ts"])
        events = _of_step(events, marks[-1])
        self.events = sorted(events, key=lambda event: event["ts"])
        starts = np.array([round(event["ts"] * 1000) for event in self.events])
        self.origin = int(starts.min())
        self.ts = starts - self.origin
        self.dur = np.array([round(event["dur"] * 1000) for event in self.events])
        self.span = int((self.ts + self.dur).max())
        self.kernels = [
            place for place, event in enumerate(self.events) if "nccl" in event["name"] and event["cat"] == "kernel"
        ]
        self.last_end = int((self.ts + self.dur)[self.kernels].max())
        self.on_gpu = np.array([event["cat"] in ("kernel", "gpu_memcpy", "gpu_memset") for event in self.events])
        said = [event["args"]["External id"] for event in (self.events[place] for place in self.kernels)]
        self.turn = {call: turn for turn, call in enumerate(said)}  # which collective an external id belongs to
        self.ids = 1 + max(value for event in self.events for key, value in event["args"].items() if key in IDS)

    def transfers(self) -> Ints:
        """How long each collective needs to move its bytes, ns: at 150 GB/s, and 20 us to begin."""
        sizes = [self.events[place]["args"]["In msg nelems"] * 4 for place in self.kernels]
        return np.array([20_000 + int(size / 150) for size in sizes])

    def template(self, rank: int, ranks: int) -> tuple[str, list[tuple[int, int]]]:
        """A text for `%`, and what comes into it: (an event's place, 0 and 1 for its start, 2 and 3 for its duration, in us and ns
        of a us; -1 for the number of the step), else (-1, an id)."""
        text, order = [], []
        for place, event in enumerate(self.events):
            args = {**event["args"], **self._group(event, rank, ranks)}
            line = json.dumps(
                {
                    **event,
                    "ts": "TS",
                    "dur": "DUR",
                    "args": {**args, **{key: f"ID{args[key]}" for key in IDS if key in args}},
                }
            )
            line = re.sub(r"^(.*ProfilerStep#)\d+", r"\1STEP", line.replace("%", "%%"))
            for word in re.findall(r'"TS"|"DUR"|"ID\d+"|STEP', line):
                order += {'"TS"': [(place, 0), (place, 1)], '"DUR"': [(place, 2), (place, 3)], "STEP": [(place, -1)]}.get(word) or [(-1, int(word[3:-1]))]  # fmt: skip
            line = re.sub(r'"TS"|"DUR"', "%d.%03d", line)
            text.append(re.sub(r'"ID\d+"|STEP', "%d", line))
        return ",\n".join(text), order

    def _group(self, event: dict[str, Any], rank: int, ranks: int) -> dict[str, Any]:
        if "Process Group Name" not in event["args"]:
            return {}
        if self.turn[event["args"]["External id"]] % 2 == 0:
            return {"Process Group Name": "0", "Process Group Ranks": _listed(range(ranks)), "Group size": ranks}
        node = _node(rank, ranks)
        return {
            "Process Group Name": str(1 + rank // NODE),
            "Process Group Ranks": _listed(node),
            "Group size": len(node),
        }


def _of_step(events: list[dict[str, Any]], mark: dict[str, Any]) -> list[dict[str, Any]]:
    """The host's events of one step, and the GPU's that it launched."""
    begin, end = mark["ts"], mark["ts"] + mark["dur"]
    host = [event for event in events if "stream" not in event["args"] and begin <= event["ts"] < end]
    launches = {event["args"]["correlation"] for event in host if "correlation" in event["args"]}
    return host + [
        event for event in events if "stream" in event["args"] and event["args"].get("correlation") in launches
    ]


def _node(rank: int, ranks: int) -> range:
    first = rank // NODE * NODE
    return range(first, min(first + NODE, ranks))


def _listed(ranks: range) -> str:
    """As torch writes it: of many ranks the first and the last."""
    if len(ranks) <= 30:
        return str(list(ranks))
    return f"[{', '.join(map(str, ranks[:29]))}, ..., {ranks[-1]}]"


def simulated(step: Step, planted: Planted) -> tuple[Ints, Ints]:
    """Start and end of each collective, ns from the beginning of its step: axes are step, collective, rank."""
    delays, transfers = planted.delays(), step.transfers()
    starts = np.zeros((planted.steps, len(step.kernels), planted.ranks), dtype=np.int64)
    ends = np.zeros_like(starts)
    nodes = np.arange(planted.ranks) // NODE
    free = np.zeros((planted.steps, planted.ranks), dtype=np.int64)
    for turn, place in enumerate(step.kernels):
        starts[:, turn] = np.maximum(step.ts[place] + delays, free)
        if turn % 2 == 0:
            ends[:, turn] = starts[:, turn].max(axis=1, keepdims=True) + transfers[turn]
        else:
            for node in range(nodes.max() + 1):
                of_node = nodes == node
                times = planted.slow_times if node == planted.slow_node else 1.0
                ends[:, turn, of_node] = starts[:, turn, of_node].max(axis=1, keepdims=True) + int(
                    transfers[turn] * times
                )
        free = ends[:, turn]
    return starts, ends


def write_rank(step: Step, planted: Planted, rank: int, delays: Ints, starts: Ints, ends: Ints, path: Path) -> int:
    """One trace; returns its size, unpacked. delays: one a step; starts, ends: of its collectives, axes step and collective."""
    template, order = step.template(rank, planted.ranks)
    groups = [
        {"pg_name": "0", "pg_size": planted.ranks},
        {"pg_name": str(1 + rank // NODE), "pg_size": len(_node(rank, planted.ranks))},
    ]
    facts = step.facts | {
        "distributedInfo": {
            "backend": "nccl",
            "rank": rank,
            "world_size": planted.ranks,
            "pg_count": 2,
            "pg_config": groups,
        },
        "traceName": path.name,
    }
    places, which = np.array(order).T
    size = 0
    with gzip.open(path, "wb", compresslevel=1) as file:
        for number in range(planted.steps):
            ts, dur = step.ts + delays[number], step.dur.copy()
            ts[step.kernels], dur[step.kernels] = starts[number], ends[number] - starts[number]
            # What waits for the last collective runs when that is over.
            after = step.on_gpu & (step.ts >= step.last_end)
            ts[after] += max(0, int(ends[number].max()) - step.last_end - int(delays[number]))
            ts += step.origin + number * (step.span + MARGIN_NS)
            columns = np.stack([ts // 1000, ts % 1000, dur // 1000, dur % 1000, np.full_like(ts, number + 1)])
            ids = which + number * step.ids
            numbers = np.where(places < 0, ids, columns[which.clip(-1, 3), places])
            before = json.dumps(facts)[:-1] + ', "traceEvents": [\n' if number == 0 else ",\n"
            text = (before + template % tuple(numbers.tolist())).encode()
            size += len(text)
            file.write(text)
        file.write(b"]}\n")
    return size


def write_some(folder: Path, planted: Planted, ranks: range) -> int:
    step = Step(RECORDED)
    delays, (starts, ends) = planted.delays(), simulated(step, planted)
    return sum(
        write_rank(
            step,
            planted,
            rank,
            delays[:, rank],
            starts[:, :, rank],
            ends[:, :, rank],
            folder / f"rank{rank:05}.json.gz",
        )
        for rank in ranks
    )


def make(folder: Path, planted: Planted, processes: int = 2) -> int:
    """All the traces; returns their size, unpacked."""
    folder.mkdir(parents=True, exist_ok=True)
    shares = [range(first, planted.ranks, processes) for first in range(processes)]
    with ProcessPoolExecutor(processes) as pool:
        size = sum(pool.map(write_some, [folder] * processes, [planted] * processes, shares))
    facts = {name: getattr(planted, name) for name in Planted.__dataclass_fields__} | {"bytes": size}
    folder.with_name(f"{folder.name}.planted.json").write_text(json.dumps(facts, indent=1) + "\n")
    return size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=31)
    parser.add_argument("--late-rank", type=int, default=None, help="default: at two thirds of the ranks")
    parser.add_argument("--late-ms", type=float, default=3.0)
    parser.add_argument("--slow-node", type=int, default=1)
    parser.add_argument("--slow-times", type=float, default=3.0)
    parser.add_argument("--jitter-us", type=float, default=50.0)
    given = parser.parse_args()
    planted = Planted(
        ranks=given.ranks,
        steps=given.steps,
        late_rank=given.ranks * 2 // 3 if given.late_rank is None else given.late_rank,
        late_ns=round(given.late_ms * 1e6),
        slow_node=given.slow_node,
        slow_times=given.slow_times,
        jitter_ns=round(given.jitter_us * 1e3),
        late_steps=list(range(2, given.steps, EVERY)),
    )
    size = make(given.folder, planted)
    print(
        f"{given.folder}: {planted.ranks} traces, {size / 1e9:.2f} GB unpacked; rank {planted.late_rank} is late, node {planted.slow_node} slow"
    )


if __name__ == "__main__":
    main()
