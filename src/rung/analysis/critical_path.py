"""Which work sets the pace?"""

from __future__ import annotations

import numpy as np
import polars as pl

from rung.analysis.event_graph import Graph, event_graph
from rung.analysis.intervals import Ints
from rung.analysis.once import once
from rung.trace.table import Trace

LAUNCH, BEGIN = "launch and gaps", "before the first launch"
SCHEMA: dict[str, pl.DataType] = {
    "rank": pl.Int32(),
    "what": pl.String(),
    "name": pl.String(),
    "path_ns": pl.Int64(),
    "path_share": pl.Float64(),
    "path_count": pl.Int64(),
    "total_ns": pl.Int64(),
    "slack_ns": pl.Int64(),
    "of": pl.String(),
}


def critical_path(trace: Trace, *, steps: int = 1) -> pl.DataFrame:
    """One row for each rank and name of what ran, most time on the path first; over the whole recording.

    The path is the chain of work without a break from the first call or GPU event to the last. Each piece of it had to end before the
    next could begin (`event_graph.event_graph` says what is known of that and what is inferred). A trace without GPU events and launches
    has no row.

    what: computation, communication and memcpy are GPU work; host is what the host did before the call named; launch is the time from a
        call to its GPU event, and gaps on the GPU that nothing explains; none if the trace is too large for an answer.
    name: the operator, collective or call.
    path_ns: its time on the path. All rows add up to the recording, exactly.
    path_share: of the path.
    path_count: how often it is on the path.
    total_ns: its GPU time, on the path or not. A collective counts from when the last rank came.
    slack_ns: by how much the one of them that is nearest to the path could take longer before the end moves.
    of: what is covered: "recording", or its last step if the recording is too large.
    """
    return solved(trace)[0]


@once
def solved(trace: Trace) -> tuple[pl.DataFrame, Graph, Pace | None]:
    """The table, the graph, and the graph solved, None where it is empty."""
    graph = event_graph(trace)
    if graph.nodes.is_empty():
        row = {"what": "none", "name": graph.note, "path_ns": 0, "path_count": 0, "total_ns": 0, "of": ""}
        return pl.DataFrame([row] if graph.note else [], schema=SCHEMA), graph, None
    pace = Pace(graph)
    return _table(graph, pace), graph, pace


class Pace:
    """The graph solved: edges in an order in which each comes after all to its source, and how long each node waits
    beyond them.

    The recorded times are what comes out when nothing is changed; a changed weight moves all that depends on it.
    """

    def __init__(self, graph: Graph) -> None:
        time, self.dur = graph.nodes["time"].to_numpy(), graph.nodes["dur"].to_numpy()
        source, target, weight, by = (graph.edges[name].to_numpy() for name in ("source", "target", "weight", "by"))
        order, kept = _topological(time, source, target)
        place = np.empty(time.size, dtype=np.int64)
        place[order] = np.arange(time.size)
        edges = np.flatnonzero(kept)
        edges = edges[np.argsort(place[target[edges]], kind="stable")]
        self.source, self.weight, self.by, self.target = source[edges], weight[edges], by[edges], target[edges]
        self._sources, self._targets = self.source.tolist(), self.target.tolist()
        self.begin = int(time.min())
        self.total = int((time + self.dur).max()) - self.begin
        earliest = np.full(time.size, self.begin, dtype=np.int64)
        np.maximum.at(earliest, self.target, time[self.source] + self.weight)
        self.delay = time - earliest  # after all that it is known to wait for
        self.time = time

    def length(self, scale: np.ndarray) -> float:
        """How long all takes if the work of each node takes `scale` times its time."""
        delay = self.delay.astype(np.float64)
        # The delay of a node is part of each edge to it: one addition and one comparison an edge are left.
        weights = np.where(self.by >= 0, self.weight * scale[self.by], self.weight) + delay[self.target]
        time = delay.tolist()
        for source, target, weight in zip(self._sources, self._targets, weights.tolist(), strict=True):
            value = time[source] + weight
            if value > time[target]:
                time[target] = value
        return float((np.array(time) + self.dur * scale).max())

    def slack(self) -> Ints:
        """How much later each node could be without moving the end."""
        latest = (self.begin + self.total - self.dur).tolist()
        apart = (self.weight + self.delay[self.target])[::-1].tolist()
        # By target, the last first: its own time is then settled.
        for source, target, weight in zip(reversed(self._sources), reversed(self._targets), apart, strict=True):
            value = latest[target] - weight
            if value < latest[source]:
                latest[source] = value
        return np.array(latest, dtype=np.int64) - self.time

    def path(self) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """(node, ns) of the work on the path, and (node, ns) of the delays before nodes on it; from the end."""
        node = int((self.time + self.dur).argmax())
        # An edge is tight where its target could not have begun sooner for it; of several the longest decides.
        tight = np.flatnonzero(self.time[self.source] + self.weight == (self.time - self.delay)[self.target])
        tight = tight[np.argsort(-self.weight[tight], kind="stable")]
        nodes, first = np.unique(self.target[tight], return_index=True)
        into = dict(zip(nodes.tolist(), tight[first].tolist(), strict=True))
        weight, by, delay = self.weight.tolist(), self.by.tolist(), self.delay.tolist()
        worked, delayed = [(node, int(self.dur[node]))], []
        while True:
            delayed.append((node, delay[node]))
            edge = into.get(node)
            if edge is None:
                return worked, delayed
            (worked if by[edge] >= 0 else delayed).append((by[edge] if by[edge] >= 0 else node, weight[edge]))
            node = self._sources[edge]


def _topological(time: Ints, source: Ints, target: Ints) -> tuple[Ints, np.ndarray]:
    """An order in which edges lead forwards, and which edges do: those of a circle of equal times may not."""
    size = time.size
    kept = source != target
    while True:
        degree = np.bincount(target[kept], minlength=size).tolist()
        by_source = np.argsort(source[kept], kind="stable")
        ends = target[kept][by_source].tolist()
        bounds = np.searchsorted(source[kept][by_source], np.arange(size + 1)).tolist()
        ready = [node for node in range(size) if not degree[node]]
        order = []
        while ready:
            node = ready.pop()
            order.append(node)
            for other in ends[bounds[node] : bounds[node + 1]]:
                degree[other] -= 1
                if not degree[other]:
                    ready.append(other)
        if len(order) == size:
            return np.array(order, dtype=np.int64), kept
        stuck = np.array(degree) > 0
        circle = stuck[source] & stuck[target] & kept
        # Within circles only what leads to a later time, or at one time to a later number, stays.
        kept = kept & ~(circle & ((time[source] > time[target]) | ((time[source] == time[target]) & (source > target))))


def _table(graph: Graph, pace: Pace) -> pl.DataFrame:
    worked, delayed = pace.path()
    what, name = graph.nodes["what"].to_list(), graph.nodes["name"].to_list()
    rank = graph.nodes["rank"].to_list()
    rows = [(rank[node], what[node] or "communication", name[node], ns, 1) for node, ns in worked if ns]
    first = delayed[-1][0]
    for node, ns in delayed:
        if ns:
            said = ("host", BEGIN) if node == first else ("launch", LAUNCH)
            rows.append((rank[node], *said, ns, 1))
    on_path = (
        pl.DataFrame(rows, schema={"rank": pl.Int32, "what": pl.String, "name": pl.String, "path_ns": pl.Int64, "n": pl.Int64}, orient="row")
        .group_by("rank", "what", "name", maintain_order=True)
        .agg(pl.col("path_ns").sum(), path_count=pl.col("n").sum())
    )  # fmt: skip
    known = (
        graph.nodes.with_columns(slack=pl.Series(pace.slack()))
        .filter(pl.col("what") != "")
        .group_by("rank", "what", "name", maintain_order=True)
        .agg(total_ns=pl.col("dur").sum(), slack_ns=pl.col("slack").min())
    )
    table = (
        known.join(on_path, on=["rank", "what", "name"], how="full", coalesce=True, nulls_equal=True)
        .with_columns(pl.col("path_ns", "path_count", "total_ns").fill_null(0))
        .with_columns(path_share=pl.col("path_ns") / pace.total if pace.total else pl.lit(0.0))
        .sort("path_ns", "total_ns", "name", "rank", descending=[True, True, False, False])
    )
    return table.with_columns(of=pl.lit(graph.of)).select(
        pl.col(column).cast(dtype) for column, dtype in SCHEMA.items()
    )
