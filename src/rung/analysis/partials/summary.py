"""Who of a run is there, and what its files say in sums: a few values of each partial."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from rung.analysis.across import Sums
from rung.analysis.partials.table import Facts, facts_in
from rung.analysis.per_step import OF_WHOLE, divisor_of, some_of
from rung.errors import InputError
from rung.records.analyze import Counted, OfRank, Overview
from rung.trace.ranks import Stated, ranks_of, renumbered
from rung.trace.repeats import REASON

MOST_PARTS = 64  # ranks of which the overview has the figures: those whose GPUs are idle most and least
MOST_NOTES = 20
MOST_NAMED = 8  # files in a note


class Part(NamedTuple):
    """A partial. rank: of what in it does not say its own; ranks: all; steps: how many the figures in it are divided by."""

    path: Path
    rank: int
    ranks: list[int]
    steps: int


class _File(NamedTuple):
    name: str
    path: Path
    stated: Stated
    ranks: list[int]
    recorded: int

    @property
    def steps(self) -> int:
        """How many the figures in it are divided by."""
        return max(1, self.recorded)


@dataclass
class Summary:
    """Partials, taken in one after the other. unreadable: each file with the reason; repeated: copies of others."""

    files: list[_File] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)
    repeated: list[str] = field(default_factory=list)
    sums: Counter[str] = field(default_factory=Counter)
    unread: Counter[str] = field(default_factory=Counter)
    completeness: dict[tuple[str, bool], Counted] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    gpus: dict[str, None] = field(default_factory=dict)
    world_size: int = 0
    recorded: set[int] = field(default_factory=set)
    clocks: dict[int, tuple[int, int]] = field(default_factory=dict)
    _contents: set[tuple[int | None, int, int, int]] = field(default_factory=set)

    def add(self, path: Path) -> None:
        """A file that is no partial, or that of a trace which could not be read, is named."""
        try:
            facts = facts_in(path)
        except InputError as error:
            self.unreadable[path.name] = str(error)
            return
        content = (facts.stated.rank, facts.events, facts.ts_sum, facts.dur_sum)
        if facts.problem:
            self.unreadable[facts.file] = facts.problem
        elif facts.stated.rank is not None and content in self._contents:
            self.repeated.append(facts.file)
            self.unread[REASON] += 1
        else:
            self._contents.add(content)
            self._take(path, facts)

    def _take(self, path: Path, facts: Facts) -> None:
        self.clocks.update(facts.clocks)
        self.files.append(_File(facts.file, path, facts.stated, facts.ranks, facts.steps))
        for name in ("events", "counters", "calls", "before_ns", "gpu_ns"):
            self.sums[name] += getattr(facts, name)
        self.sums["steps"] = max(self.sums["steps"], facts.steps)
        self.unread.update(facts.unread)
        for row in facts.completeness:
            known = self.completeness.setdefault((row.what, row.in_table), row)
            if known is not row:
                known.events += row.events
                known.time_ns = known.time_ns if row.time_ns is None else (known.time_ns or 0) + row.time_ns
        self.notes += [note for note in facts.notes if note not in self.notes][: MOST_NOTES - len(self.notes)]
        self.gpus |= dict.fromkeys(facts.gpus)
        self.world_size = max(self.world_size, facts.world_size)

    def parts(self) -> list[Part]:
        """The partials by rank. To be called once, when all are there."""
        files = sorted(self.files, key=lambda file: file.name)
        ranks = ranks_of([file.stated for file in files], [file.name for file in files])
        found = []
        for file, rank in zip(files, ranks, strict=True):
            own = file.ranks if file.stated.rank in (None, rank) and file.ranks else [rank]
            self.recorded.update(own)
            if file.stated.rank not in (None, rank):
                self.unread[renumbered(file.stated.rank, rank)] += 1
            found.append(Part(file.path, rank, own, file.steps))
        return sorted(found, key=lambda part: part.rank)

    def counted(self) -> list[Counted]:
        """The rows of `completeness`."""
        named = {what for what, in_table in self.completeness if not in_table}
        more = [
            Counted(what=why, in_table=False, events=number, time_ns=None)
            for why, number in sorted(self.unread.items())
            if why not in named
        ]
        return [*more, *self.completeness.values()]

    def divisor(self) -> tuple[int, str]:
        """As `per_step.divisor`, each file being that of a process."""
        marking = sorted((file for file in self.files if file.recorded), key=lambda file: file.name)
        lacking = [
            f"{file.name} recorded {file.recorded} of {self.sums['steps']} steps"
            for file in marking
            if file.recorded < self.sums["steps"]
        ]
        if lacking:
            return 1, f"{some_of(lacking)}: {OF_WHOLE}"
        return divisor_of(self.sums["steps"], self.sums["before_ns"], self.sums["gpu_ns"])

    def overview(self, parts: Sequence[Part], source: str, steps: int) -> Overview:
        """Without findings and headlines. steps: by how many figures are divided."""
        across, shown = Sums(), _Extremes()
        for part in parts:
            for own in facts_in(part.path).parts:
                own.rank = part.rank if own.rank is None else own.rank
                for busy in own.timeline:
                    busy.rank = own.rank
                across.add(own, part.steps)
                shown.add(_times(own, part.steps / steps))
        return Overview(
            source=source,
            steps=steps,
            format="+".join(dict.fromkeys(file.stated.format for file in self.files)),
            events=self.sums["events"],
            counters=self.sums["counters"],
            ranks=len(self.recorded),
            unread=dict(self.unread),
            completeness=self.counted(),
            notes=[*self.notes, *self._left_out()],
            gpus=list(self.gpus),
            peaks=None,
            parts=shown.parts(),
            across=across.across(steps) if len(self.recorded) > 1 else None,
            merged=True,
        )

    def _left_out(self) -> list[str]:
        """The files that could not be read, each with its reason, and those that repeat others."""
        names = list(self.unreadable)
        said = [f"left out: {self.unreadable[name]}" for name in names[:MOST_NAMED]]
        if len(names) > MOST_NAMED:
            said.append(f"left out: {len(names) - MOST_NAMED} more files that could not be read")
        if self.repeated:
            some = ", ".join(self.repeated[:MOST_NAMED]) + (", ..." if len(self.repeated) > MOST_NAMED else "")
            said.append(f"left out, as they repeat others: {some}")
        return said


class _Extremes:
    """Of many ranks those whose GPUs are idle most and least."""

    def __init__(self) -> None:
        self._kept: list[OfRank] = []

    def add(self, part: OfRank) -> None:
        self._kept.append(part)
        if len(self._kept) >= 4 * MOST_PARTS:
            self._kept = self.parts()

    def parts(self) -> list[OfRank]:
        """By rank."""
        found = self._kept
        if len(found) > MOST_PARTS:
            ordered = sorted(found, key=_idle)
            found = ordered[: MOST_PARTS // 2] + ordered[-MOST_PARTS // 2 :]
        return sorted(found, key=lambda part: -1 if part.rank is None else part.rank)


def _idle(part: OfRank) -> float:
    return sum(row.idle_ns for row in part.timeline) / max(1, sum(row.total_ns for row in part.timeline))


def _times(part: OfRank, times: float) -> OfRank:
    """With other figures of a step, as they are divided by another number of steps."""
    record = part.breakdown
    if record is None or times == 1:
        return part
    for name in ("step_ns", "kernels", "launches", "gemms"):
        setattr(record, name, (getattr(record, name) or 0.0) * times)
    record.parts = {name: ns * times for name, ns in record.parts.items()}
    record.top = [(name, category, ns * times, count * times) for name, category, ns, count in record.top or ()]
    record.steps = round((record.steps or 1) / times)
    return part
