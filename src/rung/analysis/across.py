"""Where the time of a step goes over many ranks: the mean, and the ranks that stand out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from rung.analysis.breakdown import largest_part
from rung.records.analyze import Across, Breakdown, OfRank, Shared, Spread

MOST_NAMED = 8  # ranks in a note


def across(parts: Iterable[OfRank]) -> Across | None:
    """The breakdowns of `overview`'s parts in one; None where no rank has any. Parts and kernels with most time come first."""
    sums = Sums()
    for part in parts:
        sums.add(part)
    return sums.across()


@dataclass
class Sums:
    """Breakdowns of ranks, taken in one after the other. of: by their clock."""

    of: dict[str, _OfClock] = field(default_factory=dict)
    ranks: list[tuple[int | None, str]] = field(default_factory=list)  # each with its clock, "" without a breakdown

    def add(self, part: OfRank, times: float = 1.0) -> None:
        """times: what the figures of a step are multiplied by."""
        record = part.breakdown
        self.ranks.append((part.rank, record.clock if record else ""))
        if record:
            self.of.setdefault(record.clock, _OfClock()).add(part.rank, record, times)

    def across(self, steps: float = 1.0) -> Across | None:
        """steps: what the sums are divided by."""
        clock = "gpu" if "gpu" in self.of else next(iter(self.of), "")
        if not clock:
            return None
        found = self.of[clock]
        notes = [f"Rank {found.first}: {note}" for note in found.notes]
        others = [str(rank) for rank, own in self.ranks if own != clock]
        if others:
            some = ", ".join(others[:MOST_NAMED]) + (", ..." if len(others) > MOST_NAMED else "")
            notes.append(f"Rank {some} has no GPU events; the figures are of the other ranks.")
        number = found.ranks * steps
        rows = [
            Spread(
                part=name, mean_ns=spread.sum / number, least_ns=spread.least[0] / steps, least_rank=spread.least[1],
                most_ns=spread.most[0] / steps, most_rank=spread.most[1],
            )
            for name, spread in found.parts.items()
        ]  # fmt: skip
        step_ns = found.step_ns / number
        first, share = largest_part({row.part: row.mean_ns for row in rows}, step_ns)
        top = [
            Shared(
                name=name,
                category=category,
                ranks=int(ranks),
                mean_ns=ns / ranks / steps,
                mean_count=count / ranks / steps,
            )
            for (name, category), (ranks, ns, count) in found.top.items()
        ]
        return Across(
            ranks=found.ranks,
            clock=clock,
            step_ns=step_ns,
            parts=sorted(rows, key=lambda row: -row.mean_ns),
            bottleneck=first,
            share=share,
            kernels=found.kernels / number,
            launches=found.launches / number,
            gemms=found.gemms / number,
            notes=notes,
            top=sorted(top, key=lambda row: -row.mean_ns * row.ranks),
        )


@dataclass
class _Extent:
    """A part's time over the ranks. least, most: with their ranks."""

    sum: float
    least: tuple[float, int | None]
    most: tuple[float, int | None]


@dataclass
class _OfClock:
    """Sums over the ranks whose times are of one clock. top: ranks, ns and count by name and category."""

    ranks: int = 0
    first: int | None = None
    notes: list[str] = field(default_factory=list)
    step_ns: float = 0.0
    kernels: float = 0.0
    launches: float = 0.0
    gemms: float = 0.0
    parts: dict[str, _Extent] = field(default_factory=dict)
    top: dict[tuple[str, str], tuple[float, float, float]] = field(default_factory=dict)

    def add(self, rank: int | None, record: Breakdown, times: float) -> None:
        if not self.ranks:
            self.first, self.notes = rank, list(record.notes or ())
        self.ranks += 1
        self.step_ns += (record.step_ns or 0.0) * times
        self.kernels += (record.kernels or 0.0) * times
        self.launches += (record.launches or 0.0) * times
        self.gemms += (record.gemms or 0.0) * times
        for name, ns in record.parts.items():
            ns *= times
            part = self.parts.setdefault(name, _Extent(0.0, (ns, rank), (ns, rank)))
            part.sum += ns
            part.least = (ns, rank) if ns < part.least[0] else part.least
            part.most = (ns, rank) if ns > part.most[0] else part.most
        for name, category, ns, count in record.top or ():
            ranks, sum_ns, counts = self.top.get((name, category), (0.0, 0.0, 0.0))
            self.top[name, category] = ranks + 1, sum_ns + ns * times, counts + count * times
