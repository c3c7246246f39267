"""Which captured launch each replayed kernel is of: the kernels of a replay against those of the captures, in order.

A replay of a graph has one launch, so its kernels have no operator of their own. A capture trace (trace/captured.py) has
the launches that went into the graph, with their operators. The kernels of a replay are compared with those of each
capture, by name and order, and no more is taken than follows from that:

- all are the same: each replayed kernel is of that captured launch;
- the same kernels in another order, as where a graph has branches: those whose captured launches all have the same
  operator with the same inputs;
- as many kernels, nearly all of them the same: these. The others stay without an operator.

Several captures may fit. Where they agree in operators and inputs, the replay has these. Where they do not, it has those of
the one whose annotation names the batch size of the step, else none.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import polars as pl

from rung.analysis.calls import captured_calls, host_calls
from rung.analysis.gpu_events import RUNTIME_COPY, launched
from rung.analysis.intervals import Ints
from rung.analysis.kernel_names import readable
from rung.analysis.nesting import nearest
from rung.analysis.once import once
from rung.errors import InputError
from rung.trace.captured import COPY, MEMSET, candidates, read_captures
from rung.trace.table import Captured, Trace

NEARLY = 0.9  # of a replay's kernels: what differs in more is another graph
_INPUTS = ("name", "dims", "dtypes", "strides", "concrete")
_RUNTIME_MEMSET = "MEMORY_SET|__amd_rocclr_fillBuffer"
# How many sequences a graph was captured for, and a step is of: as vLLM and SGLang annotate them.
_CAPTURED_SIZE = r"^capture_(\d+)_"
_STEP_SIZE = r"\bbs=(\d+)|^execute_(\d+)_context_0\("
_Names = tuple[str | None, ...]


@dataclass(frozen=True)
class Joined:
    """columns: `op`, `call`, `placed` as in `origins`, one row a GPU event. notes: what was joined, and what was not.

    proven: kernels are joined, and only those of replays that are a captured graph of the same process, kernel by kernel.
    """

    columns: pl.DataFrame
    notes: tuple[str, ...] = ()
    proven: bool = False


@dataclass(frozen=True)
class _Graph:
    """A captured graph: the names of its kernels; calls: positions of the launches' operators in `captured_calls`, -1 for
    none; inputs: what distinguishes these operators; size: how many sequences it is for, "" where that is not said."""

    source: str
    process: tuple[str, str]
    size: str
    names: _Names
    calls: Ints
    inputs: tuple[tuple[str | None, ...] | None, ...]

    def __str__(self) -> str:
        return f"{Path(self.source).name}{f' (batch size {self.size})' if self.size else ''}"


@dataclass(frozen=True)
class _Match:
    """at: for each replayed kernel, which of the graph's launches it is; -1 where that is not certain."""

    graph: _Graph
    at: Ints

    @property
    def inputs(self) -> list[tuple[str | None, ...] | None]:
        return [self.graph.inputs[at] if at >= 0 else None for at in self.at.tolist()]


@dataclass
class _Tally:
    """Replayed kernels by what became of them; the keys are parts of sentences."""

    replayed: int = 0
    joined: Counter[str] = field(default_factory=Counter)
    unplaced: Counter[str] = field(default_factory=Counter)
    ambiguous: Counter[str] = field(default_factory=Counter)
    different: Counter[str] = field(default_factory=Counter)
    unfit: int = 0

    def notes(self, captured: Captured) -> Iterator[str]:
        """Nothing of a trace that replays no graph."""
        if not self.replayed:
            return
        done = sum(self.joined.values())
        if done:
            where = "" if captured.asked else ", a file beside the trace from the same process"
            yield f"{done} of {self.replayed} kernels replayed by graphs have the operators that {_listed(self.joined)} recorded{where}."
        for graphs, kernels in self.unplaced.items():
            yield f"{kernels} of them have a certain operator and inputs, but an uncertain module and line of Python: {graphs} are alike."
        for graphs, kernels in self.ambiguous.items():
            yield f"{kernels} replayed kernels fit {graphs}, whose operators differ, so they get none. Give --capture only the file of the batch size that was replayed."
        for what, kernels in self.different.items():
            yield f"{kernels} replayed kernels get no operator: {what}."
        if self.unfit:
            names = _listed(dict.fromkeys(Path(source).name for source in captured.sources))
            yield f"{self.unfit} replayed kernels fit no graph captured in {names}."
            unnamed = captured.launches["kernel"].null_count()
            if unnamed:
                yield f"{unnamed} of {captured.launches.height} captured launches do not name their kernels (Kineto writes the names only on ROCm)."


@once
def joined(trace: Trace) -> Joined:
    """The operators of GPU events; those of replayed kernels by the capture traces, where there are any."""
    events = launched(trace)
    if trace.captured is None:
        return Joined(events.select("op", call="op", placed=~pl.col("graph")))
    op, replay, placed = (np.full(events.height, value, np.int64) for value in (-1, 0, 0))
    own, graphs, tally = host_calls(trace).height, _graphs(trace, trace.captured), _Tally()
    sure = unsure = False
    for (names, size, process), replays in _replays(trace, events).items():
        tally.replayed += len(names) * len(replays)
        matches = _matches(names, [graph for graph in graphs if graph.process == process]) or _matches(names, graphs)
        matches = _of_size(matches, size)
        if not matches:
            tally.unfit += len(names) * len(replays)
        elif not _agree(matches):
            tally.ambiguous[_listed([str(match.graph) for match in matches])] += len(names) * len(replays)
            matches, unsure = [], True
        turns = len(replays) % max(1, len(matches)) == 0  # each of graphs that are alike is replayed in its turn
        for number, (turn, rows) in enumerate(replays):
            match = matches[number % len(matches)] if matches else None
            if match is None:
                continue
            whole = len(names) == len(match.graph.names) and bool((match.at == np.arange(len(names))).all())
            same = match.graph.process == process and whole
            sure, unsure = sure or same, unsure or not same
            known = np.flatnonzero(match.at >= 0)
            found = match.graph.calls[match.at[known]]
            op[rows[known]] = np.where(found >= 0, found + own, -1)
            replay[rows[known]] = turn
            placed[rows[known]] = in_order = turns and bool((match.at == np.arange(len(names))).all())
            tally.joined[str(match.graph)] += known.size
            if not in_order and len(matches) > 1:
                tally.unplaced[_listed([str(match.graph) for match in matches])] += known.size
            if known.size < len(names):
                tally.different[_difference(names, match)] += len(names) - known.size
    calls = own + captured_calls(trace).height
    columns = events.select(
        op=pl.coalesce(pl.when(pl.Series(op) >= 0).then(pl.Series(op)), "op"),
        placed=~pl.col("graph") | (pl.Series(placed) > 0),
    ).with_columns(call=pl.col("op") + calls * pl.Series(replay))
    return Joined(columns, tuple(tally.notes(trace.captured)), sure and not unsure)


def with_captures(trace: Trace, paths: Sequence[Path], *, max_bytes: int | None = None, cache: bool = True) -> Trace:
    """The trace with these capture traces; where none are given, with those that lie beside it and are its own for certain.

    That is said by the file's name (it has "capture" in it), by process id, clock and order of ids, and by the kernels of
    a replay, each of which must be the captured one. Raises InputError where a given file cannot be read or captured nothing.
    """
    if paths:
        return replace(trace, captured=read_captures(paths, max_bytes=max_bytes, cache=cache))
    found = []
    for path in candidates(trace):
        try:
            captured = read_captures([path], max_bytes=max_bytes, cache=cache)
        except InputError:
            continue  # not asked for: what is wrong with it is of no interest
        if all(_before(trace, captured)):
            found.append(path)
    if not found:
        return trace
    joint = replace(trace, captured=replace(read_captures(found, max_bytes=max_bytes, cache=cache), asked=False))
    return joint if joined(joint).proven else trace


def _before(trace: Trace, captured: Captured) -> Iterator[bool]:
    """Whether all of the captures are of one process with the launches of the trace's graphs, and came before them: ids count up."""
    calls = host_calls(trace)
    launches = calls.filter(pl.col("kind") == "runtime", pl.col("name").str.contains("GraphLaunch"))
    clock = str(trace.meta.get("baseTimeNanoseconds", ""))
    yield {(pid, clock) for pid in launches["pid"].unique()} == set(captured.process)
    capturing = captured.events[captured.launches["row"]]
    for column in ("ts", "correlation"):
        yield bool(capturing[column].max() < launches[column].min())  # type: ignore[operator]


def _graphs(trace: Trace, captured: Captured) -> list[_Graph]:
    calls = captured_calls(trace)
    position = np.searchsorted(calls["row"].to_numpy(), captured.launches["row"].to_numpy())
    found, op = captured.launches["graph"].to_numpy(), calls["op"].to_numpy()[position]
    labelled = ((calls["kind"] == "annotation") & calls["name"].str.contains(_CAPTURED_SIZE)).to_numpy()
    around, sizes = nearest(calls["caller"].to_numpy(), labelled), calls["name"].str.extract(_CAPTURED_SIZE)
    inputs, names = calls.select(_INPUTS), captured.launches["kernel"].to_list()
    graphs = []
    for number, source in enumerate(captured.sources):
        mine = np.flatnonzero(found == number)
        label = around[position[mine[0]]]
        rows = inputs[np.maximum(op[mine], 0)].rows()
        graphs.append(
            _Graph(
                source, captured.process[number], str(sizes[int(label)]) if label >= 0 else "",
                tuple(names[at] for at in mine.tolist()), op[mine],
                tuple(row if at >= 0 else None for row, at in zip(rows, op[mine].tolist(), strict=True)),
            )
        )  # fmt: skip
    return graphs


def _replays(trace: Trace, events: pl.DataFrame) -> dict[tuple[_Names, str, tuple[str, str]], list[tuple[int, Ints]]]:
    """The launches of graphs by (the names of their kernels in order, the step's size, the process): of each launch its
    number, from 1, and the rows of its kernels in `events`."""
    name = pl.col("name")
    copies = (pl.col("kind") == "memcpy") | name.str.contains(RUNTIME_COPY)
    fills = (pl.col("kind") == "memset") | name.str.contains(_RUNTIME_MEMSET)
    replayed = (
        events.with_row_index("at")
        .filter("graph")
        .sort("launch", "ts", maintain_order=True)
        .with_columns(name=pl.when(copies).then(pl.lit(COPY)).when(fills).then(pl.lit(MEMSET)).otherwise("name"))
        .group_by("launch", maintain_order=True)
        .agg("at", "name")
    )
    calls = host_calls(trace)
    sized = ((calls["kind"] == "annotation") & calls["name"].str.contains(_STEP_SIZE)).to_numpy()
    around = nearest(calls["caller"].to_numpy(), sized)
    clock = str(trace.meta.get("baseTimeNanoseconds", ""))
    found: dict[tuple[_Names, str, tuple[str, str]], list[tuple[int, Ints]]] = defaultdict(list)
    for turn, (launch, rows, names) in enumerate(replayed.iter_rows(), 1):
        step = re.search(_STEP_SIZE, calls["name"][int(around[launch])]) if around[launch] >= 0 else None
        size = next(filter(None, step.groups())) if step else ""
        found[tuple(names), size, (calls["pid"][launch], clock)].append((turn, np.array(rows, np.int64)))
    return found


def _matches(names: _Names, graphs: Sequence[_Graph]) -> list[_Match]:
    """The graphs that these kernels can be a replay of: all that are the same, else those of which most is certain."""
    exact = [_Match(graph, np.arange(len(names))) for graph in graphs if graph.names == names]
    if exact:
        return exact
    close = [match for graph in graphs if (match := _close(names, graph)) is not None]
    most = max((int((match.at >= 0).sum()) for match in close), default=0)
    return [match for match in close if int((match.at >= 0).sum()) == most]


def _close(names: _Names, graph: _Graph) -> _Match | None:
    missing = len(graph.names) - len(names)
    if missing:
        # Profilers lose records at the ends of a replay, too: what is left must be one stretch of the graph, and no other one.
        starts = [at for at in sorted({0, missing}) if at >= 0 and names == graph.names[at : at + len(names)]]
        few = 0 < missing <= (1 - NEARLY) * len(graph.names)
        return _Match(graph, np.arange(len(names)) + starts[0]) if few and len(starts) == 1 else None
    if Counter(names) == Counter(graph.names):
        return _Match(graph, _reordered(names, graph))
    same = np.array([a == b for a, b in zip(names, graph.names, strict=True)])
    return _Match(graph, np.where(same, np.arange(len(names)), -1)) if same.mean() >= NEARLY else None


def _reordered(names: _Names, graph: _Graph) -> Ints:
    """Of the same kernels in another order: each with a launch of its name, where all of that name are alike."""
    places: dict[str | None, list[int]] = defaultdict(list)
    for place, name in enumerate(graph.names):
        places[name].append(place)
    alike = {name for name, of in places.items() if len({graph.inputs[place] for place in of}) == 1}
    waiting = {name: iter(of) for name, of in places.items()}
    return np.array([next(waiting[name]) if name in alike else -1 for name in names], np.int64)


def _of_size(matches: list[_Match], size: str) -> list[_Match]:
    """Of matches that disagree those of the step's size, where there are any."""
    if len(matches) < 2 or _agree(matches):
        return matches
    return [match for match in matches if size and match.graph.size == size] or matches


def _agree(matches: list[_Match]) -> bool:
    return all(match.inputs == matches[0].inputs for match in matches[1:])


def _difference(names: _Names, match: _Match) -> str:
    """What keeps a kernel of a replay from being joined, of the first of them."""
    first = int(np.flatnonzero(match.at < 0)[0])
    if Counter(names) == Counter(match.graph.names):
        return f"the kernels of {match.graph} ran in another order, and several of one name have different inputs"
    was, captured = (readable(str(of[first]))[:70] for of in (names, match.graph.names))
    return f"{match.graph} captured other kernels (kernel {first + 1} is {was}, but {captured} was captured)"


def _listed(names: Sequence[str] | Counter[str] | dict[str, None]) -> str:
    """ "a, b and c", of many the first three"""
    distinct = list(dict.fromkeys(names))
    shown = distinct[:3] + ([f"{len(distinct) - 3} more"] if len(distinct) > 3 else [])
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)
